package shard

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// A snapshot's bytes travel in blocks. A section is one or more blocks of its
// kind; what is in it may run over from one block into the next.
//
//	block = kind (1) | length (4, little endian) | payload | crc (4)
//
// The crc is CRC-32C of the snapshot from its first byte up to here, so that a
// block that is flipped, missing or out of place is found where it is read.
const (
	blockBytesMax = 64 << 10
	blockOverhead = 1 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockWriter writes values in blocks. The first error sticks.
type blockWriter struct {
	w       io.Writer
	err     error
	written int64
	crc     uint32
	kind    byte
	buf     []byte
	scratch []byte
}

// section begins a section; each has a block even if it is empty.
func (b *blockWriter) section(kind byte) {
	if b.kind != 0 {
		b.flush()
	}
	b.kind = kind
}

// flushFull writes whole blocks, if there are any.
func (b *blockWriter) flushFull() {
	for len(b.buf) > blockBytesMax {
		b.block(b.buf[:blockBytesMax])
		b.buf = append(b.buf[:0], b.buf[blockBytesMax:]...)
	}
}

func (b *blockWriter) flush() {
	b.flushFull()
	b.block(b.buf)
	b.buf = b.buf[:0]
}

func (b *blockWriter) block(payload []byte) {
	var head [blockOverhead]byte
	head[0] = b.kind
	binary.LittleEndian.PutUint32(head[1:], uint32(len(payload)))
	b.write(head[:])
	b.write(payload)
	b.write(binary.LittleEndian.AppendUint32(nil, b.crc))
}

func (b *blockWriter) write(p []byte) {
	if b.err != nil {
		return
	}
	b.crc = crc32.Update(b.crc, castagnoli, p)
	var n int
	n, b.err = b.w.Write(p)
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

// blockReader reads values from blocks and checks each block before anything
// in it is believed. The first error sticks, and every value after it is zero.
type blockReader struct {
	r    io.Reader
	err  error
	crc  uint32
	kind byte
	// format is that of the snapshot, once its header has been read.
	format byte
	buf    []byte // of the present block
	rest   []byte
	spill  []byte // of a text that runs over
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

// section goes on to the first block of a section, where the one before must end.
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
	var head [blockOverhead]byte
	b.fill(head[:])
	n := binary.LittleEndian.Uint32(head[1:])
	if b.err == nil && n > blockBytesMax {
		b.corrupt("block of %d bytes", n)
	}
	if b.err != nil {
		return
	}
	if b.buf == nil {
		b.buf = make([]byte, blockBytesMax)
	}
	payload := b.buf[:n]
	b.fill(payload)
	want := b.crc
	var crc [4]byte
	b.fill(crc[:])
	if b.err == nil && binary.LittleEndian.Uint32(crc[:]) != want {
		b.corrupt("a block's CRC is %#08x, its bytes have %#08x", binary.LittleEndian.Uint32(crc[:]), want)
	}
	if b.err == nil && head[0] != b.kind {
		b.corrupt("a block of section %d where one of %d belongs", head[0], b.kind)
	}
	if b.err == nil {
		b.rest = payload
	}
}

func (b *blockReader) fill(p []byte) {
	if b.err != nil {
		return
	}
	if _, err := io.ReadFull(b.r, p); err != nil {
		b.readError(err)
		return
	}
	b.crc = crc32.Update(b.crc, castagnoli, p)
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

// text reads a length up to a limit, and as many bytes; they are good until the
// next value is read.
func (b *blockReader) text(limit int) []byte {
	n := b.uvarint()
	if n > uint64(limit) {
		b.corrupt("a text of %d bytes: the limit is %d", n, limit)
		return nil
	}
	return b.bytes(int(n))
}

// bytes reads n bytes, nil after an error. Memory is taken as they come.
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
