package shard

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Other goroutines ask views and write them out while Apply runs, and none of them ever sees a change. (The race
// detector is the other half of this test.)
func TestViewsBesideApply(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second})
	limits := DefaultLimits()
	limits.SessionWindow = 8
	s.SetLimits(limits)
	seed := uint64(3)
	now := int64(1_700_000_000 * second)
	session := s.Apply(2, encode(t, now, &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}), nil)[0].Session
	s.Apply(3, encode(t, now, &ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "f", Token: 1}}}), nil)
	var readers sync.WaitGroup
	rounds := 120
	if testing.Short() {
		rounds = 30
	}
	for round := range uint64(rounds) {
		now += 700_000 // summaries die, keys and bins are reused
		c := increments("k", "a", "b", string(make([]byte, 300*(round%2))))
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: round + 1}}
		row := increments("rows", "a", string(make([]byte, 300)))
		for i, in := range row.GetIncrements().Increments {
			in.Offset = 2*round + uint64(i) + 1
		}
		row.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "f", Epoch: 1}}
		key := increments("k", "c")
		key.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: now, Lo: round}}
		define := &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
			Name: []string{"default", "x", "y", "z"}[round%4], Version: round, HalfLifeUs: int64(1+round%2) * second,
		}}}
		s.Apply(s.applied+1, encode(t, now, c, row, key, define), nil)
		s.Apply(s.applied+1, entryOf(now, batchOf(200, 3000, 400, &seed)), nil)

		view, want := s.Freeze(), snapshot(t, s)
		if round%20 == 0 {
			old, before := view, want
			defer func() {
				if !bytes.Equal(snapshot(t, old), before) {
					t.Errorf("round %d: an old view has changed", round)
				}
			}()
			continue
		}
		readers.Add(1)
		go func() {
			defer readers.Done()
			defer view.Release()
			view.Ask(question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k"), []byte("rows")}}), 0)
			var got bytes.Buffer
			if _, err := view.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("round %d: a view has changed (%v)", round, err)
			}
		}()
	}
	readers.Wait()
	audit(t, s)
	if s.Keys() > 2900 || s.bins.names.slots > 401+3 {
		t.Errorf("%d keys, %d slots of bins: nothing was reused", s.Keys(), s.bins.names.slots)
	}
}

// What is pruned leaves the dictionary, and what grows is pruned on the way.
func TestPruneOnTouch(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, BinsMax: 300})
	now := int64(1_700_000_000 * second)
	seed := uint64(5)
	for range 300 {
		now += second
		r := s.Apply(s.applied+1, entryOf(now, batchOf(20, 1, 100_000, &seed)), nil)[0]
		if r.Applied != 20 {
			t.Fatal(r)
		}
		audit(t, s)
		if n := s.bins.names.live; n > 501 {
			t.Fatalf("%d bins are kept, of which some 200 have not faded", n)
		}
	}
}

// What dies at one time leaves some with each entry, and entries that bring
// more take more away. The order in which a distribution stores its bins, which
// a restart changes, does not show in what is left.
func TestDeathsAreBounded(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second})
	now := int64(1_700_000_000 * second)
	for i := range 1000 {
		bins := []string{"a", "b", "c", fmt.Sprint(i), fmt.Sprint(-i)}
		if i%2 == 1 {
			slices.Reverse(bins)
		}
		s.Apply(s.applied+1, encode(t, now, increments(fmt.Sprint("key", i), bins...)), nil)
	}
	restored := reopen(t, s)
	now += 100 * second
	for left := 1000; left > 0; {
		tick := entryOf(now, nil, []byte{0x62, 0})
		s.Apply(s.applied+1, tick, nil)
		restored.Apply(restored.applied+1, tick, nil)
		if n := int(s.Keys()); n >= left || n < left-cleanupsMin-4 {
			t.Fatalf("%d keys became %d", left, n)
		}
		left = int(s.Keys())
		if s.Checksum() != restored.Checksum() {
			t.Fatalf("%d keys are left, and replicas differ", left)
		}
		audit(t, s)
	}
}
