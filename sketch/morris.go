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
	// A is the base less 1, in 1e-4..1: the relative standard deviation of the count is sqrt(A/2), see Morris. 0 means
	// 0.08 with 8 bits, which counts to 4e9 at 20%, and 0.0005 with 16 bits, which counts to 3e17 at 1.6%.
	A float64
	// HalfLife in microseconds, 0 for none.
	HalfLife Tick
	// Measured counters store the variance of all their roundings, and answer with it. With a half-life and range to
	// spare, they also round to less than 1: counters of 16 bits to 2^-11, which leaves a range of 1.7e14.
	Measured bool
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

// Morris counts in a register that holds about the logarithm of the count (Morris 1978; Flajolet 1985). A register c
// stands for
//
//	((1+a)^c - 1) / a        standard deviation sqrt(a/2) of the count
//
// An event of amount n adds n to that sum. The sum is rounded to the register below or above, at random, so that the
// mean is kept. For n = 1 this is Morris's rule: step up with probability (1+a)^-c. The caller passes a seed, which
// must be different for each update, such as a hash of shard and log index. The same seeds give the same bytes.
//
// With a half-life, events are weighed forward, as in a Distribution. The first write in a later half-life halves the
// sum, which lowers the register, and rounds the result in the same way.
//
// Rounding a sum between low and high has a variance of (sum-low)(high-sum). A measured counter adds these variances
// up, and halves their root when it halves the sum. The errors are a martingale, so that is the variance of the count
// for events of any amount, late or not, in any order and in any batches. A counter that is not measured takes a S^2/2
// for the variance of a sum S, and with a half-life S/4 + (1+aS)^2/3 more. That is right for events that come in time
// (see Interval for others).
//
// The estimate is unbiased until the register reaches its largest value, where it stays. Then answers are Saturated,
// until the count fades. A Morris is a plain value.
type Morris struct {
	a        float64
	perStep  float64 // log2(1+a)
	unit     float64 // what the first step of the register stands for: a power of two
	variance float64 // of the sum, if measured
	fade
	last     Tick
	register uint16
	top      uint16 // the largest register
	bits     uint8
	measured bool
}

// morrisRange is the range, as a power of two, that finer rounding leaves to a measured counter if it had that range.
const morrisRange = 40 // powers of two

// NewMorris makes a counter at 0, or returns ErrParams.
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
	m := Morris{
		a: p.A, bits: uint8(p.Bits), measured: p.Measured, fade: fade{halfLife: p.HalfLife}, unit: 1,
		perStep: Log2(1 + p.A),
	}
	m.top = uint16(min(float64(uint32(1)<<p.Bits-1), math.Floor(200/m.perStep))) // (1+a)^c stays below CountMax
	if p.Measured && p.HalfLife > 0 {
		_, a := math.Frexp(p.A)
		_, most := math.Frexp(m.stands(m.top))
		m.unit = math.Ldexp(1, min(0, max(a-1, morrisRange+1-most)))
	}
	return m, nil
}

// Params are the parameters of the constructor, defaults filled in.
func (m *Morris) Params() MorrisParams {
	return MorrisParams{Bits: int(m.bits), A: m.a, HalfLife: m.halfLife, Measured: m.measured}
}

// power is (1+a)^c.
func (m *Morris) power(c uint16) float64 { return exp2Float(float64(float64(c) * m.perStep)) }

// stands is the sum that a register stands for.
func (m *Morris) stands(c uint16) float64 { return float64((m.power(c) - 1) / m.a * m.unit) }

// round sets the register to a sum. The seed picks one of the two nearest registers, so that the mean is the sum.
func (m *Morris) round(sum float64, seed uint64) {
	if sum >= m.stands(m.top) {
		m.register = m.top
		return
	}
	c := uint16(min(max(math.Floor(Log2(1+float64(m.a*sum)/m.unit)/m.perStep), 0), float64(m.top-1)))
	for c > 0 && m.stands(c) > sum { // the logarithm may be off by one
		c--
	}
	for c+1 < m.top && m.stands(c+1) <= sum {
		c++
	}
	low, high := m.stands(c), m.stands(c+1)
	if m.measured {
		m.variance = min(atLeast(m.variance+float64((sum-low)*(high-sum)), morrisFaintest), sumMax)
	}
	chance := float64(remix(seed, int(c))>>11) * 0x1p-53
	if float64(chance*(high-low)) < sum-low {
		c++
	}
	m.register = c
}

// Born is called on a new counter with a half-life: an earlier counter of the same key may have held up to held when it
// died, see Params.Held. A measured counter takes held for a standard error; other counters ignore it.
func (m *Morris) Born(now Tick, held float64) {
	if !m.measured || m.halfLife == 0 || !m.empty() {
		return
	}
	m.mark = m.landmark(now)
	lost := float64(held * m.weight(now))
	m.variance = float64(lost * lost)
}

