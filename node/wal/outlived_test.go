package wal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// Each call to the disk may fail while a log is opened, a new one or one that is there: it opens, or says why not, and
// leaves nothing running, which TestMain sees.
func TestOpeningMayFailAnywhere(t *testing.T) {
	for _, old := range []bool{false, true} {
		for at, opened := 0, false; !opened; at++ {
			disk := fs.NewMem()
			if old {
				l := open(t, disk)
				workload(l, 5, 20, nil)
				must(t, l.Close())
			}
			calls := 0
			var mu sync.Mutex
			disk.Inject(func(op fs.Op, _ string) error {
				mu.Lock()
				defer mu.Unlock()
				if op == fs.OpRemove {
					return nil
				}
				calls++
				if calls == at+1 {
					return syscall.EIO
				}
				return nil
			})
			l, err := wal.Open(wal.Config{
				FS: disk, Dir: dir, SegmentBytes: 8 << 10, EndFile: endName, Fatal: func(error) {},
			})
			if err != nil {
				continue
			}
			mu.Lock()
			opened = calls <= at
			mu.Unlock()
			_ = l.Close()
		}
	}
}

// What is said of a log is so: whose entries keep its oldest segment, what they take, and how many segments came and
// went.
func TestStatsAreSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		l := open(t, disk)
		small, large, gone := l.Group(1), l.Group(2), l.Group(3)
		must(t, small.StoreLog(entry(1, 1, 100)))
		must(t, large.StoreLogs([]*raft.Log{entry(1, 1, 300), entry(2, 1, 300)}))
		must(t, gone.StoreLog(entry(1, 1, 100)))
		must(t, gone.Forget())
		pins := []wal.Pin{
			{Group: 2, Entries: 2, Bytes: large.Bytes(), Last: 2},
			{Group: 1, Entries: 1, Bytes: small.Bytes(), Last: 1},
		}
		other := l.Group(4)
		for i := uint64(1); l.Stats().Segments < 4; i++ {
			must(t, other.StoreLog(entry(i, 1, 500)))
			must(t, other.DeleteRange(1, i-1))
		}
		s := l.Stats()
		if fmt.Sprint(s.Pins) != fmt.Sprint(pins) || s.Groups != 3 {
			t.Errorf("%d groups, pins %v; want %v", s.Groups, s.Pins, pins)
		}
		if live := small.Bytes() + large.Bytes() + other.Bytes(); s.LiveBytes != live {
			t.Errorf("%d bytes are held, and %d said", live, s.LiveBytes)
		}
		if s.Rolls != 4 || s.Removed != 0 || fmt.Sprint(l.GroupIDs()) != "[1 2 4]" {
			t.Errorf("%d segments came, %d went; groups %v", s.Rolls, s.Removed, l.GroupIDs())
		}
		must(t, small.DeleteRange(1, 1))
		must(t, large.DeleteRange(1, 2))
		last, err := other.LastIndex()
		must(t, err)
		must(t, other.DeleteRange(1, last))
		for range 1000 { // the keeper removes them in the background
			if s = l.Stats(); s.Removed == 3 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if s.Segments != 1 || s.Removed != 3 || s.LiveBytes != 0 || len(s.Pins) != 0 {
			t.Errorf("nothing is held: %+v", s)
		}
		must(t, l.Close())
	})
}

// A group that has a term, a vote, a value or a boundary alone holds something.
func TestGroupsThatHoldSomething(t *testing.T) {
	l := open(t, fs.NewMem())
	must(t, l.Group(1).SetUint64([]byte("CurrentTerm"), 3))
	must(t, l.Group(2).SetUint64([]byte("LastVoteTerm"), 3))
	must(t, l.Group(2).Set([]byte("LastVoteCand"), []byte("a")))
	must(t, l.Group(3).Set([]byte("other"), []byte("a")))
	must(t, l.Group(4).SetBoundary(5, 1))
	must(t, l.Group(5).StoreLog(entry(1, 1, 10)))
	must(t, l.Group(6).StoreLog(entry(1, 1, 10)))
	must(t, l.Group(6).Forget())
	if got := fmt.Sprint(l.GroupIDs()); got != "[1 2 3 4 5]" || l.Stats().Groups != 5 {
		t.Errorf("groups %s, %d of them", got, l.Stats().Groups)
	}
	must(t, l.Close())
}

