package shard

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// A binTable under churn finds what is there and nothing else, and gives
// back what it does not need; a frozen one stays what it was.
func TestDictionaryChurn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	d := newBinTable(Heap{})
	epoch := uint32(1)
	ids := map[string]uint32{}
	var frozen binTable
	var kept map[string]uint32
	text := func() string {
		i := r.IntN(6000)
		return fmt.Sprintf("%d%s", i, strings.Repeat("x", i*7%nameLenMax/2))
	}
	for round := range 60_000 {
		name := text()
		tag := tagOf([]byte(name), 5)
		id, found := d.find(tag, []byte(name))
		want, known := ids[name]
		if found != known || found && id != want {
			t.Fatalf("%q: found %v as %d, want %v as %d", name, found, id, known, want)
		}
		growing := round/15_000%2 == 0
		switch {
		case !found && (growing || r.IntN(4) == 0):
			ids[name] = d.add(tag, []byte(name), epoch)
		case found && (!growing || r.IntN(4) == 0):
			d.drop(id, tag, epoch)
			delete(ids, name)
		}
		if round%10_000 == 5_000 {
			frozen, kept = d.frozen(), map[string]uint32{}
			for name, id := range ids {
				kept[name] = id
			}
			epoch++
		}
		if round%2_000 == 0 {
			auditBinTable(t, &d)
			auditFrozen(t, &frozen, kept)
		}
	}
	for name, id := range ids {
		if string(d.bytesOf(id)) != name {
			t.Fatalf("%q became %q", name, d.bytesOf(id))
		}
		d.drop(id, tagOf([]byte(name), 5), epoch)
	}
	auditBinTable(t, &d)
	if d.names.live != 0 || d.index.size != slotsPerPage {
		t.Fatalf("%d names, %d slots left", d.names.live, d.index.size)
	}
	auditFrozen(t, &frozen, kept)
}

func auditFrozen(t *testing.T, d *binTable, want map[string]uint32) {
	t.Helper()
	if int(d.names.live) != len(want) {
		t.Fatalf("a frozen binTable has %d names, had %d", d.names.live, len(want))
	}
	for name, id := range want {
		if found, ok := d.find(tagOf([]byte(name), 5), []byte(name)); !ok || found != id || string(d.bytesOf(id)) != name {
			t.Fatalf("a frozen binTable lost %q", name)
		}
	}
}

// The table distinguishes names with the same tag.
func TestIndexCollisions(t *testing.T) {
	d := newBinTable(Heap{})
	for i := range 300 {
		d.add(7, fmt.Append(nil, i), 1)
	}
	for i := 0; i < 300; i += 3 {
		id, ok := d.find(7, fmt.Append(nil, i))
		if !ok {
			t.Fatalf("%d is not found", i)
		}
		d.drop(id, 7, 1)
	}
	for i := range 300 {
		if _, ok := d.find(7, fmt.Append(nil, i)); ok == (i%3 == 0) {
			t.Fatalf("%d found: %v", i, ok)
		}
	}
}

// An index that grows and shrinks finds what is in it, wherever tags fall: also on the last slots, where probing
// continues at the first. It is never more than three quarters full. Once it has grown for a while, it is never less
// than two thirds full.
func TestIndexOfAnySize(t *testing.T) {
	for _, spread := range []struct {
		name string
		tag  func(i uint32) uint32
	}{
		{"even", func(i uint32) uint32 { return i * 2654435761 }},
		{"last", func(i uint32) uint32 { return ^(i % 1000) }},
	} {
		t.Run(spread.name, func(t *testing.T) {
			const n = 20_000
			x := index{slots: pages{mem: Heap{}}}
			check := func(from, to uint32) {
				t.Helper()
				for i := from; i < to; i += 7 {
					if _, ok := x.find(spread.tag(i), func(id uint32) bool { return id == i }); !ok {
						t.Fatalf("%d is not found among %d", i, x.used)
					}
				}
				if _, ok := x.find(spread.tag(n+1), func(id uint32) bool { return id == n+1 }); ok {
					t.Fatal("what was never inserted is found")
				}
			}
			for i := range uint32(n) {
				x.insert(spread.tag(i), i, 1)
				if x.used > x.size/4*3 || i > n/2 && x.used < x.size/3*2-slotsPerPage {
					t.Fatalf("%d of %d slots are in use", x.used, x.size)
				}
				if i%1000 == 999 && (spread.name == "even" || i < 3000) { // equal tags are looked at one after the other
					check(0, i)
				}
			}
			for i := range uint32(n) {
				x.remove(spread.tag(i), i, 1)
				if i%1000 == 999 && (spread.name == "even" || i > n-3000) {
					check(i+1, n)
				}
			}
			if x.used != 0 || x.size != slotsPerPage {
				t.Fatalf("%d of %d slots are left in use", x.used, x.size)
			}
		})
	}
}

// Pages that no view can see are given back when an index grows.
func TestIndexFreesPages(t *testing.T) {
	mem := &wiping{}
	x := index{slots: pages{mem: mem}}
	for i := range uint32(10_000) {
		x.insert(i*2654435761, i, 1)
	}
	if want := int(x.size / slotsPerPage); mem.out != want {
		t.Fatalf("%d pages are out, %d in use", mem.out, want)
	}
	frozen, release := x.frozen(), mem.Hold()
	for i := range uint32(10_000) {
		x.insert(i*2654435761+1, i+10_000, 2)
	}
	for i := range uint32(10_000) {
		if _, ok := frozen.find(i*2654435761, func(id uint32) bool { return id == i }); !ok {
			t.Fatalf("a frozen index lost %d", i)
		}
	}
	release()
	if want := int(x.size / slotsPerPage); mem.out != want {
		t.Fatalf("%d pages are out, %d in use", mem.out, want)
	}
}

// An index that is filled at once is as large as one that grew, finds what is in it, and knows when two ids have one
// name.
func TestIndexFilled(t *testing.T) {
	for _, tag := range []func(i uint32) uint32{
		func(i uint32) uint32 { return i * 2654435761 },
		func(i uint32) uint32 { return ^(i % 1000) }, // twenty of each, on the last slots
	} {
		for _, n := range []uint32{0, 1, 384, 385, 20_000} {
			x, grown := index{slots: pages{mem: Heap{}}}, index{slots: pages{mem: Heap{}}}
			var all []uint64
			for i := range n {
				all = append(all, slotOf(tag(i), i))
				grown.insert(tag(i), i, 1)
			}
			differ := func(uint32, uint32) bool { return false }
			if x.fill(all, 1, differ); x.used != n || x.size != grown.size {
				t.Fatalf("%d of %d slots are in use, and %d of %d where it grew", x.used, x.size, grown.used, grown.size)
			}
			for i := uint32(0); i < n; i += 7 {
				if _, ok := x.find(tag(i), func(id uint32) bool { return id == i }); !ok {
					t.Fatalf("%d is not found among %d", i, n)
				}
			}
			if n == 0 {
				continue
			}
			twice := index{slots: pages{mem: Heap{}}}
			if !twice.fill(append(all, slotOf(tag(n/2), n)), 1, func(id, other uint32) bool { return id == n && other == n/2 }) {
				t.Fatalf("%d ids, of which two have one name", n+1)
			}
		}
	}
}
