package kernel

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// blocks are n blocks with bits as dense as 1 in 2, 1 in 4, ..., and runs.
func blocks(n int, seed uint64) []*Block {
	r := rand.New(rand.NewPCG(seed, 0))
	out := make([]*Block, n)
	for i := range out {
		out[i] = new(Block)
		for j := range out[i] {
			w := r.Uint64()
			for range i % 5 {
				w &= r.Uint64()
			}
			if i%7 == 6 {
				w = uint64(int64(w) >> (j % 64))
			}
			out[i][j] = w
		}
	}
	return out
}

func plainCount(words []uint64) int {
	n := 0
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

func plainRuns(b *Block) int {
	runs, before := 0, false
	for i := range 64 * Words {
		in := b[i/64]>>(i%64)&1 == 1
		if in && !before {
			runs++
		}
		before = in
	}
	return runs
}

func TestCount(t *testing.T) {
	b := blocks(7, 1)
	for _, block := range b {
		for _, n := range []int{0, 1, 3, 4, 5, 63, 1000, Words} {
			if got, want := Count(block[:n]), plainCount(block[:n]); got != want {
				t.Errorf("%d bits in %d words, want %d", got, n, want)
			}
		}
	}
}

func TestRuns(t *testing.T) {
	for i, block := range append(blocks(14, 2), new(Block)) {
		want := plainRuns(block)
		for _, limit := range []int{0, 1, 1000, want - 1, want, want + 1, 1 << 16} {
			got := Runs(block, limit)
			if want <= limit && got != want || want > limit && got <= limit {
				t.Errorf("block %d: %d runs where %d are and %d matter", i, got, want, limit)
			}
		}
	}
}

// each makes a block of two or more, word by word.
func each(dst *Block, srcs []*Block, f func(x, y uint64) uint64) *Block {
	out := *dst
	for _, s := range srcs {
		for i := range out {
			out[i] = f(out[i], s[i])
		}
	}
	return &out
}

func full() *Block {
	b := new(Block)
	for i := range b {
		b[i] = ^uint64(0)
	}
	return b
}

// TestManyBlocks: the kernels of many blocks do what their plain twins do one after the other, and say when nothing
// more can change.
func TestManyBlocks(t *testing.T) {
	for n := range 14 {
		b := blocks(n+1, uint64(n))
		for _, extra := range []*Block{nil, new(Block), full()} {
			if extra != nil {
				b = append(b, extra)
			}
			for _, k := range []struct {
				name   string
				kernel func(dst *Block, srcs []*Block) bool
				plain  func(x, y uint64) uint64
				stops  int
			}{
				{"or", Or, func(x, y uint64) uint64 { return x | y }, 64 * Words},
				{"union", func(dst *Block, srcs []*Block) bool {
					first := *dst
					return Union(dst, append([]*Block{&first}, srcs...))
				}, func(x, y uint64) uint64 { return x | y }, 64 * Words},
				{"and", And, func(x, y uint64) uint64 { return x & y }, 0},
				{"and not", AndNot, func(x, y uint64) uint64 { return x &^ y }, 0},
			} {
				dst := *b[0]
				stopped := k.kernel(&dst, b[1:])
				want := each(b[0], b[1:], k.plain)
				if dst != *want {
					t.Errorf("%s of %d: %d bits, want %d", k.name, len(b), Count(dst[:]), Count(want[:]))
				}
				if len(b) > 1 && stopped != (Count(want[:]) == k.stops) {
					t.Errorf("%s of %d says %v at %d bits", k.name, len(b), stopped, Count(want[:]))
				}
			}
		}
	}
}

func TestTwoBlocks(t *testing.T) {
	b := append(blocks(9, 3), new(Block), full())
	for _, x := range b {
		for _, y := range b {
			for _, k := range []struct {
				name   string
				kernel func(a, b *Block) int
				plain  func(x, y uint64) uint64
			}{
				{"or", OrCount, func(x, y uint64) uint64 { return x | y }},
				{"and", AndCount, func(x, y uint64) uint64 { return x & y }},
			} {
				if got, want := k.kernel(x, y), plainCount(each(x, []*Block{y}, k.plain)[:]); got != want {
					t.Errorf("%s: %d, want %d", k.name, got, want)
				}
			}
			for _, z := range b {
				or := func(x, y uint64) uint64 { return x | y }
				if got, want := OrCount3(x, y, z), plainCount(each(x, []*Block{y, z}, or)[:]); got != want {
					t.Errorf("or of three: %d, want %d", got, want)
				}
			}
			dst := *x
			if Xor(&dst, y); dst != *each(x, []*Block{y}, func(x, y uint64) uint64 { return x ^ y }) {
				t.Error("xor")
			}
		}
	}
}

// TestCounters: numbers in planes are those that one gets by counting in each of 65,536 places.
func TestCounters(t *testing.T) {
	for _, n := range []int{1, 2, 7, 8, 9, 16, 30, 100} {
		srcs := blocks(n, uint64(n))
		planes := make(Counters, max(4, bits.Len(uint(n))))
		for p := range planes {
			planes[p] = new(Block)
		}
		planes.Add(srcs[:n/3]) // in two steps
		planes.Add(srcs[n/3:])
		var counts [64 * Words]int
		for _, s := range srcs {
			for i := range counts {
				counts[i] += int(s[i/64] >> (i % 64) & 1)
			}
		}
		for _, least := range []int{0, 1, 2, n / 2, n - 1, n, n + 1, 1 << 20} {
			var got, want Block
			planes.AtLeast(&got, uint(least))
			for i, c := range counts {
				if c >= least {
					want[i/64] |= 1 << (i % 64)
				}
			}
			if got != want {
				t.Errorf("at least %d of %d: %d bits, want %d", least, n, Count(got[:]), Count(want[:]))
			}
		}
	}
}
