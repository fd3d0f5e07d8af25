package acked

import (
	"testing"

	"github.com/ebbdb/ebb/node/fs"
)

// FuzzFile reads any bytes as what was saved: they are refused, or read the same after another round.
func FuzzFile(f *testing.F) {
	const name = "/data/acknowledged"
	everything := func(Replica) bool { return true }
	m := new(Memory)
	m.Group(3).Saw("ebb-1", 7, Mark{Position{2, 10}, 2})
	disk := fs.NewMem()
	if err := disk.MkdirAll("/data"); err != nil {
		f.Fatal(err)
	}
	if err := m.Save(disk, name); err != nil {
		f.Fatal(err)
	}
	raw, err := fs.ReadFile(disk, name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		disk := fs.NewMem()
		if err := disk.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		if err := fs.WriteFile(disk, name, raw); err != nil {
			t.Fatal(err)
		}
		read, err := Load(disk, name, everything)
		if err != nil {
			if all := read.Wire(""); len(all) > 0 {
				t.Fatalf("refused with %v, and has %v", err, all)
			}
			return
		}
		read.Group(1).Saw("ebb-9", 1, Mark{Ballot: 1})
		if err := read.Save(disk, name); err != nil {
			t.Fatal(err)
		}
		again, err := Load(disk, name, everything)
		if err != nil || len(again.Wire("")) != len(read.Wire("")) {
			t.Fatalf("read again: %v, %v and then %v", err, read.Wire(""), again.Wire(""))
		}
	})
}
