package shard

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// A snapshot's bytes come in blocks. A section is one or more blocks of its kind; its content may continue from one
// block in the next.
//
//	block = kind (1) | length (4, little endian) | payload | crc (4)
//
// The crc is CRC-32C of the block up to here. The last section holds the CRC-32C of all crcs but the first, so that a
// block that is flipped, missing or out of place is found.
//
// Where a block ends depends only on the items in it. It ends after an item whose number decides so, by chance, or
// before and after a large item. So two snapshots of a state that has changed a little have most of their blocks in
// common.
const (
	// blockBytesLeast is the length from which on a block may end, and blockBytesMean how much longer it is then on
	// average. blockBytesMax is the most that it holds: more than a container of a bitmap. So one write changes not
	// much more of a snapshot than a page, the unit of copy-on-write.
	blockBytesLeast = 2 << 10
	blockBytesMean  = 1 << 10
	blockBytesMax   = 12 << 10
	blockOverhead   = 1 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockWriter writes values in blocks, each with one Write. The first error sticks.
type blockWriter struct {
	w       io.Writer
	err     error
	written int64
	crcs    uint32 // of the crcs of all blocks but the first
	kind    byte
	blocks  int // of this section
	buf     []byte
	item    int // where the present item begins in buf
	frame   []byte
	scratch []byte
	later   []uint32 // keys whose bitmaps have a section of their own
}

// section begins a section; each has a block even if it is empty.
func (b *blockWriter) section(kind byte) {
	if b.kind != 0 {
		b.flush()
	}
	b.kind, b.blocks = kind, 0
}

// ended ends an item. number belongs to this item for as long as the state keeps it.
func (b *blockWriter) ended(number uint64) {
	size := len(b.buf) - b.item
	switch {
	case len(b.buf) > blockBytesMax:
		if b.item > 0 {
			b.block(b.buf[:b.item])
			b.buf = append(b.buf[:0], b.buf[b.item:]...)
		}
		if size >= blockBytesMean {
			b.flush()
		}
	case len(b.buf) >= blockBytesLeast && number*0x9e3779b97f4a7c15>>32%blockBytesMean < uint64(size):
		b.flush()
	}
	b.item = len(b.buf)
}

// spill writes what exceeds a block.
func (b *blockWriter) spill() {
	whole := 0
	for len(b.buf)-whole > blockBytesMax {
		b.block(b.buf[whole : whole+blockBytesMax])
		whole += blockBytesMax
	}
	b.buf = append(b.buf[:0], b.buf[whole:]...)
}

// flush ends the block.
func (b *blockWriter) flush() {
	b.spill()
	if len(b.buf) > 0 || b.blocks == 0 {
		b.block(b.buf)
	}
	b.buf, b.item = b.buf[:0], 0
}

func (b *blockWriter) block(payload []byte) {
	b.frame = append(b.frame[:0], b.kind)
	b.frame = binary.LittleEndian.AppendUint32(b.frame, uint32(len(payload)))
	b.frame = append(b.frame, payload...)
	b.frame = binary.LittleEndian.AppendUint32(b.frame, crc32.Checksum(b.frame, castagnoli))
	if b.kind != sectionHeader {
		b.crcs = crc32.Update(b.crcs, castagnoli, b.frame[len(b.frame)-4:])
	}
	b.blocks++
	if b.err != nil {
		return
	}
	var n int
	n, b.err = b.w.Write(b.frame)
	b.written += int64(n)
}

func (b *blockWriter) byte(v byte)      { b.buf = append(b.buf, v) }
func (b *blockWriter) uvarint(v uint64) { b.buf = binary.AppendUvarint(b.buf, v) }
func (b *blockWriter) fixed(v uint64)   { b.buf = binary.LittleEndian.AppendUint64(b.buf, v) }
func (b *blockWriter) float(v float64)  { b.fixed(math.Float64bits(v)) }

func (b *blockWriter) tick(t sketch.Tick) { b.buf = binary.AppendVarint(b.buf, int64(t)) }

func (b *blockWriter) bool(v bool) {
	if v {
		b.byte(1)
	} else {
		b.byte(0)
	}
}

func (b *blockWriter) text(p []byte) {
	b.uvarint(uint64(len(p)))
	b.buf = append(b.buf, p...)
}

// blockReader reads values from blocks, and checks each block before it uses its content. The first error sticks, and
// every value after it is zero.
type blockReader struct {
	r     io.Reader
	err   error
	crcs  uint32 // of the crcs of all blocks but the first and the last
	kind  byte
	buf   []byte // of the present block
	rest  []byte
	spill []byte // of a text that continues in the next block

	format byte // of the snapshot, once its header is read
}

func (b *blockReader) corrupt(format string, args ...any) {
	if b.err == nil {
		b.err = proto.ErrCorrupt.Errorf("corrupt snapshot: "+format, args...)
	}
	b.rest = nil
}

func (b *blockReader) newer(format string, args ...any) {
	if b.err == nil {
		b.err = proto.ErrNewerVersion.Errorf(format, args...).WithHint("upgrade this binary")
	}
	b.rest = nil
}

// section moves to the first block of a section. The section before must end there.
func (b *blockReader) section(kind byte) {
	if b.err == nil && len(b.rest) > 0 {
		b.corrupt("section %d is longer than what is in it", b.kind)
	}
	b.kind = kind
	b.next()
}

// next reads the next block of the present section.
func (b *blockReader) next() {
	if b.err != nil {
		return
	}
	if b.buf == nil {
		b.buf = make([]byte, blockOverhead+blockBytesMax+4)
	}
	head := b.buf[:blockOverhead]
	b.fill(head)
	n := binary.LittleEndian.Uint32(head[1:])
	if b.err == nil && n > blockBytesMax {
		b.corrupt("block of %d bytes", n)
	}
	if b.err != nil {
		return
	}
	b.fill(b.buf[blockOverhead : blockOverhead+n+4])
	covered, tail := b.buf[:blockOverhead+n], b.buf[blockOverhead+n:][:4]
	crc, want := binary.LittleEndian.Uint32(tail), crc32.Checksum(covered, castagnoli)
	if b.err == nil && crc != want {
		b.corrupt("a block's CRC is %#08x, its bytes have %#08x", crc, want)
	}
	if b.err == nil && head[0] != b.kind {
		b.corrupt("a block of section %d where one of %d belongs", head[0], b.kind)
	}
	if b.err != nil {
		return
	}
	if b.kind != sectionHeader && b.kind != sectionEnd {
		b.crcs = crc32.Update(b.crcs, castagnoli, tail)
	}
	b.rest = covered[blockOverhead:]
}

func (b *blockReader) fill(p []byte) {
	if b.err != nil {
		return
	}
	if _, err := io.ReadFull(b.r, p); err != nil {
		b.readError(err)
	}
}

func (b *blockReader) readError(err error) {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		b.corrupt("it ends too early")
		return
	}
	b.err = err
}

