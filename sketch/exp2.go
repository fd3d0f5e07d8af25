package sketch

import (
	"math"
	"math/bits"
)

// 2^x and log2 in integers, so that every machine gives the same bits: math.Exp2 and math.Log2 pick their instructions
// at run time, and compilers fuse products into sums.
//
//	x = k + i/128 + y/128        k whole, i in 0..127, 0 <= y < 1
//	2^x = 2^k * T[i] * (1 + P(y))     P(y) = 2^(y/128) - 1, a polynomial of degree 6
//
// All of it is fixed point of 63 or 64 fractional bits and is rounded once, to 53 bits: the relative error is below
// 0.5003 ulp, 1.2e-16.

// Exp2 is 2^(k + frac/2^64): +Inf when k is above 1023, 0 when k is below -1022. Relative error below 1.2e-16.
func Exp2(k int64, frac uint64) float64 {
	if k > 1023 {
		return math.Inf(1)
	}
	if k < -1022 {
		return 0
	}
	y := frac << 7
	p := exp2Poly[5]
	for i := 4; i >= 0; i-- {
		p = exp2Poly[i] + mulHigh(p, y)
	}
	t := exp2Table[frac>>57]
	m := t + mulHigh(t, mulHigh(p, y))
	// m is Q63 in [1, 2]. Rounding may carry into the exponent, and the result is then right.
	return math.Float64frombits(uint64(k+1022)<<52 + (m>>11 + m>>10&1))
}

// Weight is 2^((t - landmark*halfLife)/halfLife): the weight of an event at t, relative to a landmark, which is a whole
// number of half-lives since the epoch. halfLife must be positive. The fraction is cut to 64 bits: relative error below
// 1.2e-16.
func Weight(t Tick, landmark int64, halfLife Tick) float64 {
	k, frac := exponent(t, landmark, halfLife)
	return Exp2(k, frac)
}

// exponent is (t - landmark*h) / h as a whole part and a fraction of 2^64.
func exponent(t Tick, landmark int64, h Tick) (k int64, frac uint64) {
	d := int64(t) - landmark*int64(h)
	k = floorDiv(d, int64(h))
	frac, _ = bits.Div64(uint64(d-k*int64(h)), 0, uint64(h))
	return k, frac
}

// exp2Float is 2^x. x must be finite. The fraction is rounded to 53 bits: relative error below 2.2e-16.
//
// Just below 0, from -2^-54 on, the fraction rounds to 1, which carries into k. No other x has such a fraction: next to
// every other integer the doubles are at least 2^-53 apart. Replicated arithmetic never passes an x from -2^-54 to 0,
// so the carry changes no result in a log.
func exp2Float(x float64) float64 {
	if x > 2000 || x < -2000 {
		return Exp2(int64(math.Copysign(2000, x)), 0)
	}
	k := math.Floor(x)
	frac := float64((x - k) * 0x1p53)
	if frac >= 0x1p53 {
		return Exp2(int64(k)+1, 0)
	}
	return Exp2(int64(k), uint64(frac)<<11)
}

// Log2 is the base-2 logarithm of a positive, finite, normal x. It is exact at powers of two; elsewhere the relative
// error is below 2.3e-16 (one ulp).
//
//	x = 2^e * m,  m * c = 1 + r,  log2 x = e - log2 c + log2(1 + r)     c = a 10-bit reciprocal of m: m * c is exact
func Log2(x float64) float64 {
	b := math.Float64bits(x)
	e := int64(b>>52) - 1023
	m := b&(1<<52-1) | 1<<52
	i := m >> 45 & 127
	entry := &log2Table[i]
	if i >= log2Upper {
		e++
	}
	r := int64(m*entry.inv) - 1<<62
	hi, lo := log1p(r)
	if e == 0 && entry.log == 0 {
		return math.Copysign(narrow(hi, lo), float64(r))
	}
	f := int64(hi)
	if r < 0 {
		f = -f
	}
	return float64(e) + float64(float64(entry.log+f)*0x1p-62)
}

// roughLog2 is the base-2 logarithm of a positive, finite, normal x with an absolute error below 2^-46. It takes two
// thirds of the time of Log2.
func roughLog2(x float64) float64 {
	b := math.Float64bits(x)
	e := int64(b>>52) - 1023
	m := b&(1<<52-1) | 1<<52
	i := m >> 45 & 127
	entry := &log2Table[i]
	if i >= log2Upper {
		e++
	}
	r := int64(m*entry.inv) - 1<<62
	if r < 0 { // only next to 1
		return Log2(x)
	}
	a := uint64(r) << 2
	q := log2Poly[4] - mulHigh(log2Poly[5], a)
	q = log2Poly[3] - mulHigh(q, a)
	q = log2Poly[2] - mulHigh(q, a)
	q = log2Poly[1] - mulHigh(q, a)
	q = log2Poly[0] - mulHigh(q, a)
	return float64(e) + float64(float64(entry.log+int64(mulHigh(q, a)))*0x1p-62)
}

// log2Upper is the first entry of log2Table that counts down from the next power of two.
const log2Upper = 53

// log1p is |log2(1+r)| in Q126, for r in Q62 and |r| < 2^-6.
func log1p(r int64) (hi, lo uint64) {
	if r < 0 {
		a := uint64(-r) << 2
		q := log2Poly[8]
		for k := 7; k >= 0; k-- {
			q = log2Poly[k] + mulHigh(q, a)
		}
		return bits.Mul64(a, q)
	}
	a := uint64(r) << 2
	q := log2Poly[8]
	for k := 7; k >= 0; k-- {
		q = log2Poly[k] - mulHigh(q, a)
	}
	return bits.Mul64(a, q)
}

// narrow is hi:lo in Q126 as the nearest double.
func narrow(hi, lo uint64) float64 {
	if hi == 0 {
		return 0 // r is 0, or at least 2^-52
	}
	n := bits.LeadingZeros64(hi)
	hi = hi<<n | lo>>(64-n)
	// one bit to spare keeps the conversion signed; the bits below are far under half an ulp
	return float64(float64(int64(hi>>1|hi&1)) * math.Float64frombits(uint64(1023-61-n)<<52))
}

func mulHigh(a, b uint64) uint64 {
	hi, _ := bits.Mul64(a, b)
	return hi
}

// floorDiv is a/b rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
