package wal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// reopened says what is wrong with a log; nil: nothing is.
func reopened(disk fs.FS) error {
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, EndFile: endName, SegmentBytes: 8 << 10})
	if err != nil {
		return err
	}
	return l.Close()
}

func remembered(c *wal.Config) { c.EndFile = endName }

// filled is a disk with a log of some entries, which was closed.
func filled(t *testing.T, entries int) *fs.Mem {
	t.Helper()
	disk := fs.NewMem()
	l := open(t, disk, remembered)
	for i := range entries {
		must(t, l.Group(1).StoreLog(entry(uint64(i+1), 1, 100)))
	}
	must(t, l.Close())
	return disk
}

// copyOf is a disk with the same files.
func copyOf(disk *fs.Mem) *fs.Mem { return disk.Crash(1) }

func refusesLog(t *testing.T, what string, disk fs.FS, words string) {
	t.Helper()
	if err := reopened(disk); !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want CORRUPT and %q", what, err, words)
	}
}

// A log whose last part is zeros, or that was replaced by another one, is not taken for whole.
func TestEndOfTheLogIsRemembered(t *testing.T) {
	whole := filled(t, 40) // of one segment, so that zeros look like its end
	must(t, reopened(copyOf(whole)))
	segment := filepath.Join(dir, "0000000001.wal")
	for _, lost := range []int64{200, 1000, 4000} {
		disk := copyOf(whole)
		zeroEnd(t, disk, segment, lost)
		refusesLog(t, fmt.Sprintf("%d bytes are zeros", lost), disk, "it was durable up to batch")
	}

	older := copyOf(whole)
	replaceLog(t, older, filled(t, 40))
	refusesLog(t, "the log of another node", older, "is not the one that was written here")

	disk := copyOf(whole)
	l := open(t, disk, remembered)
	for i := range 20 {
		must(t, l.Group(1).StoreLog(entry(uint64(41+i), 1, 100)))
	}
	must(t, l.Close())
	replaceLog(t, disk, copyOf(whole))
	refusesLog(t, "an older copy", disk, "it was durable up to batch")

	fresh := filled(t, 1)
	must(t, fresh.RemoveAll(dir))
	refusesLog(t, "no log", fresh, "is not the one that was written here")
}

// Of the two records one may be torn or damaged: the other, which is older, is believed. A file that is missing, or
// says nothing, is as that of a build that wrote none.
func TestEndFileThatIsDamaged(t *testing.T) {
	whole := filled(t, 40)
	for _, at := range []int64{0, 9, 20, 512, 521, 532} {
		disk := copyOf(whole)
		must(t, disk.FlipByte(endName, at, 3))
		must(t, reopened(disk))
	}
	disk := copyOf(whole)
	must(t, disk.FlipByte(endName, 0, 0))
	must(t, disk.FlipByte(endName, 512, 0))
	must(t, reopened(disk))
	must(t, disk.Remove(endName))
	must(t, reopened(disk))
	zeroEnd(t, disk, filepath.Join(dir, "0000000001.wal"), 1000)
	refusesLog(t, "with a file that was made anew", disk, "it was durable up to batch")
}

// zeroEnd writes zeros over the last bytes of what a file holds.
func zeroEnd(t *testing.T, disk fs.FS, name string, bytes int64) {
	t.Helper()
	raw, err := fs.ReadFile(disk, name)
	must(t, err)
	end := int64(len(strings.TrimRight(string(raw), "\x00")))
	f, err := disk.OpenFile(name, os.O_RDWR)
	must(t, err)
	_, err = f.WriteAt(make([]byte, min(bytes, end)), max(0, end-bytes))
	must(t, errors.Join(err, f.Close()))
}

// replaceLog puts the log of one disk in the place of another's.
func replaceLog(t *testing.T, disk, from fs.FS) {
	t.Helper()
	must(t, disk.RemoveAll(dir))
	must(t, disk.MkdirAll(dir))
	files, err := from.ReadDir(dir)
	must(t, err)
	for _, f := range files {
		name := filepath.Join(dir, f.Name)
		raw, err := fs.ReadFile(from, name)
		must(t, err)
		must(t, fs.WriteFile(disk, name, raw))
	}
}
