package shard

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Two replicas of one log have equal parts; one that has lost a write of a key differs in the part of that key and in
// no other. An audit itself changes nothing but the index.
func TestPartsOfAnAudit(t *testing.T) {
	const keys, of = 100, 15
	grow := func(lost int) *State {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
		for i := range keys {
			command := increments(fmt.Sprint("key ", i), "b")
			if i%10 == 0 {
				command = edits(bitsOf(fmt.Sprint("bits ", i), setOp, uint64(i), 1<<20))
			}
			applyOne(t, s, command)
			again := increments("first", "b")
			if i == lost {
				again = increments("other", "b")
			}
			applyOne(t, s, again)
		}
		return s
	}
	a, b, other := grow(-1), grow(-1), grow(keys/2)
	differ := 0
	for part := range uint32(of) {
		audit := Audit{Part: part, Of: of}
		if a.PartChecksum(audit) != b.PartChecksum(audit) {
			t.Errorf("part %d of the same differs", part)
		}
		if a.PartChecksum(audit) != other.PartChecksum(audit) {
			differ++
		}
	}
	if differ == 0 {
		t.Error("no part of what differs does")
	}
	seen := map[uint64]bool{}
	for part := range uint32(of) {
		seen[a.PartChecksum(Audit{Part: part, Of: of})] = true
	}
	if len(seen) != of {
		t.Errorf("%d of %d parts are told apart", len(seen), of)
	}

	applyOne(t, a, &ebbv1.Command{Body: &ebbv1.Command_Audit{Audit: &ebbv1.Audit{Part: 3, Of: of}}})
	applyOne(t, b, &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if got, ok := a.Audited(); !ok || got != (Audit{Index: a.Applied(), Part: 3, Of: of}) {
		t.Errorf("asked for %+v", got)
	}
	if _, again := a.Audited(); again || a.Checksum() != b.Checksum() {
		t.Error("an audit is asked for twice, or changes the state")
	}
	applyOne(t, a, &ebbv1.Command{Body: &ebbv1.Command_Audit{Audit: &ebbv1.Audit{Part: 3, Of: of}}})
	applyOne(t, a, &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if got, ok := a.Audited(); ok {
		t.Errorf("%+v is asked for after another entry", got)
	}
	for _, wrong := range []*ebbv1.Audit{{}, {Part: 1, Of: 1}, {Part: 7}, {Part: 1 << 31, Of: 1 << 31}} {
		applyOne(t, a, &ebbv1.Command{Body: &ebbv1.Command_Audit{Audit: wrong}})
		if got, ok := a.Audited(); ok {
			t.Errorf("%v asks for %+v", wrong, got)
		}
	}
}
