package snap_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
)

const dir = "/data/7/snapshots"

var configuration = raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "ebb-0/1"}, {Suffrage: raft.Nonvoter, ID: "2", Address: "ebb-1/2"}}}

func open(t testing.TB, disk fs.FS, change ...func(*snap.Config)) *snap.Store {
	t.Helper()
	cfg := snap.Config{FS: disk, Dir: dir}
	for _, f := range change {
		f(&cfg)
	}
	s, err := snap.Open(cfg)
	must(t, err)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// take writes a snapshot whose content follows from its index.
func take(s *snap.Store, index uint64) error {
	k, err := s.Create(1, index, index/10+1, configuration, index-1, nil)
	if err != nil {
		return err
	}
	if _, err := k.Write(contentOf(index)); err != nil {
		return errors.Join(err, k.Cancel())
	}
	return k.Close()
}

func contentOf(index uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "state %d;", index), int(index)*10)
}

// indexes opens and verifies all that is listed.
func indexes(t *testing.T, s *snap.Store) []uint64 {
	t.Helper()
	metas, err := s.List()
	must(t, err)
	var found []uint64
	for _, m := range metas {
		meta, r, err := s.Open(m.ID)
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		if !bytes.Equal(data, contentOf(m.Index)) || !reflect.DeepEqual(meta, m) ||
			!reflect.DeepEqual(m.Configuration, configuration) || m.ConfigurationIndex != m.Index-1 || m.Term != m.Index/10+1 {
			t.Fatalf("snapshot %+v", m)
		}
		found = append(found, m.Index)
	}
	return found
}

func TestNewestFirstAndRetained(t *testing.T) {
	disk := fs.NewMem()
	var boundaries []string
	note := func(c *snap.Config) {
		c.OnBoundary = func(index, term uint64) error {
			boundaries = append(boundaries, fmt.Sprintf("%d/%d", index, term))
			return nil
		}
	}
	s := open(t, disk, note)
	for i := uint64(10); i <= 50; i += 10 {
		must(t, take(s, i))
	}
	if got := indexes(t, s); !slices.Equal(got, []uint64{50, 40}) {
		t.Fatal(got)
	}
	if i, term := s.Newest(); i != 50 || term != 6 {
		t.Fatal(i, term)
	}
	s = open(t, disk, note)
	if got := indexes(t, s); !slices.Equal(got, []uint64{50, 40}) {
		t.Fatal(got)
	}
	if s.Bytes() != int64(len(contentOf(50))+len(contentOf(40))) {
		t.Fatal(s.Bytes())
	}
	if want := []string{"10/2", "20/3", "30/4", "40/5", "50/6", "50/6"}; !slices.Equal(boundaries, want) {
		t.Fatal(boundaries)
	}
}

