package sketch

import (
	"errors"
	"math"
)

// Tick is a time in microseconds since the Unix epoch.
type Tick int64

// MaxTick is the end of time: what never dies has it as its death.
const MaxTick = Tick(math.MaxInt64)

// Decay says how a distribution forgets.
type Decay uint8

// The zero value means HalfLife.
const (
	_        Decay = iota
	HalfLife       // value(T) = v * 2^-((T-L)/h)
	Linear         // every bin leaks ln 2 / h a second, in whole micro-counts
	None           // plain counts
)

// Floor says what happens to a bin that has faded.
type Floor uint8

// The zero value means Prune.
const (
	_     Floor = iota
	Prune       // below the threshold a bin is gone
	Clamp       // a bin reads as at least 1, so that an idle distribution tends to uniform
	Prior       // a Dirichlet pseudo-count is added to every bin when read
)

// Limits of a distribution.
const (
	// CountMax bounds every count, as read at the time of the write that would pass it.
	CountMax = 0x1p200
	// BinsMax bounds the bins of one distribution, whatever Params allow.
	BinsMax = 1<<24 - 1
	// RebaseAfter is how many half-lives the clock runs past a landmark before a write moves it.
	RebaseAfter = 32
)

// faintest is what counts as nothing, so that subnormal numbers never enter.
const faintest = 0x1p-100

// Errors of Add. None of them changes a count.
var (
	// ErrTooManyBins: the bin is new and the distribution has Params.BinsMax bins. Faded bins count until Prune removes
	// them.
	ErrTooManyBins = errors.New("too many bins")
	// ErrNegative: the amount is negative and Params.AllowNegative is false.
	ErrNegative = errors.New("negative amount")
	// ErrOverflow: the amount is not finite, or a count would pass CountMax (2^63 micro-counts under Linear).
	ErrOverflow = errors.New("amount is not finite or overflows the count")
)

// Params is what a namespace says about its distributions. They are passed to each call and not stored: a distribution
// must be given the Params under which it was last written, or be converted first (see Distribution.Convert).
type Params struct {
	Decay Decay
	// HalfLife in microseconds, at least 1. None ignores it.
	HalfLife Tick
	Floor    Floor
	// Threshold below which a bin is gone (Prune), and a Z below which a summary is dead (all floors). None ignores it.
	Threshold float64
	// Prior is the pseudo-count of each bin under the Prior floor.
	Prior float64
	// Compact stores 32-bit values: relative error at most 1e-5. Linear ignores it.
	Compact bool
	// AllowNegative lets amounts, and so counts, be negative.
	AllowNegative bool
	// BinsMax bounds the bins of one distribution; 0 means the package's BinsMax.
	BinsMax int
	// OrderFree counts events that weigh little, so that no order of events makes a difference of more than
	// Distribution.Lost tells, and keeps all bins and the summary for good under Clamp and Prior. It is the caller's to
	// set on all of a log's entries from one of them on: without, an event below the threshold is not counted.
	OrderFree bool
	// Bounded says of Linear by how much late events and removed bins may make a count too low, see Distribution.Lost.
	// It is the caller's to set, as OrderFree is: without, a late event counts in full where its bin has something
	// left.
	Bounded bool
	// KeepsFaint makes a bin of an event that weighs nothing any more, where the floor keeps bins for good: whatever
	// order events come in, the same bins are known. It is the caller's to set, as OrderFree is.
	KeepsFaint bool
	// Lowers has a summary that carries a threshold of its own live until the present one, where that is lower. It is
	// the caller's to set, as OrderFree is.
	Lowers bool
	// Gone is what keys may have held that were gone before these settings, see Follow.
	Gone Gone
}

// threshold is the floor in counts.
func (p *Params) threshold() float64 {
	if p.Decay == None {
		return faintest
	}
	return max(p.Threshold, faintest)
}

// binThreshold is the count below which a single bin counts as nothing.
func (p *Params) binThreshold() float64 {
	if p.Floor == Clamp || p.Floor == Prior {
		return faintest
	}
	return p.threshold()
}

// binsMax is the limit that holds.
func (p *Params) binsMax() int {
	if p.BinsMax <= 0 {
		return BinsMax
	}
	return min(p.BinsMax, BinsMax)
}

// landmark is the last one at or before t.
func (p *Params) landmark(t Tick) int64 {
	if p.Decay == None {
		return 0
	}
	return floorDiv(int64(t), int64(p.HalfLife))
}

// weight is what an event at t weighs as seen from a landmark.
func (p *Params) weight(t Tick, landmark int64) float64 {
	if p.Decay == None {
		return 1
	}
	return Weight(t, landmark, p.HalfLife)
}

// Now is a namespace's clock, with what a write at that time needs of it computed once for many writes. It belongs to
// the Params that made it.
type Now struct {
	at   Tick
	mark int64  // the landmark at or before; 0 without half-lives
	bits uint64 // of the weight as seen from there; 0 without half-lives
	// scale is that of the landmark last asked for.
	scale scale
}

// Now is the given time.
func (p *Params) Now(at Tick) Now {
	if p.Decay == None || p.Decay == Linear {
		return Now{at: at}
	}
	mark := p.landmark(at)
	return Now{at: at, mark: mark, bits: math.Float64bits(Weight(at, mark, p.HalfLife))}
}

// At is the time itself.
func (n *Now) At() Tick { return n.at }

// weight is what an event of this time weighs as seen from a landmark: the same number as Params.weight, to the bit.
func (n *Now) weight(landmark int64) float64 {
	k := n.mark - landmark
	switch {
	case n.bits == 0:
		return 1
	case k > 1023:
		return math.Inf(1)
	case k < -1022:
		return 0
	}
	return math.Float64frombits(n.bits + uint64(k)<<52)
}

// shrink is 1/weight, rounded once.
func (p *Params) shrink(t Tick, landmark int64) float64 {
	if p.Decay == None {
		return 1
	}
	k, frac := exponent(t, landmark, p.HalfLife)
	if frac == 0 {
		return Exp2(-k, 0)
	}
	return Exp2(-k-1, -frac)
}
