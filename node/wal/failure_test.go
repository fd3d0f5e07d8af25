package wal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFailedSyncIsFailStop: one sync fails and the next would succeed. The log
// says so once, acknowledges nothing more, syncs nothing more, and lets its
// callers go with an error only when it is closed. What was acknowledged before
// is there afterwards, and what was not is not.
func TestFailedSyncIsFailStop(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { failStop(t, seed) })
	}
}

func failStop(t *testing.T, seed uint64) {
	disk := fs.NewMem()
	var fatal, syncs atomic.Int32
	l := open(t, disk, func(c *wal.Config) { c.Fatal = func(error) { fatal.Add(1) } })
	g := l.Group(1)
	must(t, g.StoreLog(entry(1, 1, 100)))
	disk.Inject(func(op fs.Op, name string) error {
		if op == fs.OpSync && syncs.Add(1) == 1 {
			return syscall.EIO
		}
		return nil
	})
	errs := make(chan error, 4)
	go func() { errs <- g.StoreLog(entry(2, 1, 100)) }()
	synctest.Wait()
	for i := range uint32(3) {
		go func() { errs <- l.Group(i + 2).StoreLog(entry(1, 1, 100)) }()
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	if len(errs) != 0 || fatal.Load() != 1 || syncs.Load() != 1 {
		t.Fatalf("%d calls returned, %d fatal, %d syncs", len(errs), fatal.Load(), syncs.Load())
	}
	if w := l.OldestWaitingSync(); w < time.Hour {
		t.Fatalf("waiting for %v", w)
	}
	var e raft.Log
	if err := g.GetLog(1, &e); err != nil {
		t.Fatal("reads go on", err)
	}
	if err := g.GetLog(2, &e); err != raft.ErrLogNotFound {
		t.Fatal("visible, and not durable", err)
	}
	if err := l.Close(); !errors.Is(err, proto.ErrDisk) {
		t.Fatal(err)
	}
	for range 4 {
		if err := <-errs; !errors.Is(err, proto.ErrDisk) || !strings.Contains(err.Error(), "input/output error") {
			t.Fatal(err)
		}
	}
	if err := g.StoreLog(entry(3, 1, 1)); !errors.Is(err, proto.ErrDisk) {
		t.Fatal(err)
	}
	l = open(t, disk.Crash(seed))
	if last, _ := l.Group(1).LastIndex(); last != 1 {
		t.Fatalf("last index %d", last)
	}
	must(t, l.Close())
}

// TestFailedSyncBeforeARestart: a sync fails, and the process dies. What it has written can still be read, by the next
// process as well, which therefore takes it for its log and builds on it. It has to be there when the power goes then,
// though every sync of the next process succeeds.
func TestFailedSyncBeforeARestart(t *testing.T) {
	for seed := range uint64(20) {
		for _, more := range []bool{false, true} {
			disk := fs.NewMem()
			failed := make(chan error, 2)
			dies := func(c *wal.Config) { c.Fatal = func(err error) { failed <- err } }
			l := open(t, disk, dies)
			must(t, l.Group(1).StoreLog(entry(1, 1, 100)))
			disk.Inject(func(op fs.Op, _ string) error {
				if op == fs.OpSync {
					return syscall.EIO
				}
				return nil
			})
			done := make(chan error)
			go func() { done <- l.Group(1).StoreLog(entry(2, 1, 100)) }()
			<-failed
			must(t, ignoring(l.Close(), proto.ErrDisk))
			must(t, ignoring(<-done, proto.ErrDisk))

			disk = disk.Kill()
			l = open(t, disk, dies)
			last, err := l.Group(1).LastIndex()
			must(t, err)
			if more {
				last++
				must(t, l.Group(1).StoreLog(entry(last, 1, 100)))
			}
			disk = disk.Crash(seed)
			must(t, ignoring(l.Close(), fs.ErrCrashed, proto.ErrDisk))
			l = open(t, disk)
			if got, err := l.Group(1).LastIndex(); got != last || err != nil {
				t.Fatalf("seed %d, more written %v: entries up to %d were there, and %d, %v after the power went", seed, more, last, got, err)
			}
			must(t, l.Close())
		}
	}
}

// ignoring is err, unless it is one of these.
func ignoring(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// TestFatalMayClose: a node may close the log from Fatal.
func TestFatalMayClose(t *testing.T) {
	disk := fs.NewMem()
	var l *wal.Log
	closed := make(chan error, 1)
	l = open(t, disk, func(c *wal.Config) { c.Fatal = func(error) { closed <- l.Close() } })
	disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	if err := l.Group(1).StoreLog(entry(1, 1, 1)); !errors.Is(err, proto.ErrDisk) || !strings.Contains(err.Error(), "no space left") {
		t.Fatal(err)
	}
	if err := <-closed; !errors.Is(err, proto.ErrDisk) {
		t.Fatal(err)
	}
}

// TestTermEndsItsGoroutine: raft panics when its term cannot be stored, which
// would take other nodes of the process with it. A bootstrap gets the error.
func TestTermEndsItsGoroutine(t *testing.T) {
	l := open(t, fs.NewMem())
	must(t, l.Close())
	if err := l.Group(1).SetUint64([]byte("CurrentTerm"), 1); !errors.Is(err, wal.ErrClosed) {
		t.Fatal(err)
	}
	returned := false
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = l.Group(1).SetUint64([]byte("CurrentTerm"), 2)
		returned = true
	})
	wg.Wait()
	if returned {
		t.Fatal("it returned")
	}
}

