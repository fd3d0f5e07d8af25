package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// bloomSlicesMax is the most slices of a BloomExpiring.
const bloomSlicesMax = 128

// BloomExpiringParams decide the shape of a BloomExpiring.
type BloomExpiringParams struct {
	// Capacity is the number of keys in a window.
	Capacity uint64
	// FalseRate is the largest rate of false positives, with Capacity keys: in 1e-6..0.5.
	FalseRate float64
	// Window, in microseconds, is how long a key is found at least. 0 means that the last Capacity keys are found.
	Window Tick
	Hash   Hash
}

// BloomExpiring is a Bloom filter that forgets: an age-partitioned one (Shtul, Baquero, Almeida 2020). It has k+l
// slices, ordered by age. A key sets one bit in each of the k youngest slices. It is found when k consecutive slices
// have its bits. After a generation all slices age by one, and the oldest is cleared and becomes the youngest:
//
//	youngest | 0 | 1 | ... | k-1 | ... | k+l-1 | oldest      a key lies in k in a row, for l generations at least
//
// Slices are sized to be half full when they leave the k youngest. k and l are chosen for the fewest bits: 19.8 a key
// at 1%. With a window, a generation is a part of it, and ages follow the clock: a read sees what a write at that time
// would see. Without a window, a generation is a number of keys that changed a bit.
//
// Every added key is found for a window and up to a generation more. After that a key loses a slice each generation,
// and each lost slice halves the chance that it is still found; after k generations it is gone. Other keys are found at
// a rate of at most FalseRate, as long as a window has no more than Capacity keys. Beyond Capacity the filter still
// takes keys, and answers with Over.
//
// Additions commute within a generation. Merging is an OR of slices of the same age. It is a value with one owner:
// Clone makes an independent copy. It takes memory for the words that have a bit set; once the bits set are an eighth
// to a quarter of the number of words, it takes memory for all words.
type BloomExpiring struct {
	params     BloomExpiringParams
	k, l       int
	m          int                 // bits a slice
	size       uint64              // keys a generation
	bits       bitCells[[1]uint64] // of k+l slices; sparse while the sum of ones is at most bits.most
	ones       []uint32            // bits set, by slice; nil while empty
	generation int64               // with a window since the epoch, otherwise since the first key; 0 while empty
	keys       uint64              // keys that changed a bit in this generation; 0 with a window
}

// NewBloomExpiring makes an empty filter, or returns ErrParams.
func NewBloomExpiring(p BloomExpiringParams) (BloomExpiring, error) {
	p.Hash = p.Hash.orDefault()
	common := BloomParams{Capacity: p.Capacity, FalseRate: p.FalseRate, Hash: p.Hash}
	if err := common.check(); err != nil {
		return BloomExpiring{}, err
	}
	if p.Window < 0 || p.Window > 0 && p.Window < bloomSlicesMax || p.Window > HalfLifeMax {
		return BloomExpiring{}, fmt.Errorf("%w: bloom: window of %d microseconds is neither 0 nor in %d..%d",
			ErrParams, p.Window, bloomSlicesMax, HalfLifeMax)
	}
	f := BloomExpiring{params: p}
	f.k, f.l = ageShape(p.FalseRate)
	f.size = p.Capacity/uint64(f.l) + 1
	m := math.Ceil(float64(float64(float64(f.k)*float64(f.size))*math.Log2E)/64) * 64
	if total := float64(m * float64(f.k+f.l)); total > BloomBytesMax*8 {
		return BloomExpiring{}, fmt.Errorf("%w: bloom: %d expiring keys at %v take %.0f bytes, more than %d",
			ErrParams, p.Capacity, p.FalseRate, total/8, BloomBytesMax)
	}
	f.m = int(m)
	f.bits = newBits[[1]uint64](f.all())
	return f, nil
}

