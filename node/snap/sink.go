package snap

import (
	"bufio"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/node/fs"
)

const (
	writeBufLen = 256 << 10
	// syncEvery spreads a large snapshot's syncs, so that the log's never wait
	// behind gigabytes.
	syncEvery = 8 << 20
)

// Sink is a snapshot being written. It implements raft.SnapshotSink.
type Sink struct {
	store *Store
	id    string
	count uint64 // in the id
	file  fs.File
	out   *bufio.Writer
	hash  *xxh3.Hasher
	meta  meta
	dirty int64 // bytes since the last sync
	done  bool  // closed or cancelled
}

// ID names the snapshot for Store.Open.
func (s *Sink) ID() string { return s.id }

// Write adds to the content.
func (s *Sink) Write(p []byte) (int, error) {
	n, err := s.out.Write(p)
	_, _ = s.hash.Write(p[:n]) // never fails
	s.meta.Size += int64(n)
	s.dirty += int64(n)
	if err == nil && s.dirty >= syncEvery {
		err = s.flush()
	}
	if err != nil {
		return n, fmt.Errorf("write snapshot %s: %w", s.id, err)
	}
	return n, nil
}

func (s *Sink) flush() error {
	s.dirty = 0
	if err := s.out.Flush(); err != nil {
		return err
	}
	return s.file.Sync()
}

// Close makes the snapshot durable and then visible, reports its boundary, and
// removes older ones. When it fails nothing is listed, though a file that only
// its boundary was missing may be found when the store is opened again. Closing
// twice, or after Cancel, does nothing.
func (s *Sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	err := s.complete()
	if closeErr := s.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = s.store.publish(s)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("finish snapshot %s: %w", s.id, err), s.store.removeIfExists(s.tmp()))
	}
	return nil
}

// complete writes what follows the content and syncs.
func (s *Sink) complete() error {
	s.meta.Hash = s.hash.Sum64()
	b, err := s.meta.ending()
	if err != nil {
		return err
	}
	if err := s.store.hit("snap.write"); err != nil {
		return err
	}
	if _, err := s.out.Write(b); err != nil {
		return err
	}
	if err := s.out.Flush(); err != nil {
		return err
	}
	if err := s.store.hit("snap.sync"); err != nil {
		return err
	}
	return s.file.Sync()
}

// Cancel throws the snapshot away.
func (s *Sink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	return errors.Join(s.file.Close(), s.store.removeIfExists(s.tmp()))
}

func (s *Sink) tmp() string { return filepath.Join(s.store.cfg.Dir, s.id+tmpSuffix) }
