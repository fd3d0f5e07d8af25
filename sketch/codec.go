package sketch

import (
	"encoding/binary"
	"math"
	"slices"
)

// A distribution in bytes. Every state has one encoding: varints are minimal, bins are sorted by id.
//
//	version  1 byte: 1, or 2 where something is lost
//	form     1 byte: 0 wide, 1 compact, 2 micro; 0 without bins
//	bins     uvarint
//	mark     varint (zigzag): landmark in half-lives, or the highest level; 0 when nothing is stored
//	last     uvarint: tick of the latest event
//	z, z2    8 bytes each, little endian doubles; absent in micro
//	lost     4 bytes, the upper half of a double above 0; absent in version 1
//	ids      uvarints: the first, then how far each is beyond its predecessor, less 1
//	values   8 bytes each, little endian (4 when compact)

const (
	codecVersion     = 1
	codecLostVersion = 2
)

// AppendBinary appends the encoding to b.
func (d *Distribution) AppendBinary(b []byte) []byte {
	f, mark := d.form(), d.mark
	if d.Len() == 0 {
		f = wide
	}
	if d.fresh() {
		mark = 0
	}
	version := byte(codecVersion)
	if d.tellsLost() {
		version = codecLostVersion
	}
	b = append(b, version, byte(f))
	b = binary.AppendUvarint(b, uint64(d.Len()))
	b = binary.AppendVarint(b, mark)
	b = binary.AppendUvarint(b, uint64(d.last))
	if f != micro {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(d.z))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(d.z2))
	}
	if version == codecLostVersion {
		b = binary.LittleEndian.AppendUint32(b, uint32(upperOf(d.lost)))
	}
	order := d.byID()
	next := uint32(0)
	for _, key := range order {
		id := uint32(key >> 32)
		b = binary.AppendUvarint(b, uint64(id-next))
		next = id + 1
	}
	for _, key := range order {
		v := d.raw(int(uint32(key)))
		if f == compact {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		} else {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

// tellsLost says whether the encoding contains lost.
func (d *Distribution) tellsLost() bool { return d.lost > 0 && !d.fresh() }

// byID is id << 32 | position of every bin, sorted.
func (d *Distribution) byID() []uint64 {
	order := make([]uint64, d.Len())
	for i := range order {
		order[i] = uint64(d.id(i))<<32 | uint64(i)
	}
	slices.Sort(order)
	return order
}

// Decode replaces the distribution by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (d *Distribution) Decode(b []byte) (rest []byte, err error) {
	var h Header
	if b, err = h.Decode(b); err != nil {
		return nil, err
	}
	var words []uint64
	if h.Bins > 0 {
		words = slices.Grow(words, h.WordsFor(h.Bins))
	}
	return d.DecodeBins(&h, b, words[:cap(words)])
}

// Decode sets the header from the distribution at the start of b, and returns the bytes that follow: the bins, for
// DecodeBins. It returns ErrCorrupt for bytes that AppendBinary cannot have written, including a number of bins for
// which there are not enough bytes.
func (h *Header) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version := r.byte()
	if version != codecVersion && version != codecLostVersion {
		return nil, ErrCorrupt
	}
	f := form(r.byte())
	bins := r.uvarint()
	*h = Header{Mark: r.varint(), Last: Tick(r.uvarint()), Micro: f == micro, Compact: f == compact}
	if f != micro {
		h.Z = r.float()
		h.Z2 = r.float()
	}
	if version == codecLostVersion {
		h.Lost = r.lost()
		r.ok = r.ok && (h.Z != 0 || h.Z2 != 0 || bins > 0)
	}
	if !r.ok || f > micro || h.Last < 0 || h.Z2 < 0 || f == micro && h.Mark < 0 {
		return nil, ErrCorrupt
	}
	if bins == 0 && (f != wide || h.Z == 0 && h.Z2 == 0 && h.Mark != 0) {
		return nil, ErrCorrupt
	}
	// an id takes at least a byte, a value 4 or 8: so a wrong number is found before anything is allocated
	if bins > BinsMax || bins*uint64(1+valueBytes(f)) > uint64(len(r.b)) {
		return nil, ErrCorrupt
	}
	h.Bins = int(bins)
	return r.b, nil
}

// DecodeBins is the second half of Decode: it decodes the bins after a header into words. len(words) must be at least
// WordsFor(h.Bins); the old contents of words are ignored.
func (d *Distribution) DecodeBins(h *Header, b []byte, words []uint64) (rest []byte, err error) {
	var n Distribution
	n.Load(h, words)
	if b, ok := n.decodeIDs(b); ok {
		if b, ok = n.decodeValues(b); ok {
			n.reindex()
			*d = n
			return b, nil
		}
	}
	return nil, ErrCorrupt
}

