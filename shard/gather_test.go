package shard

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A state that was restored with many free slots behind its last key moves blocks together like any other, and has the
// same snapshot afterwards.
func TestGatherBehindTheLastKey(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	const keys = 64
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprint("bin ", i)
	}
	apply := func(s *State, commands ...*ebbv1.Command) {
		t.Helper()
		s.Apply(s.applied+1, encodeEntry(t, beginning, commands), nil)
		audit(t, s)
	}
	var names [][]byte
	for k := range 4 * keys {
		name := fmt.Sprint("key ", k)
		apply(s, increments(name, many...))
		if k >= keys {
			names = append(names, []byte(name))
		}
	}
	apply(s, &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: names}}})
	for s.Keys() > keys {
		apply(s, &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	}
	again := reopen(t, s)
	audit(t, again)
	again.gathered = 1 // in the middle of a round
	for range 10 {
		c := increments("key 0", many...)
		apply(s, c)
		apply(again, c)
	}
	if s.Checksum() != again.Checksum() {
		t.Fatal("a restored state went another way")
	}
}
