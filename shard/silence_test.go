package shard

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// silent is a state with 5,000 keys that fade by a half-life of a year and 5,000 that never fade, in memory that
// counts.
func silent(t *testing.T) (s *State, mem *wiping, now int64) {
	t.Helper()
	mem = &wiping{}
	now = 1_700_000_000 * second
	s = New(1, mem)
	for _, def := range []*ebbv1.Namespace{
		{Name: "default", Version: 1, HalfLifeUs: 365 * 86400 * second},
		{Name: "forever", Version: 1, Decay: ebbv1.Decay_DECAY_NONE},
	} {
		s.Apply(s.applied+1, encode(t, now, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}}), nil)
	}
	for i := range 5000 {
		c := increments(fmt.Sprint("k", i), "a", "b", "c")
		forever := increments(fmt.Sprint("k", i), "a", "d")
		forever.Namespace = "forever"
		s.Apply(s.applied+1, encode(t, now, c, forever), nil)
	}
	return s, mem, now
}

// The first write to a page that a view shares takes it anew. In a year without writes no page is taken anew, whatever
// is asked: nothing decays by itself.
func TestSilentYearTouchesNothing(t *testing.T) {
	s, mem, now := silent(t)
	view := s.Freeze()
	defer view.Release()
	before := mem.pagesTaken()
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("k7"), []byte("k8")}, Select: &ebbv1.DistributionQuestion_Top{Top: 10},
	}}}}
	for day := range int64(365) {
		stamp := now + day*86400*second
		s.Apply(s.applied+1, encode(t, stamp), nil)
		if d := s.Ask(q, s.now).GetAnswer().GetDistribution(); len(d.GetBins()) != 3 {
			t.Fatalf("day %d: %v", day, d)
		}
	}
	if touched := mem.pagesTaken() - before; touched != 0 {
		t.Fatalf("a year of silence touched %d pages", touched)
	}
	audit(t, s)
}

// A write touches what is written. Of all else it touches no more than the cleanups that an entry pays for.
func TestWriteTouchesLittle(t *testing.T) {
	s, mem, now := silent(t)
	view := s.Freeze()
	defer view.Release()
	before := mem.pagesTaken()
	s.Apply(s.applied+1, encode(t, now+second, increments("k7", "a")), nil)
	if touched := mem.pagesTaken() - before; touched != 1 {
		t.Fatalf("one increment touched %d pages: there is the record of its key", touched)
	}
	// When all of them have died at once, they leave a few at a time.
	late := now + 40*365*86400*second
	for range 10 {
		live := s.summaries.keys.live
		s.Apply(s.applied+1, encode(t, late), nil)
		if gone := live - s.summaries.keys.live; gone == 0 || gone > cleanupsMin+2 {
			t.Fatalf("one entry let %d keys go", gone)
		}
	}
	audit(t, s)
}
