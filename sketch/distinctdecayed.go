package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Registers of a DistinctDecayed.
const (
	DistinctRegistersMin     = 64
	DistinctRegistersMax     = 65536
	DistinctRegistersDefault = 2048 // 2 KiB, 2.3%
)

// DistinctDecayedParams say how a DistinctDecayed is made.
type DistinctDecayedParams struct {
	// Registers is a power of two from 64 to 65536; 0 means 2048. The relative standard error is 1.04 /
	// sqrt(registers).
	Registers int
	// HalfLife in microseconds, 1 to HalfLifeMax.
	HalfLife Tick
	// Hash is the hash function and seed of the caller's hashes.
	Hash Hash
}

// DistinctDecayed counts distinct things. Each counts 2^-(age/h); its age is the time since it was last seen. So it
// estimates how many things were seen recently. NewDistinctDecayed makes one.
//
// Up to half as many things as registers, it keeps the hash and the time of each thing, and is exact. With more things
// it has one byte a register:
//
//	K = max over all things of floor(log2(w / E)),     w = 2^((t-L)/h)
//
// L is the landmark (see the package comment). E is an exponential variable of mean 1, drawn from the thing's hash for
// every register. The distribution of the largest w / E of a register depends only on the sum of all w, so the sum is
// estimated by maximum likelihood; the latest time of a thing gives its largest w. The E of one thing are drawn in
// ascending order until none can change a register (O. Ertl, "SetSketch: Filling the Gap between MinHash and
// HyperLogLog", VLDB 2021, SetSketch1 with base 2). Every thing goes to all registers: with one register for each
// thing, the estimate would be biased when weights differ.
//
// A thing 64 half-lives old counts as 0. Add and Merge commute and are idempotent; with equal latest times they
// associate.
//
// It is a value with one owner: Clone makes an independent copy.
type DistinctDecayed struct {
	p DistinctDecayedParams
	fade
	loss
	latest    Tick     // the latest now of any call
	hashes    []uint64 // ascending; while exact
	times     []Tick   // in the order of hashes: when last seen
	oldest    Tick     // no time is earlier; while exact
	registers []uint8  // K + 128, never 0; nil while exact
	low       uint8    // a lower bound of all registers
	changes   int      // register changes since low was computed
}

// decayedHorizon is the age in half-lives from which on a thing counts as 0.
const decayedHorizon = 64

// decayedZero is the byte of a register with K = 0.
const decayedZero = 128

// NewDistinctDecayed is an empty DistinctDecayed. It returns ErrParams for parameters out of range.
func NewDistinctDecayed(p DistinctDecayedParams) (DistinctDecayed, error) {
	if p.Registers == 0 {
		p.Registers = DistinctRegistersDefault
	}
	p.Hash = p.Hash.orDefault()
	if n := p.Registers; n < DistinctRegistersMin || n > DistinctRegistersMax || n&(n-1) != 0 {
		return DistinctDecayed{}, fmt.Errorf("%w: distinct: %d registers are not a power of two from %d to %d", ErrParams, n, DistinctRegistersMin, DistinctRegistersMax)
	}
	if p.HalfLife < 1 || p.HalfLife > HalfLifeMax {
		return DistinctDecayed{}, fmt.Errorf("%w: distinct: half-life of %d microseconds is not in 1..%d", ErrParams, p.HalfLife, HalfLifeMax)
	}
	if !p.Hash.known() {
		return DistinctDecayed{}, fmt.Errorf("%w: distinct: hash %d", ErrParams, p.Hash.ID)
	}
	return DistinctDecayed{p: p, fade: fade{halfLife: p.HalfLife}}, nil
}

// Params are the parameters of the constructor.
func (d *DistinctDecayed) Params() DistinctDecayedParams { return d.p }

// Exact says whether every thing is kept.
func (d *DistinctDecayed) Exact() bool { return d.registers == nil }

// Add adds the thing with this hash, seen at time t, which must not be after now; now must not be before the now of any
// earlier call. With registers it takes about 40 ns for each register that the thing might raise. With m registers and
// n things (decayed) these are about m, at most 4 m ln(m) / n.
func (d *DistinctDecayed) Add(now, t Tick, hash uint64) {
	d.latest = max(d.latest, now)
	d.settle()
	if len(d.times) > 0 && d.tooOld(d.oldest) {
		d.forget()
	}
	t = min(max(t, 0), d.latest)
	if d.tooOld(t) {
		return
	}
	if !d.Exact() {
		d.enter(hash, d.weight(t))
		return
	}
	i, found := slices.BinarySearch(d.hashes, hash)
	if found {
		d.times[i] = max(d.times[i], t)
		return
	}
	d.insert(i, hash, t)
	d.limit()
}

