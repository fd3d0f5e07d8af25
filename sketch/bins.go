package sketch

import (
	"math"
	"math/bits"
	"slices"
)

// form is the storage format of a distribution's values.
type form uint8

const (
	wide    form = iota // float64
	compact             // 32 bits, see compact.go
	micro               // int64 levels in micro-counts, see leak.go
)

// The bins are stored in one allocation without pointers. It has room for a number of ids and as many values. With many
// bins it also has the slots of an index from id to position; with very many, the maximum of each 64 values (see
// maxima.go).
//
//	words  | ids, two a word | values, one a word (compact: two) | slots, four a word (two when room >= 65,535) | maxima |
//	         <--  room/2  -->  <--     room (compact: room/2) --> <--  only when room > scanMax, 5/4 room slots  --> room/64
//
// The slots are an open-addressing table with linear probing. They are derived from the ids and not serialised.

// scanMax is the most bins that are searched linearly.
const scanMax = 64

func idWords(room int) int { return (room + 1) / 2 }

func valueWords(f form, room int) int {
	if f == compact {
		return (room + 1) / 2
	}
	return room
}

func slotCount(room int) int {
	if room <= scanMax {
		return 0
	}
	return room + room/4
}

func slotWords(room int) int {
	if room < math.MaxUint16 {
		return (slotCount(room) + 3) / 4
	}
	return (slotCount(room) + 1) / 2
}

func wordsFor(f form, room int) int {
	return idWords(room) + valueWords(f, room) + slotWords(room) + maximaWords(room)
}

// Len is the number of bins stored, faded ones included.
func (d *Distribution) Len() int { return int(d.shape >> 8) }

func (d *Distribution) form() form { return form(d.shape) }

func (d *Distribution) setShape(n int, f form) { d.shape = uint32(n)<<8 | uint32(f) }

func (d *Distribution) id(i int) uint32 { return uint32(d.words[i>>1] >> (i & 1 * 32)) }

func (d *Distribution) setID(i int, id uint32) {
	w, shift := &d.words[i>>1], i&1*32
	*w = *w&^(math.MaxUint32<<shift) | uint64(id)<<shift
}

// raw is the stored value: the bits of a float64, a level, or a compact value.
func (d *Distribution) raw(i int) uint64 {
	at := idWords(int(d.room))
	if d.form() == compact {
		return d.words[at+i>>1] >> (i & 1 * 32) & math.MaxUint32
	}
	return d.words[at+i]
}

func (d *Distribution) setRaw(i int, v uint64) {
	at := idWords(int(d.room))
	if d.form() == compact {
		w, shift := &d.words[at+i>>1], i&1*32
		*w = *w&^(math.MaxUint32<<shift) | v<<shift
		return
	}
	d.words[at+i] = v
}

// values are the words that hold values.
func (d *Distribution) values() []uint64 {
	at := idWords(int(d.room))
	return d.words[at : at+valueWords(d.form(), d.Len())]
}

// value is a stored value of the wide and compact forms.
func (d *Distribution) value(i int) float64 {
	if d.form() == compact {
		return expand(uint32(d.raw(i)))
	}
	return math.Float64frombits(d.raw(i))
}

// find is the position of a bin, -1 when it is not stored.
func (d *Distribution) find(bin uint32) int {
	if d.room > scanMax {
		return d.probe(bin)
	}
	n := d.Len()
	pair := uint64(bin)<<32 | uint64(bin)
	for i, w := range d.words[:(n+1)/2] {
		x := w ^ pair
		if uint32(x) == 0 {
			return 2 * i
		}
		if x>>32 == 0 && 2*i+1 < n {
			return 2*i + 1
		}
	}
	return -1
}

func (d *Distribution) slots() slots {
	room := int(d.room)
	return slots{
		words: d.words[idWords(room)+valueWords(d.form(), room):],
		n:     uint32(slotCount(room)),
		small: room < math.MaxUint16,
		bits:  uint32(bits.Len32(d.room)),
	}
}

func (d *Distribution) probe(bin uint32) int {
	s := d.slots()
	h := bin * hashFactor
	tag := s.tag(h)
	for i := s.home(h); ; i = s.next(i) {
		entry := s.get(i)
		if entry == 0 {
			return -1
		}
		if entry>>s.bits != tag {
			continue
		}
		if at := int(entry&(1<<s.bits-1)) - 1; d.id(at) == bin {
			return at
		}
	}
}

