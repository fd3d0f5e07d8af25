package sketch

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// A bitmap of m bits in bytes, with at least one bit set: the shortest of three forms.
//
//	form     1 byte
//	1 dense  the words, 8 bytes each, little endian
//	2 ones   uvarint of how many bits are set, then a Golomb-Rice code for each: its distance from its predecessor,
//	         less 1
//	3 zeros  the same for the bits that are not set, when they are fewer; forms 2 and 3 only when shorter than dense

const (
	bitmapDense = 1 + iota
	bitmapOnes
	bitmapZeros
)

// appendBitmap writes words; ones is the number of bits set in them.
func appendBitmap(b []byte, words []uint64, ones int) []byte {
	m := 64 * len(words)
	form, flip, n := byte(bitmapOnes), uint64(0), ones
	if m-ones < ones {
		form, flip, n = bitmapZeros, math.MaxUint64, m-ones
	}
	start := len(b)
	w := beginRice(b, form, m, n)
	next := 0
	for i, word := range words {
		for word ^= flip; word != 0; word &= word - 1 {
			at := 64*i + bits.TrailingZeros64(word)
			w.put(uint64(at - next))
			next = at + 1
		}
		if len(w.b)-start > 1+m/8 {
			break
		}
	}
	if b = w.flush(); len(b)-start < 1+m/8 {
		return b
	}
	return appendWords(b[:start], words)
}

// appendWords writes the dense form.
func appendWords(b []byte, words []uint64) []byte {
	b = append(b, bitmapDense)
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}

func (r *reader) denseBitmap(m int) (words []uint64, ones int, ok bool) {
	if m/8 > len(r.b) {
		return nil, 0, false
	}
	words = make([]uint64, m/64)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(r.take(8))
		ones += bits.OnesCount64(words[i])
	}
	return words, ones, true
}

// riceZeros reads a bitmap by its zeros, and claims the reader's room for it.
func (r *reader) riceZeros(m int) (words []uint64, ones int, ok bool) {
	n := r.int(m / 2)
	if !r.ok || n > 8*len(r.b) || !r.claim(m/8) {
		return nil, 0, false
	}
	words = make([]uint64, m/64)
	for i := range words {
		words[i] = math.MaxUint64
	}
	ok = r.rice(m, n, func(at int) { words[at/64] &^= 1 << (at % 64) })
	return words, m - n, ok
}

// rice reads n of m positions, which ascend.
func (r *reader) rice(m, n int, set func(at int)) bool {
	codes := riceReader{b: r.b, low: riceBits(m, n)}
	next := uint64(0)
	for range n {
		gap, ok := codes.get(uint64(m))
		if !ok || gap >= uint64(m)-next {
			return false
		}
		set(int(next + gap))
		next += gap + 1
	}
	r.take(codes.used())
	return true
}

// countOnes is the number of bits set.
func countOnes(words []uint64) (n int) {
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

// riceBits is the parameter of the code for n of m positions. The distances have a mean of m/n, and the parameter is
// derived from ln 2 times that (Golomb 1966; Rice 1979).
func riceBits(m, n int) int {
	return max(0, bits.Len64(uint64(m)*11/uint64(16*max(n, 1)))-1)
}

// beginRice begins a bitmap of n positions of m.
func beginRice(b []byte, form byte, m, n int) riceWriter {
	return riceWriter{b: binary.AppendUvarint(append(b, form), uint64(n)), low: riceBits(m, n)}
}

// riceWriter writes v as v>>low ones, a zero, and the low bits, the first bit of a byte being its highest.
type riceWriter struct {
	b    []byte
	low  int
	acc  uint64
	have int // bits of acc that are not written yet, below 8 between puts
}

func (w *riceWriter) put(v uint64) {
	for range v >> w.low {
		w.bits(1, 1)
	}
	w.bits(0, 1)
	w.bits(v&(1<<w.low-1), w.low)
}

func (w *riceWriter) bits(v uint64, n int) {
	w.acc = w.acc<<n | v
	for w.have += n; w.have >= 8; w.have -= 8 {
		w.b = append(w.b, byte(w.acc>>(w.have-8)))
	}
}

func (w *riceWriter) flush() []byte {
	if w.have > 0 {
		w.bits(0, 8-w.have)
	}
	return w.b
}

// riceReader reads what riceWriter wrote.
type riceReader struct {
	b   []byte
	low int
	at  int // the next bit
}

// get returns the next number; ok is false when there is none, or when it is above limit.
func (r *riceReader) get(limit uint64) (v uint64, ok bool) {
	for {
		bit, ok := r.bit()
		if !ok || v<<r.low > limit {
			return 0, false
		}
		if bit == 0 {
			break
		}
		v++
	}
	for range r.low {
		bit, ok := r.bit()
		if !ok {
			return 0, false
		}
		v = v<<1 | bit
	}
	return v, true
}

func (r *riceReader) bit() (uint64, bool) {
	if r.at >= 8*len(r.b) {
		return 0, false
	}
	bit := r.b[r.at/8] >> (7 - r.at%8) & 1
	r.at++
	return uint64(bit), true
}

// used is the number of bytes read, a partly read byte included.
func (r *riceReader) used() int { return (r.at + 7) / 8 }