// An entry that was just written is read from memory.
func TestNewEntriesAreInMemory(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	g := l.Group(1)
	must(t, g.StoreLog(entry(1, 1, 100)))
	var reads atomic.Int32
	disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpRead {
			reads.Add(1)
		}
		return nil
	})
	var e raft.Log
	must(t, g.GetLog(1, &e))
	if n := reads.Load(); n != 0 {
		t.Errorf("%d reads of the disk", n)
	}
	must(t, l.Close())
}

// Writers that find the open batch full wait for the next one, and get it.
func TestFullBatchIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		l := open(t, disk, func(c *wal.Config) { c.BatchBytes = 1 << 10 })
		release := make(chan struct{})
		disk.HangSync(release)
		const writers = 8
		done := make(chan error, writers)
		for id := range uint32(writers) {
			go func() { done <- l.Group(id).StoreLog(entry(1, 1, 600)) }()
		}
		synctest.Wait() // all of them wait
		close(release)
		for range writers {
			select {
			case err := <-done:
				must(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("a writer waits for ever")
			}
		}
		must(t, l.Close())
	})
}

// Writers that wait as the log is closed are let go, also those that find the open batch full.
func TestCloseLetsAllGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		l := open(t, disk, func(c *wal.Config) { c.BatchBytes, c.Fatal = 1<<10, func(error) {} })
		var broken atomic.Bool
		disk.Inject(func(op fs.Op, _ string) error {
			if op == fs.OpSync && broken.Load() {
				return syscall.EIO
			}
			return nil
		})
		broken.Store(true)
		const writers = 8
		done := make(chan error, writers)
		for id := range uint32(writers) {
			go func() { done <- l.Group(id).StoreLog(entry(1, 1, 600)) }()
		}
		<-l.Failed()
		synctest.Wait()
		_ = l.Close()
		for range writers {
			select {
			case err := <-done:
				if err == nil {
					t.Error("something was stored by a disk that fails")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("a writer waits for ever")
			}
		}
	})
}

