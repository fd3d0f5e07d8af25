package sketch

import (
	"encoding/binary"
	"math"
)

// A DistinctSliding in bytes. Every state has one encoding. An age is a number of slices before the latest.
//
//	version    1 byte, 1
//	form       1 byte: 0 unused, and that is the end after the window; 1 empty or tokens, 2 updates
//	precision  1 byte
//	hash       9 bytes, see Hash
//	window     uvarint
//	latest     varint (zigzag)
//	tokens     uvarint of how many; each a uvarint, how far it is beyond the one before, and a uvarint, its age
//	updates    uvarint of how many columns; each a byte: 0 few, 1 all
//	  few      uvarint of how many, at most m/4; each a uvarint, how many registers were left out before it, and 2
//	           bytes, its age
//	  all      m ages, 2 bytes each, little endian, plus 1; 0 for none

const slidingVersion = 1

// Forms of the encoding.
const (
	slidingUnused = iota
	slidingTokens
	slidingUpdates
)

func (w *DistinctSliding) codecForm() byte {
	switch {
	case !w.used:
		return slidingUnused
	case w.cells != nil:
		return slidingUpdates
	}
	return slidingTokens
}

// AppendBinary appends the encoding to b.
func (w *DistinctSliding) AppendBinary(b []byte) []byte {
	form := w.codecForm()
	b = w.p.Distinct.Hash.append(append(b, slidingVersion, form, w.precision()))
	b = binary.AppendUvarint(b, uint64(w.p.Window))
	if form == slidingUnused {
		return b
	}
	b = binary.AppendVarint(b, w.latest)
	if form == slidingUpdates {
		return w.appendUpdates(b)
	}
	b = binary.AppendUvarint(b, uint64(len(w.tokens)))
	before := uint32(0)
	for i, token := range w.tokens {
		b = binary.AppendUvarint(b, uint64(token-before))
		b = binary.AppendUvarint(b, uint64(w.age(w.times[i])))
		before = token
	}
	return b
}

func (w *DistinctSliding) appendUpdates(b []byte) []byte {
	m := w.registers()
	b = binary.AppendUvarint(b, uint64(len(w.cells)/m))
	for at := 0; at < len(w.cells); at += m {
		b = w.appendColumn(b, w.cells[at:at+m])
	}
	return b
}

func (w *DistinctSliding) appendColumn(b []byte, column []uint16) []byte {
	used := 0
	for _, time := range column {
		if time != 0 {
			used++
		}
	}
	if used > len(column)/4 {
		b = append(b, 1)
		for _, time := range column {
			b = binary.LittleEndian.AppendUint16(b, w.ageWord(time))
		}
		return b
	}
	b = binary.AppendUvarint(append(b, 0), uint64(used))
	left := 0
	for _, time := range column {
		if time == 0 {
			left++
			continue
		}
		b = binary.AppendUvarint(b, uint64(left))
		b = binary.LittleEndian.AppendUint16(b, w.ageWord(time)-1)
		left = 0
	}
	return b
}

// ageWord is an age plus 1, and 0 for no time.
func (w *DistinctSliding) ageWord(time uint16) uint16 {
	if time == 0 {
		return 0
	}
	return uint16(w.age(time) + 1)
}

// Decode replaces w by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change.
func (w *DistinctSliding) Decode(b []byte) (rest []byte, err error) {
	return w.DecodeWithin(b, math.MaxInt)
}

// DecodeWithin is Decode that also refuses an encoding whose columns would need more memory than room, in bytes.
func (w *DistinctSliding) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	version, form, precision := r.byte(), r.byte(), r.byte()
	p := DistinctSlidingParams{Distinct: DistinctParams{Precision: int(precision), Hash: r.hash()}}
	window := r.uvarint()
	if !r.ok || version != slidingVersion || form > slidingUpdates || precision == 0 || window > uint64(HalfLifeMax) {
		return nil, ErrCorrupt
	}
	p.Window = Tick(window)
	n, err := NewDistinctSliding(p)
	if err != nil || form != slidingUnused && !n.decodeState(&r, form) {
		return nil, ErrCorrupt
	}
	*w = n
	return r.b, nil
}

func (w *DistinctSliding) decodeState(r *reader, form byte) bool {
	w.latest, w.used = r.varint(), true
	if !r.ok || w.latest > int64(MaxTick)>>1/int64(w.slice) || w.latest < 0 {
		return false
	}
	w.last = math.MinInt64
	ok := false
	if form == slidingTokens {
		ok = w.decodeTokens(r)
	} else {
		ok = w.decodeUpdates(r)
	}
	if w.last == math.MinInt64 {
		w.last = 0
	}
	return ok && r.ok
}

// stored is the stored time of an age, and updates last. ok is false for an age that is not kept.
func (w *DistinctSliding) stored(age uint64) (time uint16, ok bool) {
	if age > uint64(w.latest-w.cut()) {
		return 0, false
	}
	slice := w.latest - int64(age)
	w.last = max(w.last, slice)
	return slidingTime(slice), true
}

func (w *DistinctSliding) decodeTokens(r *reader) bool {
	count := r.int(w.tokensMax())
	if !r.ok || 2*count > len(r.b) {
		return false
	}
	if count == 0 {
		return true
	}
	w.tokens, w.times = make([]uint32, count), make([]uint16, count)
	before := uint64(0)
	for i := range w.tokens {
		more := r.uvarint()
		before += more
		if !r.ok || more == 0 || before > math.MaxUint32 || before&63 == 0 || before&63 > tokenZeros+1 {
			return false
		}
		time, ok := w.stored(r.uvarint())
		if !ok || !r.ok {
			return false
		}
		w.tokens[i], w.times[i] = uint32(before), time
	}
	return true
}

func (w *DistinctSliding) decodeUpdates(r *reader) bool {
	m, columns := w.registers(), r.int(w.columnsMax())
	if !r.ok || columns == 0 || 2*columns > len(r.b) || !r.claim(2*m*columns) {
		return false
	}
	w.cells = make([]uint16, columns*m)
	used := 0
	for at := 0; at < len(w.cells); at += m {
		n, ok := w.decodeColumn(r, w.cells[at:at+m])
		if !ok {
			return false
		}
		used = n
	}
	return used > 0 // the last column must not be empty
}

func (w *DistinctSliding) decodeColumn(r *reader, column []uint16) (used int, ok bool) {
	switch r.byte() {
	case 0:
		used = r.int(len(column) / 4)
		return used, w.decodeFew(r, column, used)
	case 1:
		raw := r.take(2 * len(column))
		if !r.ok {
			return 0, false
		}
		for i := range column {
			word := binary.LittleEndian.Uint16(raw[2*i:])
			if word == 0 {
				continue
			}
			if column[i], ok = w.stored(uint64(word - 1)); !ok {
				return 0, false
			}
			used++
		}
		return used, used > len(column)/4
	}
	return 0, false
}

func (w *DistinctSliding) decodeFew(r *reader, column []uint16, used int) bool {
	at := 0
	for range used {
		left, raw := r.int(len(column)), r.take(2)
		if !r.ok || at+left >= len(column) {
			return false
		}
		time, ok := w.stored(uint64(binary.LittleEndian.Uint16(raw)))
		if !ok {
			return false
		}
		column[at+left] = time
		at += left + 1
	}
	return r.ok
}
