package bitmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ebbdb/ebb/internal/kernel"
)

// The portable format of roaring bitmaps (github.com/RoaringBitmap/RoaringFormatSpec), of up to 65,536 slices. All
// numbers are little endian.
//
//	cookie      4 bytes: 12346, and then 4 bytes with the number n of containers; or 12347 | (n-1) << 16 where some
//	            are runs
//	runs        (n+7)/8 bytes, where some are: bit i says that container i is runs
//	keys        n x 2 + 2 bytes: slice, lows less 1
//	offsets     n x 4 bytes: where each container begins; left out where some are runs and n is below 4
//	containers  runs: 2 bytes r, r x 2 + 2 bytes: first, last less first. Others: up to 4,096 lows of 2 bytes each,
//	            more as 1,024 words of 8 bytes
//
// Its extension to 64 bits is a number of buckets (8 bytes). For each bucket it has the high half of the bucket's ids
// (4 bytes) and a bitmap as above of their low halves.

const (
	portablePlain   = 12346
	portableRuns    = 12347
	portableArray   = 4096 // lows of the longest array
	portableOffsets = 4    // with at least so many containers there are always offsets
	portableBucket  = 1 << 16
)

// ErrWide is the error of WritePortable32 for ids that do not fit 32 bits.
var ErrWide = errors.New("the portable format of 32 bits has no ids of 2^32 and above: use that of 64 bits")

// WritePortable32 writes a bitmap of ids below 2^32 in the portable format of roaring bitmaps. It returns ErrWide for
// larger ids. It allocates 16 bytes a container. Its writes are short, so w should have a buffer.
func WritePortable32(w io.Writer, d Directory) error {
	if n := d.Len(); n > 0 && d.Slice(n-1) >= portableBucket {
		return ErrWide
	}
	return writeBucket(w, d, 0, d.Len())
}

// WritePortable64 writes a bitmap in the portable format of roaring bitmaps of 64 bits, as CRoaring, roaring64 and
// Java's Roaring64NavigableMap read it.
func WritePortable64(w io.Writer, d Directory) error {
	var ends []int
	for i := range d.Len() {
		if i == 0 || d.Slice(i)/portableBucket != d.Slice(i-1)/portableBucket {
			ends = append(ends, i+1)
		} else {
			ends[len(ends)-1] = i + 1
		}
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(ends)))); err != nil {
		return err
	}
	from := 0
	for _, end := range ends {
		if _, err := w.Write(binary.LittleEndian.AppendUint32(nil, uint32(d.Slice(from)/portableBucket))); err != nil {
			return err
		}
		if err := writeBucket(w, d, from, end); err != nil {
			return err
		}
		from = end
	}
	return nil
}

