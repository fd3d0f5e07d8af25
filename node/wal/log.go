package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	writeMax = 256 << 20 // bytes of one call

	// SegmentBytesDefault is the default size of a segment.
	SegmentBytesDefault = 32 << 20
	// SegmentBytesLeast is the smallest size that a log with small segments should use, so that entries fit.
	SegmentBytesLeast = 1 << 20

	segmentBytesMin   = 1 << 10
	segmentBytesMax   = 1 << 30
	shortShare        = 32
	shortBytesLeast   = 64 << 10 // each segment begins with the state of all groups
	batchBytesDefault = 4 << 20
	chunkBytesMax     = 1 << 20
	chunkBytesMin     = 4 << 10
)

// Config describes where a log is stored and how large its parts are.
type Config struct {
	FS     fs.FS
	Dir    string       // made if missing; holds nothing else
	Logger *slog.Logger // nil: silent
	Fail   *fail.Points // nil: no failpoints

	// EndFile is a file outside of Dir in which the log records how far it is durable. A log that ends before that, or
	// is another node's, is refused with proto.ErrCorrupt. "": no such file.
	EndFile string

	// Existing says that this log was opened before. Then a log without a batch or a file has lost them all, and is
	// refused with proto.ErrCorrupt.
	Existing bool

	// Fatal is called once, in a goroutine of the log, when a write, a sync or the read of an entry failed. Records
	// that were being written may or may not be on disk, so no caller gets an answer: all calls that store records
	// block until Close. A node ends its process here. Fatal may call Close.
	Fatal func(error)

	SegmentBytes int64 // of a segment; default 32 MiB
	// Short reports whether the disk is short of space: segments made then have the usual size divided by shortShare.
	// nil: it never is.
	Short      func() bool
	TailBytes  int64 // of recent batches kept in memory; default one segment
	BatchBytes int   // size limit of one sync, may be exceeded; default 4 MiB
	// EndSyncEvery is how often EndFile is synced; default 1 s.
	EndSyncEvery time.Duration
}

func (c *Config) validate() error {
	if c.FS == nil || c.Dir == "" {
		return errors.New("open log: no file system or directory given")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = SegmentBytesDefault
	}
	if c.SegmentBytes < segmentBytesMin || c.SegmentBytes > segmentBytesMax {
		return fmt.Errorf("open log: segments of %d bytes; %d to %d are possible", c.SegmentBytes, segmentBytesMin, segmentBytesMax)
	}
	if c.TailBytes == 0 {
		c.TailBytes = c.SegmentBytes
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = batchBytesDefault
	}
	if c.EndSyncEvery <= 0 {
		c.EndSyncEvery = endSyncEvery
	}
	return nil
}

// Log is the write-ahead log of a node. Its methods, and those of its groups, may be called from any goroutine.
//
// Three goroutines belong to it and end with Close. The writer alone changes segments and the index. The keeper makes
// segments ahead of time and removes those that are not needed. The third one syncs the end file.
type Log struct {
	cfg   Config
	salt  uint32
	chunk int // bytes of a buffer that batches share
	start time.Time

	queue   sync.Mutex // guards pending and closing; held while records are encoded
	pending *batch     // never nil
	closing bool
	wake    chan struct{} // wakes the writer; one token

	inflight atomic.Int64          // since+1 of the batch being synced, on the log's clock; 0: none
	failure  atomic.Pointer[error] // why the writer stopped
	unread   atomic.Pointer[error] // error of a failed read, after which the writer stops
	stuck    *batch                // the batch with which the writer failed; read after written is closed
	written  chan struct{}         // closed when the writer has ended
	closed   chan struct{}         // closed when Close has finished
	counters counters

	index    sync.RWMutex // guards what follows; written by the writer only
	groups   map[uint32]*Group
	segments []*segment // oldest first; batches are written to the last one
	tail     tail

	sequence uint64 // of the next batch; only for the writer
	keeper   *keeper
	end      *endFile      // nil: there is none
	ends     chan struct{} // closed when no sync of end is under way any more

	splitVote, deafToBoundary bool // test hooks: disable containments of faults
}

// Group returns the part of the log that belongs to one raft group. Calls with the same id return the same Group.
func (l *Log) Group(id uint32) *Group {
	l.index.Lock()
	defer l.index.Unlock()
	return l.group(id)
}

// group returns a group, and makes it if there is none. l.index is held for writing.
func (l *Log) group(id uint32) *Group {
	g := l.groups[id]
	if g == nil {
		g = &Group{log: l, id: id}
		l.groups[id] = g
	}
	return g
}

// active returns the segment to which batches are written.
func (l *Log) active() *segment { return l.segments[len(l.segments)-1] }

// now returns the log's monotonic clock: the time since it was opened.
func (l *Log) now() time.Duration { return time.Since(l.start) }

func (l *Log) hit(name string) error {
	if err := l.cfg.Fail.Hit(name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// OldestWaitingSync returns how long the oldest unsynced record has waited for its sync; 0 if there is none. On a node
// whose disk stalls it grows.
func (l *Log) OldestWaitingSync() time.Duration {
	if since := l.inflight.Load(); since != 0 {
		return l.now() - time.Duration(since-1)
	}
	l.queue.Lock()
	defer l.queue.Unlock()
	if l.pending.count == 0 {
		return 0
	}
	return l.now() - l.pending.since
}

// Failed returns a channel that is closed when the log has failed or was closed: nothing more is stored then.
func (l *Log) Failed() <-chan struct{} { return l.written }

// Close waits until all pending records are durable, then closes the files; later calls return ErrClosed. After a
// failure the blocked calls return that failure. It does not wait for raft groups: stop them first.
func (l *Log) Close() error {
	l.queue.Lock()
	again := l.closing
	l.closing = true
	l.queue.Unlock()
	if again {
		<-l.closed
		return nil
	}
	defer close(l.closed)
	l.signal()
	<-l.written
	<-l.ends
	l.keeper.close()
	err := l.closedErr()
	err = cleanly(err, l.end.close())
	l.abandon(err)
	if errors.Is(err, ErrClosed) {
		err = nil
	}
	return errors.Join(err, l.release())
}

// cleanly returns why the log ended. If it was closed in order, it returns the error of closing its files.
func cleanly(why, closing error) error {
	if closing != nil && errors.Is(why, ErrClosed) {
		return closing
	}
	return why
}

// abandon ends the calls that wait for a batch that will not be written.
func (l *Log) abandon(err error) {
	l.queue.Lock()
	defer l.queue.Unlock()
	for _, b := range []*batch{l.stuck, l.pending} {
		if b != nil {
			b.err = err
			close(b.done)
		}
	}
	close(l.pending.taken)
}

func (l *Log) release() error {
	l.index.Lock()
	defer l.index.Unlock()
	var err error
	for _, s := range l.segments {
		err = errors.Join(err, s.release())
	}
	return err
}

// closedErr returns why nothing can be stored any more.
func (l *Log) closedErr() error {
	if err := l.failure.Load(); err != nil {
		return proto.ErrDisk.Errorf("the log in %s has failed: %v", l.cfg.Dir, *err)
	}
	return ErrClosed
}
