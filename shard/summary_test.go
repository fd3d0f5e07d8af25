package shard

import (
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Where amounts may be negative, a write can bring death nearer, also a
// positive one to a count below zero. The bins of what died in between are
// let go of all the same, also after negative amounts have been ruled out.
func TestDeathComesNearer(t *testing.T) {
	for name, amounts := range map[string][2]float64{
		"less":         {1e6, 0.5 - 1e6},
		"up to zero":   {-1e6, 1e6},
		"exactly zero": {1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000 * second)
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, AllowNegative: new(true)}, now)
			apply := func(c *ebbv1.Command) {
				s.Apply(s.applied+1, encode(t, now, c), nil)
				audit(t, s)
			}
			for _, amount := range amounts {
				c := increments("k", "a")
				c.GetIncrements().Increments[0].Amount = &amount
				apply(c)
			}
			apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
				Name: "default", Version: 2, HalfLifeUs: second, AllowNegative: new(false),
			}}})
			now += 12 * second
			apply(increments("k", "b"))
			if s.bins.names.live != 1 {
				t.Fatalf("%d bins are kept", s.bins.names.live)
			}
		})
	}
}

// A full summary is searched for faded bins, but not for each increment that
// finds it full.
func TestRoomIsMadeSeldom(t *testing.T) {
	now := int64(1_700_000_000 * second)
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 16 * second, BinsMax: 1000}, now)
	seed := uint64(11)
	for s.summaries.keys.slots == 0 || s.summaries.record(0).bins() < 1000 {
		s.Apply(s.applied+1, entryOf(now, batchOf(100, 1, 1_000_000, &seed)), nil)
	}
	refused := func() int {
		return len(s.Apply(s.applied+1, entryOf(now, batchOf(100, 1, 1_000_000, &seed)), nil)[0].Refused)
	}
	now += 2 * second
	if n := refused(); n < 90 {
		t.Fatalf("%d were refused", n)
	}
	looked := s.summary(0).pruned
	now += second / 2
	if n := refused(); n < 90 || s.summary(0).pruned != looked {
		t.Fatalf("%d were refused, looked at %d and %d", n, looked, s.summary(0).pruned)
	}
	now += second
	if n := refused(); n < 90 || s.summary(0).pruned == looked {
		t.Fatalf("%d were refused, not looked again", n)
	}
	now += 170 * second // the first thousand has faded
	if n := refused(); n != 0 {
		t.Fatalf("%d were refused", n)
	}
}
