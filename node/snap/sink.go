package snap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"runtime"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/node/fs"
)

const (
	writeBufLen = 256 << 10
	// syncEvery divides a large snapshot's sync into parts, so that the log's syncs never wait behind gigabytes.
	syncEvery = 8 << 20
	// yieldEvery is how many bytes are written before other goroutines may run. Otherwise the goroutine that applies
	// entries would wait for a time slice of 10 ms.
	yieldEvery = 32 << 10
)

// Sink is a snapshot that is being written. It implements raft.SnapshotSink.
type Sink struct {
	store *Store
	id    string
	name  string // the file's name until it is complete
	count uint64 // in the id
	file  fs.File
	out   *bufio.Writer
	at    int64 // offset of the next chunk
	meta  meta
	dirty int64 // bytes since the last sync
	done  bool  // closed or canceled

	base    *base // nil: everything is written
	damages int   // the store's count when it began
	list    []byte
	ends    ends
	named   []int  // by number of a file of base: its number in meta.Files, plus one
	reused  int64  // bytes in older files
	fresh   int64  // bytes that no older file has
	moved   int64  // bytes that a sparse older file has, and that are written again
	arrived bool   // the chunks come from another node: see Arrival
	sign    []byte // then, the bytes that raft must still write
}

// ID returns the snapshot's name for Store.Open.
func (s *Sink) ID() string { return s.id }

// Write appends a chunk to the content, or several chunks if p is longer than chunkBytesMax.
func (s *Sink) Write(p []byte) (n int, err error) {
	if s.arrived {
		return s.confirm(p)
	}
	if s.meta.Size == 0 && bytes.HasPrefix(p, []byte(signMagic)) {
		return 0, fmt.Errorf("write snapshot %s: what has arrived of it was let go before raft took it", s.id)
	}
	for n < len(p) && err == nil {
		chunk := p[n:min(n+chunkBytesMax, len(p))]
		if err = s.put(chunk); err == nil {
			n += len(chunk)
		}
		if s.meta.Size%yieldEvery < int64(len(chunk)) {
			runtime.Gosched()
		}
	}
	if err != nil {
		return n, fmt.Errorf("write snapshot %s: %w", s.id, err)
	}
	return n, nil
}

// put adds a chunk to the list, and writes it unless an older file has it.
func (s *Sink) put(chunk []byte) error {
	e := entry{hash: HashOf(chunk), length: len(chunk)}
	s.meta.Size += int64(len(chunk))
	if at, ok := s.reuse(e.hash, len(chunk)); ok {
		e.at = at
		s.list = s.ends.appendEntry(s.list, &e)
		s.reused += int64(len(chunk))
		return nil
	}
	e.at = placeAt(0, s.at)
	s.list = s.ends.appendEntry(s.list, &e)
	return s.append(chunk)
}

// append writes to the file.
func (s *Sink) append(p []byte) error {
	if _, err := s.out.Write(p); err != nil {
		return err
	}
	s.at += int64(len(p))
	if s.dirty += int64(len(p)); s.dirty < s.store.cfg.SyncBytes {
		return nil
	}
	s.dirty = 0
	if err := s.out.Flush(); err != nil {
		return err
	}
	return s.file.Sync()
}

// reuse returns the place of a chunk in an older file; false if the chunk must be written.
func (s *Sink) reuse(hash Hash, length int) (place, bool) {
	if s.base == nil {
		return 0, false
	}
	at, ok := s.base.chunks[hash]
	if !ok {
		s.fresh += int64(length)
		return 0, false
	}
	if s.base.sparse[at.file()] && !s.arrived && (s.moved+int64(length))*movedShare <= s.fresh {
		s.moved += int64(length)
		return 0, false
	}
	number := &s.named[at.file()]
	if *number == 0 {
		s.meta.Files = append(s.meta.Files, s.base.files[at.file()])
		*number = len(s.meta.Files)
	}
	return placeAt(*number, at.offset()), true
}

// Close makes the snapshot durable and then visible, reports its boundary, and removes older ones. After an error
// nothing is listed. A file that lacked only its boundary may be found when the store is opened again. A second Close,
// or one after Cancel, does nothing.
func (s *Sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	err := s.whole()
	if err == nil {
		err = s.complete()
	}
	if closeErr := s.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = s.store.publish(s)
	}
	s.store.forget(s)
	if err != nil {
		err = fmt.Errorf("finish snapshot %s: %w", s.id, err)
		if !s.arrived {
			err = errors.Join(err, s.store.removeIfExists(s.name))
		}
		return err
	}
	return nil
}

// whole returns an error if raft did not write all bytes of Arrival.Ready.
func (s *Sink) whole() error {
	if len(s.sign) > 0 {
		return errors.New("it was not taken")
	}
	return nil
}

// complete writes the list, meta and the trailer, and syncs.
func (s *Sink) complete() error {
	s.meta.listAt, s.meta.ListLen, s.meta.ListHash = s.at, int64(len(s.list)), xxh3.Hash(s.list)
	b, err := s.meta.ending()
	if err != nil {
		return err
	}
	if err := s.store.hit("snap.write"); err != nil {
		return err
	}
	if _, err := s.out.Write(s.list); err != nil {
		return err
	}
	if _, err := s.out.Write(b); err != nil {
		return err
	}
	if err := s.out.Flush(); err != nil {
		return err
	}
	s.at += int64(len(s.list) + len(b))
	s.list, s.base = nil, nil
	if err := s.store.hit("snap.sync"); err != nil {
		return err
	}
	return s.file.Sync()
}

// Cancel removes the unfinished snapshot. Chunks that arrived from another node stay for the next attempt.
func (s *Sink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	var err error
	if s.arrived && s.out != nil {
		err = errors.Join(s.out.Flush(), s.file.Sync()) // for the next attempt
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	if !s.arrived {
		err = errors.Join(err, s.store.removeIfExists(s.name))
	}
	s.store.forget(s)
	return err
}