// Lose adds held, because another counter of its key may have held that much when it died. As in Born, held is a
// standard error. It is added to the counter's standard error, since both errors may have the same sign.
func (m *Morris) Lose(now Tick, held float64) {
	if !m.measured || m.halfLife == 0 || m.empty() {
		m.Born(now, held)
		return
	}
	e := math.Sqrt(m.variance) + float64(held*m.weight(now))
	m.variance = min(float64(e*e), sumMax)
}

// empty says whether nothing is stored that a landmark would scale.
func (m *Morris) empty() bool { return m.register == 0 && m.variance == 0 }

// Add counts n events at time t. now is the namespace's clock: not before t, and not before the now of any earlier
// call. seed decides the rounding: it must be different for each update. Add returns ErrNegative or ErrOverflow, and
// then nothing has changed. A count that is too large saturates.
func (m *Morris) Add(now, t Tick, n float64, seed uint64) error {
	if err := checkAmount(n); err != nil || n == 0 {
		return err
	}
	m.settle(now, seed)
	m.round(m.stands(m.register)+float64(n*m.weight(t)), seed)
	m.last = max(m.last, t)
	return nil
}

// settle halves the sum for every half-life that has begun: so weights stay below 2, and the register small.
func (m *Morris) settle(now Tick, seed uint64) {
	mark := m.landmark(now)
	if m.empty() {
		m.mark = mark
	}
	if mark > m.mark {
		scale := m.moveTo(mark)
		m.variance = atLeast(float64(m.variance*float64(scale*scale)), morrisFaintest)
		m.round(float64(m.stands(m.register)*scale), remix(seed, -1))
	}
}

// morrisFaintest is the least variance that is stored.
const morrisFaintest = 0x1p-400

// MorrisEstimate is a count at one time, with its standard error.
type MorrisEstimate struct {
	Count, StandardError float64
	// Saturated says that the register has its largest value: the count is only a lower bound.
	Saturated bool
}

// Estimate reads the count at a time. It never writes.
func (m *Morris) Estimate(at Tick) MorrisEstimate {
	sum, scale := m.stands(m.register), m.scale(at)
	variance := m.variance
	if !m.measured && sum > 0 {
		variance = m.inTheory(sum, 1./4)
	}
	return MorrisEstimate{
		Count: float64(sum * scale), StandardError: float64(math.Sqrt(variance) * scale), Saturated: m.register == m.top,
	}
}

// inTheory is the variance of a sum of a counter that is not measured, if rounding each unit of the sum added each.
func (m *Morris) inTheory(sum, each float64) float64 {
	variance := float64(float64(sum*sum) * (m.a / 2))
	if m.halfLife > 0 {
		gap := 1 + float64(m.a*sum)
		variance += float64(sum*each) + float64(gap*gap)/3
	}
	return variance
}

// Interval contains the count at a time with a confidence from 0.5 to 0.9999, whatever the order of events. It holds
// the counts whose own standard errors allow the estimate, see SetEstimate.Interval. A counter that is not measured and
// has a half-life gets the widest interval that may be needed: a unit of late events is rounded with a variance of up
// to 1. A counter that is not measured and has no half-life assumes whole amounts.
func (m *Morris) Interval(at Tick, confidence float64) (low, high float64) {
	sum, variance := m.stands(m.register), m.variance
	switch {
	case m.measured:
	case m.halfLife == 0:
		return Around(sum, math.Sqrt(m.inTheory(sum, 0)), confidence)
	default:
		variance = m.inTheory(sum, 1)
	}
	low, high = SetEstimate{Value: sum, StdErr: math.Sqrt(variance)}.Interval(confidence)
	if m.measured && variance > 0 {
		// After one or two steps the estimate is not a normal variable: one step may have made all of it.
		gap := m.unit + float64(m.a*sum)
		low = max(0, low-float64(float64(gap/2)*min(1, float64(gap*gap)/variance)))
		missed := variance / float64(gap*gap)
		high = max(high, sum+float64((missedSteps(missed, confidence)-missed)*gap))
	}
	scale := m.scale(at)
	return float64(low * scale), float64(high * scale)
}

// missedSteps is, with about a confidence, the most steps that a register which counts almost all steps has missed. The
// number of missed steps is small, so it is a Poisson variable with this mean. The result is a whole number of steps,
// so the part outside may be missedSlack times as large.
func missedSteps(mean, confidence float64) (steps float64) {
	const most = 4 // from there on the normal interval is wider
	if mean >= most {
		return 0
	}
	left := 1 - exp2Float(-mean*math.Log2E)
	for term := 1 - left; steps < missedMost && left > missedSlack*(1-confidence); left -= term {
		steps++
		term = float64(term * (mean / steps))
	}
	return steps
}