// Touch reads the memory that Add of this bin will read, to warm the cache. The cache misses of one Add are serial;
// those of several Touches overlap. So callers touch a batch, then add it. The result has no meaning, but callers must
// use it so that the compiler keeps the reads.
func (d *Distribution) Touch(bin uint32) uint64 {
	if d.room > scanMax {
		s := d.slots()
		at := s.likely(bin)
		return d.words[at>>1] + d.raw(at)
	}
	n, at := d.Len(), 0
	if n == 0 {
		return 0
	}
	pair := uint64(bin)<<32 | uint64(bin)
	for i, w := range d.words[:(n+1)/2] { // no branch depends on the data read, so that the reads overlap
		x := w ^ pair
		if uint32(x) == 0 {
			at = 2 * i
		}
		if x>>32 == 0 {
			at = 2*i + 1
		}
	}
	return d.raw(min(at, n-1))
}

// hashFactor spreads ids over 32 bits: 2^32 / golden ratio.
const hashFactor = 0x9e3779b1

// slots is the index part of the words. An entry holds position + 1 and, in the bits above it, a tag of the id's hash,
// so that find seldom reads the id of another bin.
type slots struct {
	words []uint64
	n     uint32
	bits  uint32 // bits of a position
	small bool   // entries of 16 bits, else of 32
}

func (s *slots) home(h uint32) uint32 { return uint32(uint64(h) * uint64(s.n) >> 32) }

// tag takes bits from the middle of a hash; its upper bits decide the home.
func (s *slots) tag(h uint32) uint32 {
	if s.small {
		return uint32(uint16(h>>6)) >> s.bits
	}
	return h << 6 >> s.bits
}

func (s *slots) next(i uint32) uint32 {
	if i++; i == s.n {
		return 0
	}
	return i
}

func (s *slots) get(i uint32) uint32 {
	if s.small {
		return uint32(uint16(s.words[i>>2] >> (i & 3 * 16)))
	}
	return uint32(s.words[i>>1] >> (i & 1 * 32))
}

// likely is the probable position of a bin: it checks four slots, without a branch that depends on them.
func (s *slots) likely(bin uint32) int {
	h := bin * hashFactor
	i, tag, found := s.home(h), s.tag(h), uint32(1)
	for range 4 {
		entry := s.get(i)
		if entry>>s.bits == tag {
			found = entry
		}
		i = s.next(i)
	}
	return max(int(found&(1<<s.bits-1)), 1) - 1
}

// put enters a position for a bin that is not in the slots.
func (s *slots) put(bin uint32, position int) {
	h := bin * hashFactor
	i := s.home(h)
	for s.get(i) != 0 {
		i = s.next(i)
	}
	entry := uint64(s.tag(h)<<s.bits | uint32(position+1))
	if s.small {
		s.words[i>>2] |= entry << (i & 3 * 16)
		return
	}
	s.words[i>>1] |= entry << (i & 1 * 32)
}

// push appends a bin that is not stored yet, with a raw value.
func (d *Distribution) push(bin uint32, v uint64) {
	n := d.Len()
	if n == int(d.room) {
		d.resize(d.form(), n+max(2, n/8))
	}
	d.setShape(n+1, d.form())
	d.setID(n, bin)
	d.setRaw(n, v)
	if d.room > scanMax {
		s := d.slots()
		s.put(bin, n)
		d.raise(n, v)
	}
}

// resize moves the bins into new words with at least the given room. If f changes between wide and compact, it converts
// the values; only widening is exact.
func (d *Distribution) resize(f form, room int) {
	old := *d
	d.words = slices.Grow([]uint64(nil), wordsFor(f, room))
	d.words = d.words[:cap(d.words)]
	for wordsFor(f, room+1) <= len(d.words) {
		room++ // use all that the allocator gave
	}
	d.room = uint32(room)
	d.setShape(old.Len(), f)
	copy(d.words, old.words[:idWords(old.Len())])
	if f == old.form() {
		copy(d.words[idWords(room):], old.values())
	} else {
		for i := range old.Len() {
			d.setRaw(i, math.Float64bits(old.value(i)))
		}
	}
	d.reindex()
}

// reindex derives the slots from the ids, and the maxima.
func (d *Distribution) reindex() {
	if d.room <= scanMax {
		return
	}
	s := d.slots()
	clear(s.words)
	for i := range d.Len() {
		s.put(d.id(i), i)
	}
	d.remax()
}

// widen makes a compact distribution wide.
func (d *Distribution) widen() {
	if d.form() == compact {
		d.resize(wide, d.Len())
	}
}
