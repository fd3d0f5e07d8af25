package sketch

import (
	"errors"
	"math"
)

// Tick is a time in microseconds since the Unix epoch.
type Tick int64

// MaxTick is the latest time, and the death of what never dies.
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

// Floor says what happens to a bin below the threshold.
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
	// CountMax bounds every count, as read at the time of the write that would exceed it.
	CountMax = 0x1p200
	// BinsMax bounds the bins of one distribution, whatever Params allow.
	BinsMax = 1<<24 - 1
	// RebaseAfter is by how many half-lives the clock passes the landmark before a write moves the landmark.
	RebaseAfter = 32
)

// faintest is the size below which a value counts as 0, so that subnormal numbers never occur.
const faintest = 0x1p-100

// Errors of Add. None of them changes a count.
var (
	// ErrTooManyBins says that the bin is new and the distribution already has Params.BinsMax bins. Faded bins count
	// until Prune removes them.
	ErrTooManyBins = errors.New("too many bins")
	// ErrNegative says that the amount is negative and Params.AllowNegative is false.
	ErrNegative = errors.New("negative amount")
	// ErrOverflow says that the amount is not finite, or that a count would exceed CountMax (2^63 micro-counts under
	// Linear).
	ErrOverflow = errors.New("amount is not finite or overflows the count")
)

// Params are the settings of a namespace for its distributions. They are passed to each call and not stored. A
// distribution must be given the Params under which it was last written, or be converted first (see
// Distribution.Convert).
type Params struct {
	Decay Decay
	// HalfLife in microseconds, at least 1. None ignores it.
	HalfLife Tick
	Floor    Floor
	// Threshold is the count below which a bin is gone (Prune), and the Z below which a summary is dead (all floors).
	// None ignores it.
	Threshold float64
	// Prior is the pseudo-count of each bin under the Prior floor.
	Prior float64
	// Compact stores 32-bit values: relative error at most 1e-5. Linear ignores it.
	Compact bool
	// AllowNegative lets amounts, and so counts, be negative.
	AllowNegative bool
	// BinsMax bounds the bins of one distribution; 0 means the package's BinsMax.
	BinsMax int
	// OrderFree counts events that weigh little too, so that the order of events changes no count by more than
	// Distribution.Lost. Under Clamp and Prior it keeps all bins and the summary for good. Without it, an event below
	// the threshold is not counted. Callers set it on all entries of a log from a certain entry on.
	OrderFree bool
	// Bounded is for Linear: it bounds by how much late events and removed bins can make a count too low, see
	// Distribution.Lost. Without it, a late event counts in full if its bin has something left. Callers set it as they
	// set OrderFree.
	Bounded bool
	// KeepsFaint stores a bin also for an event whose weight is now 0, where the floor keeps bins for good. So the same
	// bins are stored in whatever order events come. Callers set it as they set OrderFree.
	KeepsFaint bool
	// Lowers applies the present threshold, where it is lower, to a summary that stores its own threshold: the summary
	// then lives longer. Callers set it as they set OrderFree.
	Lowers bool
	// Gone is how much the keys that died before these settings may have held, see Follow.
	Gone Gone
}

// threshold is the threshold in force, in counts.
func (p *Params) threshold() float64 {
	if p.Decay == None {
		return faintest
	}
	return max(p.Threshold, faintest)
}

// binThreshold is the count below which a single bin counts as 0.
func (p *Params) binThreshold() float64 {
	if p.Floor == Clamp || p.Floor == Prior {
		return faintest
	}
	return p.threshold()
}

// binsMax is the limit in force: BinsMax of Params, or of the package.
func (p *Params) binsMax() int {
	if p.BinsMax <= 0 {
		return BinsMax
	}
	return min(p.BinsMax, BinsMax)
}

// landmark is the last landmark at or before t.
func (p *Params) landmark(t Tick) int64 {
	if p.Decay == None {
		return 0
	}
	return floorDiv(int64(t), int64(p.HalfLife))
}

// weight is the weight of an event at t, relative to a landmark.
func (p *Params) weight(t Tick, landmark int64) float64 {
	if p.Decay == None {
		return 1
	}
	return Weight(t, landmark, p.HalfLife)
}

// Now is the time of a namespace's clock, with values that many writes at that time share. It is valid only with the
// Params that made it.
type Now struct {
	at   Tick
	mark int64  // the last landmark at or before at; 0 without half-lives
	bits uint64 // the bits of the weight of at relative to mark; 0 without half-lives
	// scale belongs to the landmark of the last request.
	scale scale
}

// Now makes the Now of a time.
func (p *Params) Now(at Tick) Now {
	if p.Decay == None || p.Decay == Linear {
		return Now{at: at}
	}
	mark := p.landmark(at)
	return Now{at: at, mark: mark, bits: math.Float64bits(Weight(at, mark, p.HalfLife))}
}

// At is the time itself.
func (n *Now) At() Tick { return n.at }

// weight is the weight of an event of this time relative to a landmark: the same number as Params.weight, to the bit.
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