// ageShape returns the k and l with a rate of false positives of at most rate that need the fewest bits a key: (k+l)
// k/l / ln 2. Together they are at most bloomSlicesMax.
func ageShape(rate float64) (k, l int) {
	best := math.Inf(1)
	for tryK := 1; tryK < bloomSlicesMax; tryK++ {
		if float64(tryK*bloomSlicesMax)/float64(bloomSlicesMax-tryK) >= best {
			break // no l makes up for so many slices
		}
		tryL := ageSpan(tryK, rate)
		if tryL == 0 {
			continue
		}
		if cost := float64((tryK+tryL)*tryK) / float64(tryL); cost < best {
			best, k, l = cost, tryK, tryL
		}
	}
	return k, l
}

// ageSpan is the largest l for a k; 0 when there is none.
func ageSpan(k int, rate float64) (l int) {
	c := ageChain{k: k}
	c.run[0] = 1
	for i := range bloomSlicesMax {
		fill := 0.5
		if i < k { // at the end of a generation, after i+1 of the k generations that fill it
			fill = 1 - exp2Float(-float64(i+1)/float64(k))
		}
		if c.step(fill); c.found > rate {
			break
		}
		l = max(0, i+1-k)
	}
	return l
}

// ageChain computes the probability that k consecutive slices are hit by chance, slice by slice. run[a] is the
// probability that exactly the last a slices were hit, and no k consecutive ones before.
type ageChain struct {
	k     int
	run   [bloomSlicesMax]float64
	found float64
}

// step adds a slice; fill is the part of its bits that is set.
func (c *ageChain) step(fill float64) {
	missed := 0.0
	for _, p := range c.run[:c.k] {
		missed += p
	}
	c.found += float64(c.run[c.k-1] * fill)
	for a := c.k - 1; a > 0; a-- {
		c.run[a] = float64(c.run[a-1] * fill)
	}
	c.run[0] = float64(missed * (1 - fill))
}

// Params are the parameters of the constructor.
func (f *BloomExpiring) Params() BloomExpiringParams { return f.params }

func (f *BloomExpiring) slices() int { return f.k + f.l }

// all is the number of bits.
func (f *BloomExpiring) all() int { return f.slices() * f.m }

// Span is the length of a generation in microseconds; 0 when a generation is a number of keys.
func (f *BloomExpiring) Span() Tick {
	if f.params.Window == 0 {
		return 0
	}
	return (f.params.Window-1)/Tick(f.l) + 1
}

// generationAt is the generation of a time: the number of generations since the epoch.
func (f *BloomExpiring) generationAt(t Tick) int64 { return int64(max(t, 0) / f.Span()) }

// first is the slot of the youngest slice. Slices stay in their slots while their ages change. A key has a different
// bit in each slot.
func (f *BloomExpiring) first(generation int64) int {
	n := int64(f.slices())
	return int((n - generation%n) % n)
}

// slot is the slot of the slice with an age.
func (f *BloomExpiring) slot(age, first int) int {
	if age += first; age >= f.slices() {
		age -= f.slices()
	}
	return age
}

// place is the position of a key's bit in a slot.
func (f *BloomExpiring) place(hash uint64, slot int) int {
	return slot*f.m + int(mulHigh(remix(hash, slot), uint64(f.m)))
}

// bit is a key's bit in a slot, while the filter is dense. It does not call place, because then it would not be
// inlined.
func (f *BloomExpiring) bit(hash uint64, slot int) (word *uint64, mask uint64) {
	at := slot*f.m + int(mulHigh(remix(hash, slot), uint64(f.m)))
	return &f.bits.words[at/64], 1 << (at % 64)
}

