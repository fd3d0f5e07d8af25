package fs_test

import (
	"bytes"
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// TestContract holds both implementations to the same behaviour.
func TestContract(t *testing.T) {
	t.Run("os", func(t *testing.T) { contract(t, fs.OS{}, t.TempDir()) })
	t.Run("mem", func(t *testing.T) { contract(t, fs.NewMem(), "/data") })
}

func contract(t *testing.T, fsys fs.FS, root string) {
	dir := filepath.Join(root, "a", "b")
	must(t, fsys.MkdirAll(dir))
	must(t, fsys.MkdirAll(dir))
	name := filepath.Join(dir, "f")
	if _, err := fs.Open(fsys, name); !errors.Is(err, iofs.ErrNotExist) {
		t.Fatal(err)
	}
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	must(t, err)
	if _, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL); !errors.Is(err, iofs.ErrExist) {
		t.Fatal(err)
	}
	must(t, f.Preallocate(100))
	if n, err := f.Size(); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	_, err = f.Write([]byte("hello"))
	must(t, err)
	_, err = f.Write([]byte(" world"))
	must(t, err)
	_, err = f.WriteAt([]byte("J"), 0)
	must(t, err)
	must(t, f.Sync())
	must(t, fsys.SyncDir(dir))
	got := make([]byte, 12)
	if n, err := f.ReadAt(got, 0); n != 12 || err != nil || string(got) != "Jello world\x00" {
		t.Fatal(n, err, got)
	}
	if n, err := f.ReadAt(got, 95); n != 5 || err != io.EOF {
		t.Fatal(n, err)
	}
	must(t, f.Truncate(5))
	must(t, f.Close())
	if data, err := fs.ReadFile(fsys, name); err != nil || string(data) != "Jello" {
		t.Fatal(string(data), err)
	}
	must(t, fs.WriteFile(fsys, name, []byte("new")))
	must(t, fsys.Rename(name, name+"2"))
	infos, err := fsys.ReadDir(dir)
	if err != nil || len(infos) != 1 || infos[0] != (fs.Info{Name: "f2", Size: 3}) {
		t.Fatal(infos, err)
	}
	if err := fsys.Remove(dir); err == nil {
		t.Fatal("removed a directory that is not empty")
	}
	must(t, fsys.RemoveAll(filepath.Join(root, "a")))
	must(t, fsys.RemoveAll(filepath.Join(root, "a")))
	if ok, err := fs.Exists(fsys, dir); ok || err != nil {
		t.Fatal(ok, err)
	}
	if n, err := fsys.Free(root); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	lockContract(t, fsys, filepath.Join(root, "LOCK"))
}

func lockContract(t *testing.T, fsys fs.FS, name string) {
	must(t, fsys.MkdirAll(filepath.Dir(name)))
	lock, err := fsys.Lock(name)
	must(t, err)
	if _, err := fsys.Lock(name); !errors.Is(err, proto.ErrLocked) {
		t.Fatal(err)
	}
	must(t, lock.Close())
	lock, err = fsys.Lock(name)
	must(t, err)
	must(t, lock.Close())
}

// TestCrashKeepsWhatWasSynced cuts the power after one synced and one unsynced
// write, with many seeds: the first is always there, and of the second all four
// outcomes are seen.
func TestCrashKeepsWhatWasSynced(t *testing.T) {
	first, second := bytes.Repeat([]byte("a"), 2000), bytes.Repeat([]byte("b"), 3000)
	none, all, torn, reordered := 0, 0, 0, 0
	for seed := range uint64(400) {
		m := fs.NewMem()
		f, err := fs.Create(m, "f")
		must(t, err)
		_, err = f.Write(first)
		must(t, err)
		must(t, f.Sync())
		must(t, m.SyncDir("/"))
		_, err = f.Write(second)
		must(t, err)
		after := m.Crash(seed)
		if _, err := f.Write(first); !errors.Is(err, fs.ErrCrashed) {
			t.Fatal(err)
		}
		data, err := fs.ReadFile(after, "f")
		must(t, err)
		if !bytes.HasPrefix(data, first) {
			t.Fatalf("seed %d lost synced bytes", seed)
		}
		rest := data[len(first):]
		switch bs := bytes.Count(rest, []byte("b")); {
		case bs == 0:
			none++
		case bs == len(second):
			all++
		case bytes.HasPrefix(second, rest):
			torn++
		default:
			reordered++
		}
	}
	if none == 0 || all == 0 || torn == 0 || reordered == 0 {
		t.Fatal(none, all, torn, reordered)
	}
}