// A disk that was full for a while, as the next segment was prepared, does no harm: it is tried again when the segment
// is needed.
func TestDiskThatWasFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		l := open(t, disk)
		var full, refused atomic.Bool
		full.Store(true)
		disk.Inject(func(op fs.Op, _ string) error {
			if op == fs.OpPreallocate && full.Load() {
				refused.Store(true)
				return syscall.ENOSPC
			}
			return nil
		})
		g := l.Group(1)
		for i := uint64(1); i <= 40; i++ {
			if refused.Load() {
				full.Store(false)
			}
			must(t, g.StoreLog(entry(i, 1, 500)))
			if i == 10 { // more than half of the first segment
				for range 1000 {
					if refused.Load() {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
		if !refused.Load() || l.Stats().Segments < 3 {
			t.Errorf("refused %v, %d segments", refused.Load(), l.Stats().Segments)
		}
		must(t, l.Close())
	})
}

// What changes nothing is not written.
func TestNothingNewIsNotWritten(t *testing.T) {
	l := open(t, fs.NewMem())
	g := l.Group(1)
	must(t, g.StoreLogs([]*raft.Log{entry(5, 1, 10), entry(6, 1, 10)}))
	must(t, g.SetBoundary(4, 1))
	must(t, g.Set([]byte("other"), []byte("a")))
	must(t, g.SetUint64([]byte("CurrentTerm"), 2))
	for _, c := range []struct {
		name   string
		do     func() error
		writes int64
	}{
		{"the same boundary", func() error { return g.SetBoundary(4, 1) }, 0},
		{"an older boundary", func() error { return g.SetBoundary(3, 1) }, 0},
		{"the same boundary of another term", func() error { return g.SetBoundary(4, 2) }, 1},
		{"a range before all", func() error { return g.DeleteRange(1, 4) }, 0},
		{"a range behind all", func() error { return g.DeleteRange(7, 9) }, 0},
		{"a range that is empty", func() error { return g.DeleteRange(6, 5) }, 0},
		{"the last entry", func() error { return g.DeleteRange(6, 6) }, 1},
		{"the first entry", func() error { return g.DeleteRange(5, 5) }, 1},
		{"a range of nothing", func() error { return g.DeleteRange(0, 9) }, 0},
		{"the same value", func() error { return g.Set([]byte("other"), []byte("a")) }, 0},
		{"the same term", func() error { return g.SetUint64([]byte("CurrentTerm"), 2) }, 0},
	} {
		before := l.Stats().Records
		must(t, c.do())
		if got := l.Stats().Records - before; got != c.writes {
			t.Errorf("%s: %d records", c.name, got)
		}
	}
	must(t, l.Close())
}

// The end of a log that fits into so many bytes is as long as it can be.
func TestTrailingIsExact(t *testing.T) {
	l := open(t, fs.NewMem())
	g := l.Group(1)
	if got := g.Trailing(1 << 20); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
	must(t, g.StoreLogs([]*raft.Log{entry(3, 1, 100), entry(7, 1, 100), entry(8, 1, 100)}))
	one := g.Bytes() / 3
	for _, c := range []struct {
		bytes int64
		want  uint64
	}{{0, 9}, {one - 1, 9}, {one, 8}, {2*one - 1, 8}, {2 * one, 7}, {3*one - 1, 7}, {3 * one, 3}, {9 * one, 3}} {
		if got := g.Trailing(c.bytes); got != c.want {
			t.Errorf("%d bytes: from %d, want %d", c.bytes, got, c.want)
		}
	}
	must(t, l.Close())
}

// A check of a log reads as many bytes as its sealed segments have batches, and says so beforehand.
func TestVerifySaysWhatItReads(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	for i := uint64(1); l.Stats().Segments < 2; i++ {
		must(t, l.Group(1).StoreLog(entry(i, 1, 500)))
	}
	b, err := fs.ReadFile(disk, dir+"/0000000001.wal")
	must(t, err)
	starts := wal.Batches(b)
	want, got := starts[len(starts)-1]-starts[0], 0
	damaged, what, err := l.Verify(func(n int) error { got += n; return nil })
	if damaged != 0 || what != nil || err != nil || got != want {
		t.Errorf("%d bytes of %d; segment %d: %v, %v", got, want, damaged, what, err)
	}
	must(t, l.Close())
}

// While the disk is short of room, segments are small.
func TestSegmentsOfAShortDisk(t *testing.T) {
	for _, short := range []bool{false, true} {
		l := open(t, fs.NewMem(), func(c *wal.Config) {
			c.SegmentBytes, c.Short = 1<<20, func() bool { return short }
		})
		if got := l.Stats().Bytes; got != map[bool]int64{false: 1 << 20, true: 64 << 10}[short] {
			t.Errorf("short of room %v: a segment of %d bytes", short, got)
		}
		must(t, l.Close())
	}
}

// The file that remembers the end is synced while nothing is written; if that fails, so does the log.
func TestEndIsSynced(t *testing.T) {
	disk := fs.NewMem()
	fatal := make(chan error, 1)
	l := open(t, disk, func(c *wal.Config) {
		c.EndFile, c.EndSyncEvery, c.Fatal = endName, time.Millisecond, func(err error) { fatal <- err }
	})
	synced := make(chan struct{}, 1)
	var broken atomic.Bool
	disk.Inject(func(op fs.Op, name string) error {
		if op != fs.OpSync || name != endName {
			return nil
		}
		if broken.Load() {
			return syscall.EIO
		}
		select {
		case synced <- struct{}{}:
		default:
		}
		return nil
	})
	must(t, l.Group(1).StoreLog(entry(1, 1, 10)))
	select {
	case <-synced:
	case <-time.After(20 * time.Second):
		t.Fatal("it is never synced")
	}
	broken.Store(true)
	done := make(chan error, 1)
	go func() { done <- l.Group(1).StoreLog(entry(2, 1, 10)) }()
	select {
	case err := <-fatal:
		if !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the log continues without its end")
	}
	_ = l.Close()
	<-done // it was durable before, or is refused
}

// A log that was opened marks what it read as durable: damage of its last batch is no write that was cut off.
func TestOpeningMarksTheEnd(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	for i := range uint64(3) {
		must(t, l.Group(1).StoreLog(entry(i+1, 1, 100)))
	}
	must(t, l.Close())
	name := dir + "/0000000001.wal"
	b, err := fs.ReadFile(disk, name)
	must(t, err)
	starts := wal.Batches(b)
	last, end := starts[len(starts)-2], starts[len(starts)-1]
	must(t, disk.Zero(name, int64(end), wal.BatchHeaderLen)) // as if the process had died before it wrote the mark
	l = open(t, disk, func(c *wal.Config) { c.Fatal = func(error) {} })
	after := disk.Kill()
	_ = l.Close()
	must(t, after.FlipByte(name, int64(last+wal.BatchHeaderLen+50), 1))
	if l, err := wal.Open(wal.Config{FS: after, Dir: dir, SegmentBytes: 8 << 10}); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("an entry is lost without a word: %v", err)
		if err == nil {
			must(t, l.Close())
		}
	}
}

