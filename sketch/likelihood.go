package sketch

import "math"

// likelihood is the evidence about events that happen at an unknown rate. Each level u has some number of independent
// things. A thing of level u has been seen by now with probability 1 - exp(-rate * 2^-u), and for each thing it is
// known whether it was seen. Registers and tokens of all kinds reduce to this (Ertl, "ExaLogLog", EDBT 2025, section 3;
// the same form holds for SetSketch registers of base 2):
//
//	log likelihood = -rate * unseen + sum over u of seen[u] * ln(1 - exp(-rate * 2^-u))
type likelihood struct {
	unseen float64               // sum of 2^-u over the things not seen
	seen   [levelsMax + 1]uint64 // the number of things seen of level u, at u - lowest
	lowest int                   // the level of seen[0]
}

// levelsMax is the largest span of levels.
const levelsMax = 256

// solve is the rate with the largest likelihood, and the variance of its estimate (the inverse of the observed
// information). The rate is 0 if nothing was seen, and +Inf if everything was seen.
//
// Let U be the highest level with a thing seen, and y = exp(rate * 2^-U) - 1. Then the level U - j has exp(rate *
// 2^-(U-j)) - 1 = (1+y)^(2^j) - 1, so that squaring replaces exp. The derivative is convex and falls. So Newton's
// method approaches its root from below and never passes it. It takes about 10 steps.
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
	// 1/(e^z - 1) >= 1/z - 1/2 gives a rate that is not above the root, and e^z - 1 >= z gives its y
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

// bounds are the first and the last index at which seen is not 0, the sum of seen, and the sum of seen * 2^(high -
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

// derivatives are the sum over j of seen[high-j] * 2^j / ((1+y)^(2^j) - 1), and how fast it decreases with y.
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