// end checks that nothing follows.
func (b *blockReader) end() {
	if len(b.rest) > 0 {
		b.corrupt("the last section is not empty")
		return
	}
	var one [1]byte
	switch _, err := io.ReadFull(b.r, one[:]); {
	case err == nil:
		b.corrupt("something follows its end")
	case err != io.EOF:
		b.err = err
	}
}

func (b *blockReader) byte() byte {
	if len(b.rest) == 0 {
		b.next()
		if b.err == nil && len(b.rest) == 0 {
			b.corrupt("section %d ends too early", b.kind)
		}
		if b.err != nil {
			return 0
		}
	}
	v := b.rest[0]
	b.rest = b.rest[1:]
	return v
}

func (b *blockReader) uvarint() uint64 {
	if len(b.rest) > 0 && b.rest[0] < 0x80 {
		v := b.rest[0]
		b.rest = b.rest[1:]
		return uint64(v)
	}
	if v, n := binary.Uvarint(b.rest); n > 0 {
		b.rest = b.rest[n:]
		return v
	}
	v := uint64(0)
	for shift := 0; shift < 64; shift += 7 {
		c := b.byte()
		if shift == 63 && c > 1 {
			break
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	b.corrupt("a number of more than 64 bits")
	return 0
}

func (b *blockReader) uint32() uint32 {
	v := b.uvarint()
	if v > math.MaxUint32 {
		b.corrupt("a number of more than 32 bits")
		return 0
	}
	return uint32(v)
}

func (b *blockReader) tick() sketch.Tick {
	v := b.uvarint()
	t := sketch.Tick(int64(v>>1) ^ -int64(v&1))
	if t < 0 {
		b.corrupt("a time before 1970")
		return 0
	}
	return t
}

func (b *blockReader) bool() bool {
	v := b.byte()
	if v > 1 {
		b.corrupt("neither yes nor no")
	}
	return v == 1
}

func (b *blockReader) fixed() uint64 {
	if p := b.bytes(8); len(p) == 8 {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (b *blockReader) float() float64 { return math.Float64frombits(b.fixed()) }

// text reads a length up to a limit, and as many bytes; they are valid until the next value is read.
func (b *blockReader) text(limit int) []byte {
	n := b.uvarint()
	if n > uint64(limit) {
		b.corrupt("a text of %d bytes: the limit is %d", n, limit)
		return nil
	}
	return b.bytes(int(n))
}

// bytes reads n bytes, nil after an error. It allocates memory only as they come.
func (b *blockReader) bytes(n int) []byte {
	if n <= len(b.rest) {
		p := b.rest[:n]
		b.rest = b.rest[n:]
		return p
	}
	b.spill = b.spill[:0]
	for n > len(b.spill) {
		if len(b.rest) == 0 {
			b.next()
			if b.err == nil && len(b.rest) == 0 {
				b.corrupt("section %d ends too early", b.kind)
			}
		}
		if b.err != nil {
			return nil
		}
		take := min(n-len(b.spill), len(b.rest))
		b.spill = append(b.spill, b.rest[:take]...)
		b.rest = b.rest[take:]
	}
	return b.spill
}

// Sizes of chunks; they mean the same as those of blocks.
const (
	chunkBytesLeast = 32 << 10
	chunkBytesMean  = 64 << 10
	chunkBytesMax   = 512 << 10
)

// Chunks is a writer for WriteTo that divides what is written into chunks: the header, and then about 100 KiB each. Two
// snapshots of a state that has changed a little have most chunks in common. Chunks passes every chunk to Each, which
// must not keep it.
type Chunks struct {
	Each func(chunk []byte) error

	buf   []byte
	begun bool
}

// Write takes one block. A chunk ends after a block whose CRC decides so, by chance in proportion to the block's size.
func (c *Chunks) Write(block []byte) (int, error) {
	c.buf = append(c.buf, block...)
	if chance := binary.LittleEndian.Uint32(block[len(block)-4:]) % chunkBytesMean; c.begun && len(c.buf) < chunkBytesMax &&
		(len(c.buf) < chunkBytesLeast || chance >= uint32(len(block))) {
		return len(block), nil
	}
	c.begun = true
	return len(block), c.Close()
}

// Close passes the last chunk to Each.
func (c *Chunks) Close() error {
	if len(c.buf) == 0 {
		return nil
	}
	err := c.Each(c.buf)
	c.buf = c.buf[:0]
	return err
}