// TestCrashForgetsNames: a new name, a rename and a removal may be forgotten
// until the directory is synced, and never afterwards.
func TestCrashForgetsNames(t *testing.T) {
	outcomes := map[string]bool{}
	for seed := range uint64(100) {
		m := fs.NewMem()
		must(t, fs.WriteFile(m, "old", []byte("1")))
		must(t, m.Rename("old", "new"))
		f, err := fs.Create(m, "other")
		must(t, err)
		must(t, f.Close())
		left := ""
		infos, err := m.Crash(seed).ReadDir("/")
		must(t, err)
		for _, i := range infos {
			left += i.Name + " "
		}
		outcomes[left] = true
	}
	for _, want := range []string{"old ", "new ", "new other "} {
		if !outcomes[want] {
			t.Errorf("never saw %q in %v", want, outcomes)
		}
	}
	if len(outcomes) != 3 {
		t.Error(outcomes)
	}
}

func TestKillKeepsWhatWasWritten(t *testing.T) {
	m := fs.NewMem()
	f, err := fs.Create(m, "f")
	must(t, err)
	_, err = f.Write([]byte("x"))
	must(t, err)
	after := m.Kill()
	if data, err := fs.ReadFile(after, "f"); err != nil || string(data) != "x" {
		t.Fatal(string(data), err)
	}
	lost := false
	for seed := range uint64(20) {
		ok, err := fs.Exists(after.Kill().Crash(seed), "f")
		must(t, err)
		lost = lost || !ok
	}
	if !lost {
		t.Fatal("a kill made the file durable")
	}
}

// TestFailedSyncLosesWrites: after a failed sync the next one succeeds, and the
// bytes are gone all the same. Whoever retries a sync loses data.
func TestFailedSyncLosesWrites(t *testing.T) {
	m := fs.NewMem()
	f, err := fs.Create(m, "f")
	must(t, err)
	must(t, m.SyncDir("/"))
	_, err = f.Write([]byte("x"))
	must(t, err)
	m.Inject(func(op fs.Op, name string) error {
		if op == fs.OpSync {
			return syscall.EIO
		}
		return nil
	})
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	m.Inject(nil)
	must(t, f.Sync())
	for seed := range uint64(20) {
		if data, err := fs.ReadFile(m.Crash(seed), "f"); err != nil || len(data) != 0 {
			t.Fatal(string(data), err)
		}
	}
}

// TestLies: a sync that does nothing leaves what was written to the next one, and half of one keeps the first half.
func TestLies(t *testing.T) {
	m := fs.NewMem()
	f, err := fs.Create(m, "f")
	must(t, err)
	must(t, m.SyncDir("/"))
	kept := func(text string) bool {
		for seed := range uint64(40) {
			if data, err := fs.ReadFile(m.Copy().Crash(seed), "f"); err != nil || !strings.HasPrefix(string(data), text) {
				return false
			}
		}
		return true
	}
	m.Lie(func(fs.Op, string) float64 { return 0 })
	_, err = f.Write([]byte("a"))
	must(t, err)
	must(t, f.Sync())
	if kept("a") {
		t.Error("a sync that does nothing has kept something")
	}
	m.Lie(func(fs.Op, string) float64 { return 0.5 })
	_, err = f.Write([]byte("b"))
	must(t, err)
	must(t, f.Sync())
	if !kept("a") || kept("ab") {
		t.Errorf("half of a sync: a is kept %v, b %v", kept("a"), kept("ab"))
	}
	m.Lie(nil)
	must(t, f.Sync())
	if !kept("ab") {
		t.Error("an honest sync has not kept all")
	}
}