func (d *DistinctDecayed) insert(i int, hash uint64, t Tick) {
	if len(d.times) == 0 || t < d.oldest {
		d.oldest = t
	}
	most := d.p.Registers/2 + 1 // see limit
	d.hashes = slices.Insert(roomier(d.hashes, most), i, hash)
	d.times = slices.Insert(roomier(d.times, most), i, t)
}

// tooOld says whether a thing last seen at t counts as 0.
func (d *DistinctDecayed) tooOld(t Tick) bool { return (d.latest-t)/decayedHorizon >= d.halfLife }

// limit removes what is too old when there are too many things, and changes to registers if there are still too many.
func (d *DistinctDecayed) limit() {
	if len(d.hashes) <= d.p.Registers/2 {
		return
	}
	d.forget()
	if len(d.hashes) <= d.p.Registers/2 {
		return
	}
	d.mark = d.landmark(d.latest)
	sum := 0.0
	for _, t := range d.times {
		sum += d.weight(t)
	}
	// few registers are below a sixteenth of the mean; this bound avoids most of the drawing
	guess := math.Ilogb(sum) - 4 + decayedZero
	d.fill(uint8(max(guess, 0)))
	if slices.Min(d.registers) < d.low {
		d.fill(0)
	}
	d.hashes, d.times = nil, nil
	d.lower()
}

// forget removes the things that are too old, which no answer shows.
func (d *DistinctDecayed) forget() {
	kept := 0
	d.oldest = d.latest
	for i, t := range d.times {
		if !d.tooOld(t) {
			d.oldest = min(d.oldest, t)
			d.hashes[kept], d.times[kept] = d.hashes[i], t
			kept++
		}
	}
	d.hashes, d.times = trimmed(d.hashes[:kept]), trimmed(d.times[:kept])
}

// fill makes the registers. low is a guess of a lower bound: if a register ends up below, the result is invalid.
func (d *DistinctDecayed) fill(low uint8) {
	d.registers, d.low, d.changes = make([]uint8, d.p.Registers), low, math.MinInt
	for i, t := range d.times {
		d.enter(d.hashes[i], d.weight(t))
	}
}

// lower computes the least register.
func (d *DistinctDecayed) lower() { d.low, d.changes = slices.Min(d.registers), 0 }

// enter adds a thing of this weight to all registers.
func (d *DistinctDecayed) enter(hash uint64, w float64) {
	s := spreading{seed: hash, left: len(d.registers)}
	for s.left > 0 {
		s.rise()
		// the exponent of w/x is floor(log2(w/x))
		k := int(math.Float64bits(w/s.x)>>52) - 1023 + decayedZero
		if k <= int(d.low) {
			break
		}
		at := &d.registers[s.next(len(d.registers))]
		if k > int(*at) {
			*at = uint8(min(k, 255))
			d.changes++
		}
	}
	if d.changes >= len(d.registers) {
		d.lower()
	}
}

// spreading draws the exponential variables of one thing, in ascending order, one for each register, and assigns them
// to the registers.
type spreading struct {
	seed  uint64
	drawn int
	left  int
	x     float64
	moved [32][2]int32 // moves of the shuffle of the registers: place, register
	all   []int32      // the whole permutation, once moved is full
}

// rise moves x to the next variable: with n left, the least is 1/n exponential variables further.
func (s *spreading) rise() {
	u := remix(s.seed, 2*s.drawn)>>11 | 1
	s.x += float64(-float64(Log2(float64(float64(u)*0x1p-53))*math.Ln2)) / float64(s.left)
}

// next returns a register that has not been drawn yet (Fisher and Yates).
func (s *spreading) next(registers int) int {
	place := s.drawn + int(mulHigh(remix(s.seed, 2*s.drawn+1), uint64(s.left)))
	register := s.at(place)
	s.put(place, s.at(s.drawn), registers)
	s.drawn++
	s.left--
	return register
}

func (s *spreading) at(place int) int {
	if s.all != nil {
		return int(s.all[place])
	}
	for i := s.drawn - 1; i >= 0; i-- {
		if int(s.moved[i][0]) == place {
			return int(s.moved[i][1])
		}
	}
	return place
}