// TestFailedReadIsFailStop: raft panics when it cannot read an entry that it is to apply, which would take other nodes
// of the process with it.
func TestFailedReadIsFailStop(t *testing.T) {
	disk := fs.NewMem()
	fatal := make(chan error, 2)
	l := open(t, disk, func(cfg *wal.Config) { cfg.Fatal = func(err error) { fatal <- err } })
	g := l.Group(1)
	for i := range uint64(20) {
		must(t, g.StoreLog(entry(i+1, 1, 1000))) // the first are no longer in memory
	}
	disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpRead {
			return syscall.EIO
		}
		return nil
	})
	returned := 0
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_ = g.GetLog(1, new(raft.Log))
			returned++
		})
		wg.Wait()
	}
	if returned != 0 {
		t.Fatalf("%d of 2 reads returned", returned)
	}
	if err := <-fatal; !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "0000000001.wal at offset") {
		t.Errorf("fatal: %v", err)
	}
	must(t, ignoring(l.Close(), proto.ErrDisk))
	if err := g.StoreLog(entry(21, 1, 1)); !errors.Is(err, proto.ErrDisk) {
		t.Errorf("it stores on: %v", err)
	}
	wg.Go(func() {
		_ = g.GetLog(1, new(raft.Log)) // of files that are closed
		returned++
	})
	wg.Wait()
	if returned != 0 || len(fatal) != 0 {
		t.Errorf("after the end %d reads returned, and %d more errors were fatal", returned, len(fatal))
	}
}

// TestHangingSync: a disk that hangs is seen by the waiting time, which ends with it.
func TestHangingSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fs.NewMem()
		l := open(t, disk)
		if w := l.OldestWaitingSync(); w != 0 {
			t.Fatal(w)
		}
		release := make(chan struct{})
		disk.HangSync(release)
		var wg sync.WaitGroup
		for i := range uint32(5) {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				if err := l.Group(i).StoreLog(entry(1, 1, 10)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Second)
		if w := l.OldestWaitingSync(); w != 10*time.Second {
			t.Fatal(w)
		}
		close(release)
		wg.Wait()
		synctest.Wait()
		if w := l.OldestWaitingSync(); w != 0 {
			t.Fatal(w)
		}
		if s := l.Stats(); s.Batches != 3 || s.SyncMax != 10*time.Second { // the first, the four others, and the state at the start
			t.Fatalf("%+v", s)
		}
		must(t, l.Close())
	})
}

