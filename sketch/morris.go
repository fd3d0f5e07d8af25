package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Limits of a Morris.
const (
	MorrisBaseMin = 1e-4
	MorrisBaseMax = 1.0
)

// MorrisParams decide the shape of a Morris.
type MorrisParams struct {
	// Bits of the register: 8 or 16.
	Bits int
	// A is the base less 1, in 1e-4..1: the standard deviation is sqrt(A/2) of the count, see Morris. 0 means 0.08 with 8 bits, which counts
	// to 4e9 at 20%, and 0.0005 with 16, which counts to 3e17 at 1.6%.
	A float64
	// HalfLife in microseconds, 0 for none.
	HalfLife Tick
}

func (p *MorrisParams) check() error {
	if p.Bits != 8 && p.Bits != 16 {
		return fmt.Errorf("%w: morris: %d bits are neither 8 nor 16", ErrParams, p.Bits)
	}
	if !(p.A >= MorrisBaseMin && p.A <= MorrisBaseMax) {
		return fmt.Errorf("%w: morris: a of %v is not in %v..%v", ErrParams, p.A, MorrisBaseMin, MorrisBaseMax)
	}
	return checkHalfLife("morris", p.HalfLife)
}

// Morris counts in a register that holds about the logarithm of the count (Morris 1978; Flajolet 1985): a register c stands for
//
//	((1+a)^c - 1) / a        standard deviation sqrt(a/2) of the count
//
// An event of n makes that sum larger by n and rounds it to the register below or above, at random so that the mean is kept; for
// n = 1 it is Morris's rule, to step up with probability (1+a)^-c. The chance comes from the caller as a seed that is
// different for each update, such as a hash of shard and log index: the same seeds give the same bytes.
//
// With a half-life events are weighed forward, as in a Distribution; a write in a later half-life first halves the sum, which
// lowers the register, and rounds it in the same way. Weighed events are no whole numbers and halving rounds once more, so the
// variance of a sum S is up to a S^2/2 + S/4 + (1+aS)^2/3 (events that come in time), instead of a S^2/2.
//
// It is unbiased as long as the register is not at its end, where it stays; then the answer says that it is saturated, until
// it fades. It is a plain value.
type Morris struct {
	params MorrisParams
	fade
	perStep  float64 // log2(1+a)
	last     Tick
	register uint16
	top      uint16 // the largest register
}

// NewMorris makes a counter at 0, or answers ErrParams.
func NewMorris(p MorrisParams) (Morris, error) {
	if p.A == 0 && p.Bits == 8 {
		p.A = 0.08
	}
	if p.A == 0 && p.Bits == 16 {
		p.A = 0.0005
	}
	if err := p.check(); err != nil {
		return Morris{}, err
	}
	m := Morris{params: p, fade: fade{halfLife: p.HalfLife}, perStep: Log2(1 + p.A)}
	m.top = uint16(min(float64(uint32(1)<<p.Bits-1), math.Floor(200/m.perStep))) // (1+a)^c stays below CountMax
	return m, nil
}

// Params is what it was made with, defaults filled in.
func (m *Morris) Params() MorrisParams { return m.params }

// power is (1+a)^c.
func (m *Morris) power(c uint16) float64 { return exp2Float(float64(float64(c) * m.perStep)) }

// stands is the sum that a register stands for.
func (m *Morris) stands(c uint16) float64 { return (m.power(c) - 1) / m.params.A }

// round is the register for a sum: of the two next to it the one that a seed picks, so that the mean is the sum.
func (m *Morris) round(sum float64, seed uint64) uint16 {
	if sum >= m.stands(m.top) {
		return m.top
	}
	c := uint16(min(max(math.Floor(Log2(1+float64(m.params.A*sum))/m.perStep), 0), float64(m.top-1)))
	for c > 0 && m.stands(c) > sum { // the logarithm may be off by one
		c--
	}
	for c+1 < m.top && m.stands(c+1) <= sum {
		c++
	}
	low, high := m.stands(c), m.stands(c+1)
	chance := float64(remix(seed, int(c))>>11) * 0x1p-53
	if float64(chance*(high-low)) < sum-low {
		c++
	}
	return c
}

// Add counts n events at time t. now is the namespace's clock, not before t and not before any earlier now. seed decides the
// rounding: it must be different for each update. It answers ErrNegative or ErrOverflow, and then nothing has changed; a count
// that is too large saturates.
func (m *Morris) Add(now, t Tick, n float64, seed uint64) error {
	if err := checkAmount(n); err != nil || n == 0 {
		return err
	}
	m.settle(now, seed)
	sum := m.stands(m.register) + float64(n*m.weight(t))
	m.register = m.round(sum, seed)
	m.last = max(m.last, t)
	return nil
}

