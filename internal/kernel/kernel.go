package kernel

import "math/bits"

// Words is how many words a block has: 65,536 bits.
const Words = 1024

// Block is 65,536 bits: bit i is bit i%64 of word i/64.
type Block = [Words]uint64

// Count returns how many bits of words are set.
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

// Runs returns how many runs of set bits a block has. As soon as there are more than limit, it stops and returns some
// number above limit.
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

// The functions below process four sources at a time, so that their loads wait for memory together. If two or three
// sources remain, the last one is repeated to make four. A single one is processed alone.

// fours calls f with four sources at a time, or g with one, until one of them returns true.
func fours(srcs []*Block, f func(a, b, c, d *Block) bool, g func(a *Block) bool) bool {
	for len(srcs) > 1 {
		last := min(len(srcs), 4) - 1
		if f(srcs[0], srcs[1], srcs[min(2, last)], srcs[last]) {
			return true
		}
		srcs = srcs[last+1:]
	}
	return len(srcs) == 1 && g(srcs[0])
}

// Union writes the union of srcs, at least one, to dst. It reports whether it stopped because all bits of dst are set.
func Union(dst *Block, srcs []*Block) (full bool) {
	last := min(len(srcs), 4) - 1
	return union4(dst, srcs[0], srcs[min(1, last)], srcs[min(2, last)], srcs[last]) || Or(dst, srcs[last+1:])
}

func union4(dst, a, b, c, d *Block) bool {
	all := ^uint64(0)
	for i := 0; i < Words; i += 2 {
		x := a[i] | b[i] | c[i] | d[i]
		y := a[i+1] | b[i+1] | c[i+1] | d[i+1]
		dst[i], dst[i+1] = x, y
		all &= x & y
	}
	return all == ^uint64(0)
}

// Or adds srcs to dst, and reports whether it stopped because all bits of dst are set.
func Or(dst *Block, srcs []*Block) (full bool) {
	return fours(srcs, func(a, b, c, d *Block) bool { return or4(dst, a, b, c, d) }, func(a *Block) bool { return or1(dst, a) })
}

func or1(dst, a *Block) bool {
	all := ^uint64(0)
	for i := 0; i < Words; i += 4 {
		x := dst[i] | a[i]
		y := dst[i+1] | a[i+1]
		z := dst[i+2] | a[i+2]
		w := dst[i+3] | a[i+3]
		dst[i], dst[i+1], dst[i+2], dst[i+3] = x, y, z, w
		all &= x & y & z & w
	}
	return all == ^uint64(0)
}

func or4(dst, a, b, c, d *Block) bool {
	all := ^uint64(0)
	for i := 0; i < Words; i += 2 {
		x := dst[i] | a[i] | b[i] | c[i] | d[i]
		y := dst[i+1] | a[i+1] | b[i+1] | c[i+1] | d[i+1]
		dst[i], dst[i+1] = x, y
		all &= x & y
	}
	return all == ^uint64(0)
}

// And intersects dst with srcs, and reports whether it stopped because no bit of dst is set.
func And(dst *Block, srcs []*Block) (empty bool) {
	return fours(srcs, func(a, b, c, d *Block) bool { return and4(dst, a, b, c, d) }, func(a *Block) bool { return and1(dst, a) })
}

func and1(dst, a *Block) bool {
	some := uint64(0)
	for i := 0; i < Words; i += 4 {
		x := dst[i] & a[i]
		y := dst[i+1] & a[i+1]
		z := dst[i+2] & a[i+2]
		w := dst[i+3] & a[i+3]
		dst[i], dst[i+1], dst[i+2], dst[i+3] = x, y, z, w
		some |= x | y | z | w
	}
	return some == 0
}

func and4(dst, a, b, c, d *Block) bool {
	some := uint64(0)
	for i := 0; i < Words; i += 2 {
		x := dst[i] & a[i] & b[i] & c[i] & d[i]
		y := dst[i+1] & a[i+1] & b[i+1] & c[i+1] & d[i+1]
		dst[i], dst[i+1] = x, y
		some |= x | y
	}
	return some == 0
}

// AndNot removes srcs from dst, and reports whether it stopped because no bit of dst is set.
func AndNot(dst *Block, srcs []*Block) (empty bool) {
	return fours(srcs, func(a, b, c, d *Block) bool { return andNot4(dst, a, b, c, d) }, func(a *Block) bool { return andNot1(dst, a) })
}

func andNot1(dst, a *Block) bool {
	some := uint64(0)
	for i := 0; i < Words; i += 4 {
		x := dst[i] &^ a[i]
		y := dst[i+1] &^ a[i+1]
		z := dst[i+2] &^ a[i+2]
		w := dst[i+3] &^ a[i+3]
		dst[i], dst[i+1], dst[i+2], dst[i+3] = x, y, z, w
		some |= x | y | z | w
	}
	return some == 0
}

func andNot4(dst, a, b, c, d *Block) bool {
	some := uint64(0)
	for i := 0; i < Words; i += 2 {
		x := dst[i] &^ (a[i] | b[i] | c[i] | d[i])
		y := dst[i+1] &^ (a[i+1] | b[i+1] | c[i+1] | d[i+1])
		dst[i], dst[i+1] = x, y
		some |= x | y
	}
	return some == 0
}

// Xor flips the bits of dst that are set in src.
func Xor(dst, src *Block) {
	for i := 0; i < Words; i += 4 {
		dst[i] ^= src[i]
		dst[i+1] ^= src[i+1]
		dst[i+2] ^= src[i+2]
		dst[i+3] ^= src[i+3]
	}
}

// OrCount returns how many bits are set in a or b.
func OrCount(a, b *Block) int {
	n, m := 0, 0
	for i := 0; i < Words; i += 4 {
		n += bits.OnesCount64(a[i] | b[i])
		m += bits.OnesCount64(a[i+1] | b[i+1])
		n += bits.OnesCount64(a[i+2] | b[i+2])
		m += bits.OnesCount64(a[i+3] | b[i+3])
	}
	return n + m
}

// OrCount3 returns how many bits are set in a, b or c.
func OrCount3(a, b, c *Block) int {
	n, m := 0, 0
	for i := 0; i < Words; i += 4 {
		n += bits.OnesCount64(a[i] | b[i] | c[i])
		m += bits.OnesCount64(a[i+1] | b[i+1] | c[i+1])
		n += bits.OnesCount64(a[i+2] | b[i+2] | c[i+2])
		m += bits.OnesCount64(a[i+3] | b[i+3] | c[i+3])
	}
	return n + m
}

// AndCount returns how many bits are set in both a and b.
func AndCount(a, b *Block) int {
	n, m := 0, 0
	for i := 0; i < Words; i += 4 {
		n += bits.OnesCount64(a[i] & b[i])
		m += bits.OnesCount64(a[i+1] & b[i+1])
		n += bits.OnesCount64(a[i+2] & b[i+2])
		m += bits.OnesCount64(a[i+3] & b[i+3])
	}
	return n + m
}