// Suits says whether a distribution can have been written under p, with no clock later than until. signed says that
// amounts may have been negative then or earlier. Decode cannot check this, because it does not have the Params. It
// takes time proportional to the number of bins.
func (d *Distribution) Suits(p *Params, until Tick, signed bool) bool {
	if p.Decay == Linear {
		return d.z == 0 && d.z2 == 0 && (p.Bounded || d.lost == 0) && (d.form() == micro || d.Len() == 0)
	}
	if d.form() == micro || d.form() == compact && !p.Compact || d.mark < 0 || d.mark > p.landmark(until) {
		return false
	}
	return signed || !d.hasNegative()
}

func (d *Distribution) hasNegative() bool {
	signs := math.Float64bits(d.z)
	if d.form() == wide && d.Len() > 0 {
		for _, v := range d.values() {
			signs |= v
		}
	}
	return signs>>63 != 0
}

// decodeIDs reads the ids of all bins.
func (d *Distribution) decodeIDs(b []byte) (rest []byte, ok bool) {
	next, words := uint64(0), d.words
	for i := range d.Len() {
		var v uint64
		n := 1
		if len(b) > 0 && b[0] < 0x80 { // most ids are close to each other
			v = uint64(b[0])
		} else if v, n = binary.Uvarint(b); n <= 0 || b[n-1] == 0 {
			return nil, false
		}
		b = b[n:]
		id := next + v
		if id < next || id > math.MaxUint32 {
			return nil, false
		}
		if i&1 == 0 {
			words[i>>1] = id
		} else {
			words[i>>1] |= id << 32
		}
		next = id + 1
	}
	return b, true
}

// decodeValues reads the values of all bins, in the order of the encoding.
func (d *Distribution) decodeValues(b []byte) (rest []byte, ok bool) {
	f, bins := d.form(), d.Len()
	if len(b) < bins*valueBytes(f) {
		return nil, false
	}
	if bins == 0 {
		return b, true
	}
	values := d.values()
	for i := range values[:bins*valueBytes(f)/8] {
		v := binary.LittleEndian.Uint64(b)
		values[i], b = v, b[8:]
		if f == wide && !validSum(v) || f == micro && (int64(v) < 0 || int64(v) > d.mark) {
			return nil, false
		}
	}
	if f == compact && bins&1 != 0 {
		values[bins>>1], b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
	}
	return b, true
}

func valueBytes(f form) int {
	if f == compact {
		return 4
	}
	return 8
}

// reader reads values from the front of b; ok is false after the first failure.
type reader struct {
	b  []byte
	ok bool
	// room is the memory in bytes that encodings may claim which are short now but may become full: nearly empty
	// bitmaps and tables.
	room int
}

// reading makes a reader of b with room.
func reading(b []byte, room int) reader { return reader{b: b, ok: true, room: room} }

// claim takes bytes off room; false if there are not enough.
func (r *reader) claim(bytes int) bool {
	r.ok = r.ok && bytes <= r.room
	r.room -= bytes
	return r.ok
}

func (r *reader) take(n int) []byte {
	if !r.ok || len(r.b) < n {
		r.ok = false
		return make([]byte, 8)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// header reads the kind and the version at the start of the encodings of all kinds but the distribution.
func (r *reader) header(kind byte) {
	r.ok = r.byte() == kind && r.byte() == codecVersion && r.ok
}

// plainFloat reads any double but minus 0; the caller checks its range.
func (r *reader) plainFloat() float64 {
	v := binary.LittleEndian.Uint64(r.take(8))
	r.ok = r.ok && v != 1<<63
	return math.Float64frombits(v)
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.ok = false
		return 0
	}
	r.take(n)
	return v
}

// int reads a uvarint of at most limit.
func (r *reader) int(limit int) int {
	v := r.uvarint()
	if v > uint64(limit) {
		r.ok = false
		return 0
	}
	return int(v)
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// lost reads a lost: above 0, and no larger than any sum of counts.
func (r *reader) lost() float64 {
	v := upper(binary.LittleEndian.Uint32(r.take(4))).float()
	r.ok = r.ok && v > 0 && v <= sumMax
	return v
}

// sumMax is larger than any sum of counts.
const sumMax = 0x1p500

// float reads a double that a distribution can hold: 0 (not minus 0), or neither faint nor too large.
func (r *reader) float() float64 {
	v := binary.LittleEndian.Uint64(r.take(8))
	r.ok = r.ok && validSum(v)
	return math.Float64frombits(v)
}

func validSum(bits uint64) bool {
	const sign = 1 << 63
	return bits == 0 || bits&^sign-math.Float64bits(faintest) <= math.Float64bits(sumMax)-math.Float64bits(faintest)
}
