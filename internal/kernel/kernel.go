package kernel

import "math/bits"

// Words is how many words a block has: 65,536 bits.
const Words = 1024

// Block is 65,536 bits: bit i is bit i%64 of word i/64.
type Block = [Words]uint64

// Count is how many bits of words are set.
func Count(words []uint64) int {
	var a, b, c, d int
	for len(words) >= 4 {
		a += bits.OnesCount64(words[0])
		b += bits.OnesCount64(words[1])
		c += bits.OnesCount64(words[2])
		d += bits.OnesCount64(words[3])
		words = words[4:]
	}
	for _, w := range words {
		a += bits.OnesCount64(w)
	}
	return a + b + c + d
}

// Runs is how many runs of bits that are set a block has. It gives up, and answers some number above limit, as soon as there are more than limit.
func Runs(b *Block, limit int) int {
	runs, before := 0, uint64(0)
	for i := 0; i < Words; i += 8 {
		for _, w := range b[i : i+8 : i+8] {
			runs += bits.OnesCount64(w &^ (w<<1 | before))
			before = w >> 63
		}
		if runs > limit {
			break
		}
	}
	return runs
}
