package acked

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

func TestBefore(t *testing.T) {
	for _, c := range []struct {
		p, q Position
		want bool
	}{
		{Position{2, 10}, Position{2, 11}, true},
		{Position{2, 10}, Position{2, 10}, false},
		{Position{2, 10}, Position{2, 9}, false},
		{Position{2, 10}, Position{3, 1}, true},
		{Position{3, 1}, Position{2, 10}, false},
	} {
		if got := c.p.Before(c.q); got != c.want {
			t.Errorf("%v before %v: %v", c.p, c.q, got)
		}
	}
}

// What is remembered of one node is not what is remembered of another, though their replicas have one id; all of it is
// in one order, so that equal memories are equal files.
func TestWire(t *testing.T) {
	m := new(Memory)
	for _, group := range []uint32{9, 2, 5, 1, 8} {
		m.Group(group).Saw("ebb-2", 7, Mark{Position{1, 20}, 1})
		m.Group(group).Saw("ebb-1", 4, Mark{Position{1, 10}, 1})
	}
	m.Group(2).Saw("ebb-3", 7, Mark{Position{1, 30}, 1})
	type place struct {
		group   uint32
		replica uint64
	}
	places := func(node string) (out []place) {
		for _, a := range m.Wire(node) {
			out = append(out, place{a.GetShard(), a.GetReplica()})
		}
		return out
	}
	for _, c := range []struct {
		node string
		want []place
	}{
		{"", []place{{1, 4}, {1, 7}, {2, 4}, {2, 7}, {2, 7}, {5, 4}, {5, 7}, {8, 4}, {8, 7}, {9, 4}, {9, 7}}},
		{"ebb-1", []place{{1, 4}, {2, 4}, {5, 4}, {8, 4}, {9, 4}}},
		{"ebb-3", []place{{2, 7}}},
		{"ebb-4", nil},
	} {
		if got := places(c.node); !slices.Equal(got, c.want) {
			t.Errorf("of %q: %v", c.node, got)
		}
	}
	if got := m.Of("ebb-2")[Replica{2, 7}].Index; got != 20 {
		t.Errorf("another node's replica counts: %d", got)
	}
}

// The file is written when something has changed, and only then; what could not be written is written later.
func TestSaveWritesChanges(t *testing.T) {
	const name = "/data/acknowledged"
	disk := fs.NewMem()
	if err := disk.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	writes, fault := 0, error(nil)
	disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpWrite {
			writes++
			return fault
		}
		return nil
	})
	m := new(Memory)
	save := func(what string, want bool) {
		t.Helper()
		writes = 0
		if err := m.Save(disk, name); !errors.Is(err, fault) || writes > 0 != want {
			t.Errorf("%s: %d writes, %v", what, writes, err)
		}
	}
	save("with nothing", false)
	m.Group(3).Saw("ebb-1", 7, Mark{Position{2, 10}, 2})
	m.Group(4).Saw("ebb-1", 8, Mark{Position{2, 10}, 2})
	save("something new", true)
	save("nothing new", false)
	m.Group(3).Saw("ebb-1", 7, Mark{Position{2, 9}, 2})
	save("something old", false)
	m.Group(3).Saw("ebb-1", 7, Mark{Position{2, 11}, 2})
	fault = syscall.EIO
	save("a disk that fails", true)
	fault = nil
	save("a disk that is well again", true)
	save("after that", false)
	var err error
	if m, err = Load(disk, name, func(Replica) bool { return true }); err != nil {
		t.Fatal(err)
	}
	save("what was just read", false)
	if got := m.Of("ebb-1")[Replica{3, 7}].Index; got != 11 {
		t.Errorf("read again: %d", got)
	}
}

// Nothing but a checksum is a file of nothing; less than a checksum is no file.
func TestDecodeOfNothing(t *testing.T) {
	if all, err := decode(make([]byte, sumBytes)); err != nil || len(all.GetReplicas()) > 0 {
		t.Errorf("a checksum alone: %v, %v", all, err)
	}
	if _, err := decode(make([]byte, sumBytes-1)); !errors.Is(err, errDamaged) {
		t.Errorf("less than that: %v", err)
	}
}
