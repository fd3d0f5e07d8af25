package wal

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
)

// The bytes that a group's entries take are those of the entries that it holds, whatever was put, replaced or cut.
func TestBytesOfEntries(t *testing.T) {
	var e entries
	check := func(what string, bytes int64, runs int) {
		t.Helper()
		if e.bytes != bytes || len(e.runs) != runs {
			t.Errorf("%s: %d bytes in %d runs; want %d in %d", what, e.bytes, len(e.runs), bytes, runs)
		}
	}
	e.put(5, place{segment: 1, size: 100})
	check("the first", 100, 1)
	e.put(6, place{segment: 1, size: 10})
	check("one behind it", 110, 1)
	e.put(5, place{segment: 2, size: 40})
	check("another in the place of the first", 50, 1)
	e.put(3, place{segment: 1, size: 7})
	check("one before, with a gap", 57, 2)
	e.put(9, place{segment: 1, size: 3})
	check("one after, with a gap", 60, 3)
	e.put(4, place{segment: 1, size: 1})
	check("the first gap is filled", 61, 2)
	e.put(8, place{segment: 1, size: 2})
	check("one right before another", 63, 2)
	e.cut(6, 8, func(place) {})
	check("three less", 51, 2)
	if e.first() != 3 || e.last() != 9 {
		t.Errorf("from %d to %d", e.first(), e.last())
	}
	e.cut(0, 100, func(place) {})
	check("none", 0, 0)
}

// A state is believed as far as it can be true.
func TestOwed(t *testing.T) {
	defer func(n uint64) { heldMax = n }(heldMax)
	heldMax = 100
	hold := func(numbers ...uint64) (b []byte) {
		for _, n := range numbers {
			b = le.AppendUint64(b, n)
		}
		return b
	}
	for _, c := range []struct {
		name  string
		state []byte
		last  uint64 // 0: refused
	}{
		{"one entry", hold(1, 1, 1), 1},
		{"two stretches", hold(1, 3, 1, 4, 2, 2), 5},
		{"with a gap", hold(1, 3, 1, 7, 2, 2), 8},
		{"none", hold(1, 0, 1), 0},
		{"index 0", hold(0, 1, 1), 0},
		{"not in order", hold(4, 2, 1, 1, 1, 1), 0},
		{"one twice", hold(1, 3, 1, 3, 1, 1), 0},
		{"as many as may be", hold(1, heldMax, 1), heldMax},
		{"one more", hold(1, heldMax+1, 1), 0},
		{"one more in two", hold(1, heldMax, 1, heldMax+1, 1, 1), 0},
		{"behind the last index", hold(1<<64-2, 3, 1), 0},
		{"cut off", hold(1, 3, 1, 4), 0},
	} {
		var e entries
		err := e.owe(c.state)
		if (err == nil) != (c.last > 0) || err == nil && e.last() != c.last {
			t.Errorf("%s: %v, the last is %d", c.name, err, e.last())
		}
	}
}

// The tail has the newest batches, as many as there is room for, and lets the others go.
func TestTail(t *testing.T) {
	var tail tail
	chunk := func(segment uint32, offset int64) chunk {
		return chunk{segment: segment, offset: offset, buf: make([]byte, 100)}
	}
	tail.add(chunk(1, 0), 200)
	tail.add(chunk(1, 100), 200)
	if tail.bytes != 200 || len(tail.chunks) != 2 {
		t.Errorf("as much as there is room for: %d bytes in %d chunks", tail.bytes, len(tail.chunks))
	}
	tail.add(chunk(2, 0), 200)
	if tail.bytes != 200 || len(tail.chunks) != 2 {
		t.Errorf("more than there is room for: %d bytes in %d chunks", tail.bytes, len(tail.chunks))
	}
	for _, c := range []struct {
		segment, offset uint32
		there           bool
	}{
		{1, 0, false},
		{1, 99, false},
		{1, 100, true},
		{1, 190, true},
		{1, 200, false},
		{2, 0, true},
		{2, 90, true},
		{2, 100, false},
	} {
		if got := tail.at(place{segment: c.segment, offset: c.offset, size: 10}); (len(got) == 10) != c.there {
			t.Errorf("offset %d of segment %d: %d bytes", c.offset, c.segment, len(got))
		}
	}
}

