package bitmap

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"
)

// shelf is a directory in memory.
type shelf []entry

func (s shelf) Len() int                  { return len(s) }
func (s shelf) Slice(i int) uint64        { return s[i].slice }
func (s shelf) Lows(i int) int            { return int(s[i].c.Count) }
func (s shelf) Container(i int) Container { return s[i].c }

// shelve makes containers of ids.
func (o ids) shelve() shelf {
	var out shelf
	var lows []uint16
	dst := make([]uint64, ScratchWords)
	all := o.sorted()
	for i, id := range all {
		lows = append(lows, uint16(id))
		if i+1 == len(all) || all[i+1]>>16 != id>>16 {
			c, _ := Edit(dst, Container{}, Set, lows)
			out = append(out, entry{id >> 16, own(c, 0)})
			lows = lows[:0]
		}
	}
	return out
}

// drawWhole is a random bitmap over slices around 0 and around the highest, some of them dense, some with one id.
func drawWhole(r *rand.Rand, most int) ids {
	o := ids{}
	for range r.IntN(most + 1) {
		slice := uint64(r.IntN(2 * most))
		if r.IntN(3) == 0 {
			slice = SliceMax - slice
		}
		n := []int{1, 5, 100, 3000}[r.IntN(4)]
		for range n {
			o[slice<<16|uint64(r.IntN(4*n))] = true
		}
		if r.IntN(5) == 0 {
			o[slice<<16|(SliceLen-1)] = true
		}
	}
	return o
}

// idsOf are the ids of a directory.
func idsOf(d Directory) (out []uint64) {
	for i := range d.Len() {
		d.Container(i).Each(0, func(low uint16) bool {
			out = append(out, d.Slice(i)<<16|uint64(low))
			return true
		})
	}
	return out
}

// smallCursor is a Small as a cursor.
type smallCursor struct {
	s     Small
	slice uint64
	words []uint64
}

func (c *smallCursor) Seek(slice uint64) (at uint64, ok bool) {
	if slice > SliceMax {
		return 0, false
	}
	id, ok := c.s.Select(uint64(c.s.Rank(slice << 16)))
	c.slice = id >> 16
	return c.slice, ok
}

func (c *smallCursor) Container() Container {
	c.words = make([]uint64, c.s.SmallScratch())
	return c.s.Container(c.words, c.slice)
}

// total is how many ids from one to another a program has.
func total(p *Program, s *Scratch, cursors []Cursor, universe Cursor, from, to uint64) (n uint64) {
	w := p.NewWalker(cursors, universe)
	w.Until(to >> 16)
	for slice, in, ok := w.Seek(from >> 16); ok; slice, in, ok = w.Seek(slice + 1) {
		lo, hi := uint16(0), uint16(SliceLen-1)
		if slice == from>>16 {
			lo = uint16(from)
		}
		if slice == to>>16 {
			hi = uint16(to)
		}
		n += uint64(p.CountRange(s, in, lo, hi))
	}
	return n
}

// TestWalk: programs over whole bitmaps, as directories or small ones, have the ids that the oracle says, and
// intersections do not look at slices that cannot matter.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 0))
	var s Scratch
	for range rounds(80) {
		n := 1 + r.IntN(5)
		oracles, cursors := make([]ids, n), make([]Cursor, n)
		universe := ids{}
		for i := range oracles {
			oracles[i] = drawWhole(r, 6)
			cursors[i] = NewDirectoryCursor(oracles[i].shelve())
			if small, _, ok := EditSmall(make([]uint64, SmallWords), Small{}, Set, oracles[i].sorted()); ok && r.IntN(2) == 0 {
				cursors[i] = &smallCursor{s: small}
			}
			maps.Copy(universe, oracles[i])
		}
		lo := r.Uint64N(4 << 16)
		hi := lo + r.Uint64N(3<<15)
		for id := lo; id <= hi; id++ {
			universe[id] = true
		}
		e := draw(r, n, 3)
		want := map[uint64]bool{}
		for id := range universe {
			if e.holds(func(leaf int) bool { return oracles[leaf][id] }, id >= lo && id <= hi) {
				want[id] = true
			}
		}
		p := MustCompile(e, n)
		from, to := uint64(0), uint64(math.MaxUint64)
		if r.IntN(2) == 0 {
			from = r.Uint64N(8 << 16)
			to = from + r.Uint64N(8<<16)
		}
		some := uint64(0)
		for id := range want {
			if id >= from && id <= to {
				some++
			}
		}
		if got := total(p, &s, cursors, NewRangeCursor(lo, hi), from, to); got != some {
			t.Fatalf("%v: %d from %d to %d, want %d", e, got, from, to, some)
		}
		walker := p.NewWalker(cursors, NewRangeCursor(lo, hi))
		for range 20 { // to and fro
			slice := r.Uint64N(14)
			if r.IntN(4) == 0 {
				slice = SliceMax - slice
			}
			at, in, ok := walker.Seek(slice)
			for id := range want {
				if id>>16 >= slice && (!ok || id>>16 < at) {
					t.Fatalf("%v: from slice %d to %d, over id %d", e, slice, at, id)
				}
			}
			if ok {
				for low := range 100 {
					if id := at<<16 | uint64(low); p.Eval(&s, in).Contains(uint16(low)) != want[id] {
						t.Fatalf("%v: %d is in: %v", e, id, !want[id])
					}
				}
			}
		}
		got := ids{}
		walker = p.NewWalker(cursors, NewRangeCursor(lo, hi))
		next := uint64(0)
		for slice, in, ok := walker.Seek(0); ok; slice, in, ok = walker.Seek(next) {
			if slice < next {
				t.Fatalf("%v: slice %d, from %d on", e, slice, next)
			}
			next = slice + 1
			p.Eval(&s, in).Each(0, func(low uint16) bool { got[slice<<16|uint64(low)] = true; return true })
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%v: %d ids, want %d", e, len(got), len(want))
		}
	}
}