// Add adds a key by its hash at time t, and reports whether a bit changed. now is the namespace's clock: not before t,
// and not before the now of any earlier call; without a window neither matters. A late key expires as if it had come in
// time.
func (f *BloomExpiring) Add(now, t Tick, hash uint64) (changed bool) {
	age := 0
	if f.params.Window > 0 {
		late := f.generationAt(now) - f.generationAt(min(t, now))
		if late > int64(f.l) {
			return false
		}
		age = int(late)
		f.advance(f.generationAt(now))
	}
	f.allocate()
	if f.params.Window == 0 && f.keys >= f.size && !f.newest(hash) {
		f.advance(f.generation + 1)
	}
	first := f.first(f.generation)
	if f.bits.words == nil {
		if changed = f.addFew(hash, age, first); changed && f.params.Window == 0 {
			f.keys++
		}
		return changed
	}
	for a := age; a < age+f.k; a++ {
		slot := f.slot(a, first)
		if word, mask := f.bit(hash, slot); *word&mask == 0 {
			*word |= mask
			f.ones[slot]++
			changed = true
		}
	}
	if changed && f.params.Window == 0 {
		f.keys++
	}
	return changed
}

// addFew sets a key's bits while the filter is sparse.
func (f *BloomExpiring) addFew(hash uint64, age, first int) (changed bool) {
	for a := age; a < age+f.k; a++ {
		slot := f.slot(a, first)
		if f.bits.set(f.place(hash, slot)) {
			f.ones[slot]++
			changed = true
		}
	}
	f.settle()
	return changed
}

// settle makes the filter dense when it has too many bits for the sparse form, and sparse when it has few enough again.
func (f *BloomExpiring) settle() {
	n := 0
	for _, ones := range f.ones {
		n += int(ones)
	}
	switch dense := f.bits.words != nil; {
	case !dense && n > f.bits.most:
		f.bits.spread(f.all())
	case dense && n <= f.bits.most && f.bits.most > 0:
		f.bits.narrow()
	}
}

func (f *BloomExpiring) allocate() {
	if f.ones == nil {
		f.ones = make([]uint32, f.slices())
		f.bits.begin(f.all())
	}
}

// newest says whether the k youngest slices have the key.
func (f *BloomExpiring) newest(hash uint64) bool {
	first := f.first(f.generation)
	for age := range f.k {
		at := f.place(hash, f.slot(age, first))
		if f.bits.words == nil && !f.bits.has(at) || f.bits.words != nil && f.bits.words[at/64]>>(at%64)&1 == 0 {
			return false
		}
	}
	return true
}

// advance makes a generation the present one, and clears the slices that were dropped since.
func (f *BloomExpiring) advance(generation int64) {
	if generation <= f.generation {
		return
	}
	if f.ones != nil {
		for i := range min(generation-f.generation, int64(f.slices())) {
			slot := f.first(generation - i)
			if f.bits.words != nil {
				clear(f.bits.words[slot*f.m/64 : (slot+1)*f.m/64])
			}
			f.ones[slot] = 0
		}
		f.drop()
	}
	f.generation, f.keys = generation, 0
}

// drop removes the cells of slices without a bit from the table.
func (f *BloomExpiring) drop() {
	if f.bits.few != nil {
		n := f.m / 64
		f.bits.few.change(func(i int, c *[1]uint64) {
			if f.ones[i/n] == 0 {
				*c = [1]uint64{}
			}
		})
	}
	f.settle()
}

// seen is the generation that a read at a time sees, and the number of youngest slices that are empty by then.
func (f *BloomExpiring) seen(at Tick) (generation int64, empty int) {
	if f.params.Window == 0 {
		return f.generation, 0
	}
	generation = max(f.generationAt(at), f.generation)
	return generation, int(min(generation-f.generation, int64(f.slices())))
}

// Has says whether a key is found at a time. It never writes.
func (f *BloomExpiring) Has(at Tick, hash uint64) BloomAnswer {
	if f.ones == nil {
		return BloomAnswer{}
	}
	generation, empty := f.seen(at)
	if f.bits.words == nil {
		return BloomAnswer{Found: f.findFew(hash, generation, empty), Over: f.over(generation, empty)}
	}
	return BloomAnswer{Found: f.find(hash, generation, empty), Over: f.over(generation, empty)}
}