func TestFullDisk(t *testing.T) {
	disk := fs.NewMem()
	var fatal atomic.Int32
	l := open(t, disk, func(c *wal.Config) { c.Fatal = func(error) { fatal.Add(1) } })
	disk.SetCapacity(20 << 10) // two segments and a half
	g := l.Group(1)
	m := newModel()
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		for i := uint64(1); ; i++ {
			if err := g.StoreLog(entry(i, 1, 500)); err != nil {
				return
			}
			_ = m.StoreLog(entry(i, 1, 500))
		}
	}()
	<-l.Failed()
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatal(err)
	}
	<-stored
	disk.SetCapacity(0)
	l = open(t, disk)
	if d := differ(l.Group(1), m, m.reach()-2); d != "" {
		t.Fatal(d)
	}
	must(t, l.Close())
}

func TestRefusals(t *testing.T) {
	t.Run("newer format", func(t *testing.T) {
		disk := fs.NewMem()
		must(t, open(t, disk).Close())
		wal.SetVersion(t, disk, filepath.Join(dir, "0000000001.wal"), 2)
		_, err := wal.Open(wal.Config{FS: disk, Dir: dir})
		if !errors.Is(err, proto.ErrNewerVersion) || !strings.Contains(err.Error(), "0000000001.wal has log format 2") {
			t.Fatal(err)
		}
	})
	t.Run("read-only", func(t *testing.T) {
		disk := fs.NewMem()
		must(t, open(t, disk).Close())
		disk.SetReadOnly(true)
		_, err := wal.Open(wal.Config{FS: disk, Dir: dir})
		if !errors.Is(err, syscall.EROFS) || !errors.Is(fs.Explain(dir, err), proto.ErrDisk) {
			t.Fatal(err)
		}
	})
	t.Run("segment of another log", func(t *testing.T) {
		one, other := fs.NewMem(), fs.NewMem()
		must(t, open(t, one).Close())
		l := open(t, other)
		for i := uint64(1); i < 40; i++ {
			must(t, l.Group(1).StoreLog(entry(i, 1, 500)))
		}
		must(t, l.Close())
		b, err := fs.ReadFile(other, filepath.Join(dir, "0000000002.wal"))
		must(t, err)
		must(t, fs.WriteFile(one, filepath.Join(dir, "0000000002.wal"), b))
		if _, err := wal.Open(wal.Config{FS: one, Dir: dir}); !errors.Is(err, proto.ErrCorrupt) {
			t.Fatal(err)
		}
	})
	t.Run("index 0", func(t *testing.T) {
		l := open(t, fs.NewMem())
		if err := l.Group(1).StoreLogs([]*raft.Log{entry(1, 1, 1), {}}); err == nil {
			t.Fatal("stored")
		}
		if last, _ := l.Group(1).LastIndex(); last != 0 {
			t.Fatal("half stored")
		}
		must(t, l.Close())
	})
	t.Run("long value", func(t *testing.T) {
		l := open(t, fs.NewMem())
		if err := l.Group(1).Set([]byte("k"), make([]byte, 5000)); !errors.Is(err, proto.ErrBadRequest) {
			t.Fatal(err)
		}
		must(t, l.Close())
	})
	t.Run("config", func(t *testing.T) {
		if _, err := wal.Open(wal.Config{}); err == nil {
			t.Fatal("opened nothing")
		}
		if _, err := wal.Open(wal.Config{FS: fs.NewMem(), Dir: dir, SegmentBytes: 100}); err == nil {
			t.Fatal("tiny segments")
		}
	})
}

// TestRaftsExpectations: what raft compares by identity and by text.
func TestRaftsExpectations(t *testing.T) {
	l := open(t, fs.NewMem())
	g := l.Group(1)
	var e raft.Log
	if err := g.GetLog(1, &e); err != raft.ErrLogNotFound {
		t.Fatal(err)
	}
	for _, key := range []string{"LastVoteCand", "LastVoteTerm", "CurrentTerm", "x"} {
		if _, err := g.Get([]byte(key)); err == nil || err.Error() != "not found" {
			t.Fatal(key, err)
		}
		if n, err := g.GetUint64([]byte(key)); n != 0 || err != nil {
			t.Fatal(key, n, err)
		}
	}
	if g.IsMonotonic() {
		t.Fatal("monotonic")
	}
	if has, err := raft.HasExistingState(g, g, raft.NewInmemSnapshotStore()); has || err != nil {
		t.Fatal(has, err)
	}
	must(t, l.Close())
}

