package sketch

import "math"

// likelihood is what is known of events that happen at a rate: for each level u some number of independent things would
// have been seen by now with probability 1 - exp(-rate * 2^-u), and it is known of each whether it was. Registers and
// tokens of all kinds come down to this (Ertl, "ExaLogLog", EDBT 2025, section 3; the same form holds for SetSketch
// registers of base 2):
//
//	log likelihood = -rate * unseen + sum over u of seen[u] * ln(1 - exp(-rate * 2^-u))
type likelihood struct {
	unseen float64               // sum of 2^-u over what was not seen
	seen   [levelsMax + 1]uint64 // how many things of level u were seen, at u - lowest
	lowest int                   // the level of seen[0]
}

// levelsMax: levels span at most 256.
const levelsMax = 256

// solve is the rate at which the likelihood is largest, and the variance of its estimate (the inverse of the observed
// information). Nothing seen is a rate of 0. It is +Inf when everything was seen.
//
// Let U be the highest level where anything was seen, and y = exp(rate * 2^-U) - 1. Then the level U - j has
// exp(rate * 2^-(U-j)) - 1 = (1+y)^(2^j) - 1, so that squaring takes the place of exp. The derivative is convex and
// falls. So Newton's method climbs to its root from below without ever passing it. It takes about 10 steps.
func (l *likelihood) solve() (rate, variance float64) {
	low, high, all, reach := l.bounds()
	if all == 0 {
		return 0, 0
	}
	if l.unseen <= 0 {
		return math.Inf(1), math.Inf(1)
	}
	up := Exp2(int64(high+l.lowest), 0) // 2^U
	target := float64(l.unseen * up)
	// 1/(e^z - 1) >= 1/z - 1/2 gives a rate that is not above the root, and e^z - 1 >= z its y
	y := all / (target + float64(reach/2))
	for range 100 {
		f, slope := l.derivatives(y, low, high)
		step := (f - target) / slope
		if !(step > float64(y*0x1p-50)) {
			break
		}
		y += step
	}
	rate = float64(up * log1pFloat(y))
	// d y / d rate = 2^-U (1 + y), and the derivative of the log likelihood by the rate is 2^-U (f - target)
	_, slope := l.derivatives(y, low, high)
	information := float64(slope*(1+y)) / float64(up*up)
	return rate, 1 / information
}

// bounds are the first and last indices of seen that are not 0, the sum of seen, and the sum of seen * 2^(high -
// index).
func (l *likelihood) bounds() (low, high int, all, reach float64) {
	low = -1
	for i, n := range l.seen {
		if n == 0 {
			continue
		}
		if low < 0 {
			low = i
		}
		high = i
	}
	if low < 0 {
		return 0, 0, 0, 0
	}
	for i := low; i <= high; i++ {
		all += float64(l.seen[i])
		reach += float64(float64(l.seen[i]) * Exp2(int64(high-i), 0))
	}
	return low, high, all, reach
}

// derivatives are the sum over j of seen[high-j] * 2^j / ((1+y)^(2^j) - 1), and how fast it falls with y.
func (l *likelihood) derivatives(y float64, low, high int) (f, slope float64) {
	power, rise := 1.0, 1.0 // 2^j, and the derivative of e by y
	e := y
	for i := high; i >= low && e < 1e100; i-- {
		if n := l.seen[i]; n > 0 {
			term := float64(float64(n)*power) / e
			f += term
			slope += float64(term * (rise / e))
		}
		rise = float64(2 * float64(rise*(e+1)))
		e = float64(e * (e + 2))
		power *= 2
	}
	return f, slope
}

// log1pFloat is ln(1+x) for x > 0: relative error below 1e-15.
func log1pFloat(x float64) float64 {
	u := 1 + x
	if u == 1 {
		return x
	}
	l := float64(Log2(u) * math.Ln2)
	return float64(l * (x / (u - 1)))
}
