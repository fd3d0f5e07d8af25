package wal_test

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// flipLog is what damage is done to: a log that was closed in order, of several segments, and what it holds.
type flipLog struct {
	files   map[string][]byte // by path
	names   []string          // those with batches, oldest first
	groups  []*model
	segment int64
}

// newFlipLog makes the same log each time but for its salt: one group after the other does what raft would.
func newFlipLog(t testing.TB) *flipLog {
	f := &flipLog{files: map[string][]byte{}, segment: 2 << 10}
	disk := fs.NewMem()
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: f.segment, TailBytes: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(11, 3))
	for range 2 {
		f.groups = append(f.groups, newModel())
	}
	for i := range 24 {
		m := f.groups[i%2]
		op := draw(r, m)
		if err := errors.Join(op.do(m), op.do(l.Group(uint32(i%2)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	infos, err := disk.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		name := filepath.Join(dir, info.Name)
		if f.files[name], err = fs.ReadFile(disk, name); err != nil {
			t.Fatal(err)
		}
		if len(wal.Batches(f.files[name])) > 1 {
			f.names = append(f.names, name)
		}
	}
	slices.Sort(f.names)
	return f
}

// open opens the log with other bytes in one of its files. It is refused as CORRUPT, and nothing is changed on disk; or
// all is there.
func (f *flipLog) open(t *testing.T, name string, b []byte) (refused error) {
	t.Helper()
	disk := fs.NewMem()
	must(t, disk.MkdirAll(dir))
	for n, whole := range f.files {
		if n == name {
			whole = b
		}
		must(t, fs.WriteFile(disk, n, whole))
	}
	before := contents(t, disk)
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, SegmentBytes: f.segment})
	if err != nil {
		if !errors.Is(err, proto.ErrCorrupt) || !maps.EqualFunc(before, contents(t, disk), bytes.Equal) {
			t.Fatalf("refused with %v; nothing changed: %v", err, maps.EqualFunc(before, contents(t, disk), bytes.Equal))
		}
		return err
	}
	for id, m := range f.groups {
		if d := differ(l.Group(uint32(id)), m, m.reach()); d != "" {
			t.Fatalf("it opened, and of group %d %s", id, d)
		}
	}
	must(t, l.Close())
	return nil
}

// TestEveryBitOfEverySection inverts bits of each section of each segment of a log that was closed in order: all 8 of
// each byte with EBB_FLIPS=all, else one of some bytes. The log is refused, and the error names file and offset. Only
// damage that takes nothing away goes unseen. It is in padding, which is never read, or in marks, which say that what
// is there is all.
func TestEveryBitOfEverySection(t *testing.T) {
	f := newFlipLog(t)
	step, bits := 1, 8
	if os.Getenv("EBB_FLIPS") != "all" {
		step, bits = 7, 1
	}
	if testing.Short() {
		step = 61
	}
	if len(f.names) < 3 {
		t.Fatal("too few segments", f.names)
	}
	type count struct{ sections, flips, refused int }
	counts := map[string]*count{}
	for _, name := range f.names {
		for _, s := range wal.Sections(f.files[name]) {
			c := counts[s.Name]
			if c == nil {
				c = &count{}
				counts[s.Name] = c
			}
			c.sections++
			for at := s.From + (s.From/7)%step*min(1, (s.To-s.From)/step); at < s.To; at += step {
				for bit := range bits {
					b := bytes.Clone(f.files[name])
					b[at] ^= 1 << ((bit + at) % 8)
					c.flips++
					switch err := f.open(t, name, b); {
					case err == nil && s.Name != "padding" && s.Name != "mark":
						t.Errorf("%s of %s: byte %d of %d is another, and nobody sees it", s.Name, name, at-s.From, s.To-s.From)
					case err != nil && (!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "offset")):
						t.Errorf("%s of %s: %v", s.Name, name, err)
					case err != nil:
						c.refused++
					}
				}
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%-15s %5d sections, %6d flips: %6d refused, %5d without effect", kind, counts[kind].sections, counts[kind].flips, counts[kind].refused, counts[kind].flips-counts[kind].refused)
	}
}

// FuzzDamage: whatever one byte of a log becomes, or however much of a file is gone, the log is refused or all of it is
// there.
func FuzzDamage(f *testing.F) {
	log := newFlipLog(f)
	f.Add(byte(0), uint16(3), byte(1), uint16(0))
	f.Add(byte(1), uint16(40), byte(255), uint16(0))
	f.Add(byte(2), uint16(2000), byte(0), uint16(5))
	f.Fuzz(func(t *testing.T, file byte, at uint16, flip byte, cut uint16) {
		name := log.names[int(file)%len(log.names)]
		b := bytes.Clone(log.files[name])
		b[int(at)%len(b)] ^= flip
		b = b[:len(b)-int(cut)%len(b)]
		log.open(t, name, b)
	})
}
