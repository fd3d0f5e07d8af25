package shard

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A key of before a longer half-life is deleted while its cleanup is overdue: its next cleanup is no later for that,
// and a snapshot restores.
func TestDeleteOverdue(t *testing.T) {
	now := int64(1_700_000_000 * second)
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, Threshold: 0.5}
	s := definedAt(t, def, now)
	batch := &ebbv1.Increments{}
	var keys [][]byte
	for i := range 200 {
		k := fmt.Appendf(nil, "k%d", i)
		keys = append(keys, k)
		batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: k, Bin: []byte("a"), Amount: new(8.)})
	}
	index := uint64(1)
	apply := func(c ...*ebbv1.Command) {
		index++
		for _, r := range s.Apply(index, encodeEntry(t, now, c), nil) {
			if r.Error != nil {
				t.Fatal(r)
			}
		}
	}
	apply(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}})
	now += second
	apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 2, HalfLifeUs: 3600 * second, Threshold: 0.5}}})
	now += 10 * second // all 200 would have been over after 4 s; 18 cleanups an entry
	apply(&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: keys[150:151]}}})
	if _, err := Restore(1, Heap{}, bytes.NewReader(snapshot(t, s))); err != nil {
		t.Error(err)
	}
	audit(t, s)
}

// Bitmaps of a namespace that lives by events, and has had none, are deleted like any other keys, and given a time to
// live.
func TestKeysBeforeTheFirstEventLeave(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT}, beginning)
	applyOne(t, s, edits(bitsOf("deleted", setOp, 1, 2), bitsOf("dying", setOp, 3)))
	expire := &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("dying")}, Until: &ebbv1.ExpireKeys_TtlUs{}}
	for _, c := range []*ebbv1.Command{
		{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("deleted")}}}}, {Body: &ebbv1.Command_Expire{Expire: expire}},
	} {
		if r := applyOne(t, s, c); r.Applied != 1 {
			t.Fatal(r)
		}
		audit(t, s)
	}
	if _, there := s.findKey(s.lookup(nil), []byte("deleted")); there {
		t.Error("a key is not deleted")
	}
	first := increments("first", "b")
	first.GetIncrements().Increments[0].TimeUs = beginning
	applyOne(t, s, first)
	if _, there := s.findKey(s.lookup(nil), []byte("dying")); there || s.Keys() != 1 {
		t.Error("a key outlives its time")
	}
	reopen(t, s)
}