// find searches for k consecutive hits, from the middle backwards, so that it never reads most slices. After a miss at
// age i, only runs that end before i remain. The slices of such a run that were read before the miss are known hits.
func (f *BloomExpiring) find(hash uint64, generation int64, empty int) bool {
	first, known, hits := f.first(generation), 0, 0
	for age := f.l; age >= empty; {
		word, mask := f.bit(hash, f.slot(age, first))
		if *word&mask != 0 {
			if hits++; hits+known == f.k {
				return true
			}
			age++
			continue
		}
		age -= f.k
		known, hits = hits, 0
	}
	return false
}

// findFew is find while the filter is sparse.
func (f *BloomExpiring) findFew(hash uint64, generation int64, empty int) bool {
	first, known, hits := f.first(generation), 0, 0
	for age := f.l; age >= empty; {
		if f.bits.has(f.place(hash, f.slot(age, first))) {
			if hits++; hits+known == f.k {
				return true
			}
			age++
			continue
		}
		age -= f.k
		known, hits = hits, 0
	}
	return false
}

// over says whether a slice has more bits set than half of its bits plus 7 standard deviations.
func (f *BloomExpiring) over(generation int64, empty int) bool {
	limit := uint32(f.m)/2 + 2*uint32(math.Sqrt(float64(f.m)))
	first := f.first(generation)
	for age := empty; age < f.slices(); age++ {
		if f.ones[f.slot(age, first)] > limit {
			return true
		}
	}
	return false
}

// State estimates the number of keys and the rate of false positives at a time. Keys is an estimate of all keys that
// can be found, if they came evenly and each key only within one span of k generations. A key that comes again later
// counts again, except in KeysLeast. KeysMost is for keys that came at once. It never writes.
func (f *BloomExpiring) State(at Tick) BloomState {
	if f.ones == nil {
		return BloomState{}
	}
	generation, empty := f.seen(at)
	s := BloomState{Over: f.over(generation, empty)}
	c := ageChain{k: f.k}
	c.run[0] = 1
	first := f.first(generation)
	for age := range f.slices() {
		fill := 0.0
		if age >= empty {
			fill = float64(f.ones[f.slot(age, first)]) / float64(f.m)
		}
		c.step(fill)
		if age == f.l || age < f.l && age%f.k == f.k-1 { // every k-th slice has other keys
			fill = min(fill, 1-0.5/float64(f.m))
			n := float64(float64(-float64(f.m)*math.Ln2) * Log2(1-fill))
			part := float64(age%f.k+1) / float64(f.k)
			s.Keys += float64(n * part)
			s.KeysLeast, s.KeysMost = max(s.KeysLeast, n), s.KeysMost+n
			s.KeysError += float64(part * part * linearVariance(n, float64(f.m)))
		}
	}
	s.KeysError = math.Sqrt(s.KeysError)
	s.FalseRate = c.found
	return s
}

// Last is the tick at which the latest generation began, 0 while nothing is stored and without a window.
func (f *BloomExpiring) Last() Tick {
	if f.ones == nil || f.params.Window == 0 {
		return 0
	}
	return Tick(f.generation) * f.Span()
}

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (f *BloomExpiring) Reached() Tick { return f.Last() }

// Death is the tick from which on no key is found, as long as nothing is added: when fewer than k slices are left. It
// is MaxTick without a window, and 0 when nothing was ever added.
func (f *BloomExpiring) Death() Tick {
	switch {
	case f.ones == nil:
		return 0
	case f.params.Window == 0 || f.generation >= int64(MaxTick/f.Span())-int64(f.l):
		return MaxTick
	}
	return Tick(f.generation+int64(f.l)+1) * f.Span()
}

// Merge makes the receiver the union with o; o does not change. It combines slices of the same age, with a window at
// the later of the two times. It commutes and is idempotent, to the byte. It returns ErrIncompatible, without a window
// also when the two are in different generations, and then nothing has changed.
func (f *BloomExpiring) Merge(o *BloomExpiring) error {
	if f.params != o.params {
		return &mismatch{kind: "expiring bloom", a: f.params, b: o.params}
	}
	if f.params.Window == 0 && f.generation != o.generation {
		return fmt.Errorf("%w: expiring bloom of generation %d and of %d", ErrIncompatible, f.generation, o.generation)
	}
	if o.ones == nil {
		return nil
	}
	other := o.Clone()
	if f.ones == nil {
		*f = other
		return nil
	}
	generation := max(f.generation, other.generation)
	f.advance(generation)
	other.advance(generation)
	f.bits.merge(&other.bits, f.all())
	f.recount()
	f.settle()
	f.keys = max(f.keys, other.keys)
	return nil
}

