package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

const (
	formatVersion = 1

	segmentHeaderLen = 32
	batchHeaderLen   = 32
	recordHeaderLen  = 32
	appendedLen      = 8 // of an entry's body

	batchMagic = 0x42626265 // "ebbB"
)

var (
	segmentMagic = [8]byte{'e', 'b', 'b', ' ', 'w', 'a', 'l', '\n'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	le           = binary.LittleEndian
)

// kind is what a record does to its group. The numbers are part of the disk format.
type kind uint8

const (
	kindEntry    kind = 1 // a raft entry at index, of term
	kindDelete   kind = 2 // the entries from index to term (its last index), inclusive
	kindTerm     kind = 3 // the current term: index
	kindVote     kind = 4 // the vote: in term index, for the candidate in body
	kindValue    kind = 5 // a value: index is the key's length, body key and value
	kindBoundary kind = 6 // the newest snapshot ends at index, of term
	kindForget   kind = 7 // the group is gone, with everything above
	kindBegin    kind = 8 // first of a segment: the state of index groups follows
	kindHolds    kind = 9 // in that state: the runs of entries that the group holds
)

const flagExtensions = 1 << 0 // an entry has extensions

// record is one decoded record; body aliases the bytes it was decoded from.
type record struct {
	kind  kind
	typ   uint8 // of an entry: raft.LogType
	flags uint16
	group uint32
	index uint64
	term  uint64
	body  []byte
}

// recordSize returns the bytes that a record with such a body takes.
func recordSize(body int) int { return (recordHeaderLen + body + 7) &^ 7 }

// appendRecord encodes r behind b, which must have room, and returns its crc.
func appendRecord(b []byte, salt uint32, r *record) ([]byte, uint32) {
	start := len(b)
	b = appendHeader(b, r, len(r.body))
	b = append(b, r.body...)
	return finishRecord(b, start, salt)
}

func appendHeader(b []byte, r *record, body int) []byte {
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, uint32(body))
	b = append(b, byte(r.kind), r.typ)
	b = le.AppendUint16(b, r.flags)
	b = le.AppendUint32(b, r.group)
	b = le.AppendUint64(b, r.index)
	return le.AppendUint64(b, r.term)
}

// finishRecord writes the checksum of the record that starts at start, and pads the record.
func finishRecord(b []byte, start int, salt uint32) ([]byte, uint32) {
	crc := crc32.Update(salt, castagnoli, b[start+4:])
	le.PutUint32(b[start:], crc)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b, crc
}

// entrySize returns the bytes that an entry takes in the log.
func entrySize(e *raft.Log) int {
	body := appendedLen + len(e.Data)
	if len(e.Extensions) > 0 {
		body += 4 + len(e.Extensions)
	}
	return recordSize(body)
}

func appendEntry(b []byte, salt, group uint32, e *raft.Log) ([]byte, uint32) {
	start := len(b)
	r := record{kind: kindEntry, typ: uint8(e.Type), group: group, index: e.Index, term: e.Term}
	body := appendedLen + len(e.Data)
	if len(e.Extensions) > 0 {
		r.flags = flagExtensions
		body += 4 + len(e.Extensions)
	}
	b = appendHeader(b, &r, body)
	var appended int64
	if !e.AppendedAt.IsZero() {
		appended = e.AppendedAt.UnixNano()
	}
	b = le.AppendUint64(b, uint64(appended))
	if len(e.Extensions) > 0 {
		b = le.AppendUint32(b, uint32(len(e.Extensions)))
		b = append(b, e.Extensions...)
	}
	b = append(b, e.Data...)
	return finishRecord(b, start, salt)
}

// decodeRecord decodes and verifies the record at the front of b. size is what the record takes, padding included.
func decodeRecord(b []byte, salt uint32) (r record, size int, crc uint32, err error) {
	if len(b) < recordHeaderLen {
		return r, 0, 0, fmt.Errorf("a record's header is cut off after %d bytes", len(b))
	}
	body := int(le.Uint32(b[4:]))
	size = recordSize(body)
	if size > len(b) {
		return r, 0, 0, fmt.Errorf("a record of %d bytes is cut off after %d", size, len(b))
	}
	crc = le.Uint32(b)
	if crc32.Update(salt, castagnoli, b[4:recordHeaderLen+body]) != crc {
		return r, 0, 0, fmt.Errorf("a record of %d bytes has a wrong checksum", size)
	}
	return recordAt(b), size, crc, nil
}

