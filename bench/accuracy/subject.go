package accuracy

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/ebbdb/ebb/sketch"
)

// subject is a summary whose error is measured.
type subject interface {
	// add adds a thing that is not in yet.
	add(r *rand.Rand)
	// reads returns the estimate and the truth of what was added.
	reads() (estimate, truth float64)
	// bytes returns the size in memory and of the encoding (0 if it has none).
	bytes() (memory, encoded int)
}

// skipper is a subject that can skip things that do not change its state. So it can reach very large sizes.
type skipper interface {
	subject
	// skip begins when from things are in, and calls at when it has reached each size. The sizes ascend.
	skip(r *rand.Rand, from uint64, sizes []uint64, at func(i int))
}

// updates describes the state changes of registers. A hash makes one update of one register; all registers have the
// same probability.
type updates struct {
	registers int
	// probability is how likely a hash for a register makes each update.
	probability []float64
	// hash returns a hash that makes this update of this register.
	hash func(register, update int) uint64
}

// skip draws, for each update of each register, when it comes first, as an exponential variable. So the number of
// things has a Poisson distribution. Its deviation, at most 1/(2 sqrt(from)) of the number, is the error of the method.
// An update that a register has already had changes nothing.
func (u *updates) skip(r *rand.Rand, from uint64, sizes []uint64, add func(hash uint64), at func(i int)) {
	due := make([][]uint64, len(sizes))
	ends := make([]float64, len(sizes))
	for i, n := range sizes {
		ends[i] = float64(n - from)
	}
	for update, p := range u.probability {
		mean := float64(u.registers) / p
		for register := range u.registers {
			i, _ := slices.BinarySearch(ends, r.ExpFloat64()*mean)
			if i < len(due) {
				due[i] = append(due[i], u.hash(register, update))
			}
		}
	}
	for i, hashes := range due {
		for _, h := range hashes {
			add(h)
		}
		at(i)
	}
}

// distinct is a sketch.Distinct, or several that share the things and are merged to be read.
type distinct struct {
	parts   []sketch.Distinct
	n       uint64
	encode  bool // encode and decode before each reading
	updates *updates
}

func newDistinct(parts int, precisions ...int) *distinct {
	d := &distinct{updates: distinctUpdates(slices.Min(precisions))}
	for i := range parts {
		part, err := sketch.NewDistinct(sketch.DistinctParams{Precision: precisions[i%len(precisions)]})
		if err != nil {
			panic(err) // cannot fail: the package's own parameters
		}
		d.parts = append(d.parts, part)
	}
	return d
}

// distinctUpdates follows the layout of hashes that sketch.Distinct documents.
func distinctUpdates(p int) *updates {
	u := updates{registers: 1 << p}
	last := 62 - p
	for z := range last + 1 {
		for range 4 {
			u.probability = append(u.probability, math.Ldexp(1, -min(z+1, last)-2))
		}
	}
	u.hash = func(register, update int) uint64 {
		h := uint64(register)<<2 | uint64(update&3)
		if z := update >> 2; z < last {
			h |= 1 << (63 - z)
		}
		return h
	}
	return &u
}

func (d *distinct) add(r *rand.Rand) {
	d.put(r.Uint64(), int(d.n))
	d.n++
}

func (d *distinct) put(hash uint64, i int) { d.parts[i%len(d.parts)].Add(hash) }

func (d *distinct) skip(r *rand.Rand, from uint64, sizes []uint64, at func(i int)) {
	next := 0
	d.updates.skip(r, from, sizes, func(h uint64) { d.put(h, next); next++ }, func(i int) {
		d.n = sizes[i]
		at(i)
	})
}

func (d *distinct) merged() *sketch.Distinct {
	whole := d.parts[0]
	if len(d.parts) > 1 || d.encode {
		whole = whole.Clone()
	}
	for i := range d.parts[1:] {
		if err := whole.Merge(&d.parts[1+i]); err != nil {
			panic(err) // cannot fail: all have the same parameters
		}
	}
	if d.encode {
		if _, err := whole.Decode(whole.AppendBinary(nil)); err != nil {
			panic(err) // cannot fail: it was just encoded
		}
	}
	return &whole
}