func (s *spreading) put(place, register, registers int) {
	if s.all == nil && s.drawn < len(s.moved) {
		s.moved[s.drawn] = [2]int32{int32(place), int32(register)}
		return
	}
	if s.all == nil {
		s.all = make([]int32, registers)
		for i := range s.all {
			s.all[i] = int32(i)
		}
		for _, m := range s.moved {
			s.all[m[0]] = m[1]
		}
	}
	s.all[place] = int32(register)
}

// settle moves the landmark when necessary.
func (d *DistinctDecayed) settle() {
	if d.Exact() {
		return
	}
	if mark, move := d.due(d.latest); move {
		d.rebase(mark)
	}
}

// rebase moves to a later landmark. A register below its range means that nothing is left that counts.
func (d *DistinctDecayed) rebase(mark int64) {
	shift := mark - d.mark
	if shift >= int64(slices.Min(d.registers)) {
		*d = DistinctDecayed{p: d.p, fade: fade{halfLife: d.halfLife}, loss: d.loss, latest: d.latest}
		return
	}
	d.mark = mark
	for i := range d.registers {
		d.registers[i] -= uint8(shift)
	}
	d.lower()
}

// Merge adds all that o counted; o does not change. Of the two latest times, the later is kept. Merge returns
// ErrIncompatible for different registers, half-lives or hashes, and then nothing changes.
func (d *DistinctDecayed) Merge(o *DistinctDecayed) error {
	if d.p != o.p {
		return fmt.Errorf("%w: distinct: %d registers, half-life %d, hash %d with seed %#x and %d registers, half-life %d, hash %d with seed %#x", ErrIncompatible,
			d.p.Registers, d.p.HalfLife, d.p.Hash.ID, d.p.Hash.Seed, o.p.Registers, o.p.HalfLife, o.p.Hash.ID, o.p.Hash.Seed)
	}
	lost := d.loss.plus(o.loss, d.halfLife)
	c := o.Clone()
	d.loss, c.loss = loss{}, loss{}
	defer func() { d.loss = lost }()
	d.latest = max(d.latest, c.latest)
	c.latest = d.latest
	d.settle()
	c.settle()
	if d.Exact() && !c.Exact() {
		*d, c = c, *d
	}
	if c.Exact() {
		d.forget()
		for i, h := range c.hashes {
			d.Add(d.latest, c.times[i], h)
		}
		return nil
	}
	mark := max(d.mark, c.mark)
	d.rebase(mark)
	c.rebase(mark)
	if d.Exact() || c.Exact() {
		return d.Merge(&c)
	}
	for i, k := range c.registers {
		d.registers[i] = max(d.registers[i], k)
	}
	d.lower()
	return nil
}

// Estimate is the decayed number of distinct things at a time, and its standard error. A time earlier than 256
// half-lives before the landmark reads as that time. It does not write, and takes a few ns a register.
func (d *DistinctDecayed) Estimate(at Tick) (n, stdErr float64) {
	if d.Exact() {
		return d.exactly(at), 0
	}
	var l likelihood
	l.lowest = 1 - decayedZero // K < k has probability exp(-rate 2^-k)
	for _, k := range d.registers {
		l.seen[k]++
	}
	for k, n := range l.seen {
		l.unseen += float64(float64(n) * Exp2(int64(decayedZero-1-k), 0))
	}
	m := float64(len(d.registers))
	rate, variance := l.solve()
	scale := d.scale(at)
	return float64(rate*scale) / (1 + decayedBias/m), float64(math.Sqrt(variance) * scale)
}

// decayedBias is the first-order bias of the maximum likelihood, times m: 3 ln 2 zeta(3, 2) / zeta(2, 2)^2 (see
// ellBias, with b = 2 and d = 0).
const decayedBias = 1.0102

// exactly adds the weights of the kept things, in the order of hashes.
func (d *DistinctDecayed) exactly(at Tick) (n float64) {
	f := fade{halfLife: d.halfLife, mark: d.landmark(d.latest)}
	for _, t := range d.times {
		if !d.tooOld(t) {
			n += f.weight(t)
		}
	}
	return float64(n * f.scale(at))
}

