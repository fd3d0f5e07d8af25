package shard

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A key of before a longer half-life is deleted while its visit is overdue: its next visit is no later for that, and
// a snapshot restores.
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
	now += 10 * second // all 200 would have been over after 4 s; 18 visits an entry
	apply(&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: keys[150:151]}}})
	if _, err := Restore(1, Heap{}, bytes.NewReader(snapshot(t, s))); err != nil {
		t.Error(err)
	}
	audit(t, s)
}
