package acked

import (
	"errors"
	"os"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

// What is remembered of a replica only grows, by term first.
func TestMarksOnlyGrow(t *testing.T) {
	m := new(Memory)
	g := m.Group(3)
	for _, c := range []struct{ saw, want Mark }{
		{Mark{Position{2, 10}, 2}, Mark{Position{2, 10}, 2}},
		{Mark{Position{1, 90}, 1}, Mark{Position{2, 10}, 2}},
		{Mark{Position{2, 12}, 1}, Mark{Position{2, 12}, 2}},
		{Mark{Ballot: 5}, Mark{Position{2, 12}, 5}},
		{Mark{Position{3, 11}, 3}, Mark{Position{3, 11}, 5}},
	} {
		g.Saw("ebb-1", 7, c.saw)
		if got := m.Of("ebb-1")[Replica{3, 7}]; got != c.want {
			t.Errorf("after %v: %v, want %v", c.saw, got, c.want)
		}
	}
	if all := m.Of("ebb-2"); len(all) > 0 {
		t.Errorf("of another node: %v", all)
	}
}

// What was saved is there again after a loss of power, but for replicas that are gone; and no bit of it is believed
// that was not written so.
func TestSavedMarks(t *testing.T) {
	const name = "/data/acknowledged"
	disk := fs.NewMem()
	if err := disk.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	everything := func(Replica) bool { return true }
	m, err := Load(disk, name, everything)
	if err != nil {
		t.Fatalf("without a file: %v", err)
	}
	m.Group(0).Saw("ebb-1", 2, Mark{Position{4, 40}, 5})
	m.Group(3).Saw("ebb-1", 7, Mark{Position{2, 10}, 2})
	m.Group(3).Saw("ebb-2", 8, Mark{Position{2, 9}, 2})
	if err := m.Save(disk, name); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(disk, name); err != nil {
		t.Fatal(err)
	}
	disk = disk.Crash(1)
	again, err := Load(disk, name, func(r Replica) bool { return r.ID != 8 })
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Of("ebb-1"); len(got) != 2 || got[Replica{0, 2}] != (Mark{Position{4, 40}, 5}) {
		t.Errorf("read again: %v", got)
	}
	if got := again.Of("ebb-2"); len(got) > 0 {
		t.Errorf("a replica that is gone is remembered: %v", got)
	}
	raw, err := fs.ReadFile(disk, name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			if _, err := decode(raw); !errors.Is(err, errDamaged) {
				t.Fatalf("bit %d of byte %d is inverted: %v", bit, i, err)
			}
			raw[i] ^= 1 << bit
		}
	}
	f, err := disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{99}, 1); err != nil {
		t.Fatal(err)
	}
	if damaged, err := Load(disk, name, everything); err == nil || len(damaged.Of("ebb-1")) > 0 {
		t.Errorf("a damaged file is read: %v", err)
	}
}

// Saw runs with each acknowledgement. It allocates nothing.
func TestSawAllocatesNothing(t *testing.T) {
	g := new(Memory).Group(1)
	g.Saw("ebb-1", 7, Mark{})
	index := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		index++
		g.Saw("ebb-1", 7, Mark{Position{1, index}, 1})
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSaw(b *testing.B) {
	g := new(Memory).Group(1)
	for i := range uint64(b.N) {
		g.Saw("ebb-1", 7, Mark{Position{1, i}, 1})
	}
}
