package sketch

import "math"

// DefaultConfidence is the confidence of an interval when the one asked for is not between 0 and 1.
const DefaultConfidence = 0.95

// Interval is the probability of a bin with this count, count/Z, with its Wilson score interval. EffectiveN takes the
// place of the number of trials (Wilson 1927; Kish 1965 for the effective size):
//
//	(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)        z = the normal quantile of (1+confidence)/2
//
// The interval never leaves [0, 1]. Without events the probability is 0, and the interval 0 to 1. Its coverage is
// nominal when events are independent. Where something is lost (see Lost), the interval goes from the lower bound for
// the least possible count to the upper bound for the largest.
func (r Reading) Interval(count, confidence float64) (p, low, high float64) {
	return r.interval(count, r.Lost, confidence)
}

// interval is Interval for a count that may be too low by short.
func (r Reading) interval(count, short, confidence float64) (p, low, high float64) {
	p, n := ratioOf(count, r.Z), r.EffectiveN
	if !(n > 0) {
		return p, 0, 1
	}
	if short == 0 && r.Lost == 0 {
		return wilson(p, n, confidence)
	}
	least, fewest := count, r.Z
	if r.p != nil && r.p.AllowNegative {
		least, fewest = count-short, r.Z-r.Lost
	}
	_, low, _ = wilson(ratioOf(least, r.Z+r.Lost), n, confidence)
	high = 1
	if fewest > 0 { // otherwise the sum may be arbitrarily small
		_, _, high = wilson(ratioOf(count+short, fewest), n, confidence)
	}
	return p, min(low, p), max(high, p)
}

// ratioOf is count/z, limited to 0 to 1; 0 if z is not above 0.
func ratioOf(count, z float64) float64 {
	if z > 0 {
		return min(max(count/z, 0), 1)
	}
	return 0
}

// wilson returns p and Wilson's score interval for n trials.
func wilson(p, n, confidence float64) (_, low, high float64) {
	z := normalQuantile(confidence)
	zz := float64(z*z) / n
	middle := p + float64(zz/2)
	spread := float64(z * math.Sqrt(float64(p*(1-p))/n+float64(float64(zz/n)/4)))
	return p, max(0, min((middle-spread)/(1+zz), p)), min(1, max((middle+spread)/(1+zz), p))
}

// normalQuantile is the z for which |N(0,1)| < z has this probability, by P. J. Acklam's rational approximation:
// relative error below 1.2e-9.
func normalQuantile(confidence float64) float64 {
	if !(confidence > 0 && confidence < 1) {
		confidence = DefaultConfidence
	}
	tail := float64((1 - confidence) / 2)
	if tail < 0.02425 {
		q := math.Sqrt(float64((-2 * math.Ln2) * Log2(tail)))
		return -horner(q, -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
			-2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00) /
			horner(q, 7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00, 1)
	}
	q := 0.5 - tail
	s := float64(q * q)
	return float64(q*horner(s, -3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
		1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00)) /
		horner(s, -5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
			6.680131188771972e+01, -1.328068155288572e+01, 1)
}

// horner is a polynomial, highest power first.
func horner(x float64, coefficients ...float64) float64 {
	sum := 0.0
	for _, c := range coefficients {
		sum = float64(sum*x) + c
	}
	return sum
}

// Around is the interval of a value that is not negative, with a standard error, at a confidence from 0.5 to 0.9999. It
// assumes a normal distribution.
func Around(value, stdErr, confidence float64) (low, high float64) {
	half := float64(normalQuantile(confidence) * stdErr)
	return max(0, value-half), value + half
}

// Interval is the interval of a count estimated from a sample, at a confidence from 0.5 to 0.9999. It contains the
// numbers whose own standard errors allow the estimate (Wilson 1927, because the variance of a count is proportional to
// the count). Unlike Around it is also valid when few things or none were found. The interval of an exact estimate is
// the value alone.
func (e SetEstimate) Interval(confidence float64) (low, high float64) {
	if e.StdErr == 0 {
		return e.Value, e.Value
	}
	unit, variance := e.StdErr, 0.0 // about what one thing found stands for
	if e.Value > 0 {
		variance = float64(e.StdErr * e.StdErr)
		unit = min(unit, variance/e.Value)
	}
	z := normalQuantile(confidence)
	shift := float64(float64(float64(z*z)*unit) / 2)
	half := math.Sqrt(float64(float64(z*z)*variance) + float64(shift*shift))
	return max(0, e.Value+shift-half), e.Value + shift + half
}

// ShareInterval is Interval for a share of a whole, limited to 0 to 1. With a standard error of 1 or more it is 0 to 1.
func (e SetEstimate) ShareInterval(confidence float64) (low, high float64) {
	switch {
	case e.StdErr == 0:
		return e.Value, e.Value
	case e.StdErr >= 1:
		return 0, 1
	}
	low, high = e.Interval(confidence)
	_, less := SetEstimate{Value: 1 - e.Value, StdErr: e.StdErr}.Interval(confidence) // the rest is a share too
	if e.Value > 0.5 {
		low, high = 1-less, min(high, 1)
	}
	return max(0, low), min(1, high)
}
