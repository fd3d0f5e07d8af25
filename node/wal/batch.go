package wal

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// ErrClosed is the error of calls on a closed log.
var ErrClosed = errors.New("the log is closed")

// batch collects records for one sync. The callers that added records wait for done.
type batch struct {
	buf   []byte // room for the header, then records
	count int
	sum   uint32
	since time.Duration // when its first record was added, on Log's clock

	taken chan struct{} // closed when the writer takes it: a new batch is open then
	done  chan struct{} // closed when err is final
	err   error
}

func (b *batch) wait() error {
	<-b.done
	return b.err
}

func (b *batch) add(buf []byte, crc uint32) {
	b.buf = buf
	b.count++
	b.sum = addSum(b.sum, crc)
}

func (b *batch) addRecord(salt uint32, r *record) {
	buf, crc := appendRecord(b.buf, salt, r)
	b.add(buf, crc)
}

// writeHeader writes the header, with the checksum of the records.
func (b *batch) writeHeader(sequence uint64, salt uint32) batchHeader {
	h := batchHeader{sequence: sequence, length: len(b.buf) - batchHeaderLen, count: b.count, sum: b.sum}
	h.put(b.buf, salt)
	return h
}

// write adds records to the open batch and waits until they are durable.
func (l *Log) write(records ...record) error {
	size := 0
	for i := range records {
		size += recordSize(len(records[i].body))
	}
	b, err := l.open(size)
	if err != nil {
		return err
	}
	for i := range records {
		b.addRecord(l.salt, &records[i])
	}
	l.queue.Unlock()
	l.signal()
	return b.wait()
}

// writeEntries adds entries to the open batch and waits until they are durable.
func (l *Log) writeEntries(group uint32, logs []*raft.Log) error {
	size := 0
	for _, e := range logs {
		size += entrySize(e)
	}
	b, err := l.open(size)
	if err != nil {
		return err
	}
	for _, e := range logs {
		b.add(appendEntry(b.buf, l.salt, group, e))
	}
	l.queue.Unlock()
	l.signal()
	return b.wait()
}

// open returns the open batch with room for size bytes, and l.queue locked. It returns ErrBatchTooLarge if size is over
// writeMax.
func (l *Log) open(size int) (*batch, error) {
	if size > writeMax {
		return nil, proto.ErrBatchTooLarge.Errorf("a write of %d bytes to the log exceeds %d", size, writeMax)
	}
	l.queue.Lock()
	for {
		if l.closing {
			l.queue.Unlock()
			return nil, l.closedErr()
		}
		b := l.pending
		if b.count == 0 || len(b.buf)+size <= l.cfg.BatchBytes {
			l.reserve(b, size)
			return b, nil
		}
		l.queue.Unlock()
		<-b.taken
		l.queue.Lock()
	}
}

// reserve makes room in b's buffer. l.queue is held.
func (l *Log) reserve(b *batch, size int) {
	if b.count == 0 {
		b.since = l.now()
	}
	if cap(b.buf)-len(b.buf) >= size {
		return
	}
	// The rest of the old buffer stays unused until the tail drops it.
	chunk := make([]byte, len(b.buf), max(l.chunk, 2*(len(b.buf)+size)))
	copy(chunk, b.buf)
	b.buf = chunk
}

// signal wakes the writer.
func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// renew opens a new batch behind the last one's bytes in the same buffer, so that small batches share one allocation.
// l.queue is held.
func (l *Log) renew(last []byte) {
	var buf []byte
	if rest := last[len(last):cap(last)]; cap(rest) >= batchHeaderLen {
		buf = rest[:batchHeaderLen]
	} else {
		buf = make([]byte, batchHeaderLen, l.chunk)
	}
	l.pending = &batch{buf: buf, taken: make(chan struct{}), done: make(chan struct{})}
}

// take returns the open batch and opens the next; nil if it is empty.
func (l *Log) take() *batch {
	l.queue.Lock()
	defer l.queue.Unlock()
	b := l.pending
	if b.count == 0 {
		return nil
	}
	l.renew(b.buf)
	b.buf = b.buf[:len(b.buf):len(b.buf)]
	l.inflight.Store(int64(b.since) + 1)
	close(b.taken)
	return b
}

// idle reports whether no record waits to be written.
func (l *Log) idle() bool {
	l.queue.Lock()
	defer l.queue.Unlock()
	return l.pending.count == 0
}