// An entry takes as many bytes as were reserved for it.
func TestSizesOfEntries(t *testing.T) {
	for data := range 20 {
		for extensions := range 20 {
			e := &raft.Log{Index: 1, Data: make([]byte, data), Extensions: make([]byte, extensions)}
			if b, _ := appendEntry(nil, 1, 2, e); len(b) != entrySize(e) {
				t.Errorf("%d bytes and %d: it takes %d of %d", data, extensions, len(b), entrySize(e))
			}
		}
	}
}

// A batch is what was written if its records are, no more and no fewer.
func TestBatchIsWhatWasWritten(t *testing.T) {
	const salt = 7
	b := &batch{buf: make([]byte, batchHeaderLen)}
	for i := range uint64(2) {
		b.addRecord(salt, &record{kind: kindEntry, index: i + 1, body: make([]byte, appendedLen)})
	}
	h := b.writeHeader(1, salt)
	body := b.buf[batchHeaderLen:]
	if err := h.verify(body, salt); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(h *batchHeader){
		"one record less":  func(h *batchHeader) { h.count-- },
		"one record more":  func(h *batchHeader) { h.count++ },
		"other records":    func(h *batchHeader) { h.sum++ },
		"cut off":          func(h *batchHeader) { h.length-- },
		"longer":           func(h *batchHeader) { h.length++ },
		"one, and its sum": func(h *batchHeader) { h.count, h.sum = 1, addSum(0, le.Uint32(body)) },
	} {
		other := h
		change(&other)
		if err := other.verify(body, salt); err == nil {
			t.Errorf("%s: it is believed", name)
		}
	}
}

