package sketch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// setModel is what a set should hold: the k least hashes of all, each with the least of its names.
type setModel map[uint64]string

func (m setModel) add(hash uint64, member string) {
	if had, there := m[hash]; !there || member < had {
		m[hash] = member
	}
}

// set is a set that had its hashes in order, so that none of them is late.
func (m setModel) set(t *testing.T, k int) *Set {
	t.Helper()
	s, err := NewSet(SetParams{K: k, Members: true})
	if err != nil {
		t.Fatal(err)
	}
	hashes := make([]uint64, 0, len(m))
	for h := range m {
		hashes = append(hashes, h)
	}
	slices.Sort(hashes)
	for _, h := range hashes {
		s.Add(h, []byte(m[h]))
	}
	return &s
}

// What comes to a large set in any order, more than once, and by other names, makes the set that it makes in order; and
// nothing that is said of a set depends on what of it is late.
func TestLateHashesMakeNoDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, k := range []int{setLateFrom + 100, 5000, 20_000} {
		s, err := NewSet(SetParams{K: k, Members: true})
		if err != nil {
			t.Fatal(err)
		}
		model, late := setModel{}, 0
		for i := range 3 * k {
			h := r.Uint64()
			if i%7 == 0 { // again
				h = uint64(r.IntN(1000)) << 54
			}
			member := fmt.Sprint("m", r.IntN(100))
			s.Add(h, []byte(member))
			model.add(h, member)
			late = max(late, s.late.len())
			if n := len(model); i%(k/4) == 1 {
				sameSets(t, &s, model.set(t, k), fmt.Sprintf("k %d, %d hashes, %d late", k, n, s.late.len()))
			}
		}
		if late < min(setLateMost-1, k-setLateFrom) {
			t.Errorf("k %d: %d late hashes at most", k, late)
		}
		sameSets(t, &s, model.set(t, k), fmt.Sprintf("k %d", k))
	}
}

// sameSets compares all that two sets say. The second has no late hashes.
func sameSets(t *testing.T, s, want *Set, what string) {
	t.Helper()
	if want.late.len() > 0 {
		t.Fatal("the model has late hashes")
	}
	encoded := want.AppendBinary(nil)
	if got := s.AppendBinary(nil); !bytes.Equal(got, encoded) {
		t.Fatalf("%s: another encoding, of %d and %d bytes", what, len(got), len(encoded))
	}
	var back Set
	if rest, err := back.Decode(encoded); err != nil || len(rest) > 0 || back.Held() != s.Held() {
		t.Fatalf("%s: %v, %d bytes held and not %d", what, err, s.Held(), back.Held())
	}
	if s.Len() != want.Len() || s.Estimate() != want.Estimate() || !slices.Equal(s.Members(50), want.Members(50)) {
		t.Fatalf("%s: %d things, about %v, not %d, %v", what, s.Len(), s.Estimate(), want.Len(), want.Estimate())
	}
	sets := []*Set{s, want}
	if o, err := Overlap(sets); err != nil || o.Jaccard.Value != 1 {
		t.Fatalf("%s: %v, %v", what, o, err)
	}
	if o, err := s.Compare(want); err != nil || o.Jaccard.Value != 1 {
		t.Fatalf("%s: %v, %v", what, o, err)
	}
	if g, err := SimilarityGraph(sets, 1); err != nil || len(g[0]) != 1 || g[0][0].Jaccard.Value != 1 {
		t.Fatalf("%s: %v, %v", what, g, err)
	}
	reduced, other := s.Reduced(100), want.Reduced(100)
	if !bytes.Equal(reduced.AppendBinary(nil), other.AppendBinary(nil)) {
		t.Fatalf("%s: reduced it is another", what)
	}
	merged, united := s.Clone(), NewSetUnion(10)
	if err := merged.Merge(s); err != nil || !bytes.Equal(merged.AppendBinary(nil), encoded) {
		t.Fatalf("%s: merged with itself it is another: %v", what, err)
	}
	for _, one := range sets {
		if err := united.Add(one); err != nil {
			t.Fatal(err)
		}
	}
	if u := united.Set(); u.Estimate() != want.Estimate() {
		t.Fatalf("%s: united with itself it has %v", what, u.Estimate())
	}
	n := 0
	s.Sample(s.Len(), func(hash uint64, member string) {
		if hash != want.hashes[n] || member != want.members[n] {
			t.Fatalf("%s: sample %d differs", what, n)
		}
		n++
	})
	if n != want.Len() {
		t.Fatalf("%s: a sample of %d", what, n)
	}
}

// BenchmarkSetFills adds random things to a set until it is full, and twice as many again.
func BenchmarkSetFills(b *testing.B) {
	for _, k := range []int{1024, 4096, SetKMax} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			p := SetParams{K: k, Members: true}
			r, member := rand.New(rand.NewPCG(1, 2)), []byte("a member of a set")
			s, _ := NewSet(p)
			for i := 0; b.Loop(); i++ {
				if i%(3*k) == 0 {
					s, _ = NewSet(p)
				}
				s.Add(r.Uint64(), member)
			}
		})
	}
}