// recordAt decodes a record that was verified before.
func recordAt(b []byte) record {
	body := int(le.Uint32(b[4:]))
	return record{
		kind: kind(b[8]), typ: b[9], flags: le.Uint16(b[10:]), group: le.Uint32(b[12:]),
		index: le.Uint64(b[16:]), term: le.Uint64(b[24:]),
		body: b[recordHeaderLen : recordHeaderLen+body : recordHeaderLen+body],
	}
}

// entry decodes the record into e, whose bytes alias the record's.
func (r *record) entry(e *raft.Log) error {
	if r.kind != kindEntry || len(r.body) < appendedLen {
		return fmt.Errorf("a record of kind %d and %d bytes is no entry", r.kind, len(r.body))
	}
	*e = raft.Log{Index: r.index, Term: r.term, Type: raft.LogType(r.typ)}
	if appended := int64(le.Uint64(r.body)); appended != 0 {
		e.AppendedAt = time.Unix(0, appended)
	}
	data := r.body[appendedLen:]
	if r.flags&flagExtensions != 0 {
		if len(data) < 4 || uint64(len(data)-4) < uint64(le.Uint32(data)) {
			return fmt.Errorf("an entry's extensions are cut off")
		}
		n := 4 + int(le.Uint32(data))
		e.Extensions = data[4:n:n]
		data = data[n:]
	}
	e.Data = data
	return nil
}

// batchHeader is the header before the records of one sync.
type batchHeader struct {
	sequence uint64
	length   int // bytes of records
	count    int
	sum      uint32 // crc of the records' crcs; in a mark, the number of the next segment or 0
}

// mark reports whether the batch has no records, and so only shows that the batches before it are durable.
func (h batchHeader) mark() bool { return h.count == 0 }

// next returns the segment in which the log continues after a mark, 0 if it ends there.
func (h batchHeader) next() uint32 { return h.sum }

func (h batchHeader) put(b []byte, salt uint32) {
	le.PutUint32(b, batchMagic)
	le.PutUint64(b[8:], h.sequence)
	le.PutUint32(b[16:], uint32(h.length))
	le.PutUint32(b[20:], uint32(h.count))
	le.PutUint32(b[24:], h.sum)
	le.PutUint32(b[28:], 0)
	le.PutUint32(b[4:], crc32.Update(salt, castagnoli, b[8:batchHeaderLen]))
}

// parseBatchHeader decodes a header at the start of b; ok is false if it fails verification.
func parseBatchHeader(b []byte, salt uint32) (h batchHeader, ok bool) {
	if len(b) < batchHeaderLen || le.Uint32(b) != batchMagic ||
		le.Uint32(b[4:]) != crc32.Update(salt, castagnoli, b[8:batchHeaderLen]) {
		return h, false
	}
	return batchHeader{
		sequence: le.Uint64(b[8:]), length: int(le.Uint32(b[16:])),
		count: int(le.Uint32(b[20:])), sum: le.Uint32(b[24:]),
	}, true
}

// verify checks the records behind a header. It changes nothing.
func (h batchHeader) verify(body []byte, salt uint32) error {
	if h.length > len(body) {
		return fmt.Errorf("a batch of %d bytes is cut off after %d", h.length, len(body))
	}
	body = body[:h.length]
	var sum uint32
	for n := range h.count {
		_, size, crc, err := decodeRecord(body, salt)
		if err != nil {
			return fmt.Errorf("record %d of %d: %w", n+1, h.count, err)
		}
		sum = addSum(sum, crc)
		body = body[size:]
	}
	if len(body) != 0 || sum != h.sum {
		return fmt.Errorf("the batch's records are not those that were written")
	}
	return nil
}

// addSum adds a record's crc to its batch's sum.
func addSum(sum, crc uint32) uint32 {
	var b [4]byte
	le.PutUint32(b[:], crc)
	return crc32.Update(sum, castagnoli, b[:])
}

// each calls f for every record of a verified batch, with its offset in body.
func (h batchHeader) each(body []byte, f func(offset, size int, r *record) error) error {
	for offset := 0; offset < h.length; {
		r := recordAt(body[offset:])
		size := recordSize(len(r.body))
		if err := f(offset, size, &r); err != nil {
			return err
		}
		offset += size
	}
	return nil
}

// putSegmentHeader encodes the header of a segment of size bytes into b.
func putSegmentHeader(b []byte, number uint64, size int64, salt uint32) {
	copy(b, segmentMagic[:])
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[12:], uint32(size))
	le.PutUint64(b[16:], number)
	le.PutUint32(b[24:], salt)
	le.PutUint32(b[28:], crc32.Update(0, castagnoli, b[:28]))
}
