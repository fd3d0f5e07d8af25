package sketch

import "math"

// A compact value is an unsigned float of 32 bits, a part of a double: 7 bits of exponent, 25 of fraction.
//
//	double    s eeeeeeeeeee ffffffffffffffffffffffffffffffffffffffffffffffffffff
//	compact         eeeeeee fffffffffffffffffffffffff                              e less 959: 2^-64 to 2^64; 0 is 0
//
// It has 4 times the resolution of a float32, whose sign and long exponent are not needed here.
//
// Rounding to nearest is biased. If 0.1 is added to a float32 again and again, then at 10,000 it is 102.4 units in the
// last place. It counts as 102 each time, 0.4% too low; an amount below half a unit never counts. So the bits that are
// cut off are compared with a hash of the sum and of Z, to round up or down. This is unbiased, and the same on every
// machine and for every landmark, because only mantissas are hashed. N increments of a bin then err by about sqrt(N/6)
// units, each 2^-26 to 2^-25 of the value. That is 8e-7 (one standard deviation) when a count reaches compactMax, where
// the whole distribution is converted to 64 bits.

const (
	compactBias = (1023 - 64) << 52
	compactCut  = 27
	// compactMax is the count, in units of the smaller of 1 and the increment, at which values become wide.
	compactMax = 1 << 14
	// compactFaintest is faintest for compact values.
	compactFaintest = 0x1p-60
)

func expand(c uint32) float64 {
	if c == 0 {
		return 0
	}
	return math.Float64frombits(uint64(c)<<compactCut + compactBias)
}

// squeeze is v, rounded up or down by dither. ok is false when v is negative or too large. A v below 2^-63 becomes 0.
func squeeze(v float64, dither uint64) (c uint32, ok bool) {
	if v < 0x1p-63 {
		return 0, v >= 0
	}
	b := math.Float64bits(v) - compactBias
	b = (b + dither) >> compactCut
	return uint32(b), b <= math.MaxUint32
}

// dither is a hash of two mantissas, below 2^compactCut.
func dither(v, z float64) uint64 {
	const mantissa = 1<<52 - 1
	h := (math.Float64bits(v)&mantissa)*0x9e3779b97f4a7c15 ^ (math.Float64bits(z)&mantissa)*0xc2b2ae3d27d4eb4f
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h >> (64 - compactCut)
}
