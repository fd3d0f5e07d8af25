package bitmap

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
)

// The goal: of 128 million ids those that are in any of 1, 7 or 30 days and in one bitmap more, counted. Nothing is in
// a cache: of 31 bitmaps, each turn takes those that were read longest ago.

const (
	benchSlices = 2048
	benchDays   = 31
)

// contents say what the words of a slice are.
var contents = []struct {
	name string
	fill func(words []uint64, r *rand.Rand)
}{
	{"half", func(words []uint64, r *rand.Rand) {
		for i := range words {
			words[i] = r.Uint64()
		}
	}},
	{"twentieth", func(words []uint64, r *rand.Rand) {
		for i := range words {
			w := r.Uint64() // 13 of 256
			for _, bit := range []int{0, 1, 1, 0, 0, 0, 0} {
				if bit == 1 {
					w |= r.Uint64()
				} else {
					w &= r.Uint64()
				}
			}
			words[i] = w
		}
	}},
	{"clustered", func(words []uint64, r *rand.Rand) { // a third of the slices empty, some full, others in runs of some hundred
		switch r.IntN(20) {
		case 0, 1, 2, 3, 4, 5, 6:
			return
		case 7:
			for i := range words {
				words[i] = ^uint64(0)
			}
			return
		}
		for at := r.IntN(2000); at < SliceLen; at += r.IntN(2000) {
			end := min(at+1+r.IntN(600), SliceLen)
			for ; at < end; at++ {
				words[at/64] |= 1 << (at % 64)
			}
		}
	}},
}

// month is 31 bitmaps, in containers and in roaring's.
type month struct {
	days   [benchDays][benchSlices]Container
	theirs [benchDays]*roaring.Bitmap
	words  int
}

func newMonth(fill func(words []uint64, r *rand.Rand)) *month {
	m := new(month)
	r := rand.New(rand.NewPCG(10, 0))
	for d := range m.days {
		words := make([]uint64, benchSlices*DenseWords)
		for i := range m.days[d] {
			block := words[i*DenseWords:][:DenseWords]
			fill(block, r)
			dst := make([]uint64, ScratchWords)
			copy(dst, block)
			c := Settle(dst)
			if c.Form == Dense {
				c.Words = block
			} else {
				c = own(c, 0)
			}
			m.days[d][i] = c
			m.words += len(c.Words)
		}
		m.theirs[d] = roaring.New()
		m.theirs[d].FromDense(words, true)
		m.theirs[d].RunOptimize()
	}
	return m
}

// BenchmarkDays counts those of any of n days and of one more. It compares with roaring, and with what it takes to read
// as much memory.
func BenchmarkDays(b *testing.B) {
	for _, content := range contents {
		m := newMonth(content.fill)
		for _, n := range []int{1, 7, 30} {
			name := fmt.Sprintf("%s/%d-days", content.name, n)
			size := int64(m.words) * 8 / benchDays * int64(n+1)
			p := MustCompile(Expr{Op: And, Args: []Expr{{Op: Or, Args: leafs(n)}, {Leaf: n}}}, n+1)
			var ours, theirs int
			b.Run(name+"/ebb", func(b *testing.B) {
				b.SetBytes(size)
				var s Scratch
				leaves := make([]Container, n+1)
				for turn := 0; b.Loop(); turn += n + 1 {
					ours = 0
					for slice := range benchSlices {
						for i := range leaves {
							leaves[i] = m.days[(turn+i)%benchDays][slice]
						}
						ours += p.Count(&s, Inputs{Leaves: leaves})
					}
				}
			})
			b.Run(name+"/roaring", func(b *testing.B) {
				b.SetBytes(size)
				for turn := 0; b.Loop(); turn += n + 1 {
					days := make([]*roaring.Bitmap, n)
					for i := range days {
						days[i] = m.theirs[(turn+i)%benchDays]
					}
					any := days[0]
					if n > 1 {
						any = roaring.FastOr(days...)
					}
					theirs = int(any.AndCardinality(m.theirs[(turn+n)%benchDays]))
				}
			})
			if n+1 == benchDays && ours != theirs {
				b.Errorf("%s: %d, there %d", name, ours, theirs)
			}
		}
	}
	words := make([]uint64, benchDays*benchSlices*DenseWords)
	for i := range words {
		words[i] = uint64(i)
	}
	b.Run("memory", func(b *testing.B) {
		b.SetBytes(int64(len(words)) * 8)
		sum := uint64(0)
		for b.Loop() {
			for i := 0; i < len(words); i += 4 {
				sum += words[i] + words[i+1] + words[i+2] + words[i+3]
			}
		}
		if sum == 1 {
			b.Error(sum)
		}
	})
}

// BenchmarkOther: what else is asked of a slice, of 30 dense leaves in a cache.
func BenchmarkOther(b *testing.B) {
	r := rand.New(rand.NewPCG(11, 0))
	in := Inputs{Universe: Full()}
	for range 30 {
		dst := make([]uint64, ScratchWords)
		contents[1].fill(dst[:DenseWords], r)
		in.Leaves = append(in.Leaves, Settle(dst))
	}
	for _, e := range []Expr{
		{Op: Or, Args: leafs(30)},
		{Op: And, Args: leafs(2)},
		{Op: AndNot, Args: leafs(30)},
		{Op: Xor, Args: leafs(30)},
		{Op: AtLeast, T: 3, Args: leafs(30)},
		{Op: Not, Args: leafs(1)},
	} {
		p := MustCompile(e, 30)
		b.Run(fmt.Sprintf("%s-%d", e.Op, len(e.Args)), func(b *testing.B) {
			var s Scratch
			for b.Loop() {
				p.Count(&s, in)
			}
		})
	}
}

// BenchmarkEdit sets bits one by one, where they are not, and in sorted bulk.
func BenchmarkEdit(b *testing.B) {
	dst := make([]uint64, ScratchWords)
	for _, start := range []int{1000, 3277, 32768} {
		b.Run(fmt.Sprintf("flip-one-of-%d", start), func(b *testing.B) {
			r := rand.New(rand.NewPCG(12, 0))
			var o oracle
			scatter(&o, r, start)
			c := own(o.container(), 64)
			for b.Loop() {
				low := [1]uint16{uint16(r.Uint32())}
				if _, moved := EditInPlace(dst, &c, Flip, low[:]); moved {
					c = own(c, 64)
				}
			}
		})
	}
	for _, n := range []int{20, 3277} {
		b.Run(fmt.Sprintf("set-%d-of-an-empty-slice", n), func(b *testing.B) {
			lows := sample(rand.New(rand.NewPCG(13, 1)), n)
			for b.Loop() {
				Edit(dst, Container{}, Set, lows)
			}
			b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds()/1e6, "Mids/s")
		})
	}
}
