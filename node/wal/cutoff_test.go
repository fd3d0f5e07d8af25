package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// refused opens a log that must not open: as corrupt, with an error that says
// words and what to do, and without any change to a file.
func refused(t *testing.T, disk *fs.Mem, what string, words ...string) {
	t.Helper()
	before := contents(t, disk)
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: 8 << 10})
	if err == nil {
		_ = l.Close()
		t.Fatalf("%s: the log opened", what)
	}
	if !errors.Is(err, proto.ErrCorrupt) || proto.AsError(err).Hint == "" {
		t.Fatalf("%s: %v, want CORRUPT with a hint", what, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("%s: %q does not say %q", what, err, w)
		}
	}
	if !maps.EqualFunc(before, contents(t, disk), bytes.Equal) {
		t.Fatalf("%s: refused, but something was changed", what)
	}
}

// TestShortenedFileIsRefused cuts a log's file off at every byte, between batches
// and within: whatever was acknowledged lies behind some of these places, and the
// log is refused at all of them.
func TestShortenedFileIsRefused(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	g := l.Group(3)
	for i := uint64(1); i <= 30; i++ {
		must(t, g.StoreLog(entry(i, 1, 50)))
	}
	must(t, g.SetUint64([]byte("CurrentTerm"), 9))
	must(t, voteOp(9, "ebb-1/4").do(g))
	must(t, l.Close())
	name := filepath.Join(dir, "0000000001.wal")
	whole, err := fs.ReadFile(disk, name)
	must(t, err)
	if len(whole) != 8<<10 {
		t.Fatalf("%d bytes", len(whole))
	}
	for at := range whole {
		must(t, fs.WriteFile(disk, name, whole[:at]))
		words := []string{name, fmt.Sprintf("%d bytes", at)}
		if at >= wal.SegmentHeaderLen {
			words = append(words, "8192")
		}
		refused(t, disk, fmt.Sprintf("cut at byte %d", at), words...)
	}
	must(t, fs.WriteFile(disk, name, append(whole, make([]byte, 100)...))) // longer is no harm
	l = open(t, disk)
	if last, _ := l.Group(3).LastIndex(); last != 30 {
		t.Fatalf("last entry %d", last)
	}
	must(t, l.Close())
}

// TestEachShortenedSegmentIsRefused cuts one byte, and half, off every segment in
// turn, the one that was made larger for a large batch and the prepared one too.
func TestEachShortenedSegmentIsRefused(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	for i := uint64(1); i <= 20; i++ {
		must(t, l.Group(1).StoreLog(entry(i, 1, 1000)))
	}
	must(t, l.Group(1).StoreLog(entry(21, 1, 20_000)))
	must(t, l.Close())
	files := contents(t, disk)
	larger := 0
	for base, b := range files {
		name := filepath.Join(dir, base)
		if len(b) > 8<<10 {
			larger++
		}
		for _, size := range []int{len(b) - 1, len(b) / 2, 8<<10 - 1} {
			must(t, fs.WriteFile(disk, name, b[:size]))
			refused(t, disk, fmt.Sprintf("%s of %d bytes cut to %d", base, len(b), size), name, fmt.Sprint(len(b)), fmt.Sprint(size))
		}
		must(t, fs.WriteFile(disk, name, b))
	}
	if len(files) < 4 || larger != 1 {
		t.Fatalf("%d segments, %d of them larger", len(files), larger)
	}
	l = open(t, disk)
	if last, _ := l.Group(1).LastIndex(); last != 21 {
		t.Fatalf("last entry %d", last)
	}
	must(t, l.Close())
}

// TestLostLastSegmentIsFound removes the segments from the last one on, or empties
// the last one: the segment before says that the log went on.
func TestLostLastSegmentIsFound(t *testing.T) {
	t.Run("removed", func(t *testing.T) {
		disk, _, names := written(t, 40)
		infos, err := disk.ReadDir(dir)
		must(t, err)
		for i := len(infos) - 1; i > 0; i-- {
			name := filepath.Join(dir, infos[i].Name)
			must(t, disk.Remove(name))
			must(t, disk.SyncDir(dir))
			if name <= names[len(names)-1] { // not only a prepared one is gone
				refused(t, disk, fmt.Sprintf("%s and all behind removed", name), name, "missing")
			}
		}
	})
	for what, from := range map[string]int{"zeros": wal.SegmentHeaderLen, "zeros in the first batch": wal.SegmentHeaderLen + 2*wal.BatchHeaderLen} {
		t.Run(what, func(t *testing.T) {
			disk, _, names := written(t, 40)
			last := names[len(names)-1]
			b, err := fs.ReadFile(disk, last)
			must(t, err)
			clear(b[from:])
			must(t, fs.WriteFile(disk, last, b))
			refused(t, disk, what, last, names[len(names)-2])
		})
	}
}