// A log that is closed holds no file open, nor one that was removed while it was open.
func TestFilesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := func() int {
			all, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Skip("this system does not say which files are open")
			}
			return len(all)
		}
		where := filepath.Join(t.TempDir(), "wal")
		before := files()
		for range 3 {
			l := open(t, fs.OS{}, func(c *wal.Config) { c.Dir = where })
			g := l.Group(1)
			first, err := g.LastIndex()
			must(t, err)
			for i := first + 1; i < first+40; i++ {
				must(t, g.StoreLog(entry(i, 1, 1000)))
			}
			removed := l.Stats().Removed
			must(t, g.DeleteRange(1, first+38))
			for range 1000 {
				if l.Stats().Removed > removed {
					break
				}
				time.Sleep(time.Millisecond)
			}
			must(t, l.Close())
			if now := files(); now > before {
				t.Fatalf("%d files are open, before %d", now, before)
			}
		}
	})
}

// A write that is too large is refused, whatever it is made of.
func TestWriteThatIsTooLarge(t *testing.T) {
	l := open(t, fs.NewMem())
	e := entry(1, 1, 10)
	e.Data = make([]byte, 256<<20)
	if err := l.Group(1).StoreLog(e); !errors.Is(err, proto.ErrBatchTooLarge) {
		t.Error(err)
	}
	must(t, l.Close())
}

// A log of several segments, the last one prepared and not begun, is opened and closed without a file left open.
func TestPreparedSegmentIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, err := os.ReadDir("/proc/self/fd"); err != nil {
			t.Skip("this system does not say which files are open")
		}
		where := filepath.Join(t.TempDir(), "wal")
		in := func(c *wal.Config) { c.Dir = where }
		l := open(t, fs.OS{}, in)
		segments := func() int {
			all, err := os.ReadDir(where)
			must(t, err)
			return len(all)
		}
		begun := 0
		for i := uint64(1); ; i++ {
			must(t, l.Group(1).StoreLog(entry(i, 1, 1000)))
			time.Sleep(time.Millisecond) // the next one is prepared in the background
			if begun = l.Stats().Segments; begun == 3 && segments() >= begun+1 {
				break
			}
		}
		must(t, l.Close())
		before, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		files := segments()
		for range 3 {
			l = open(t, fs.OS{}, in)
			if got := l.Stats().Segments; got != begun {
				t.Errorf("%d segments, before %d", got, begun)
			}
			must(t, l.Close())
			now, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			if len(now) > len(before) || segments() != files {
				t.Fatalf("%d files are open, before %d; %d are there, before %d", len(now), len(before), segments(), files)
			}
		}
	})
}

// A batch in the place of an older one is damage, not the end of the log.
func TestLaterBatchInItsPlace(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	for i := range uint64(4) {
		must(t, l.Group(1).StoreLog(entry(i+1, 1, 100)))
	}
	must(t, l.Close())
	name := dir + "/0000000001.wal"
	b, err := fs.ReadFile(disk, name)
	must(t, err)
	starts := wal.Batches(b)
	at, from, end := starts[len(starts)-3], starts[len(starts)-2], starts[len(starts)-1]
	f, err := disk.OpenFile(name, os.O_RDWR)
	must(t, err)
	_, err = f.WriteAt(b[from:end], int64(at))
	must(t, err)
	must(t, f.Close())
	must(t, disk.Zero(name, int64(at+end-from), int64(len(b)-(at+end-from))))
	if l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: 8 << 10}); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("an entry is lost without a word: %v", err)
		if err == nil {
			must(t, l.Close())
		}
	}
}

// A group that is forgotten forgets the term that a candidate was still to come for.
func TestForgetTakesTheBallot(t *testing.T) {
	l := open(t, fs.NewMem())
	g := l.Group(1)
	must(t, g.SetUint64([]byte("LastVoteTerm"), 7))
	must(t, g.Forget())
	must(t, g.Set([]byte("LastVoteCand"), []byte("a")))
	if term, err := g.GetUint64([]byte("LastVoteTerm")); term != 0 || err != nil {
		t.Errorf("a vote in term %d, %v", term, err)
	}
	must(t, l.Close())
}

// A log needs a file system and a directory.
func TestLogNeedsAPlace(t *testing.T) {
	for _, c := range []wal.Config{{}, {FS: fs.NewMem()}, {Dir: dir}} {
		if l, err := wal.Open(c); err == nil {
			t.Errorf("%+v is enough", c)
			must(t, l.Close())
		}
	}
}