func (d *distinct) reads() (estimate, truth float64) {
	estimate, _ = d.merged().Estimate()
	return estimate, float64(d.n)
}

func (d *distinct) bytes() (memory, encoded int) {
	whole := d.merged()
	return whole.Size(), len(whole.AppendBinary(nil))
}

// set is a sketch.Set of the k smallest hashes, without a signature.
type set struct {
	parts []sketch.Set
	k     int
	n     uint64
}

func newSet(parts, k int) *set {
	s := &set{k: k}
	for range parts {
		part, err := sketch.NewSet(sketch.SetParams{K: k, Signature: -1})
		if err != nil {
			panic(err)
		}
		s.parts = append(s.parts, part)
	}
	return s
}

func (s *set) add(r *rand.Rand) {
	s.parts[s.n%uint64(len(s.parts))].Add(r.Uint64(), nil)
	s.n++
}

// skip draws, for each part with its share of the things, the next hash below the largest one that it keeps. Other
// hashes change nothing.
func (s *set) skip(r *rand.Rand, _ uint64, sizes []uint64, at func(i int)) {
	for i, size := range sizes {
		for j := range s.parts {
			part := &s.parts[j]
			left := float64(size-s.n) / float64(len(s.parts))
			for {
				share := float64(s.k) / part.Estimate().Value
				left -= math.Ceil(r.ExpFloat64() / -math.Log1p(-share))
				if left < 0 {
					break
				}
				part.Add(uint64(r.Float64()*share*0x1p64), nil)
			}
		}
		s.n = size
		at(i)
	}
}

func (s *set) merged() *sketch.Set {
	whole := s.parts[0]
	if len(s.parts) > 1 {
		whole = whole.Clone()
	}
	for i := range s.parts[1:] {
		if err := whole.Merge(&s.parts[1+i]); err != nil {
			panic(err)
		}
	}
	return &whole
}

func (s *set) reads() (estimate, truth float64) {
	return s.merged().Estimate().Value, float64(s.n)
}

func (s *set) bytes() (memory, encoded int) {
	whole := s.merged()
	return whole.Size(), len(whole.AppendBinary(nil))
}

// ranks is one of the reference estimators.
type ranks struct {
	*Ranks
	n        uint64
	estimate func(*Ranks) float64
}

func (k *ranks) add(r *rand.Rand) {
	k.Add(r.Uint64())
	k.n++
}

func (k *ranks) skip(r *rand.Rand, from uint64, sizes []uint64, at func(i int)) {
	u := updates{registers: len(k.ranks)}
	for rank := 1; rank <= rankMax; rank++ {
		u.probability = append(u.probability, math.Ldexp(1, -min(rank, rankMax-1)))
	}
	u.hash = func(register, update int) uint64 { return uint64(register) | 1<<(63-update) }
	u.skip(r, from, sizes, k.Add, func(i int) {
		k.n = sizes[i]
		at(i)
	})
}

func (k *ranks) reads() (estimate, truth float64) { return k.estimate(k.Ranks), float64(k.n) }
func (k *ranks) bytes() (memory, encoded int)     { return k.Bytes(), k.Bytes() }

// linear is a sketch.LinearCounter.
type linear struct {
	sketch.LinearCounter
	n uint64
}

func (l *linear) add(r *rand.Rand) {
	if err := l.Add(r.Uint64(), nil); err != nil {
		panic(err) // cannot fail: the counter keeps no members
	}
	l.n++
}
func (l *linear) reads() (estimate, truth float64) { return l.Estimate().Count, float64(l.n) }
func (l *linear) bytes() (memory, encoded int)     { return l.Size(), len(l.AppendBinary(nil)) }

// morris is a sketch.Morris.
type morris struct {
	sketch.Morris
	n uint64
}

