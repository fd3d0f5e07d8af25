package shard

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// bitmapValue is a bitmap as what a key holds: the position of its blocks or, when it was decoded and is not stored
// yet, containers on the Go heap.
type bitmapValue struct {
	pages *slab // nil: it is loose
	head  bitmapHead
	loose []looseSlice
	// edited is the index of the entry that changed it last, 0 until it is put; not replicated
	edited uint64
}

// looseSlice is a container together with its slice.
type looseSlice struct {
	slice uint64
	bitmap.Container
}

var errNoBitmapMerge = errors.New("bitmaps are united by an expression")

func (v *bitmapValue) form() form                { return formBitmap }
func (v *bitmapValue) add(*event) error          { return errOtherForm } // see fits
func (v *bitmapValue) last() sketch.Tick         { return 0 }
func (v *bitmapValue) death(float64) sketch.Tick { return sketch.MaxTick }
func (v *bitmapValue) suits(*namespace) bool     { return true }
func (v *bitmapValue) merge(body) error          { return errNoBitmapMerge }
func (v *bitmapValue) clone() body               { return v }

// Held is 0: a bitmap lies in pages like a distribution, and does not count among the bodies whose bytes are limited.
func (v *bitmapValue) Held() int     { return 0 }
func (v *bitmapValue) Reserved() int { return 0 }

// Size is the size of the blocks of a large bitmap: a small one lies in its record.
func (v *bitmapValue) Size() int {
	if v.head.isSmall() {
		return 0
	}
	return 8 * v.blocks()
}

func (v *bitmapValue) answer(_ *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	out.Total = exactly(float64(v.head.ids))
}

// bitmap is the bitmap of a key that holds one, nil otherwise.
func (sum *summary) bitmap() *bitmapValue {
	v, _ := sum.body.(*bitmapValue)
	return v
}

// each visits the containers in the order of their slices, until visit returns false.
func (v *bitmapValue) each(visit func(slice uint64, c bitmap.Container) bool) {
	if v.pages == nil {
		for _, l := range v.loose {
			if !visit(l.slice, l.Container) {
				return
			}
		}
		return
	}
	c := v.pages.cursor(v.head)
	for slice, ok := c.Seek(0); ok && visit(slice, c.Container()) && slice < sliceMax; {
		slice, ok = c.Seek(slice + 1)
	}
}

// sliceMax is the last slice.
const sliceMax = 1<<(64-sliceBits) - 1

// bring stores a loose bitmap in blocks.
func (v *bitmapValue) bring(pages *slab, epoch uint32) {
	if v.pages == pages {
		return
	}
	var t bitmapEditor
	t.begin(pages, epoch, bitmapHead{})
	l := bitmapLoader{to: &t}
	for _, c := range v.loose {
		l.add(c)
	}
	l.end()
	*v = bitmapValue{pages: pages, head: t.head}
}

// bitmapLoader fills an empty bitmap with containers, in the order of their slices.
type bitmapLoader struct {
	to      *bitmapEditor
	pending []looseSlice // as long as the bitmap may be small
	ids     int
}

func (l *bitmapLoader) add(c looseSlice) {
	if l.ids += int(c.Count); l.ids <= 2*bitmap.SmallWords {
		l.pending = append(l.pending, c)
		return
	}
	for _, p := range l.pending {
		l.to.put(p.slice, p.Container)
	}
	l.pending = l.pending[:0]
	l.to.put(c.slice, c.Container)
}

func (l *bitmapLoader) end() {
	l.to.ids = l.to.ids[:0]
	for _, p := range l.pending {
		p.Each(0, func(low uint16) bool {
			l.to.ids = append(l.to.ids, p.slice<<sliceBits|uint64(low))
			return true
		})
	}
	l.to.edit(bitmap.Set, l.to.ids)
}