// TestWalkPassesOver: an intersection with a bitmap of few slices visits these only, and a count of two of three those
// where two are.
func TestWalkPassesOver(t *testing.T) {
	few, many, other := ids{}, ids{}, ids{}
	for slice := range uint64(1000) {
		many[slice<<16] = true
		if slice%100 == 7 {
			few[slice<<16|5] = true
		}
		if slice > 900 {
			other[slice<<16] = true
		}
	}
	for _, c := range []struct {
		e     Expr
		slice int
	}{
		{Expr{Op: And, Args: leafs(2)}, 10},
		{Expr{Op: AndNot, Args: leafs(2)}, 10},
		{Expr{Op: And, Args: leafs(3)}, 1},
		{Expr{Op: AtLeast, T: 2, Args: leafs(3)}, 108},
		{Expr{Op: Or, Args: leafs(3)}, 1000},
		{Expr{Op: And, Args: []Expr{{Op: Not, Args: []Expr{{Leaf: 1}}}, {Leaf: 2}}}, 4},
	} {
		cursors := []Cursor{NewDirectoryCursor(few.shelve()), NewDirectoryCursor(many.shelve()), NewDirectoryCursor(other.shelve())}
		visited := 0
		w := MustCompile(c.e, 3).NewWalker(cursors, NewRangeCursor(890<<16, 904<<16))
		for slice, _, ok := w.Seek(0); ok; slice, _, ok = w.Seek(slice + 1) {
			visited++
		}
		if visited != c.slice {
			t.Errorf("%v visits %d slices, want %d", c.e, visited, c.slice)
		}
	}
}

// counted is a cursor that counts how often it is asked.
type counted struct {
	Cursor
	seeks *int
}

func (c counted) Seek(slice uint64) (at uint64, ok bool) {
	*c.seeks++
	return c.Cursor.Seek(slice)
}

// TestWalkerAsksLittle: behind the end of a walk nothing is looked for, though two bitmaps never meet; and in a union a
// bitmap is not asked about slices before its next one.
func TestWalkerAsksLittle(t *testing.T) {
	even, odd := ids{}, ids{}
	for slice := uint64(0); slice < 2000; slice += 2 {
		even[slice<<16], odd[(slice+1)<<16] = true, true
	}
	seeks := 0
	cursors := []Cursor{counted{NewDirectoryCursor(even.shelve()), &seeks}, counted{NewDirectoryCursor(odd.shelve()), &seeks}}
	w := MustCompile(Expr{Op: And, Args: leafs(2)}, 2).NewWalker(cursors, nil)
	for slice := range uint64(100) {
		w.Until(slice)
		if at, _, ok := w.Seek(slice); ok {
			t.Fatalf("slice %d is in both", at)
		}
	}
	if seeks > 300 {
		t.Errorf("%d looks for 100 slices", seeks)
	}
	var many []Cursor
	seeks = 0
	for i := range uint64(100) {
		many = append(many, counted{NewRangeCursor(i<<20, i<<20|(1<<20-1)), &seeks}) // 16 slices each
	}
	w, visited := MustCompile(Expr{Op: Or, Args: leafs(100)}, 100).NewWalker(many, nil), 0
	for slice, in, ok := w.Seek(0); ok; slice, in, ok = w.Seek(slice + 1) {
		if c := in.Leaves[slice/16]; !c.Full() {
			t.Fatalf("slice %d has %d", slice, c.Count)
		}
		visited++
	}
	if visited != 1600 || seeks > 4000 {
		t.Errorf("%d looks in %d slices", seeks, visited)
	}
}
