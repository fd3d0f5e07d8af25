package bitmap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestEdit: edits do what they do to the oracle, whichever way they go, and a container's words depend on its content
// alone.
func TestEdit(t *testing.T) {
	eachShape(t, func(t *testing.T, o *oracle, c Container, r *rand.Rand) {
		dst, other := make([]uint64, ScratchWords), make([]uint64, ScratchWords)
		place := own(c, 8)
		for step := range rounds(200) {
			op := Set + Op(r.IntN(3))
			n := []int{1, 1, 1, 2, 5, 30, 300, 3000}[r.IntN(8)]
			lows := sample(r, n)
			if r.IntN(3) == 0 && len(o.lows()) > 0 { // so that sets also shrink, from their ends too
				all := o.lows()
				from := []int{0, r.IntN(len(all)), max(0, len(all)-n)}[r.IntN(3)]
				op, lows = Clear, all[from:min(len(all), from+n)]
			}
			if r.IntN(3) == 0 && c.Count > 0 { // an edge of a run, and what is next to it
				edge, _ := c.Select(r.IntN(int(c.Count)))
				if r.IntN(2) == 0 {
					for o[edge] && edge < SliceLen-1 {
						edge++
					}
					edge -= uint16(r.IntN(2))
				} else {
					for o[edge] && edge > 0 {
						edge--
					}
					edge += uint16(r.IntN(2))
				}
				op, lows = Set+Op(r.IntN(3)), []uint16{edge}
			}
			before := own(c, 0)
			out, changed := Edit(poison(dst), c, op, lows)
			if !slices.Equal(before.Words, c.Words) {
				t.Fatal("an edit wrote to the words it was given")
			}
			name := fmt.Sprintf("step %d: %s %d lows", step, op, len(lows))
			if want := o.edit(op, lows...); changed != want {
				t.Fatalf("%s: %d changed, want %d", name, changed, want)
			}
			c = own(out, 0)
			if step%8 == 0 || n == 1 {
				o.check(t, c)
			}
			place = editPlaced(t, other, place, changed, func(c *Container) (int, bool) { return EditInPlace(other, c, op, lows) })
			if place.Form != c.Form || place.Count != c.Count || !slices.Equal(place.Words, c.Words) {
				t.Fatalf("%s: in place %s of %d, elsewhere %s of %d", name, place.Form, place.Count, c.Form, c.Count)
			}
		}
		o.check(t, c)
	})
}

// TestEditsOfFewRuns: single edits that make, join, split and end runs of a container that has few of them.
func TestEditsOfFewRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 0))
	var o oracle
	o.editRange(Set, 10, 60)
	c := own(o.container(), 3)
	dst := make([]uint64, ScratchWords)
	for step := range 20_000 {
		lows := []uint16{uint16(r.IntN(70))}
		op := Set
		switch in := o[lows[0]]; {
		case in && int(c.Count) > 56, in && r.IntN(6) == 0:
			op = Clear
		case r.IntN(9) == 0:
			op = Flip
		}
		want := o.edit(op, lows...)
		c = editPlaced(t, dst, c, want, func(c *Container) (int, bool) { return EditInPlace(dst, c, op, lows) })
		if step%16 == 0 {
			o.check(t, c)
		}
		if err := Validate(c); err != nil {
			t.Fatalf("step %d: %s %d: %v", step, op, lows[0], err)
		}
	}
}

// TestEditsAtTheEdgeOfForms: of containers with as many runs as runs may be, give or take a few, each single edit
// leaves the form that the content must have.
func TestEditsAtTheEdgeOfForms(t *testing.T) {
	dst := make([]uint64, ScratchWords)
	for _, c := range []struct{ limit, step, length int }{
		{RunMax, 62, 40},  // dense, for there are too many runs
		{1000, 63, 4},     // dense, for they are too short
		{300, 200, 4},     // an array
		{ArrayMax, 30, 1}, // from an array to dense
	} {
		for n := c.limit - 2; n <= c.limit+2; n++ {
			var o oracle
			stripes(&o, n, c.step, c.length)
			o.edit(Set, SliceLen-2)
			start := o.container()
			for _, low := range []int{0, 1, c.length - 1, c.length, c.step - 1, c.step, c.step + 1, c.step + c.length, SliceLen - 1, SliceLen - 2, SliceLen - 3} {
				for _, more := range []int{0, 1, 3, 5} {
					lows := []uint16{uint16(low)}
					for i := range more {
						lows = append(lows, uint16(low+(i+1)*2*c.step))
					}
					slices.Sort(lows)
					lows = slices.Compact(lows)
					after := o
					want := after.edit(Flip, lows...)
					out, _ := Edit(dst, start, Flip, lows)
					after.check(t, out)
					after.check(t, editPlaced(t, dst, own(start, 16), want, func(c *Container) (int, bool) { return EditInPlace(dst, c, Flip, lows) }))
				}
			}
			for gap := c.length; gap < c.step && c.step < 100; gap += 7 { // up to all of a gap, so that two runs become one
				var lows []uint16
				for low := c.length; low < c.length+gap && low < c.step; low++ {
					lows = append(lows, uint16(low))
				}
				after := o
				want := after.edit(Set, lows...)
				after.check(t, editPlaced(t, dst, own(start, 16), want, func(c *Container) (int, bool) { return EditInPlace(dst, c, Set, lows) }))
			}
		}
	}
}

