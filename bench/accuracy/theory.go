package accuracy

import "math"

// Standard errors in theory are relative. m is the number of registers, bits or cells; n is the number of distinct
// things.

// DistinctTheory is the standard error of an ExaLogLog with t = 2 and d = 24, 0.34376/sqrt(m) (Ertl, EDBT 2025). It is
// the limit for many things, and a bound for few.
func DistinctTheory(precision int) float64 { return 0.34376 / math.Sqrt(math.Exp2(float64(precision))) }

// LogLogTheory is 1.30/sqrt(m) (Durand, Flajolet 2003).
func LogLogTheory(m float64) float64 { return 1.30 / math.Sqrt(m) }

// SuperLogLogTheory is 1.05/sqrt(m) (Durand, Flajolet 2003).
func SuperLogLogTheory(m float64) float64 { return 1.05 / math.Sqrt(m) }

// HyperLogLogTheory is 1.04/sqrt(m) (Flajolet et al. 2007). For a SetSketch of base 2 it is the same to three digits.
func HyperLogLogTheory(m float64) float64 { return 1.04 / math.Sqrt(m) }

// SetTheory is the standard error of k / (the k+1-th smallest of n uniform hashes), from the moments of the beta
// distribution. It is 0 up to k things, and sqrt((n-k)/(n(k-1))) beyond, which tends to 1/sqrt(k-1).
func SetTheory(k, n float64) float64 {
	if n <= k {
		return 0
	}
	return math.Sqrt((n - k) / (n * (k - 1)))
}

// LinearTheory is sqrt(m (e^t - t - 1)) / n with t = n/m (Whang, Vander-Zanden, Taylor 1990).
func LinearTheory(m, n float64) float64 {
	t := n / m
	return math.Sqrt(m*(math.Expm1(t)-t)) / n
}

// MorrisTheory is sqrt(a/2 (n-1)/n) for a base of 1+a (Flajolet 1985): exact for all n.
func MorrisTheory(a, n float64) float64 { return math.Sqrt(a / 2 * (n - 1) / n) }
