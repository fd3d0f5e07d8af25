package sketch

import (
	"math"
	"math/bits"
)

// Linear decay is a leaky bucket a bin. All leak alike, so one clock of what has leaked serves them all:
//
//	R(t) = floor(10^6 ln 2 * t/h)        micro-counts that leak from the epoch to t
//	level = R(t0) + content at t0        stored, an integer
//	content at T = max(0, level - R(T))
//
// An event of n at t makes level = max(level, R(t)) + n. Levels are integers and leave no rounding behind, but the order of
// events matters: linear is exempt from the laws of merging.

// microPerCount is the unit of the linear mode.
const microPerCount = 1e6

// leaked is R(t), for t >= 0. It saturates after 10^13 half-lives.
func (p *Params) leaked(t Tick) int64 {
	h := uint64(p.HalfLife)
	whole := uint64(max(t, 0)) / h
	frac, _ := bits.Div64(uint64(max(t, 0))%h, 0, h)
	hi, lo := bits.Mul64(whole, leakPerHalfLife)
	lo, carry := bits.Add64(lo, mulHigh(frac, leakPerHalfLife), 0)
	hi += carry
	if hi >= 1<<39 {
		return math.MaxInt64
	}
	return int64(hi<<24 | lo>>40)
}

// leakedBy is the first tick (or one soon after) at which R reaches a level; MaxTick when there is none.
func (p *Params) leakedBy(level int64) Tick {
	if level <= 0 {
		return 0
	}
	// t = level * h / (10^6 ln 2)
	hi, lo := bits.Mul64(uint64(level), uint64(p.HalfLife))
	h1, h0 := hi<<40|lo>>24, lo<<40
	if hi>>24 >= leakPerHalfLife {
		return MaxTick
	}
	q1, r := bits.Div64(hi>>24, h1, leakPerHalfLife)
	q0, _ := bits.Div64(r, h0, leakPerHalfLife)
	if q1 != 0 || q0 >= math.MaxInt64-2 {
		return MaxTick
	}
	return Tick(q0 + 2) // one for the remainder, one for what R(t) cut off
}

// microThreshold is the floor in micro-counts, at least 1.
func (p *Params) microThreshold() int64 {
	return max(1, toMicro(p.Threshold))
}

// toMicro rounds a count to micro-counts and saturates.
func toMicro(n float64) int64 {
	m := math.Round(float64(n * microPerCount))
	if m >= 0x1p63 {
		return math.MaxInt64
	}
	if m <= -0x1p63 {
		return math.MinInt64
	}
	return int64(m)
}

// sumLevels adds without wrapping; ok is false when it would.
func sumLevels(a, b int64) (sum int64, ok bool) {
	sum = a + b
	return sum, (sum > a) == (b > 0)
}