func TestFullAndReadOnly(t *testing.T) {
	m := fs.NewMem()
	f, err := fs.Create(m, "f")
	must(t, err)
	m.SetCapacity(10)
	if n, err := f.Write(make([]byte, 12)); n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(n, err)
	}
	if err := f.Preallocate(11); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	must(t, m.Remove("f"))
	if n, err := m.Free("/"); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	m.SetReadOnly(true)
	if _, err := fs.Create(m, "g"); !errors.Is(err, syscall.EROFS) {
		t.Fatal(err)
	}
	if err := m.MkdirAll("d"); !errors.Is(err, syscall.EROFS) {
		t.Fatal(err)
	}
}

func TestMakeDirIsDurable(t *testing.T) {
	m := fs.NewMem()
	must(t, fs.MakeDir(m, "/a/b/c"))
	must(t, fs.MakeDir(m, "/a/b/c"))
	must(t, fs.MakeDir(m, "/a/b/d/e"))
	for seed := range uint64(20) {
		after := m.Crash(seed)
		for _, name := range []string{"/a/b/c", "/a/b/d/e"} {
			if ok, err := fs.Exists(after, name); !ok || err != nil {
				t.Fatal(name, ok, err)
			}
		}
	}
}

func TestExplain(t *testing.T) {
	m := fs.NewMem()
	m.SetReadOnly(true)
	err := fs.Explain("/data", m.MkdirAll("/data"))
	if !errors.Is(err, proto.ErrDisk) || !strings.Contains(err.Error(), "/data is read-only") {
		t.Fatal(err)
	}
	if err := fs.Explain("/data", io.EOF); err != io.EOF {
		t.Fatal(err)
	}
}

func TestFlipByte(t *testing.T) {
	m := fs.NewMem()
	must(t, fs.WriteFile(m, "f", []byte("abc")))
	must(t, m.FlipByte("f", 1, 0))
	if data, _ := fs.ReadFile(m.Crash(1), "f"); string(data) != "acc" {
		t.Fatal(string(data))
	}
	if err := m.FlipByte("f", 3, 0); err == nil {
		t.Fatal("past the end")
	}
}

func TestHangingSyncInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fs.NewMem()
		f, err := fs.Create(m, "f")
		must(t, err)
		release := make(chan struct{})
		m.HangSync(release)
		done := make(chan error, 1)
		go func() { done <- f.Sync() }()
		time.Sleep(time.Hour)
		if _, err := f.Write([]byte("others go on")); err != nil {
			t.Error(err)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		m.HangSync(make(chan struct{}))
		go func() { done <- f.Sync() }()
		synctest.Wait()
		m.Crash(1)
		if err := <-done; !errors.Is(err, fs.ErrCrashed) {
			t.Error(err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMisdirected: a write goes elsewhere, and not behind the end of the file there; its own place keeps what it had,
// and the file is as long as if it had been written.
func TestMisdirected(t *testing.T) {
	m := fs.NewMem()
	for _, name := range []string{"/a", "/b"} {
		f, err := fs.Create(m, name)
		must(t, err)
		_, err = f.Write([]byte("0123456789"))
		must(t, err)
	}
	f, err := m.OpenFile("/a", os.O_RDWR)
	must(t, err)
	m.Misdirect(func(name string, off int64, n int) (string, int64, bool) {
		if name != "/a" || n != 4 {
			t.Errorf("%d bytes for byte %d of %s", n, off, name)
		}
		return "/b", 8 - off/8, off < 20
	})
	for _, off := range []int64{2, 8, 20} {
		if n, err := f.WriteAt([]byte("abcd"), off); n != 4 || err != nil {
			t.Errorf("%d bytes are written: %v", n, err)
		}
	}
	m.Misdirect(nil)
	long := "0123456789" + strings.Repeat("\x00", 10) + "abcd"
	for name, want := range map[string]string{"/a": long, "/b": "0123456abc"} {
		if got, err := fs.ReadFile(m, name); string(got) != want || err != nil {
			t.Errorf("%s has %q, want %q: %v", name, got, want, err)
		}
	}
	must(t, m.Zero("/b", 6, 100))
	if got, err := fs.ReadFile(m, "/b"); string(got) != "012345\x00\x00\x00\x00" || err != nil {
		t.Errorf("with its end zeroed /b has %q: %v", got, err)
	}
}