// TestEditRange is TestEdit for ranges.
func TestEditRange(t *testing.T) {
	eachShape(t, func(t *testing.T, o *oracle, c Container, r *rand.Rand) {
		dst, other := make([]uint64, ScratchWords), make([]uint64, ScratchWords)
		place := own(c, 8)
		for step := range rounds(100) {
			op := Set + Op(r.IntN(3))
			lo := uint16(r.Uint32())
			hi := lo + uint16(r.Uint32N(1<<r.IntN(17)))
			if step%10 == 0 {
				lo, hi = 0, SliceLen-1
			}
			out, changed := EditRange(poison(dst), c, op, lo, hi)
			if want := o.editRange(op, lo, hi); changed != want {
				t.Fatalf("step %d: %s %d to %d: %d changed, want %d", step, op, lo, hi, changed, want)
			}
			c = own(out, 0)
			o.check(t, c)
			place = editPlaced(t, other, place, changed, func(c *Container) (int, bool) { return EditRangeInPlace(other, c, op, lo, hi) })
			o.check(t, place)
		}
	})
}

// editPlaced edits in place as whoever keeps the words does: what moved gets a block of its own, and what stayed is
// found again in its block.
func editPlaced(t *testing.T, scratch []uint64, c Container, want int, edit func(c *Container) (int, bool)) Container {
	t.Helper()
	poison(scratch)
	block := c.Words[:cap(c.Words)]
	changed, moved := edit(&c)
	if changed != want {
		t.Fatalf("%d changed in place, want %d", changed, want)
	}
	switch {
	case c.Count == 0:
		return Container{}
	case moved:
		return own(c, want%3)
	}
	return View(c.Form, c.Count, block)
}

// FuzzEdit reads bytes as edits: what to do, the first low, how many, and how far apart they are.
func FuzzEdit(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 1})
	f.Add([]byte{0, 1, 0, 255, 1, 1, 1, 9, 20, 1, 2, 1, 0, 255, 2})
	f.Add([]byte{3, 0, 0, 255, 255, 4, 100, 0, 10, 10, 0, 0, 1, 255, 3, 1, 0, 1, 255, 3})
	var tenths []byte // an array that becomes dense
	for i := range byte(9) {
		tenths = append(tenths, 0, 9*i, 9, 255, 9)
	}
	f.Add(append(tenths, 1, 72, 9, 255, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o oracle
		var c, place Container
		dst, other := make([]uint64, ScratchWords), make([]uint64, ScratchWords)
		for ; len(b) >= 5 && len(b) < 1000; b = b[5:] {
			op := Set + Op(b[0]%3)
			lo := uint16(b[1])<<8 | uint16(b[2])
			var out Container
			var want, changed int
			var edit func(c *Container) (int, bool)
			if b[0]/3%2 == 1 {
				hi := uint16(min(int(lo)+int(b[3])*int(b[4]), SliceLen-1))
				want = o.editRange(op, lo, hi)
				out, changed = EditRange(dst, c, op, lo, hi)
				edit = func(c *Container) (int, bool) { return EditRangeInPlace(other, c, op, lo, hi) }
			} else {
				var lows []uint16
				for at, i := int(lo), 0; at < SliceLen && i <= int(b[3]); at, i = at+int(b[4])+1, i+1 {
					lows = append(lows, uint16(at))
				}
				want = o.edit(op, lows...)
				out, changed = Edit(dst, c, op, lows)
				edit = func(c *Container) (int, bool) { return EditInPlace(other, c, op, lows) }
			}
			if changed != want {
				t.Fatalf("%d changed, want %d", changed, want)
			}
			c = own(out, 0)
			place = editPlaced(t, other, place, want, edit)
			if place.Form != c.Form || !slices.Equal(place.Words, c.Words) {
				t.Fatalf("in place %s of %d, elsewhere %s of %d", place.Form, place.Count, c.Form, c.Count)
			}
		}
		o.check(t, c)
	})
}