// TestSealIsMadeUpFor: the process dies when a segment has its first batch and the
// one before does not name it yet. The next opening sees to that before anything
// is acknowledged in the new one.
func TestSealIsMadeUpFor(t *testing.T) {
	for _, point := range []string{"wal.rolled", "wal.seal", "wal.seal.sync"} {
		for how, cut := range map[string]func(*fs.Mem, uint64) *fs.Mem{"power": powerCut, "process": killed} {
			for seed := range uint64(8) {
				disk := fs.NewMem()
				var points fail.Points
				l := open(t, disk, func(c *wal.Config) { c.Fail, c.Fatal = &points, nil })
				var after *fs.Mem
				points.Arm(point, 1, fail.Kill(func() { after = cut(disk, seed) }))
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := uint64(1); l.Group(1).StoreLog(entry(i, 1, 1000)) == nil; i++ {
					}
				}()
				<-l.Failed()
				_ = l.Close()
				<-done
				l = open(t, after)
				last, _ := l.Group(1).LastIndex()
				must(t, l.Group(1).StoreLog(entry(last+1, 1, 10)))
				must(t, l.Close())
				name := filepath.Join(dir, "0000000002.wal")
				must(t, after.Remove(name))
				refused(t, after, fmt.Sprintf("%s %s %d", point, how, seed), name, "missing")
			}
		}
	}
}

// TestPowerCutWhileCleaning: the power goes while torn bytes are being replaced by
// zeros. Whatever is left of them, the next opening finds what the first would have.
func TestPowerCutWhileCleaning(t *testing.T) {
	for seed := range uint64(60) {
		disk := fs.NewMem()
		l := open(t, disk)
		for i := uint64(1); i <= 6; i++ {
			must(t, l.Group(3).StoreLog(entry(i, 1, 1000)))
		}
		must(t, l.Close())
		name := filepath.Join(dir, "0000000001.wal")
		b, err := fs.ReadFile(disk, name)
		must(t, err)
		starts := wal.Batches(b)
		last, end := starts[len(starts)-2], starts[len(starts)-1]
		torn := last + 1 + int(seed)*(end-last-1)/60
		copy(b[torn:], bytes.Repeat([]byte{0xa5}, len(b)-torn)) // as far as the file goes
		must(t, fs.WriteFile(disk, name, b))
		disk.Inject(func(op fs.Op, of string) error {
			if op == fs.OpSync && of == name {
				return syscall.EIO
			}
			return nil
		})
		if _, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: 8 << 10}); !errors.Is(err, syscall.EIO) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		l = open(t, disk.Crash(seed))
		if have, _ := l.Group(3).LastIndex(); have != 5 {
			t.Fatalf("seed %d: last entry %d", seed, have)
		}
		must(t, l.Close())
	}
}

// TestExistingLog: a log that was opened before has a batch at least, the state of
// no groups. One without is new only to who does not know better.
func TestExistingLog(t *testing.T) {
	disk := fs.NewMem()
	existing := wal.Config{FS: disk, Dir: dir, SegmentBytes: 8 << 10, Existing: true}
	lost := func(what string) {
		t.Helper()
		l, err := wal.Open(existing)
		if err == nil {
			_ = l.Close()
			t.Fatalf("%s: the log opened", what)
		}
		if !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), dir) || proto.AsError(err).Hint == "" {
			t.Fatalf("%s: %v", what, err)
		}
	}
	lost("no directory")
	lost("an empty directory")
	must(t, open(t, disk).Close())
	l, err := wal.Open(existing)
	must(t, err)
	must(t, l.Close())
	name := filepath.Join(dir, "0000000001.wal")
	b, err := fs.ReadFile(disk, name)
	must(t, err)
	clear(b[wal.SegmentHeaderLen:])
	must(t, fs.WriteFile(disk, name, b))
	lost("zeros only")
	lost("zeros only, again")
	must(t, open(t, disk).Close()) // for who knows no better, it is new
}
