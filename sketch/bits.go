package sketch

import (
	"bytes"
	"math/bits"
	"slices"
)

// bitCell is a cell of bits.
type bitCell interface {
	[1]uint64 | [4]uint64
}

// bitCells is an array of bits: empty, sparse or dense. The first bit allocates it. Owners that loop over dense words
// check once whether the array is dense.
//
// Whether an array is sparse or dense must be a function of the bits alone. The owner ensures this: it calls spread as
// soon as its count is above most, and narrow when the count may have fallen to most.
type bitCells[T bitCell] struct {
	words []uint64        // nil unless dense
	few   *sparseCells[T] // nil unless sparse
	most  int             // the largest count of the owner while it is sparse; 0: always dense
}

// newBits makes an empty array of m bits, a multiple of the bits of a cell.
func newBits[T bitCell](m int) bitCells[T] {
	return bitCells[T]{most: sparseMost[T](m / 8 / cellBytes[T]())}
}

func (b *bitCells[T]) empty() bool { return b.words == nil && b.few == nil }

// begin allocates an empty array, and reports whether it is dense.
func (b *bitCells[T]) begin(m int) bool {
	switch {
	case b.words != nil:
		return true
	case b.few != nil:
		return false
	case b.most == 0:
		b.words = make([]uint64, m/64)
		return true
	}
	b.few = newSparse[T](1)
	return false
}

// set sets a bit of a sparse array.
func (b *bitCells[T]) set(at int) (changed bool) {
	var c T
	n := 64 * len(c)
	word := &(*b.few.cell(at / n))[at%n/64]
	bit := uint64(1) << (at % 64)
	changed = *word&bit == 0
	*word |= bit
	return changed
}

// has reads a bit of an array that is not dense.
func (b *bitCells[T]) has(at int) bool {
	if b.few == nil {
		return false
	}
	var none T
	n := 64 * len(none)
	c := b.few.find(at / n)
	return c != nil && (*c)[at%n/64]>>(at%64)&1 != 0
}

// spread makes an array dense.
func (b *bitCells[T]) spread(m int) {
	if b.words != nil {
		return
	}
	few := b.few
	b.words, b.few = make([]uint64, m/64), nil
	if few != nil {
		few.each(b.or)
	}
}

// or adds the bits of a cell to a dense array.
func (b *bitCells[T]) or(i int, c *T) {
	for k := range len(*c) {
		b.words[len(*c)*i+k] |= (*c)[k]
	}
}

// narrow makes a dense array sparse.
func (b *bitCells[T]) narrow() {
	var none T
	n := len(none)
	used := 0
	for i := 0; i < len(b.words); i += n {
		if countOnes(b.words[i:i+n]) > 0 {
			used++
		}
	}
	few := newSparse[T](used)
	for i := 0; i < len(b.words); i += n {
		if countOnes(b.words[i:i+n]) > 0 {
			c := few.cell(i / n)
			for k := range len(*c) {
				(*c)[k] = b.words[i+k]
			}
		}
	}
	b.words, b.few = nil, few
}

// merge adds the bits of o. Afterwards the owner must call spread if there are too many for a table.
func (b *bitCells[T]) merge(o *bitCells[T], m int) {
	if o.words != nil {
		b.spread(m)
		for i, w := range o.words {
			b.words[i] |= w
		}
		return
	}
	if o.few == nil {
		return
	}
	if b.begin(m) {
		o.few.each(b.or)
		return
	}
	o.few.each(func(i int, c *T) {
		to := b.few.cell(i)
		for k := range len(*c) {
			(*to)[k] |= (*c)[k]
		}
	})
}

// ones is the number of bits that are set.
func (b *bitCells[T]) ones() (n int) {
	if b.few != nil {
		b.few.each(func(_ int, c *T) { n += onesIn(c) })
		return n
	}
	return countOnes(b.words)
}

func onesIn[T bitCell](c *T) (n int) {
	for k := range len(*c) {
		n += bits.OnesCount64((*c)[k])
	}
	return n
}

// used is the number of cells of a sparse array that have a bit.
func (b *bitCells[T]) used() int {
	if b.few == nil {
		return 0
	}
	return b.few.used
}

func (b *bitCells[T]) clone() bitCells[T] {
	return bitCells[T]{words: slices.Clone(b.words), few: b.few.clone(), most: b.most}
}

// size is the memory of the bits.
func (b *bitCells[T]) size() int { return 8*cap(b.words) + b.few.size() }

// held is size computed from the bits alone. It counts the length of words, not the capacity.
func (b *bitCells[T]) held() int { return 8*len(b.words) + b.few.size() }

// append writes an array of m bits in the format of appendBitmap.
func (b *bitCells[T]) append(dst []byte, m, ones int) []byte {
	if b.few == nil {
		return appendBitmap(dst, b.words, ones)
	}
	start := len(dst)
	w := beginRice(dst, bitmapOnes, m, ones)
	next := 0
	b.few.ordered(func(i int, c *T) {
		for k := range len(*c) {
			for word := (*c)[k]; word != 0; word &= word - 1 {
				at := 64*(len(*c)*i+k) + bits.TrailingZeros64(word)
				w.put(uint64(at - next))
				next = at + 1
			}
		}
	})
	if dst = w.flush(); len(dst)-start < 1+m/8 {
		return dst
	}
	var full bitCells[T]
	full.few = b.few
	full.spread(m)
	return appendWords(dst[:start], full.words)
}

// bitmapOf reads m bits, a multiple of 64, into cells. ok is true only for what appendBitmap writes. The caller must
// bound m. A short encoding claims room for all m bits from the reader, even while it is sparse, because it may become
// dense.
func bitmapOf[T bitCell](r *reader, m int) (b bitCells[T], ones int, ok bool) {
	body := r.b
	b = newBits[T](m)
	switch form := r.byte(); form {
	case bitmapDense:
		b.words, ones, ok = r.denseBitmap(m)
	case bitmapOnes:
		ones, ok = riceInto(r, &b, m)
	case bitmapZeros:
		b.words, ones, ok = r.riceZeros(m)
	}
	ok = ok && r.ok && ones > 0 && bytes.Equal(b.append(nil, m, ones), body[:len(body)-len(r.b)])
	return b, ones, ok
}

// riceInto reads a bitmap by its ones. It fills a table up to the owner's limit, and then words.
func riceInto[T bitCell](r *reader, b *bitCells[T], m int) (ones int, ok bool) {
	n := r.int(m / 2)
	if !r.ok || n == 0 || n > 8*len(r.b) || !r.claim(m/8) {
		return 0, false
	}
	b.begin(m)
	ok = r.rice(m, n, func(at int) {
		if b.words != nil {
			b.words[at/64] |= 1 << (at % 64)
			return
		}
		if b.set(at); b.few.used > b.most {
			b.spread(m)
		}
	})
	return n, ok
}