func (m *morris) add(r *rand.Rand) {
	if err := m.Add(0, 0, 1, r.Uint64()); err != nil {
		panic(err) // cannot fail: 1 is a valid number
	}
	m.n++
}
func (m *morris) reads() (estimate, truth float64) { return m.Estimate(0).Count, float64(m.n) }
func (m *morris) bytes() (memory, encoded int)     { return m.Size(), len(m.AppendBinary(nil)) }

// Decayed subjects get things over decayedSpan half-lives, and are read at the end.
const (
	decayedSpan = 4
	decayedHour = sketch.Tick(3_600_000_000)
	decayedNow  = decayedSpan * decayedHour
)

// moment draws the time of a thing, and returns how much it counts when the subject is read.
func moment(r *rand.Rand) (t sketch.Tick, weight float64) {
	t = sketch.Tick(r.Int64N(int64(decayedNow)))
	return t, math.Exp2(-float64(decayedNow-t) / float64(decayedHour))
}

// distinctDecayed is a sketch.DistinctDecayed, or several that share the things. They are merged, encoded and decoded
// to be read.
type distinctDecayed struct {
	parts []sketch.DistinctDecayed
	n     int
	truth float64
}

func newDistinctDecayed(parts int) *distinctDecayed {
	d := &distinctDecayed{}
	for range parts {
		d.parts = append(d.parts, must(sketch.NewDistinctDecayed(sketch.DistinctDecayedParams{HalfLife: decayedHour})))
	}
	return d
}

func (d *distinctDecayed) add(r *rand.Rand) {
	t, w := moment(r)
	d.parts[d.n%len(d.parts)].Add(decayedNow, t, r.Uint64())
	d.n++
	d.truth += w
}

func (d *distinctDecayed) merged() *sketch.DistinctDecayed {
	whole := d.parts[0]
	if len(d.parts) == 1 {
		return &whole
	}
	whole = whole.Clone()
	for i := range d.parts[1:] {
		if err := whole.Merge(&d.parts[1+i]); err != nil {
			panic(err) // cannot fail: all have the same parameters
		}
	}
	if _, err := whole.Decode(whole.AppendBinary(nil)); err != nil {
		panic(err) // cannot fail: it was just encoded
	}
	return &whole
}

func (d *distinctDecayed) reads() (estimate, truth float64) {
	estimate, _ = d.merged().Estimate(decayedNow)
	return estimate, d.truth
}

func (d *distinctDecayed) bytes() (memory, encoded int) {
	whole := d.merged()
	return whole.Size(), len(whole.AppendBinary(nil))
}

// distinctWindow is a sketch.DistinctWindow of twelve slices, which are all read. Things come at random times in the
// twelve slices, in any order.
type distinctWindow struct {
	sketch.DistinctWindow
	n uint64
}

const (
	windowSlices = 12
	windowSpan   = windowSlices * decayedHour
)

func (w *distinctWindow) add(r *rand.Rand) {
	w.Add(windowSpan-1, sketch.Tick(r.Int64N(int64(windowSpan))), r.Uint64())
	w.n++
}

func (w *distinctWindow) reads() (estimate, truth float64) {
	estimate, _ = w.Estimate(windowSpan-1, windowSpan)
	return estimate, float64(w.n)
}

func (w *distinctWindow) bytes() (memory, encoded int) { return w.Size(), len(w.AppendBinary(nil)) }

// setDecayed is a sketch.SetDecayed.
type setDecayed struct {
	sketch.SetDecayed
	truth float64
}

func (s *setDecayed) add(r *rand.Rand) {
	t, w := moment(r)
	s.Add(decayedNow, t, r.Uint64(), nil)
	s.truth += w
}

func (s *setDecayed) reads() (estimate, truth float64) { return s.Estimate(decayedNow).Value, s.truth }
func (s *setDecayed) bytes() (memory, encoded int)     { return s.Size(), len(s.AppendBinary(nil)) }
