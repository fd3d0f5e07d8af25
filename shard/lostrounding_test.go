package shard

import (
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// What is lost is rounded up once, and once more for each change of settings (docs/kinds.md): by a millionth each time.
func TestLostIsRoundedOnceForEachChange(t *testing.T) {
	f := newClockShard(t, nil)
	f.behave(BehaviourMax)
	f.apply(eventsAt("newer", ebbv1.Kind_KIND_DISTRIBUTION, 399*day))
	f.apply(eventsAt("old", ebbv1.Kind_KIND_DISTRIBUTION, day))
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Distribution{
		Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("old")}},
	}}}
	limit := f.def.GetThreshold() * 8 / 7 * (1 + 1e-6)
	for change := range 20 {
		d := f.s.Ask(q, sketch.Tick(beginning)).GetAnswer().GetDistribution()
		if d.GetLost() <= f.def.GetThreshold() || d.GetLost() > limit {
			t.Fatalf("after %d changes %v is lost: the threshold is %v, the limit %v", change, d.GetLost(), f.def.GetThreshold(), limit)
		}
		f.def.Version++
		f.def.HalfLifeUs += 60e6
		f.define()
		limit *= 1 + 1e-6
	}
}