// Keys, values, writes and segments of the largest size are taken, and none that are larger.
func TestLargestSizes(t *testing.T) {
	for _, c := range []struct {
		key, value int
		fits       bool
	}{
		{keyLenMax, valueLenMax, true}, {keyLenMax + 1, 0, false}, {1, valueLenMax + 1, false},
	} {
		if err := checkValue(make([]byte, c.key), make([]byte, c.value)); (err == nil) != c.fits {
			t.Errorf("a key of %d and a value of %d: %v", c.key, c.value, err)
		}
	}
	l, err := Open(Config{FS: fs.NewMem(), Dir: "/wal", SegmentBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.open(writeMax); err != nil {
		t.Errorf("the largest write: %v", err)
	} else {
		l.queue.Unlock()
	}
	if _, err := l.open(writeMax + 1); err == nil {
		t.Error("a larger write is taken")
		l.queue.Unlock()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for size, fits := range map[int64]bool{
		segmentBytesMin: true, segmentBytesMax: true, segmentBytesMin - 1: false, segmentBytesMax + 1: false,
	} {
		c := Config{FS: fs.NewMem(), Dir: "/data", SegmentBytes: size}
		if err := c.validate(); (err == nil) != fits {
			t.Errorf("segments of %d: %v", size, err)
		}
	}
}

// Statistics of syncs: how many, how long in all, and the longest, also since it was asked for last.
func TestSyncCounters(t *testing.T) {
	l := &Log{}
	for _, took := range []time.Duration{3, 5, 2} {
		l.counters.synced(took, 10)
	}
	c := &l.counters
	if c.syncTime.Load() != 10 || c.syncMax.Load() != 5 || c.batches.Load() != 3 || c.bytes.Load() != 30 {
		t.Errorf("%d in all, %d the longest, of %d", c.syncTime.Load(), c.syncMax.Load(), c.batches.Load())
	}
	if got := l.LongestSync(); got != 5 {
		t.Errorf("the longest is %d", got)
	}
	l.counters.synced(4, 10)
	if got := l.LongestSync(); got != 4 || c.syncMax.Load() != 5 {
		t.Errorf("the longest since is %d, of all %d", got, c.syncMax.Load())
	}
}

// What is behind the last batch of a segment is torn, unless it is a mark alone.
func TestTorn(t *testing.T) {
	const salt = 9
	var mark, batch [batchHeaderLen]byte
	batchHeader{sequence: 3}.put(mark[:], salt)
	batchHeader{sequence: 3, length: 8, count: 1}.put(batch[:], salt)
	zeros := make([]byte, 100)
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	for _, c := range []struct {
		name string
		rest []byte
		torn int64
	}{
		{"nothing", nil, 0},
		{"zeros", zeros, 0},
		{"a mark", join(mark[:], zeros), 0},
		{"a mark and more", join(mark[:], []byte{0, 1, 0}, zeros), batchHeaderLen + 2},
		{"half a write", join([]byte{1, 2, 0, 3}, zeros), 4},
		{"a batch's header alone", join(batch[:], zeros), int64(used(batch[:]))},
	} {
		r := recovery{log: &Log{salt: salt}, buf: c.rest}
		if got := r.torn(0); got != c.torn {
			t.Errorf("%s: %d bytes are torn, want %d", c.name, got, c.torn)
		}
	}
}

// A record that lies where another is expected is no answer.
func TestDecodeOfAnother(t *testing.T) {
	g := &Group{log: &Log{}, id: 3}
	for _, c := range []struct {
		name string
		r    record
		ok   bool
	}{
		{"it", record{kind: kindEntry, group: 3, index: 5}, true},
		{"another group's", record{kind: kindEntry, group: 4, index: 5}, false},
		{"another index", record{kind: kindEntry, group: 3, index: 6}, false},
		{"another kind", record{kind: kindValue, group: 3, index: 5}, false},
	} {
		c.r.body = make([]byte, appendedLen)
		b, _ := appendRecord(nil, 0, &c.r)
		err := g.decode(&segment{name: "a.wal"}, b, place{}, 5, new(raft.Log))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "a.wal") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Only names that the log gives are those of segments.
func TestNamesOfSegments(t *testing.T) {
	for name, want := range map[string]uint32{
		"0000000001.wal": 1, "4294967295.wal": 1<<32 - 1, "0000000010.wal": 10,
		"0000000000.wal": 0, "4294967296.wal": 0, "1.wal": 0, "00000000001.wal": 0, "0000000001": 0,
		"000000000:.wal": 0, "000000000/.wal": 0, "0000000001.wal.tmp": 0, "": 0, ".wal": 0,
	} {
		if n, ok := segmentNumber(name); ok != (want > 0) || ok && n != want {
			t.Errorf("%q: %d, %v", name, n, ok)
		}
	}
}

// The newest of two records counts, whichever place it is in, and the next is written over the older one.
func TestNewestEndCounts(t *testing.T) {
	disk := fs.NewMem()
	for sequence := uint64(1); sequence < 8; sequence++ {
		e, got, salt, found, err := openEnd(disk, "/log.end")
		if err != nil || found != (sequence > 1) || found && (got != sequence-1 || salt != 7) {
			t.Fatalf("before %d: %d, %d, %v, %v", sequence, got, salt, found, err)
		}
		e.salt = 7
		if err := e.put(sequence); err != nil || !e.dirty.Load() {
			t.Fatal(err, e.dirty.Load())
		}
		if err := e.close(); err != nil || e.dirty.Load() {
			t.Fatal(err, e.dirty.Load())
		}
	}
}

// A segment behind which others follow does not end with the log.
func TestVerifyFindsAnEnd(t *testing.T) {
	disk := fs.NewMem()
	l, err := Open(Config{FS: disk, Dir: "/wal", SegmentBytes: 8 << 10, Fatal: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	end := int64(0)
	for i := uint64(1); l.Stats().Segments < 2; i++ {
		l.index.RLock()
		end = l.active().end
		l.index.RUnlock()
		if err := l.Group(1).StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 500)}); err != nil {
			t.Fatal(err)
		}
	}
	l.index.RLock()
	s := l.segments[0]
	l.index.RUnlock()
	wait := func(int) error { return nil }
	if wrong, err := l.verify(s, wait); wrong != nil || err != nil {
		t.Fatal(wrong, err)
	}
	var head [batchHeaderLen]byte
	for _, next := range []uint32{0, 2} {
		if _, err := s.file.ReadAt(head[:], end); err != nil {
			t.Fatal(err)
		}
		h, ok := parseBatchHeader(head[:], l.salt)
		if !ok || !h.mark() {
			t.Fatalf("no mark at offset %d", end)
		}
		h.sum = next
		h.put(head[:], l.salt)
		if _, err := s.file.WriteAt(head[:], end); err != nil {
			t.Fatal(err)
		}
		if wrong, err := l.verify(s, wait); err != nil || (wrong == nil) != (next != 0) {
			t.Errorf("the log continues in segment %d: %v, %v", next, wrong, err)
		}
	}
}
