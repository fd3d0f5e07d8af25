package kernel

// Counters are 65,536 small numbers, one for each bit of a block. They are stored as planes: bit i of plane p is bit p
// of number i. There are at least four planes, and enough that no number overflows.
type Counters []*Block

var zeros Block

// Add increments the numbers whose bits are set in srcs, once for each source. It uses carry-save adders over four
// sources and three planes at a time. More blocks would not help: words of one number compete for the same eight places
// of a first-level cache.
func (n Counters) Add(srcs []*Block) {
	for len(srcs) > 0 {
		in := [4]*Block{&zeros, &zeros, &zeros, &zeros}
		srcs = srcs[copy(in[:], srcs):]
		n.add4(in[0], in[1], in[2], in[3])
	}
}

func (n Counters) add4(a, b, c, d *Block) {
	ones, twos, fours, more := n[0], n[1], n[2], n[3:]
	for i := range ones {
		one, two1 := carry(ones[i], a[i], b[i])
		one, two2 := carry(one, c[i], d[i])
		two, four := carry(twos[i], two1, two2)
		ones[i], twos[i] = one, two
		x := fours[i]
		fours[i] = x ^ four
		if four &= x; four != 0 {
			addMore(more, i, four)
		}
	}
}

// addMore adds bits of word i to the higher planes.
func addMore(more []*Block, i int, bits uint64) {
	for _, plane := range more {
		plane[i], bits = plane[i]^bits, plane[i]&bits
	}
}

// carry adds three bits in each of 64 positions.
func carry(a, b, c uint64) (sum, twos uint64) {
	x := a ^ b
	return x ^ c, a&b | x&c
}

// AtLeast sets in dst the bits whose numbers are t or more.
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