// A bitmap in bytes is its containers in the order of their slices, in snapshots, images and parts:
//
//	slice    uvarint(1 + slices skipped since the one before) uvarint(n<<2 | form) words
//
// where n is the ids of an array, the runs of runs, and the ids of a dense one, and words are lows, first and last
// lows, or the words of the block: 2, 4 and 8 bytes each, little endian. A slice of 0 ends it.
func (v *bitmapValue) appendBinary(b []byte) []byte {
	last := uint64(0)
	v.each(func(slice uint64, c bitmap.Container) bool {
		b = appendContainer(b, slice-last, c)
		last = slice + 1
		return true
	})
	return append(b, 0)
}

// idsWithKey is the most ids of a bitmap that a snapshot stores with its key. So few ids never lie in containers there,
// whatever they do in memory.
const idsWithKey = 64

// appendIDs writes ids as uvarints: the distance of each from the one before, less 1.
func (v *bitmapValue) appendIDs(b []byte) []byte {
	next := uint64(0)
	add := func(id uint64) bool {
		b = binary.AppendUvarint(b, id-next)
		next = id + 1
		return true
	}
	if v.head.isSmall() {
		v.head.small().Each(0, add)
		return b
	}
	v.each(func(slice uint64, c bitmap.Container) bool {
		return c.Each(0, func(low uint16) bool { return add(slice<<sliceBits | uint64(low)) })
	})
	return b
}

// decodeIDs makes a small bitmap in room from what appendIDs wrote; without any bytes it is empty.
func decodeIDs(room *[idsWithKey]uint64, raw []byte) (head bitmapHead, ok bool) {
	ids := room[:0]
	for next := uint64(0); len(raw) > 0; {
		skip, n := binary.Uvarint(raw)
		id := next + skip
		if n <= 0 || n > 1 && raw[n-1] == 0 || id < next || len(ids) == idsWithKey || len(ids) > 0 && next == 0 {
			return bitmapHead{}, false
		}
		ids, raw, next = append(ids, id), raw[n:], id+1
	}
	head.ids = uint64(len(ids))
	if n := len(ids); n > 0 && ids[n-1] > math.MaxUint32 {
		head.wide, head.words = true, ids
		return head, true
	}
	for i, id := range ids { // two to a word, over those that have been read
		if i&1 == 0 {
			ids[i>>1] = id
		} else {
			ids[i>>1] |= id << 32
		}
	}
	head.words = ids[:bitmap.WordsForSmall(false, len(ids))]
	return head, true
}

// size is how many bytes appendBinary writes, to within a few per slice.
func (v *bitmapValue) size() (n int) {
	v.each(func(_ uint64, c bitmap.Container) bool {
		n += containerSize(c)
		return true
	})
	return n
}

// sliceForms is how many slices a bitmap has, by the form of their containers.
type sliceForms struct{ arrays, dense, runs int }

func (n sliceForms) all() int { return n.arrays + n.dense + n.runs }

func (v *bitmapValue) slices() (n sliceForms) {
	v.each(func(_ uint64, c bitmap.Container) bool {
		switch c.Form {
		case bitmap.Dense:
			n.dense++
		case bitmap.Run:
			n.runs++
		default:
			n.arrays++
		}
		return true
	})
	return n
}

// blocks is how many words of the slab a stored bitmap takes.
func (v *bitmapValue) blocks() (words int) {
	if v.head.isSmall() {
		return len(v.head.words)
	}
	v.pages.eachBlock(v.head, func(ref blockRef) bool {
		words += int(v.pages.runs[ref>>8].size)
		return true
	})
	return words
}

func containerSize(c bitmap.Container) int {
	switch c.Form {
	case bitmap.Array:
		return 2 + 2*int(c.Count)
	case bitmap.Run:
		return 2 + 8*len(c.Words)
	}
	return 4 + 8*bitmap.DenseWords
}