// writeBucket writes the containers at positions from up to to.
func writeBucket(w io.Writer, d Directory, from, to int) error {
	head := portableHead(d, from, to)
	if _, err := w.Write(head); err != nil {
		return err
	}
	var b []byte
	for i := from; i < to; i++ {
		b = appendPortable(b[:0], d.Container(i))
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// portableHead is everything before the containers.
func portableHead(d Directory, from, to int) []byte {
	n := to - from
	marks := make([]byte, (n+7)/8)
	some := false
	for i := range n {
		if d.Container(from+i).Form == Run {
			marks[i/8] |= 1 << (i % 8)
			some = true
		}
	}
	var b []byte
	if some {
		b = binary.LittleEndian.AppendUint32(b, portableRuns|uint32(n-1)<<16)
		b = append(b, marks...)
	} else {
		b = binary.LittleEndian.AppendUint32(b, portablePlain)
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for i := range n {
		b = binary.LittleEndian.AppendUint16(b, uint16(d.Slice(from+i)))
		b = binary.LittleEndian.AppendUint16(b, uint16(d.Lows(from+i)-1))
	}
	if some && n < portableOffsets {
		return b
	}
	at := len(b) + 4*n
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, uint32(at))
		at += portableSize(d.Container(from + i))
	}
	return b
}

// portableSize is the size of a container in the format, in bytes.
func portableSize(c Container) int {
	switch {
	case c.Form == Run:
		return 2 + 4*c.runs()
	case c.Count <= portableArray:
		return 2 * int(c.Count)
	}
	return 8 * DenseWords
}

// appendPortable appends a container in the format.
func appendPortable(b []byte, c Container) []byte {
	b = slices.Grow(b, portableSize(c))
	switch {
	case c.Form == Run:
		b = binary.LittleEndian.AppendUint16(b, uint16(c.runs()))
		for i := range c.runs() {
			first, last := runAt(c.Words, i)
			b = binary.LittleEndian.AppendUint16(b, first)
			b = binary.LittleEndian.AppendUint16(b, last-first)
		}
	case c.Count <= portableArray:
		c.Each(0, func(low uint16) bool {
			b = binary.LittleEndian.AppendUint16(b, low)
			return true
		})
	default:
		for _, w := range c.Words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

// ReadPortable32 reads a bitmap in the portable format of roaring bitmaps, and yields its containers in order; their
// words are valid until yield returns. It reads no byte after the bitmap, uses at most half a MiB, and ends at the
// first error of yield. It returns ErrCorrupt, with the offset, for bytes that are no such bitmap; the containers
// before these have been yielded. Reads are short, so r should have a buffer.
func ReadPortable32(r io.Reader, yield func(slice uint64, c Container) error) error {
	p := portableReader{r: r, yield: yield}
	return p.bucket(0)
}

// ReadPortable64 is ReadPortable32 for the format of 64 bits.
func ReadPortable64(r io.Reader, yield func(slice uint64, c Container) error) error {
	p := portableReader{r: r, yield: yield}
	b, err := p.take(8, "the number of buckets")
	if err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(b)
	if n > 1<<32 {
		return p.corrupt("%d buckets", n)
	}
	for i, next := uint64(0), uint64(0); i < n; i++ {
		if b, err = p.take(4, "a bucket"); err != nil {
			return err
		}
		high := uint64(binary.LittleEndian.Uint32(b))
		if high < next {
			return p.corrupt("bucket %d behind %d", high, next-1)
		}
		if err := p.bucket(high * portableBucket); err != nil {
			return err
		}
		next = high + 1
	}
	return nil
}

// portableReader reads a bitmap piece by piece.
type portableReader struct {
	r       io.Reader
	yield   func(slice uint64, c Container) error
	at      int64 // bytes read
	last    int   // bytes in the last piece
	buf     []byte
	scratch [ScratchWords]uint64
}

// take reads a piece of n bytes, valid until the next one.
func (p *portableReader) take(n int, what string) ([]byte, error) {
	p.buf = slices.Grow(p.buf[:0], n)[:n]
	got, err := io.ReadFull(p.r, p.buf)
	p.at, p.last = p.at+int64(got), got
	switch {
	case err == nil:
		return p.buf, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: it ends at offset %d, within %s", ErrCorrupt, p.at, what)
	}
	return nil, fmt.Errorf("offset %d: %w", p.at, err)
}

// corrupt makes an error about the last piece.
func (p *portableReader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s at offset %d", ErrCorrupt, fmt.Sprintf(format, args...), p.at-int64(p.last))
}

// bucket reads a bitmap of up to 65,536 slices; base is the number of its first slice.
func (p *portableReader) bucket(base uint64) error {
	start := p.at
	n, marks, err := p.cookie()
	if err != nil {
		return err
	}
	keys, err := p.take(4*n, "the keys")
	if err != nil {
		return err
	}
	keys = slices.Clone(keys)
	for i := 4; i < len(keys); i += 4 {
		if a, b := binary.LittleEndian.Uint16(keys[i-4:]), binary.LittleEndian.Uint16(keys[i:]); b <= a {
			return p.corrupt("slice %d behind %d in the keys", b, a)
		}
	}
	var offsets []byte
	if marks == nil || n >= portableOffsets {
		if offsets, err = p.take(4*n, "the offsets"); err != nil {
			return err
		}
		offsets = slices.Clone(offsets)
	}
	for i := range n {
		if offsets != nil && p.at-start != int64(binary.LittleEndian.Uint32(offsets[4*i:])) {
			return fmt.Errorf("%w: container %d is at offset %d and said to be at %d", ErrCorrupt, i, p.at, start+int64(binary.LittleEndian.Uint32(offsets[4*i:])))
		}
		slice := base + uint64(binary.LittleEndian.Uint16(keys[4*i:]))
		lows := int(binary.LittleEndian.Uint16(keys[4*i+2:])) + 1
		c, err := p.container(lows, marks != nil && marks[i/8]>>(i%8)&1 == 1)
		if err != nil {
			return err
		}
		if err := p.yield(slice, c); err != nil {
			return err
		}
	}
	return nil
}

// cookie reads the number of containers, and marks for those that are runs; marks is nil if none is.
func (p *portableReader) cookie() (n int, marks []byte, err error) {
	b, err := p.take(4, "the cookie")
	if err != nil {
		return 0, nil, err
	}
	switch cookie := binary.LittleEndian.Uint32(b); {
	case cookie&0xFFFF == portableRuns:
		n = int(cookie>>16) + 1
		if b, err = p.take((n+7)/8, "the marks of runs"); err != nil {
			return 0, nil, err
		}
		return n, slices.Clone(b), nil
	case cookie != portablePlain:
		return 0, nil, p.corrupt("no roaring bitmap: cookie %d", cookie)
	}
	if b, err = p.take(4, "the number of containers"); err != nil {
		return 0, nil, err
	}
	if count := binary.LittleEndian.Uint32(b); count <= portableBucket {
		return int(count), nil, nil
	}
	return 0, nil, p.corrupt("%d containers", binary.LittleEndian.Uint32(b))
}

// container reads one container, and converts it to its form in this package.
func (p *portableReader) container(lows int, runs bool) (c Container, err error) {
	block := (*kernel.Block)(p.scratch[:])
	switch {
	case runs:
		err = p.runs(block)
	case lows <= portableArray:
		err = p.array(block, lows)
	default:
		err = p.bits(block)
	}
	if err != nil {
		return Container{}, err
	}
	if c = Settle(p.scratch[:]); int(c.Count) != lows {
		return Container{}, p.corrupt("container of %d lows in place of %d", c.Count, lows)
	}
	return c, nil
}

func (p *portableReader) array(block *kernel.Block, lows int) error {
	b, err := p.take(2*lows, "a container")
	if err != nil {
		return err
	}
	clear(block[:])
	next := 0
	for i := range lows {
		low := binary.LittleEndian.Uint16(b[2*i:])
		if int(low) < next {
			return p.corrupt("%d behind %d in the container", low, next-1)
		}
		block[low>>6] |= 1 << (low & 63)
		next = int(low) + 1
	}
	return nil
}

func (p *portableReader) bits(block *kernel.Block) error {
	b, err := p.take(8*DenseWords, "a container")
	if err != nil {
		return err
	}
	for i := range block {
		block[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return nil
}

func (p *portableReader) runs(block *kernel.Block) error {
	b, err := p.take(2, "a container")
	if err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if b, err = p.take(4*n, "a container"); err != nil {
		return err
	}
	clear(block[:])
	next := 0
	for i := range n {
		first, last := int(binary.LittleEndian.Uint16(b[4*i:])), 0
		if last = first + int(binary.LittleEndian.Uint16(b[4*i+2:])); first < next || last >= SliceLen {
			return p.corrupt("run from %d to %d behind %d in the container", first, last, next-1)
		}
		fillRange(block, Set, uint16(first), uint16(last))
		next = last + 1
	}
	return nil
}
