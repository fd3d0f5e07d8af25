package wal_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// An open log finds what rots in a full segment, wherever it is. What is never read, behind the end of the segment, is
// no damage.
func TestVerifyFindsWhatRots(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk, func(c *wal.Config) { c.SegmentBytes = 4 << 10 })
	workload(l, 5, 40, nil)
	read := 0
	verify := func() (uint32, error) {
		damaged, what, err := l.Verify(func(n int) error { read += n; return nil })
		must(t, err)
		return damaged, what
	}
	if damaged, what := verify(); damaged != 0 || what != nil || read == 0 {
		t.Fatalf("of %d bytes segment %d is damaged: %v", read, damaged, what)
	}
	stats := l.Stats()
	flips := 0
	for number := stats.Oldest; number < stats.Oldest+uint32(stats.Segments)-1; number++ {
		name := filepath.Join(dir, fmt.Sprintf("%010d.wal", number))
		b, err := fs.ReadFile(disk, name)
		must(t, err)
		starts := wal.Batches(b)
		end := starts[len(starts)-1]
		for at := starts[0]; at < end; at += 101 {
			must(t, disk.FlipByte(name, int64(at), uint(at)))
			damaged, what := verify()
			must(t, disk.FlipByte(name, int64(at), uint(at)))
			if damaged == 0 && what == nil {
				continue // padding
			}
			if flips++; damaged != number || !errors.Is(what, proto.ErrCorrupt) {
				t.Fatalf("byte %d of segment %d: segment %d, %v", at, number, damaged, what)
			}
		}
		if behind := end + 32; behind < len(b) { // the mark that ends it
			must(t, disk.FlipByte(name, int64(behind), 0))
		}
	}
	if damaged, what := verify(); damaged != 0 || flips < stats.Segments*5 {
		t.Errorf("%d flips in %d segments were found; in the end %d, %v", flips, stats.Segments, damaged, what)
	}
	stop := errors.New("stop")
	if _, _, err := l.Verify(func(int) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("told to stop it says %v", err)
	}
	must(t, l.Close())
}