// missedMost bounds the steps: with a mean below 4, so many steps are never missed.
const missedMost = 64

// missedSlack keeps 95% intervals at 93% and more.
const missedSlack = 1.3

// Last is the tick of the latest event, 0 when there was none.
func (m *Morris) Last() Tick { return m.last }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (m *Morris) Reached() Tick { return m.reached(m.last) }

// morrisDead is the number of standard errors that, added to the count, must fade before a measured counter dies.
const morrisDead = 8

// Death is a tick from which on the count is below a threshold above 0, as long as nothing is added: a few ticks after
// the first such tick. For a measured counter it is the count plus eight of its standard errors. It is MaxTick without
// a half-life, and 0 when nothing is left. A write may make Death earlier, by the chance of its rounding.
func (m *Morris) Death(threshold float64) Tick {
	left := m.stands(m.register) + float64(morrisDead*math.Sqrt(m.variance)) // which is 0 if it is not measured
	return Faded(left, Tick(m.mark*int64(m.halfLife)), m.halfLife, threshold)
}

// Merge adds the sum of o, which does not change, and rounds with a seed as Add does: in expectation the counts add up.
// It commutes for the same seed, and does not associate. If one of the two counters is measured, the result is
// measured. Merge returns ErrIncompatible, and then nothing has changed.
func (m *Morris) Merge(o *Morris, seed uint64) error {
	p, q := m.Params(), o.Params()
	if p.Measured, q.Measured = false, false; p != q {
		return &mismatch{kind: "morris", a: p, b: q}
	}
	last := max(m.last, o.last)
	switch {
	case o.empty() && m.measured == o.measured:
	case m.empty() && m.measured == o.measured:
		*m = *o
	default:
		m.merge(*o, seed)
	}
	m.last = last
	return nil
}

func (m *Morris) merge(o Morris, seed uint64) {
	for _, either := range []*Morris{m, &o} {
		if either.empty() {
			either.mark = 0
		}
	}
	mark := max(m.mark, o.mark)
	sum, variance := m.since(mark)
	more, less := o.since(mark)
	saturated := m.mark == mark && m.register == m.top || o.mark == mark && o.register == o.top
	if m.measured != o.measured {
		p := m.Params()
		p.Measured = true
		*m, _ = NewMorris(p) // p is valid
	}
	m.mark = mark
	if m.measured {
		m.variance = variance + less
	}
	if m.round(sum+more, seed); saturated {
		m.register = m.top
	}
}

// since is the sum and its variance, scaled to a later landmark.
func (m *Morris) since(mark int64) (sum, variance float64) {
	scale, variance := Exp2(m.mark-mark, 0), m.variance
	if sum = m.stands(m.register); !m.measured && sum > 0 {
		variance = m.inTheory(sum, 1)
	}
	return float64(sum * scale), atLeast(float64(variance*float64(scale*scale)), morrisFaintest)
}

// Size is the memory in bytes.
func (m *Morris) Size() int { return 64 }

// A Morris in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'm', 1, or 2 if it is measured
//	bits             1 byte: 8 or 16
//	a                8 bytes, a little endian double
//	half-life        uvarint
//	mark, last       uvarints; mark is 0 when nothing is stored
//	register         uvarint
//	variance         8 bytes, a little endian double; absent in version 1

const (
	morrisKind            = 'm'
	morrisMeasuredVersion = 2
)

// AppendBinary appends the encoding to b.
func (m *Morris) AppendBinary(b []byte) []byte {
	version := byte(codecVersion)
	if m.measured {
		version = morrisMeasuredVersion
	}
	b = appendFloat(append(b, morrisKind, version, m.bits), m.a)
	b = m.fade.append(b, m.empty(), m.last)
	b = binary.AppendUvarint(b, uint64(m.register))
	if m.measured {
		b = appendFloat(b, m.variance)
	}
	return b
}

// Decode replaces the counter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (m *Morris) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	kind, version := r.byte(), r.byte()
	r.ok = r.ok && kind == morrisKind && (version == codecVersion || version == morrisMeasuredVersion)
	p := MorrisParams{Bits: int(r.byte()), A: r.plainFloat(), Measured: version == morrisMeasuredVersion}
	f, last := r.fade()
	p.HalfLife = f.halfLife
	register, variance := r.int(math.MaxUint16), 0.0
	if p.Measured {
		variance = r.plainFloat()
		r.ok = r.ok && (variance == 0 || variance >= morrisFaintest && variance <= sumMax)
	}
	if !r.ok || p.check() != nil || register == 0 && variance == 0 && f.mark != 0 {
		return nil, ErrCorrupt
	}
	n, err := NewMorris(p)
	if err != nil || register > int(n.top) {
		return nil, ErrCorrupt
	}
	n.fade, n.last, n.register, n.variance = f, last, uint16(register), variance
	*m = n
	return r.b, nil
}
