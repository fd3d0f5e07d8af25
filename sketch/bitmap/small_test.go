package bitmap

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// ids is the oracle of whole bitmaps.
type ids map[uint64]bool

func (o ids) sorted() []uint64 { return slices.Sorted(maps.Keys(o)) }

func (o ids) edit(op Op, ids ...uint64) (changed int) {
	for _, id := range ids {
		to := op == Set || op == Flip && !o[id]
		if o[id] != to {
			changed++
		}
		if to {
			o[id] = true
		} else {
			delete(o, id)
		}
	}
	return changed
}

func (o ids) check(t testing.TB, s Small) {
	t.Helper()
	if err := ValidateSmall(s); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	s.Each(0, func(id uint64) bool { got = append(got, id); return true })
	if want := o.sorted(); !slices.Equal(got, want) {
		t.Fatalf("%d ids, want %d", len(got), len(want))
	}
}

// wheres are what ids of small bitmaps look like.
var wheres = []struct {
	name string
	draw func(r *rand.Rand) uint64
}{
	{"below 2^32", func(r *rand.Rand) uint64 { return uint64(r.Uint32()) }},
	{"one after the other", func(r *rand.Rand) uint64 { return uint64(r.IntN(3000)) }},
	{"some wide", func(r *rand.Rand) uint64 { return r.Uint64() >> (28 + r.IntN(5)) }},
	{"rarely wide", func(r *rand.Rand) uint64 {
		if r.IntN(40) == 0 {
			return math.MaxUint64 - uint64(r.IntN(2))
		}
		return uint64(r.IntN(1 << 20))
	}},
	{"anywhere", func(r *rand.Rand) uint64 { return r.Uint64() }},
}

func drawIDs(r *rand.Rand, draw func(r *rand.Rand) uint64, n int) []uint64 {
	o := ids{}
	for range n {
		o[draw(r)] = true
	}
	return o.sorted()
}

// TestSmall: edits of small bitmaps do what they do to the oracle, in place and elsewhere, and all questions are
// answered as the sorted ids say.
func TestSmall(t *testing.T) {
	for i, w := range wheres {
		t.Run(w.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(2, uint64(i)))
			o := ids{}
			var s, place Small
			dst := make([]uint64, SmallWords)
			for step := range rounds(600) {
				op := Set + Op(r.IntN(3))
				batch := drawIDs(r, w.draw, []int{1, 1, 2, 40, 200}[r.IntN(5)])
				if all := o.sorted(); r.IntN(3) == 0 && len(all) > 0 {
					op, batch = Clear, all[r.IntN(len(all)):][:1]
				}
				out, changed, ok := EditSmall(poison(dst), s, op, batch)
				after := maps.Clone(o)
				want := after.edit(op, batch...)
				if !ok {
					if n := len(after); n <= SmallWords {
						t.Fatalf("%d ids do not go in", n)
					}
					continue
				}
				if o = after; changed != want {
					t.Fatalf("step %d: %s of %d ids changed %d, want %d", step, op, len(batch), changed, want)
				}
				out.Words = slices.Clone(out.Words)
				s = out
				o.check(t, s)

				block := place.Words[:cap(place.Words)]
				did, moved, ok := EditSmallInPlace(poison(dst), &place, op, batch)
				if !ok || did != changed {
					t.Fatalf("step %d: in place %d changed, %v", step, did, ok)
				}
				if moved {
					block = make([]uint64, len(place.Words)+step%3)
					copy(block, place.Words)
				}
				if place = ViewSmall(place.Wide, place.Count, block); place.Wide != s.Wide || !slices.Equal(place.Words, s.Words) {
					t.Fatalf("step %d: in place %d ids, elsewhere %d", step, place.Count, s.Count)
				}
			}
			readSmall(t, o, s, w.draw, r)
		})
	}
}

