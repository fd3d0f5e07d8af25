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
