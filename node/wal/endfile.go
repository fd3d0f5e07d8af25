package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	endMagic     = 0x646e6562 // "bend"
	endLen       = 24         // bytes of a record
	endPlace     = 512        // distance of the two records, so that they are in different sectors
	endSyncEvery = time.Second
)

// endFile records, outside of the log, the log's identity and how far it was durable. The zeros behind a log look like
// its end. Without endFile, the log would be accepted if its last part was zeroed, or if it was replaced by an older
// copy or by another node's log.
//
//	record     magic 4 | crc 4 | sequence 8 | salt 4 | zero 4
//
// Two records are written alternately, so that a torn one leaves the other intact. One is written after each batch, and
// they are synced once a second:
//
//	INVARIANT end-behind: no record names a sequence that is not durable in the log.
type endFile struct {
	file  fs.File
	salt  uint32
	turn  int64       // which record is written next; only for the writer
	dirty atomic.Bool // something was written since the last sync
}

// openEnd opens the file, or makes it if it is missing, and returns the newest record; found is false if there is none.
func openEnd(fsys fs.FS, name string) (e *endFile, sequence uint64, salt uint32, found bool, err error) {
	there, err := fs.Exists(fsys, name)
	if err != nil {
		return nil, 0, 0, false, err
	}
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, 0, 0, false, err
	}
	e = &endFile{file: f}
	if !there {
		err = errors.Join(f.Preallocate(2*endPlace), f.Sync(), fsys.SyncDir(filepath.Dir(name)))
	}
	size, sizeErr := f.Size()
	if err = errors.Join(err, sizeErr); err != nil {
		return nil, 0, 0, false, errors.Join(err, f.Close())
	}
	for i := range int64(2) {
		var b [endLen]byte
		if i*endPlace+endLen > size {
			continue
		}
		if _, err := f.ReadAt(b[:], i*endPlace); err != nil {
			return nil, 0, 0, false, errors.Join(err, f.Close())
		}
		if le.Uint32(b[:]) != endMagic || le.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
			continue
		}
		if at := le.Uint64(b[8:]); !found || at > sequence {
			sequence, salt, found, e.turn = at, le.Uint32(b[16:]), true, 1-i
		}
	}
	return e, sequence, salt, found, nil
}

// checkEnd returns an error if the log is not the recorded one, or ends before the recorded sequence.
func (l *Log) checkEnd() error {
	if l.cfg.EndFile == "" {
		return nil
	}
	e, sequence, salt, found, err := openEnd(l.cfg.FS, l.cfg.EndFile)
	if err != nil {
		return fmt.Errorf("open %s: %w", l.cfg.EndFile, err)
	}
	switch {
	case !found:
	case salt != l.salt:
		err = proto.ErrCorrupt.Errorf("the log in %s is not the one that was written here", l.cfg.Dir)
	case sequence > l.sequence:
		err = proto.ErrCorrupt.Errorf("the log in %s ends with batch %d: it was durable up to batch %d",
			l.cfg.Dir, l.sequence-1, sequence-1)
	}
	if err != nil {
		err = proto.AsError(err).WithHint("move the data directory away: this node takes its data from the others then; " +
			"without them, what is missing is lost")
		return errors.Join(err, e.file.Close())
	}
	e.salt = l.salt
	l.end = e
	return nil
}

// begin records the end of a log that was just read or made: all of it is durable.
func (e *endFile) begin(sequence uint64) error {
	if e == nil {
		return nil
	}
	return e.put(sequence)
}

func (e *endFile) close() error {
	if e == nil {
		return nil
	}
	return errors.Join(e.sync(), e.file.Close())
}

// put writes that the log is durable up to a sequence number.
func (e *endFile) put(sequence uint64) error {
	var b [endLen]byte
	le.PutUint32(b[:], endMagic)
	le.PutUint64(b[8:], sequence)
	le.PutUint32(b[16:], e.salt)
	le.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	if _, err := e.file.WriteAt(b[:], e.turn*endPlace); err != nil {
		return err
	}
	e.turn = 1 - e.turn
	e.dirty.Store(true)
	return nil
}

// sync makes durable what was written.
func (e *endFile) sync() error {
	if !e.dirty.Swap(false) {
		return nil
	}
	return e.file.Sync()
}

// syncEnds syncs the end file every EndSyncEvery, in its own goroutine, until the log ends.
func (l *Log) syncEnds() {
	defer close(l.ends)
	tick := time.NewTicker(l.cfg.EndSyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.written:
			return
		case <-tick.C:
			if err := l.end.sync(); err != nil {
				err = fmt.Errorf("sync %s: %w", l.cfg.EndFile, err)
				l.unread.CompareAndSwap(nil, &err)
				l.signal()
				return
			}
		}
	}
}
