package wal

import (
	"hash/crc32"
	"os"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

// SplitVote brings back raft #661: term and candidate are stored by two records.
func SplitVote(l *Log) { l.splitVote = true }

// DeafToBoundary brings back raft #697: boundaries are not stored.
func DeafToBoundary(l *Log) { l.deafToBoundary = true }

// BatchHeaderLen is also the length of a mark.
const BatchHeaderLen = batchHeaderLen

// SegmentHeaderLen is where the first batch starts.
const SegmentHeaderLen = segmentHeaderLen

// Batches returns the offsets at which the batches of a segment start, marks
// excluded, and where the last one ends.
func Batches(b []byte) (starts []int) {
	salt := le.Uint32(b[24:])
	at := segmentHeaderLen
	for {
		h, ok := parseBatchHeader(b[at:], salt)
		starts = append(starts, at)
		if !ok || h.mark() {
			return starts
		}
		at += batchHeaderLen + h.length
	}
}

// SetVersion makes a segment one of another format, with a sound header.
func SetVersion(t *testing.T, fsys fs.FS, name string, version uint32) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, segmentHeaderLen)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	le.PutUint32(b[8:], version)
	le.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// SetHeldMax lowers what a state may claim.
func SetHeldMax(n uint64) { heldMax = n }

// Mend returns b with sound checksums wherever its lengths make sense.
func Mend(b []byte) []byte {
	b = append([]byte{}, b...)
	if len(b) < segmentHeaderLen+batchHeaderLen {
		return b
	}
	putSegmentHeader(b, 1, int64(len(b)), le.Uint32(b[24:]))
	salt := le.Uint32(b[24:])
	for at, sequence := segmentHeaderLen, uint64(1); at+batchHeaderLen <= len(b); sequence++ {
		h := batchHeader{sequence: sequence, length: int(le.Uint32(b[at+16:]))}
		body := b[at+batchHeaderLen:]
		if h.length > len(body) {
			return b
		}
		for body = body[:h.length]; len(body) >= recordHeaderLen; h.count++ {
			size := recordSize(int(le.Uint32(body[4:])))
			if size > len(body) {
				return b
			}
			end := recordHeaderLen + int(le.Uint32(body[4:]))
			crc := crc32.Update(salt, castagnoli, body[4:end])
			le.PutUint32(body, crc)
			h.sum = addSum(h.sum, crc)
			body = body[size:]
		}
		h.put(b[at:], salt)
		at += batchHeaderLen + h.length
		if h.mark() {
			return b
		}
	}
	return b
}

// Section is a stretch of bytes of a segment.
type Section struct {
	Name     string
	From, To int
}

// Sections names the bytes of a segment, but for the zeros at its end.
func Sections(b []byte) (all []Section) {
	add := func(name string, from, size int) { all = append(all, Section{name, from, from + size}) }
	add("segment header", 0, segmentHeaderLen)
	salt := le.Uint32(b[24:])
	for at := segmentHeaderLen; ; {
		h, ok := parseBatchHeader(b[at:], salt)
		if !ok {
			return all
		}
		if h.mark() {
			add("mark", at, batchHeaderLen)
			return all
		}
		add("batch header", at, batchHeaderLen)
		at += batchHeaderLen
		for range h.count {
			body := int(le.Uint32(b[at+4:]))
			add("record header", at, recordHeaderLen)
			add("record body", at+recordHeaderLen, body)
			add("padding", at+recordHeaderLen+body, recordSize(body)-recordHeaderLen-body)
			at += recordSize(body)
		}
	}
}
