package sketch

import (
	"math"
	"math/bits"
)

// Linear decay is one leaky bucket for each bin. All leak alike, so one function of time describes all leaks:
//
//	R(t) = floor(10^6 ln 2 * t/h)        micro-counts that leak from the epoch to t
//	level = R(t0) + content at t0        stored, an integer
//	content at T = max(0, level - R(T))
//
// An event of n at t makes level = max(level, R(t)) + n. Levels are integers, so nothing is rounded. But the order of
// events matters: the laws of merging do not hold under Linear.
//
// Under Params.Bounded the stored level is the least that a bin can have, whatever the order of its events. A late
// event counts only what a leak since its time has left of it. In the order of times it might count more, up to all of
// it, if the bin was not empty for all that time; that is not known afterwards. So the difference is added to lost, and
// so is the content of removed bins. lost does not leak, because a bin that never runs empty keeps a late event in
// full. But no bin has more than the highest level plus lost, less what has leaked. When that is gone, the summary
// dies.
//
//	truth of a bin lies in [content, content + min(lost, highest level + lost - R(T))]

// microPerCount is the number of micro-counts in a count.
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

// addBounded is addLevel under Params.Bounded.
func (d *Distribution) addBounded(p *Params, now, t Tick, bin uint32, n float64) error {
	drained, floor := p.leaked(now), p.microThreshold()
	if d.Len() > 0 && d.dry(drained, floor) && !p.keeps() {
		*d = Distribution{}
	}
	if math.Abs(n) >= 0x1p63/microPerCount {
		return ErrOverflow
	}
	counts, short := inTime(toMicro(n), drained-p.leaked(t), p.AllowNegative)
	level, i, lost := drained, d.find(bin), d.lost
	if i >= 0 {
		level = max(level, int64(d.raw(i)))
	}
	sum, ok := sumLevels(level, counts)
	if !ok {
		return ErrOverflow
	}
	sum = max(sum, drained)
	if d.Len() == 0 {
		lost = p.LostAtBirth(now)
	}
	full := i < 0 && d.Len() >= p.binsMax()
	if full && sum-drained >= floor {
		return ErrTooManyBins
	}
	if full {
		short += sum - drained
	} else {
		d.storeLevel(p, i, bin, sum)
	}
	d.lost = lostUp(lost + float64(short)/microPerCount)
	d.last = max(d.last, t)
	return nil
}

// inTime splits a late event: counts is the least that it adds when leaked has leaked since its time, and short how
// much more it may add. Where amounts may be negative, a bin may also have been empty because of these.
func inTime(n, leaked int64, signed bool) (counts, short int64) {
	switch {
	case leaked <= 0:
		return n, 0
	case n < 0:
		return n, -max(n, -math.MaxInt64)
	case signed:
		return 0, n
	}
	short = min(n, leaked)
	return n - short, short
}

// dry says whether nothing is left of the highest level plus lost.
func (d *Distribution) dry(drained, floor int64) bool {
	level, ok := sumLevels(d.mark-drained, d.microLost())
	return ok && level < floor
}

// microLost is lost in micro-counts, rounded up.
func (d *Distribution) microLost() int64 {
	if d.lost == 0 {
		return 0
	}
	return toMicro(float64(d.lost*(1+0x1p-40))) | 1
}

// shortAt is by how much any bin may be too low when leaked has leaked.
func (d *Distribution) shortAt(p *Params, leaked int64) float64 {
	if d.lost == 0 {
		return 0
	}
	most, ok := sumLevels(d.mark-leaked, d.microLost())
	switch {
	case !ok || p.keeps():
		return d.lost
	case most < p.microThreshold():
		return lostUp(p.heldAtDeath())
	}
	return min(d.lost, float64(most)/microPerCount)
}

// removeDry removes the bins below the floor, and adds them all to lost. It keeps the highest one if no bin would
// remain.
func (d *Distribution) removeDry(p *Params, drained int64, gone func(bin uint32)) {
	floor, kept, lost := p.microThreshold(), 0, int64(0)
	stays, highest := uint32(0), int64(-1)
	for i := range d.Len() {
		if level := int64(d.raw(i)); level > highest || level == highest && d.id(i) < stays {
			stays, highest = d.id(i), level
		}
	}
	for i := range d.Len() {
		content := int64(d.raw(i)) - drained
		if content >= floor || highest-drained < floor && d.id(i) == stays {
			d.move(i, kept)
			kept++
			continue
		}
		lost += max(content, 0)
		if gone != nil {
			gone(d.id(i))
		}
	}
	if kept == d.Len() {
		return
	}
	if lost > 0 {
		d.lost = lostUp(d.lost + float64(lost)/microPerCount)
	}
	d.truncate(kept)
}

// leakedBy is the first tick, or one soon after, at which R reaches a level; MaxTick when there is none.
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
	return Tick(q0 + 2) // 1 for the remainder, 1 for what R(t) cut off
}

// microThreshold is the floor in micro-counts, at least 1.
func (p *Params) microThreshold() int64 {
	return max(1, toMicro(p.Threshold))
}

// leastLeft is the least content of a bin that is part of Z: below the threshold a bin counts as 0, unless Bounded.
func (p *Params) leastLeft() int64 {
	if p.Bounded {
		return 1
	}
	return p.microThreshold()
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

// sumLevels adds without overflow; ok is false when the sum would overflow.
func sumLevels(a, b int64) (sum int64, ok bool) {
	sum = a + b
	return sum, (sum > a) == (b > 0)
}
