package shard

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The top of one key of very many bins says that it is brief, and what it does tell is what every other way to ask
// tells.
func TestBrief(t *testing.T) {
	now := int64(1_700_000_000 * second)
	for _, c := range []struct {
		decay ebbv1.Decay
		floor ebbv1.Floor
		bins  int
		brief bool
	}{
		{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Floor_FLOOR_PRUNE, briefAbove, false},
		{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Floor_FLOOR_PRUNE, briefAbove + 1, true},
		{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Floor_FLOOR_CLAMP, briefAbove + 1, true},
		{ebbv1.Decay_DECAY_LINEAR, ebbv1.Floor_FLOOR_PRUNE, briefAbove + 1, true},
		{ebbv1.Decay_DECAY_NONE, ebbv1.Floor_FLOOR_PRIOR, briefAbove + 1, true},
	} {
		t.Run(fmt.Sprint(c.decay, c.floor, c.bins), func(t *testing.T) {
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 3600 * second, Decay: c.decay, Floor: c.floor, Prior: 0.5}, now)
			bins := []string{"five", "five", "five", "five", "five", "two", "two", "twice", "twice"}
			for i := range c.bins - 3 {
				bins = append(bins, fmt.Sprintf("bin-%05d", i))
			}
			s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{increments("k", bins...)}), nil)
			ask := func(q *ebbv1.DistributionQuestion) *ebbv1.Distribution {
				q.Keys, q.AsOfUs = [][]byte{[]byte("k")}, now+1800*second
				return s.Ask(question("", q), 0).GetAnswer().GetDistribution()
			}
			top := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: 2}}
			got := ask(top)
			want := ask(&ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: [][]byte{[]byte("five"), []byte("twice")}}}})
			if got.Brief != c.brief || want.Brief || want.EntropyBits < 8 || int(want.BinsTotal) != c.bins {
				t.Fatalf("brief %v and %v, of %d bins", got.Brief, want.Brief, want.BinsTotal)
			}
			if c.brief {
				want.Brief, want.Other, want.EntropyBits = true, 0, 0
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("the top tells something else than bins by name: %s", diff)
			}
			merged, err := Merge(question("", top).Question, partsOf([]*State{s}, question("", top), 0))
			if err != nil {
				t.Fatal(err)
			}
			if d := merged.GetDistribution(); d.Brief || len(d.Bins) != 2 || string(d.Bins[1].Bin) != "twice" || d.EntropyBits < 8 {
				t.Errorf("what is added up from parts has been visited: %v", d)
			}
		})
	}
}
