package wal_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// FuzzSegment opens a log whose only segment is any bytes. It opens, or is
// refused as corrupt or newer; it never panics; and what opens can be read,
// written, closed and opened again.
func FuzzSegment(f *testing.F) {
	wal.SetHeldMax(1 << 12)
	disk := fs.NewMem()
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: 2 << 10})
	if err != nil {
		f.Fatal(err)
	}
	m := newModel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		op := draw(r, m)
		if err := errors.Join(op.do(l.Group(1)), op.do(m)); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	whole, err := fs.ReadFile(disk, filepath.Join(dir, "0000000001.wal"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, false)
	f.Add(whole[:500], true)
	f.Add(whole[:40], true)
	f.Add([]byte("ebb wal\n"), false)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		if mend { // so that the fuzzer gets past the checksums
			b = wal.Mend(b)
		}
		if len(b) > 1<<16 {
			return
		}
		disk := fs.NewMem()
		must(t, disk.MkdirAll(dir))
		must(t, fs.WriteFile(disk, filepath.Join(dir, "0000000001.wal"), b))
		for round := range uint64(2) {
			l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: 2 << 10})
			if err != nil {
				if round > 0 || !errors.Is(err, proto.ErrCorrupt) && !errors.Is(err, proto.ErrNewerVersion) {
					t.Fatal(round, err)
				}
				return
			}
			for _, id := range l.GroupIDs() {
				readAll(t, l.Group(id))
			}
			must(t, l.Group(1).StoreLog(entry(1000+round, 1, 20)))
			must(t, l.Close())
		}
	})
}

func readAll(t *testing.T, g *wal.Group) {
	first, _ := g.FirstIndex()
	last, _ := g.LastIndex()
	var e raft.Log
	for i := first; i <= last && i < first+1000; i++ {
		_ = g.GetLog(i, &e) // a gap, or an entry with cut extensions: an error, no panic
	}
	_ = differ(g, g, 10)
}

// FuzzEndFile opens a sound log together with any bytes that say how far it is durable. It opens, or is refused as
// corrupt. What opens can be written, closed and opened again.
func FuzzEndFile(f *testing.F) {
	disk := fs.NewMem()
	config := wal.Config{FS: disk, Dir: dir, EndFile: endName, SegmentBytes: 8 << 10}
	l, err := wal.Open(config)
	if err != nil {
		f.Fatal(err)
	}
	err = errors.Join(l.Group(1).StoreLog(entry(1, 1, 20)), l.Close())
	whole, readErr := fs.ReadFile(disk, endName)
	if err = errors.Join(err, readErr); err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:530])
	f.Add([]byte("bend"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return
		}
		config := config
		fresh := disk.Crash(1)
		config.FS = fresh
		must(t, fs.WriteFile(fresh, endName, b))
		for round := range uint64(2) {
			l, err := wal.Open(config)
			if err != nil {
				if round > 0 || !errors.Is(err, proto.ErrCorrupt) {
					t.Fatal(round, err)
				}
				return
			}
			must(t, l.Group(1).StoreLog(entry(2+round, 1, 20)))
			must(t, l.Close())
		}
	})
}