// Death is a tick from which on the estimate is below a threshold above 0, as long as nothing is added: a few ticks
// after the first such tick. It is 0 when nothing was ever added. Where something is lost, Death waits until lost is a
// seventh of the threshold.
func (d *DistinctDecayed) Death(threshold float64) Tick {
	n, _ := d.Estimate(d.latest)
	return max(Faded(n, d.latest, d.halfLife, threshold), d.loss.faded(d.halfLife, threshold))
}

// Last is the tick of the latest event, 0 when there was none.
func (d *DistinctDecayed) Last() Tick { return d.latest }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (d *DistinctDecayed) Reached() Tick { return d.latest }

// Clone is a copy that shares no memory with the original.
func (d *DistinctDecayed) Clone() DistinctDecayed {
	c := *d
	c.hashes, c.times, c.registers = slices.Clone(d.hashes), slices.Clone(d.times), slices.Clone(d.registers)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (d *DistinctDecayed) Size() int {
	return 160 + 8*cap(d.hashes) + 8*cap(d.times) + cap(d.registers)
}

// A DistinctDecayed in bytes. Every state has one encoding.
//
//	version    1 byte, 1, or 2 where something is lost
//	form       1 byte: 0 exact, 1 registers
//	registers  1 byte: log2 of their number
//	hash       9 bytes, see Hash
//	half-life, landmark (0 while exact), latest: uvarints
//	lost       in version 2: 4 bytes, the upper half of a double above 0, and a uvarint, since when
//	count      uvarint, of things, while exact; what is too old to count is left out
//	things     each 8 bytes, little endian, its hash, ascending, and a uvarint, its age at the latest time
//	registers  1 byte each

const distinctDecayedVersion = 1

// AppendBinary appends the encoding to b.
func (d *DistinctDecayed) AppendBinary(b []byte) []byte {
	form := byte(1)
	if d.Exact() {
		form = 0
	}
	b = append(b, d.loss.version(distinctDecayedVersion), form, byte(bits.TrailingZeros(uint(d.p.Registers))))
	b = d.p.Hash.append(b)
	b = d.loss.append(d.fade.append(b, d.Exact(), d.latest))
	if !d.Exact() {
		return append(b, d.registers...)
	}
	count := 0
	for _, t := range d.times {
		if !d.tooOld(t) {
			count++
		}
	}
	b = binary.AppendUvarint(b, uint64(count))
	for i, h := range d.hashes {
		if d.tooOld(d.times[i]) {
			continue
		}
		b = binary.LittleEndian.AppendUint64(b, h)
		b = binary.AppendUvarint(b, uint64(d.latest-d.times[i]))
	}
	return b
}

// Decode replaces d by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change.
func (d *DistinctDecayed) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version, form, log := r.byte(), r.byte(), r.byte()
	p := DistinctDecayedParams{Registers: 1 << (log & 31), Hash: r.hash()}
	f, latest := r.fade()
	p.HalfLife = f.halfLife
	lost := r.loss(version, distinctDecayedVersion, p.HalfLife)
	if !r.ok || form > 1 || log > 31 {
		return nil, ErrCorrupt
	}
	n, err := NewDistinctDecayed(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	n.latest, n.loss = latest, lost
	if form == 0 && (f.mark != 0 || !n.decodeThings(&r)) || form == 1 && !n.decodeRegisters(&r, f.mark) {
		return nil, ErrCorrupt
	}
	*d = n
	return r.b, nil
}

func (d *DistinctDecayed) decodeThings(r *reader) bool {
	count := r.uvarint()
	if !r.ok || count > uint64(d.p.Registers/2) || 9*count > uint64(len(r.b)) {
		return false
	}
	d.hashes, d.times = slices.Grow(d.hashes, int(count)), slices.Grow(d.times, int(count))
	for i := range int(count) {
		h, age := binary.LittleEndian.Uint64(r.take(8)), r.uvarint()
		if !r.ok || i > 0 && h <= d.hashes[i-1] || age > uint64(d.latest) {
			return false
		}
		t := d.latest - Tick(age)
		if d.tooOld(t) {
			return false
		}
		d.insert(i, h, t)
	}
	return true
}

func (d *DistinctDecayed) decodeRegisters(r *reader, mark int64) bool {
	raw := r.take(d.p.Registers)
	now := d.landmark(d.latest)
	if !r.ok || slices.Min(raw) == 0 || mark > now || now-mark > RebaseAfter {
		return false
	}
	d.registers, d.mark = slices.Clone(raw), mark
	d.lower()
	return true
}