// TestBoundaryComesFirst: raft cannot see a snapshot whose boundary the log does
// not know.
func TestBoundaryComesFirst(t *testing.T) {
	var s *snap.Store
	s = open(t, fs.NewMem(), func(c *snap.Config) {
		c.OnBoundary = func(uint64, uint64) error {
			if l, err := s.List(); len(l) != 0 || err != nil {
				t.Error("listed already", err)
			}
			return nil
		}
	})
	must(t, take(s, 10))
	failing := open(t, fs.NewMem(), func(c *snap.Config) {
		c.OnBoundary = func(uint64, uint64) error { return errors.New("log failed") }
	})
	if err := take(failing, 10); err == nil || !strings.Contains(err.Error(), "log failed") {
		t.Fatal(err)
	}
	if l, _ := failing.List(); len(l) != 0 {
		t.Fatal("listed without its boundary")
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	k, err := s.Create(1, 5, 1, configuration, 1, nil)
	must(t, err)
	_, err = k.Write([]byte("x"))
	must(t, err)
	must(t, k.Cancel())
	must(t, k.Cancel())
	must(t, k.Close())
	if infos, err := disk.ReadDir(dir); err != nil || len(infos) != 0 {
		t.Fatal(infos, err)
	}
}

func TestFullDiskLeavesNothing(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	disk.SetCapacity(2000)
	if err := take(s, 100); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if infos, err := disk.ReadDir(dir); err != nil || len(infos) != 0 {
		t.Fatal(infos, err)
	}
	disk.SetCapacity(0)
	must(t, take(s, 100))
}

// TestEveryFlippedByteIsFound flips each byte of a snapshot in turn: it is never
// served, the older one is, and the file is kept aside.
func TestEveryFlippedByteIsFound(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	must(t, take(s, 3))
	must(t, take(s, 4))
	metas, err := s.List()
	must(t, err)
	name := filepath.Join(dir, metas[0].ID+".snap")
	info, err := disk.Stat(name)
	must(t, err)
	for at := range info.Size {
		must(t, disk.FlipByte(name, at, uint(at)))
		var log bytes.Buffer
		again, err := snap.Open(snap.Config{FS: disk, Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		if _, _, err := again.Open(metas[0].ID); err == nil {
			t.Fatalf("byte %d: opened", at)
		}
		if got := indexes(t, again); !slices.Equal(got, []uint64{3}) {
			t.Fatalf("byte %d: %v", at, got)
		}
		if said := log.String(); strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "id="+metas[0].ID) {
			t.Fatalf("byte %d: an operator reads %q", at, said)
		}
		must(t, disk.Rename(name+".bad", name))
		must(t, disk.FlipByte(name, at, uint(at)))
	}
	if got := indexes(t, open(t, disk)); !slices.Equal(got, []uint64{4, 3}) {
		t.Fatal(got)
	}
}

func TestEveryTruncationIsFound(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	must(t, take(s, 3))
	metas, err := s.List()
	must(t, err)
	name := filepath.Join(dir, metas[0].ID+".snap")
	whole, err := fs.ReadFile(disk, name)
	must(t, err)
	for n := range len(whole) {
		must(t, fs.WriteFile(disk, name, whole[:n]))
		again := open(t, disk)
		if l, _ := again.List(); len(l) != 0 {
			t.Fatalf("cut to %d bytes: listed", n)
		}
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	disk := fs.NewMem()
	must(t, take(open(t, disk), 3))
	infos, err := disk.ReadDir(dir)
	must(t, err)
	snap.SetVersion(t, disk, filepath.Join(dir, infos[0].Name), 2)
	_, err = snap.Open(snap.Config{FS: disk, Dir: dir})
	if !errors.Is(err, proto.ErrNewerVersion) || !strings.Contains(err.Error(), infos[0].Name) {
		t.Fatal(err)
	}
}

// TestKillAtEveryFailpoint: whatever the moment, what is listed afterwards is
// whole, and what was acknowledged is listed.
func TestKillAtEveryFailpoint(t *testing.T) {
	var points fail.Points
	points.Record()
	s := open(t, fs.NewMem(), func(c *snap.Config) { c.Fail = &points })
	for i := uint64(1); i <= 5; i++ {
		must(t, take(s, i))
	}
	if n := len(points.Names()); n < 6 {
		t.Fatal(points.Names())
	}
	for name, hits := range points.Hits() {
		for hit := 1; hit <= hits; hit++ {
			for seed := range uint64(20) {
				killAt(t, name, hit, seed)
			}
		}
	}
}

func killAt(t *testing.T, name string, hit int, seed uint64) {
	var points fail.Points
	disk := fs.NewMem()
	s := open(t, disk, func(c *snap.Config) { c.Fail = &points })
	var after *fs.Mem
	points.Arm(name, hit, fail.Kill(func() { after = disk.Crash(seed) }))
	acked := uint64(0)
	for i := uint64(1); i <= 5; i++ {
		if err := take(s, i); err == nil && after == nil {
			acked = i
		}
	}
	if after == nil {
		t.Fatalf("%s was not hit %d times", name, hit)
	}
	again := open(t, after)
	got := indexes(t, again)
	if newest, _ := again.Newest(); newest < acked || newest > acked+2 {
		t.Fatalf("%s %d seed %d: %d acknowledged, found %v", name, hit, seed, acked, got)
	}
	if bad := setAside(t, after); len(bad) > 0 {
		t.Fatalf("%s %d seed %d: damaged %v", name, hit, seed, bad)
	}
	must(t, take(again, 9))
	if got := indexes(t, again); got[0] != 9 {
		t.Fatal(got)
	}
}

// setAside lists the files that were found damaged.
func setAside(t *testing.T, disk fs.FS) (names []string) {
	t.Helper()
	infos, err := disk.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		if strings.HasSuffix(info.Name, ".bad") {
			names = append(names, info.Name)
		}
	}
	return names
}
