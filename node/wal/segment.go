package wal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// segment is one open file of the log.
type segment struct {
	number uint32
	name   string
	file   fs.File
	size   int64 // bytes, by its header; the file has at least as many

	first     uint64 // sequence of its first batch; only for the writer
	end       int64  // offset of the next batch; only for the writer
	sealed    bool   // the log continues in the next segment; set by recovery
	live      int    // entries held by groups; guarded by Log.index
	liveBytes int64  // guarded by Log.index

	abandoned bool // the log has released its reference; only for the keeper

	refs atomic.Int32 // readers, and one for the log; the last one closes the file
}

const segmentSuffix = ".wal"

func segmentName(dir string, number uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%010d%s", number, segmentSuffix))
}

// segmentNumber returns the number in a file's name; ok is false for other files.
func segmentNumber(name string) (number uint32, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n := uint64(0)
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return uint32(n), n > 0 && n <= math.MaxUint32
}

// acquire keeps the file open for a reader. Log.index must be held, so that the log still has its own reference.
func (s *segment) acquire() { s.refs.Add(1) }

// release releases a reference. The last one closes the file.
func (s *segment) release() error {
	if s.refs.Add(-1) == 0 {
		return s.file.Close()
	}
	return nil
}

// readAt reads all of p.
func (s *segment) readAt(p []byte, off int64) error {
	if _, err := s.file.ReadAt(p, off); err != nil {
		return fmt.Errorf("read %s at offset %d: %w", s.name, off, err)
	}
	return nil
}

// create makes a durable segment of size bytes, without batches. The final name appears only when the header and all
// zeros are durable: so a file of that name that is shorter than its header says was cut off. create replaces a segment
// without batches of the same name.
func (l *Log) create(number uint32, size int64) (_ *segment, err error) {
	s := &segment{number: number, name: segmentName(l.cfg.Dir, number), size: size, end: segmentHeaderLen}
	tmp := s.name + ".tmp"
	if err := l.fill(tmp, number, size); err != nil {
		return nil, fmt.Errorf("create segment %s: %w", s.name, err)
	}
	if err := l.renameDurably(tmp, s.name); err != nil {
		return nil, fmt.Errorf("create segment %s: %w", s.name, err)
	}
	s.file, err = l.cfg.FS.OpenFile(s.name, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	s.refs.Store(1)
	return s, nil
}

// fill writes and syncs a segment without batches.
func (l *Log) fill(name string, number uint32, size int64) (err error) {
	f, err := fs.Create(l.cfg.FS, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := l.hit("wal.create"); err != nil {
		return err
	}
	if err := f.Preallocate(size); err != nil {
		return err
	}
	var header [segmentHeaderLen]byte
	putSegmentHeader(header[:], uint64(number), size, l.salt)
	if _, err := f.WriteAt(header[:], 0); err != nil {
		return err
	}
	if err := l.hit("wal.create.sync"); err != nil {
		return err
	}
	return f.Sync()
}

// renameDurably renames a new segment to its final name and syncs the directory.
func (l *Log) renameDurably(tmp, name string) error {
	if err := l.hit("wal.create.rename"); err != nil {
		return err
	}
	if err := l.cfg.FS.Rename(tmp, name); err != nil {
		return err
	}
	if err := l.hit("wal.create.syncdir"); err != nil {
		return err
	}
	return l.cfg.FS.SyncDir(l.cfg.Dir)
}

// openSegment opens an existing segment and checks its header.
func openSegment(fsys fs.FS, dir string, number uint32) (s *segment, salt uint32, err error) {
	s = &segment{number: number, name: segmentName(dir, number), end: segmentHeaderLen}
	s.file, err = fsys.OpenFile(s.name, os.O_RDWR)
	if err != nil {
		return nil, 0, fmt.Errorf("open segment: %w", err)
	}
	s.refs.Store(1)
	if salt, err = s.readHeader(); err != nil {
		return nil, 0, errors.Join(err, s.file.Close())
	}
	return s, salt, nil
}

// readHeader reads the segment's size from its header, and checks that the file is as long. It was that long before
// anything in it was acknowledged.
func (s *segment) readHeader() (salt uint32, err error) {
	length, err := s.file.Size()
	if err != nil {
		return 0, fmt.Errorf("open segment: %w", err)
	}
	if length < segmentHeaderLen {
		return 0, corrupt(s, length, fmt.Sprintf("it was cut off: it has %d bytes, fewer than the %d of its header", length, segmentHeaderLen))
	}
	var b [segmentHeaderLen]byte
	if err := s.readAt(b[:], 0); err != nil {
		return 0, err
	}
	s.size = int64(le.Uint32(b[12:]))
	switch {
	case [8]byte(b[:8]) != segmentMagic:
		return 0, corrupt(s, 0, "it does not start like a segment of the log")
	case le.Uint32(b[28:]) != crc32.Update(0, castagnoli, b[:28]):
		return 0, corrupt(s, 0, "its header has a wrong checksum")
	case le.Uint32(b[8:]) > formatVersion:
		return 0, proto.ErrNewerVersion.Errorf("%s has log format %d; this version reads up to %d",
			s.name, le.Uint32(b[8:]), formatVersion).WithHint("run the version that wrote it, or a later one")
	case le.Uint64(b[16:]) != uint64(s.number):
		return 0, corrupt(s, 16, fmt.Sprintf("it is segment %d under another's name", le.Uint64(b[16:])))
	case length < s.size:
		return 0, corrupt(s, length, fmt.Sprintf("it was cut off: it has %d bytes and was made with %d", length, s.size))
	}
	return le.Uint32(b[24:]), nil
}

func corrupt(s *segment, offset int64, what string) error {
	return proto.ErrCorrupt.Errorf("%s is corrupt at offset %d: %s", s.name, offset, what).
		WithHint("rebuild this node's replicas from the others; do not edit the file")
}

// newSalt makes the start value of a log's checksums. Data that imitates a batch fails verification unless its author
// knows the salt.
func newSalt() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return le.Uint32(b[:])
}
