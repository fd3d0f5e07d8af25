package bitmap

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/internal/kernel"
)

// What a container must hold, as one flag a low: the oracle of all tests.
type oracle [SliceLen]bool

func (o *oracle) lows() []uint16 {
	var out []uint16
	for low, in := range o {
		if in {
			out = append(out, uint16(low))
		}
	}
	return out
}

func (o *oracle) edit(op Op, lows ...uint16) (changed int) {
	for _, low := range lows {
		to := op == Set || op == Flip && !o[low]
		if o[low] != to {
			changed++
		}
		o[low] = to
	}
	return changed
}

func (o *oracle) editRange(op Op, lo, hi uint16) (changed int) {
	for low := int(lo); low <= int(hi); low++ {
		changed += o.edit(op, uint16(low))
	}
	return changed
}

// container is what the package makes of the oracle, by the shortest way, in words of its own.
func (o *oracle) container() Container {
	dst := make([]uint64, ScratchWords)
	for low, in := range o {
		if in {
			dst[low/64] |= 1 << (low % 64)
		}
	}
	return own(Settle(dst), 0)
}

// own copies a container into a block of its own with this many words more than needed.
func own(c Container, more int) Container {
	block := make([]uint64, len(c.Words)+more)
	copy(block, c.Words)
	c.Words = block[:len(c.Words)]
	return c
}

// check wants the container to be valid, and to hold what the oracle holds.
func (o *oracle) check(t testing.TB, c Container) {
	t.Helper()
	want := o.lows()
	if len(want) == 0 {
		if c.Form != 0 || c.Count != 0 || len(c.Words) != 0 {
			t.Fatalf("%+v, want none", c)
		}
		return
	}
	if err := Validate(c); err != nil {
		t.Fatal(err)
	}
	if got := c.AppendLows(nil, 0, SliceLen); !slices.Equal(got, want) {
		t.Fatalf("%s container has %d lows, want %d: %v", c.Form, len(got), len(want), firstDifference(got, want))
	}
}

func firstDifference(a, b []uint16) []uint16 {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return []uint16{a[i], b[i]}
		}
	}
	return nil
}

// shapes are the contents that tests begin with: all forms, and what lies at their edges.
var shapes = []struct {
	name string
	form Form
	fill func(o *oracle, r *rand.Rand)
}{
	{"empty", 0, func(*oracle, *rand.Rand) {}},
	{"one", Array, func(o *oracle, _ *rand.Rand) { o.edit(Set, 77) }},
	{"the ends", Array, func(o *oracle, _ *rand.Rand) { o.edit(Set, 0, SliceLen-1) }},
	{"a few", Array, func(o *oracle, r *rand.Rand) { scatter(o, r, 20) }},
	{"an array", Array, func(o *oracle, r *rand.Rand) { scatter(o, r, 900) }},
	{"a full array", Array, func(o *oracle, r *rand.Rand) { scatter(o, r, ArrayMax) }},
	{"the thinnest dense", Dense, func(o *oracle, r *rand.Rand) { scatter(o, r, ArrayMax+1) }},
	{"a twentieth", Dense, func(o *oracle, r *rand.Rand) { scatter(o, r, SliceLen/20) }},
	{"a half", Dense, func(o *oracle, r *rand.Rand) { scatter(o, r, SliceLen/2) }},
	{"all but a few", Run, func(o *oracle, r *rand.Rand) { scatter(o, r, SliceLen-9) }},
	{"all", Run, func(o *oracle, _ *rand.Rand) { o.editRange(Set, 0, SliceLen-1) }},
	{"a run", Run, func(o *oracle, _ *rand.Rand) { o.editRange(Set, 100, 30000) }},
	{"a run at each end", Run, func(o *oracle, _ *rand.Rand) { o.editRange(Set, 0, 64); o.editRange(Set, 65000, SliceLen-1) }},
	{"as many runs as can be", Run, func(o *oracle, _ *rand.Rand) { stripes(o, RunMax, 64, 4) }},
	{"long runs, one too many", Dense, func(o *oracle, _ *rand.Rand) { stripes(o, RunMax+1, 63, 40) }},
	{"short runs", Run, func(o *oracle, _ *rand.Rand) { stripes(o, 300, 100, 4) }},
	{"runs a little too short", Array, func(o *oracle, _ *rand.Rand) { stripes(o, 300, 100, 4); o.edit(Clear, 0) }},
}

func scatter(o *oracle, r *rand.Rand, n int) {
	for n > 0 {
		n -= o.edit(Set, uint16(r.Uint32()))
	}
}

// stripes sets n runs of this length, whose beginnings are step apart.
func stripes(o *oracle, n, step, length int) {
	for i := range n {
		o.editRange(Set, uint16(i*step), uint16(i*step+length-1))
	}
}

// eachShape runs a test for each shape, with a generator that begins the same.
func eachShape(t *testing.T, test func(t *testing.T, o *oracle, c Container, r *rand.Rand)) {
	for i, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			var o oracle
			s.fill(&o, r)
			c := o.container()
			if c.Form != s.form {
				t.Fatalf("%s, want %s", c.Form, s.form)
			}
			test(t, &o, c, r)
		})
	}
}

// rounds is how often a random test goes round: a quarter as often in a short run.
func rounds(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

// sample is n lows, sorted and different: in a row, near each other or anywhere.
func sample(r *rand.Rand, n int) []uint16 {
	seen := map[uint16]bool{}
	base, spread := r.Uint32(), uint32(SliceLen)
	switch r.IntN(3) {
	case 0:
		spread = uint32(2 * n)
	case 1:
		base, spread = r.Uint32N(SliceLen-uint32(n)+1), uint32(n)
	}
	var out []uint16
	for len(out) < n {
		if low := uint16(base + r.Uint32N(spread)); !seen[low] {
			seen[low] = true
			out = append(out, low)
		}
	}
	slices.Sort(out)
	return out
}

// poison fills scratch with what no test wants to see.
func poison(words []uint64) []uint64 {
	for i := range words {
		words[i] = 0xDEAD_BEEF_DEAD_BEEF
	}
	return words
}

func TestSettleAndExpandAreInverse(t *testing.T) {
	eachShape(t, func(t *testing.T, o *oracle, c Container, _ *rand.Rand) {
		o.check(t, c)
		block := (*kernel.Block)(poison(make([]uint64, DenseWords)))
		Expand(block, c)
		again := make([]uint64, ScratchWords)
		copy(again, block[:])
		if back := Settle(again); back.Form != c.Form || back.Count != c.Count || !slices.Equal(back.Words, c.Words) {
			t.Errorf("%+v", back)
		}
	})
}