func readSmall(t *testing.T, o ids, s Small, draw func(r *rand.Rand) uint64, r *rand.Rand) {
	all := o.sorted()
	for i, id := range all {
		if got, ok := s.Select(uint64(i)); !ok || got != id || !s.Contains(id) || s.Rank(id) != i {
			t.Fatalf("id %d is %d, want %d, of rank %d", i, got, id, s.Rank(id))
		}
	}
	if _, ok := s.Select(uint64(len(all))); ok {
		t.Error("an id behind the last one")
	}
	for range 1000 {
		lo, hi := draw(r), draw(r)
		below, _ := slices.BinarySearch(all, lo)
		upTo, in := slices.BinarySearch(all, hi)
		if in {
			upTo++
		}
		if got := s.CountRange(lo, hi); got != max(0, upTo-below) {
			t.Fatalf("%d from %d to %d, want %d", got, lo, hi, upTo-below)
		}
		if s.Contains(lo) != o[lo] {
			t.Fatalf("contains %d: %v", lo, s.Contains(lo))
		}
	}
	if got := s.CountRange(0, math.MaxUint64); got != len(all) {
		t.Errorf("%d of %d in all", got, len(all))
	}

	// its containers are what it is made of, and what it is made of again
	dst := make([]uint64, s.SmallScratch())
	var got []uint64
	var list []entry
	s.Containers(dst, func(slice uint64, c Container) bool {
		if err := Validate(c); err != nil {
			t.Fatal(err)
		}
		c.Each(0, func(low uint16) bool { got = append(got, slice<<16|uint64(low)); return true })
		if one := s.Container(make([]uint64, s.SmallScratch()), slice); one.Form != c.Form || !slices.Equal(one.Words, c.Words) {
			t.Fatalf("slice %d alone is %s of %d", slice, one.Form, one.Count)
		}
		list = append(list, entry{slice, own(c, 0)})
		return true
	})
	if !slices.Equal(got, all) || len(list) != s.Slices() {
		t.Errorf("%d ids in %d containers", len(got), len(list))
	}
	at := 0
	back, ok := FromContainers(make([]uint64, SmallWords), func() (uint64, Container, bool) {
		if at == len(list) {
			return 0, Container{}, false
		}
		at++
		return list[at-1].slice, list[at-1].c, true
	})
	if ok != (len(all) <= SmallWords) || ok && (back.Wide != s.Wide || !slices.Equal(back.Words, s.Words)) {
		t.Errorf("back from containers %d ids, %v", back.Count, ok)
	}
}

type entry struct {
	slice uint64
	c     Container
}

// TestSmallLeaves: ids that are near each other leave as soon as they are many, scattered ones when the block is full.
func TestSmallLeaves(t *testing.T) {
	for _, c := range []struct {
		apart uint64 // distance of ids
		at    uint32 // ids when they leave
	}{{1, 64}, {1 << 10, 64}, {1 << 12, 64}, {5200, 256}, {5500, 2047}, {1 << 16, 2047}, {1 << 20, 2047}, {1 << 32, 1024}} {
		var s Small
		dst := make([]uint64, SmallWords)
		for id := uint64(1); ; id++ {
			was := s.Count
			next, _, ok := EditSmall(dst, s, Set, []uint64{id * c.apart})
			if !ok {
				t.Fatalf("%d apart: full at %d", c.apart, was)
			}
			if s = next; s.Leaves(was) {
				break
			}
			s.Words = slices.Clone(s.Words)
		}
		if s.Count != c.at {
			t.Errorf("%d apart: leaves at %d, want %d", c.apart, s.Count, c.at)
		}
	}
}

func TestValidateSmall(t *testing.T) {
	for _, c := range []struct {
		s    Small
		says string
	}{
		{Small{}, ""},
		{Small{Count: 3, Words: []uint64{7<<32 | 5, 9}}, ""},
		{Small{Wide: true, Count: 2, Words: []uint64{7, 1 << 32}}, ""},
		{Small{Count: 3, Words: []uint64{7<<32 | 5}}, "3 ids in 1 words"},
		{Small{Count: 1 << 31, Words: []uint64{7}}, "2147483648 ids"},
		{Small{Count: 2050, Words: make([]uint64, 1025)}, "2050 ids in 1025 words"},
		{Small{Count: 2, Words: []uint64{5<<32 | 5}}, "id 5 behind 5"},
		{Small{Count: 1, Words: []uint64{5<<32 | 4}}, "behind the last"},
		{Small{Wide: true, Count: 1, Words: []uint64{5}}, "without a wide id"},
		{Small{Wide: true}, "without a wide id"},
	} {
		err := ValidateSmall(c.s)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}