func appendContainer(b []byte, skipped uint64, c bitmap.Container) []byte {
	b = binary.AppendUvarint(b, 1+skipped)
	units, bytes := int(c.Count), 2*int(c.Count)
	switch c.Form {
	case bitmap.Run:
		units = c.Runs()
		bytes = 4 * units
	case bitmap.Dense:
		bytes = 8 * bitmap.DenseWords
	}
	b = binary.AppendUvarint(b, uint64(units)<<2|uint64(c.Form))
	whole := bytes / 8
	for _, w := range c.Words[:whole] {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for i := range bytes % 8 {
		b = append(b, byte(c.Words[whole]>>(8*i)))
	}
	return b
}

var errBitmapBytes = errors.New("bytes that are no bitmap")

// decode reads what appendBinary wrote.
func (v *bitmapValue) decode(b []byte) (rest []byte, err error) {
	var d bitmapDecoder
	for {
		var l looseSlice
		if l, b, err = d.next(b); err != nil {
			return b, err
		}
		if l.Count == 0 {
			break
		}
		v.loose = append(v.loose, l)
		v.head.ids += uint64(l.Count)
	}
	if v.head.ids == 0 {
		return b, errBitmapBytes // an empty bitmap is not stored
	}
	return b, nil
}

// bitmapDecoder reads containers, one after the other. slice is the least slice that the next one may have.
type bitmapDecoder struct{ slice uint64 } // the first that the next may be

// next reads one container; it has no ids at the end.
func (d *bitmapDecoder) next(b []byte) (l looseSlice, rest []byte, err error) {
	r := reader{rest: b}
	skip := r.uvarint()
	if skip == 0 {
		if r.bad {
			return l, b, errBitmapBytes
		}
		return l, r.rest, nil
	}
	slice := d.slice + skip - 1
	n := r.uvarint()
	f, units := bitmap.Form(n&containerForm), n>>2
	bytes := containerBytes(f, units)
	if r.bad || slice < d.slice || slice > sliceMax || bytes == 0 || bytes > len(r.rest) {
		return l, b, errBitmapBytes
	}
	if l.Container, err = readContainer(f, units, r.rest[:bytes]); err != nil {
		return l, b, err
	}
	l.slice, d.slice = slice, slice+1
	return l, r.rest[bytes:], nil
}

// readContainer makes a container from its words in bytes, containerBytes of them.
func readContainer(f bitmap.Form, units uint64, raw []byte) (bitmap.Container, error) {
	c := bitmap.Container{Form: f, Count: uint32(units), Words: make([]uint64, (len(raw)+7)/8)}
	for i := range c.Words {
		if len(raw) >= 8 {
			c.Words[i], raw = binary.LittleEndian.Uint64(raw), raw[8:]
			continue
		}
		for j, v := range raw {
			c.Words[i] |= uint64(v) << (8 * j)
		}
	}
	if f == bitmap.Run {
		c.Count = runIDs(c.Words)
	}
	return c, bitmap.Validate(c)
}

// containerBytes is how long the words of a container are in bytes; 0 if there is no such container.
func containerBytes(f bitmap.Form, units uint64) int {
	switch {
	case f == bitmap.Array && units > 0 && units <= bitmap.ArrayMax:
		return 2 * int(units)
	case f == bitmap.Run && units > 0 && units <= bitmap.RunMax:
		return 4 * int(units)
	case f == bitmap.Dense && units <= bitmap.SliceLen:
		return 8 * bitmap.DenseWords
	}
	return 0
}

// runIDs is how many ids there are in runs: 0 if the last id of any run is below its first.
func runIDs(words []uint64) (n uint32) {
	for i, w := range words {
		for half := range 2 {
			first, last := uint32(uint16(w>>(32*half))), uint32(uint16(w>>(32*half+16)))
			if half == 1 && i == len(words)-1 && first == 0 && last == 0 {
				continue
			}
			if first > last {
				return 0
			}
			n += last - first + 1
		}
	}
	return n
}