// recount counts the bits of each slice.
func (f *BloomExpiring) recount() {
	n := f.m / 64
	if f.bits.words == nil {
		clear(f.ones)
		f.bits.few.each(func(i int, c *[1]uint64) { f.ones[i/n] += uint32(onesIn(c)) })
		return
	}
	for slot := range f.ones {
		f.ones[slot] = uint32(countOnes(f.bits.words[slot*n : (slot+1)*n]))
	}
}

// Clone is a copy that shares no memory with the original.
func (f *BloomExpiring) Clone() BloomExpiring {
	c := *f
	c.bits = f.bits.clone()
	c.ones = append([]uint32(nil), f.ones...)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (f *BloomExpiring) Size() int { return bloomExpiringOwn + f.bits.size() + 4*cap(f.ones) }

// bloomExpiringOwn is the size of a BloomExpiring without its slices.
const bloomExpiringOwn = 152

// A BloomExpiring in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'e', 1
//	hash             9 bytes, see Hash
//	capacity         uvarint
//	false rate       8 bytes, a little endian double
//	window           uvarint
//	used             1 byte: 0 when no bit is set, and that is the end; else 1
//	generation       uvarint
//	keys             uvarint, of this generation
//	bitmap           of all slices, in the order of memory; see appendBitmap

const bloomExpiringKind = 'e'

// AppendBinary appends the encoding to b.
func (f *BloomExpiring) AppendBinary(b []byte) []byte {
	p := BloomParams{Capacity: f.params.Capacity, FalseRate: f.params.FalseRate, Hash: f.params.Hash}
	b = binary.AppendUvarint(p.append(b, bloomExpiringKind), uint64(f.params.Window))
	ones := f.bits.ones()
	if ones == 0 {
		return append(b, 0)
	}
	b = binary.AppendUvarint(append(b, 1), uint64(f.generation))
	return f.bits.append(binary.AppendUvarint(b, f.keys), f.all(), ones)
}

// Decode replaces the filter by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change. See Bloom.Decode
// about memory.
func (f *BloomExpiring) Decode(b []byte) (rest []byte, err error) {
	return f.DecodeWithin(b, math.MaxInt)
}

// DecodeWithin is Decode that also refuses a sparse encoding whose slices would need more memory than room, in bytes,
// once they are full.
func (f *BloomExpiring) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	p := r.bloomParams(bloomExpiringKind)
	window := r.uvarint()
	if !r.ok || window > uint64(HalfLifeMax) {
		return nil, ErrCorrupt
	}
	n, err := NewBloomExpiring(BloomExpiringParams{Capacity: p.Capacity, FalseRate: p.FalseRate, Window: Tick(window), Hash: p.Hash})
	if err != nil || !n.decodeSlices(&r) {
		return nil, ErrCorrupt
	}
	*f = n
	return r.b, nil
}

func (f *BloomExpiring) decodeSlices(r *reader) (ok bool) {
	used := r.byte()
	if used != 1 {
		return r.ok && used == 0
	}
	generation := r.uvarint()
	f.keys = r.uvarint()
	f.generation = int64(generation)
	if !r.ok || generation > math.MaxInt64>>1 || f.keys > f.size {
		return false
	}
	if f.params.Window > 0 && (f.generation > int64(MaxTick/f.Span()) || f.keys > 0) {
		return false
	}
	f.bits, _, ok = bitmapOf[[1]uint64](r, f.all())
	if !ok {
		return false
	}
	f.ones = make([]uint32, f.slices())
	f.recount()
	f.settle()
	return r.ok
}