// TestContinues: which snapshots a log can follow.
func TestContinues(t *testing.T) {
	l := open(t, fs.NewMem())
	g := l.Group(1)
	for i := uint64(5); i <= 9; i++ {
		must(t, g.StoreLog(entry(i, 1, 1)))
	}
	must(t, g.StoreLogs([]*raft.Log{entry(15, 2, 1), entry(16, 2, 1)}))
	var got []uint64
	for i := range uint64(20) {
		if g.Continues(i) {
			got = append(got, i)
		}
	}
	if !slices.Equal(got, []uint64{14, 15, 16, 17, 18, 19}) {
		t.Fatal(got)
	}
	must(t, g.SetBoundary(18, 3)) // an installed snapshot over all of it
	if first, _ := g.FirstIndex(); first != 0 || g.Continues(16) || !g.Continues(18) {
		t.Fatal(first)
	}
	must(t, l.Close())
}

// TestCompact: a quiet group that pins old segments is found and freed, and no
// entry after its snapshot is lost by it.
func TestCompact(t *testing.T) {
	l := open(t, fs.NewMem())
	quietOne, busy := l.Group(1), l.Group(2)
	for i := uint64(1); i <= 3; i++ {
		must(t, quietOne.StoreLog(entry(i, 1, 100)))
	}
	for i := uint64(1); i <= 100; i++ {
		must(t, busy.StoreLog(entry(i, 1, 500)))
	}
	must(t, busy.SetBoundary(100, 1))
	if first := busy.Trailing(1100); first != 99 {
		t.Fatal(first)
	}
	must(t, busy.Compact(busy.Trailing(1100)-1))
	s := l.Stats()
	if len(s.Pins) != 1 || s.Pins[0].Group != 1 || s.Pins[0].Entries != 3 || s.Pins[0].Last != 3 || s.Segments < 5 {
		t.Fatalf("%+v", s)
	}
	must(t, quietOne.Compact(s.Pins[0].Last)) // without a snapshot: nothing
	if first, _ := quietOne.FirstIndex(); first != 1 {
		t.Fatal(first)
	}
	must(t, quietOne.SetBoundary(2, 1))
	must(t, quietOne.Compact(s.Pins[0].Last))
	if first, _ := quietOne.FirstIndex(); first != 3 {
		t.Fatal(first)
	}
	must(t, quietOne.SetBoundary(3, 1))
	must(t, quietOne.Compact(3))
	if s := l.Stats(); s.Segments > 2 || quietOne.Trailing(1000) != 0 || !quietOne.Continues(3) {
		t.Fatalf("%+v", s)
	}
	must(t, l.Close())
}

// TestReadsDuringRemoval reads old entries from segments that are being freed.
func TestReadsDuringRemoval(t *testing.T) {
	root := t.TempDir()
	l, err := wal.Open(wal.Config{FS: fs.OS{}, Dir: filepath.Join(root, "wal"), SegmentBytes: 16 << 10, TailBytes: 1})
	must(t, err)
	g := l.Group(1)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				first, _ := g.FirstIndex()
				var e raft.Log
				if err := g.GetLog(first, &e); err != nil && err != raft.ErrLogNotFound {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := uint64(1); i <= 300; i++ {
		must(t, g.StoreLog(entry(i, 1, 2000)))
		if i%20 == 0 {
			must(t, g.DeleteRange(1, i-10))
		}
	}
	close(stop)
	wg.Wait()
	must(t, l.Close())
	if s := l.Stats(); s.Removed < 10 {
		t.Fatalf("%+v", s)
	}
	files, err := os.ReadDir(filepath.Join(root, "wal"))
	must(t, err)
	if len(files) > 6 {
		t.Fatal(fmt.Sprint(len(files), " files left"))
	}
}
