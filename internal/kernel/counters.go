package kernel

// Counters are 65,536 small numbers, one for each bit of a block, as planes: bit i of plane p is bit p of number i. There are at least four, and enough that no number overflows.
type Counters []*Block

var zeros Block

// Add counts up the numbers whose bits are set in srcs: once for each source, eight sources at a time by carry-save adders, so that a word of a source costs some five operations and a plane is written once for
// eight of them.
func (n Counters) Add(srcs []*Block) {
	for len(srcs) > 0 {
		in := [8]*Block{&zeros, &zeros, &zeros, &zeros, &zeros, &zeros, &zeros, &zeros}
		srcs = srcs[copy(in[:], srcs):]
		n.add8(&in)
	}
}

func (n Counters) add8(in *[8]*Block) {
	a, b, c, d, e, f, g, h := in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]
	ones, twos, fours, more := n[0], n[1], n[2], n[3:]
	for i := range ones {
		one, two1 := carry(ones[i], a[i], b[i])
		one, two2 := carry(one, c[i], d[i])
		one, two3 := carry(one, e[i], f[i])
		one, two4 := carry(one, g[i], h[i])
		two, four1 := carry(twos[i], two1, two2)
		two, four2 := carry(two, two3, two4)
		four, eight := carry(fours[i], four1, four2)
		ones[i], twos[i], fours[i] = one, two, four
		for _, plane := range more {
			if eight == 0 {
				break
			}
			plane[i], eight = plane[i]^eight, plane[i]&eight
		}
	}
}

// carry adds three bits in each of 64 places.
func carry(a, b, c uint64) (sum, twos uint64) {
	x := a ^ b
	return x ^ c, a&b | x&c
}

// AtLeast writes to dst the bits of the numbers that are t or more.
func (n Counters) AtLeast(dst *Block, t uint) {
	for i := range dst {
		above, equal := uint64(0), ^uint64(0)
		for p := len(n) - 1; p >= 0; p-- {
			if w := n[p][i]; t>>p&1 == 1 {
				equal &= w
			} else {
				above |= equal & w
				equal &^= w
			}
		}
		dst[i] = above | equal
	}
	if t>>len(n) != 0 {
		clear(dst[:])
	}
}