// settle halves the sum for every half-life that has begun: weights stay below 2, and the register small.
func (m *Morris) settle(now Tick, seed uint64) {
	mark := m.landmark(now)
	if m.register == 0 {
		m.mark = mark
	}
	if mark > m.mark {
		scale := m.moveTo(mark)
		m.register = m.round(float64(m.stands(m.register)*scale), remix(seed, -1))
	}
}

// MorrisEstimate is a count at one time, with its standard deviation in theory.
type MorrisEstimate struct {
	Count, StandardError float64
	// Saturated: the register is at its end, and the count is only a lower bound.
	Saturated bool
}

// Estimate reads the count at a time. It never writes.
func (m *Morris) Estimate(at Tick) MorrisEstimate {
	sum, a, scale := m.stands(m.register), m.params.A, m.scale(at)
	variance := float64(float64(sum*sum) * (a / 2))
	if m.halfLife > 0 {
		gap := 1 + float64(a*sum)
		variance += float64(sum/4) + float64(gap*gap)/3
	}
	if sum == 0 {
		variance = 0
	}
	return MorrisEstimate{
		Count: float64(sum * scale), StandardError: float64(math.Sqrt(variance) * scale), Saturated: m.register == m.top,
	}
}

// Last is the tick of the latest event, 0 when there was none.
func (m *Morris) Last() Tick { return m.last }

// Reached is the latest time that a write has brought into it, 0 if times mean nothing to it: before that time, what it
// holds cannot be read.
func (m *Morris) Reached() Tick { return m.reached(m.last) }

// Death is a tick from which on the count is below a threshold above 0, as long as nothing is added: a few ticks after the first
// such. It is MaxTick without a half-life, and 0 when the register is. A write may bring it forward, by the chance of its rounding.
func (m *Morris) Death(threshold float64) Tick {
	return Faded(m.stands(m.register), Tick(m.mark*int64(m.halfLife)), m.halfLife, threshold)
}

// Merge adds the sum of o, which stays as it is, and rounds with a seed as Add does: in expectation the counts add up. It
// commutes for the same seed, and does not associate. It answers ErrIncompatible, and then nothing has changed.
func (m *Morris) Merge(o *Morris, seed uint64) error {
	if m.params != o.params {
		return fmt.Errorf("%w: morris of %+v and of %+v", ErrIncompatible, m.params, o.params)
	}
	last := max(m.last, o.last)
	switch {
	case o.register == 0:
	case m.register == 0:
		*m = *o
	default:
		mark := max(m.mark, o.mark)
		sum := float64(m.stands(m.register)*Exp2(m.mark-mark, 0)) + float64(o.stands(o.register)*Exp2(o.mark-mark, 0))
		saturated := m.mark == mark && m.register == m.top || o.mark == mark && o.register == o.top
		if m.mark, m.register = mark, m.round(sum, seed); saturated {
			m.register = m.top
		}
	}
	m.last = last
	return nil
}

// Size is the memory it takes, in bytes.
func (m *Morris) Size() int { return 64 }

// A Morris in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'm', 1
//	bits             1 byte: 8 or 16
//	a                8 bytes, a little endian double
//	half-life        uvarint
//	mark, last       uvarints; mark is 0 when the register is
//	register         uvarint

const morrisKind = 'm'

// AppendBinary appends the encoding to b.
func (m *Morris) AppendBinary(b []byte) []byte {
	b = appendFloat(append(b, morrisKind, codecVersion, byte(m.params.Bits)), m.params.A)
	b = m.fade.append(b, m.register == 0, m.last)
	return binary.AppendUvarint(b, uint64(m.register))
}

// Decode replaces the counter by the one at the start of b, and answers what follows it. Bytes that AppendBinary cannot have
// written are refused with ErrCorrupt, and the receiver stays as it was.
func (m *Morris) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	r.header(morrisKind)
	p := MorrisParams{Bits: int(r.byte()), A: r.plainFloat()}
	f, last := r.fade()
	p.HalfLife = f.halfLife
	register := r.int(math.MaxUint16)
	if !r.ok || p.check() != nil || register == 0 && f.mark != 0 {
		return nil, ErrCorrupt
	}
	n, err := NewMorris(p)
	if err != nil || register > int(n.top) {
		return nil, ErrCorrupt
	}
	n.fade, n.last, n.register = f, last, uint16(register)
	*m = n
	return r.b, nil
}
