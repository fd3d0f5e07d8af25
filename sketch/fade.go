package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// HalfLifeMax is the longest half-life of a summary with its own half-life: 285 years.
const HalfLifeMax = Tick(1 << 53)

// fade is the forward decay of a summary with its own half-life (see the package comment). With a half-life of 0,
// nothing decays. Times before 1970 count as 1970.
type fade struct {
	halfLife Tick
	mark     int64 // the landmark in half-lives; 0 while nothing is stored
}

func checkHalfLife(kind string, h Tick) error {
	if h < 0 || h > HalfLifeMax {
		return fmt.Errorf("%w: %s: half-life of %d microseconds is not in 0..%d", ErrParams, kind, h, HalfLifeMax)
	}
	return nil
}

// landmark is the last landmark at or before t.
func (f *fade) landmark(t Tick) int64 {
	if f.halfLife == 0 {
		return 0
	}
	return int64(max(t, 0) / f.halfLife)
}

// weight is the weight of an event at t, at most 2^1024.
func (f *fade) weight(t Tick) float64 {
	if f.halfLife == 0 {
		return 1
	}
	return Weight(max(t, 0), f.mark, f.halfLife)
}

// scale is the count of a stored unit at a time: 1/weight, rounded once. A time earlier than 256 half-lives before the
// landmark reads as that time.
func (f *fade) scale(at Tick) float64 {
	if f.halfLife == 0 {
		return 1
	}
	at = max(at, 0, Tick((f.mark-earliest)*int64(f.halfLife)))
	k, frac := exponent(at, f.mark, f.halfLife)
	if frac == 0 {
		return Exp2(-k, 0)
	}
	return Exp2(-k-1, -frac)
}

// reached is the earliest as-of time of the state. It is the time of the latest event, or some half-lives before the
// landmark if that is later. Late events before that time may have been too faint to be stored. It is 0 without a
// half-life.
func (f *fade) reached(last Tick) Tick {
	if f.halfLife == 0 {
		return 0
	}
	return max(last, Tick(max(f.mark-readableBack, 0))*f.halfLife)
}

// readableBack is how many half-lives before a landmark an event of amount 1 is still stored in full: its weight
// exceeds faintest by some bits.
const readableBack = 40

// due returns the landmark of now, and whether a write at now must move to it first.
func (f *fade) due(now Tick) (mark int64, move bool) {
	mark = f.landmark(now)
	return mark, mark-f.mark > RebaseAfter
}

// moveTo changes the landmark and returns the power of two that all stored values must be multiplied by.
func (f *fade) moveTo(mark int64) (scale float64) {
	scale = Exp2(f.mark-mark, 0)
	f.mark = mark
	return scale
}

// faint is the stored value below which a value counts as 0, at a time with the weight atNow.
func faint(atNow float64) float64 { return float64(faintest * max(atNow, 1)) }

// append writes the half-life, the landmark (0 when nothing is stored) and the tick of the latest event, as uvarints.
func (f *fade) append(b []byte, empty bool, last Tick) []byte {
	mark := f.mark
	if empty {
		mark = 0
	}
	b = binary.AppendUvarint(b, uint64(f.halfLife))
	b = binary.AppendUvarint(b, uint64(mark))
	return binary.AppendUvarint(b, uint64(last))
}

// fade reads a half-life, a landmark and the tick of the latest event.
func (r *reader) fade() (f fade, last Tick) {
	f.halfLife = Tick(r.uvarint())
	f.mark = int64(r.uvarint())
	last = Tick(r.uvarint())
	r.ok = r.ok && last >= 0 && f.mark >= 0 && f.halfLife >= 0 && f.halfLife <= HalfLifeMax
	r.ok = r.ok && (f.mark == 0 || f.halfLife > 0 && f.mark <= math.MaxInt64/int64(f.halfLife))
	return f, last
}

// checkAmount refuses amounts that cannot be counted.
func checkAmount(n float64) error {
	if n != n || n > CountMax || n < -CountMax {
		return ErrOverflow
	}
	if n < 0 {
		return ErrNegative
	}
	return nil
}

// mergedMax bounds the sum of all counts after a merge, as stored.
const mergedMax = 0x1p400

// Faded is a tick from which on a count is below a threshold above 0, if it is n at since and halves with each
// half-life. It is a few ticks after the first such tick. It is MaxTick without a half-life, and 0 when n is not above
// 0.
func Faded(n float64, since, halfLife Tick, threshold float64) Tick {
	switch {
	case n <= 0:
		return 0
	case halfLife == 0:
		return MaxTick
	}
	h := float64(halfLife)
	after := float64((Log2(n)-Log2(max(threshold, faintest)))*h) + float64(h*0x1p-44) + 2
	switch {
	case after <= 0:
		return since
	case after >= float64(MaxTick-since)-1024:
		return MaxTick
	}
	return since + Tick(math.Ceil(after))
}
