package snap_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
)

func itemsOf(chunks [][]byte) (items []snap.Item) {
	for _, c := range chunks {
		items = append(items, snap.Item{Hash: snap.HashOf(c), Length: uint32(len(c))})
	}
	return items
}

// deliver has a snapshot arrive: at most so many of its chunks come. It returns how many came.
func deliver(s *snap.Store, index uint64, most int) (came int, err error) {
	chunks := chunksOf(index)
	a, err := s.Arrive(index, index/10+1, itemsOf(chunks))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	for i, c := range chunks {
		if a.Has(i) {
			continue
		}
		if came == most {
			return came, errors.New("it broke off")
		}
		if err := a.Put(c); err != nil {
			return came, err
		}
		came++
	}
	content, err := a.Whole()
	if err != nil {
		return came, err
	}
	if err := content.Close(); err != nil {
		return came, err
	}
	return came, adopt(s, index, a.Ready())
}

// adopt does what raft does with a snapshot that was sent to it.
func adopt(s *snap.Store, index uint64, sign []byte) error {
	k, err := s.Create(1, index, index/10+1, configuration, index-1, nil)
	if err != nil {
		return err
	}
	if _, err := k.Write(sign); err != nil {
		return errors.Join(err, k.Cancel())
	}
	return k.Close()
}

// TestArrivals: of a snapshot only that comes which is not here, of older snapshots or of an attempt that broke off.
func TestArrivals(t *testing.T) {
	var count snap.Counts
	disk := fs.NewMem()
	counted := func(c *snap.Config) { c.Count = &count }
	s := open(t, disk, counted)
	arrive := func(index uint64, most, want int) {
		t.Helper()
		if came, err := deliver(s, index, most); came != want || (err != nil) != (came == most) {
			t.Fatalf("%d chunks of snapshot %d came, want %d: %v", came, index, want, err)
		}
	}
	arrive(12, 5, 5)
	arrive(12, 4, 4)
	arrive(13, 100, 12-9+1) // a newer one: of the chunks that came, the first has changed
	if got := indexes(t, s); !slices.Equal(got, []uint64{13}) {
		t.Fatal(got)
	}
	arrive(14, 100, 3) // 1, 2 and 7
	arrive(15, 1, 1)
	s = open(t, disk.Crash(1), counted)
	disk = nil
	if got := indexes(t, s); !slices.Equal(got, []uint64{14, 13}) { // so its newest is sound
		t.Fatal(got)
	}
	a, err := s.Arrive(15, 2, itemsOf(chunksOf(15)))
	must(t, err)
	if !a.Has(0) {
		t.Error("what had arrived before the power failed is to come again")
	}
	must(t, a.Close())
	if _, err := deliver(s, 15, 100); err != nil {
		t.Fatal(err)
	}
	must(t, take(s, 16))
	if got := indexes(t, s); !slices.Equal(got, []uint64{16, 15}) {
		t.Fatal(got)
	}
	if count.Reused.Load() == 0 {
		t.Error("nothing was reused")
	}
}

// TestArrivalsRefuse: what is not as the list says, what comes while another does, and a snapshot that raft writes
// itself at that time.
func TestArrivalsRefuse(t *testing.T) {
	s := open(t, fs.NewMem())
	chunks := chunksOf(12)
	a, err := s.Arrive(12, 2, itemsOf(chunks))
	must(t, err)
	if _, err := s.Arrive(13, 2, itemsOf(chunksOf(13))); !errors.Is(err, proto.ErrOverloaded) {
		t.Errorf("a second one at a time: %v", err)
	}
	if err := a.Put(chunks[1]); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("a chunk out of order: %v", err)
	}
	altered := bytes.Clone(chunks[0])
	altered[len(altered)/2] ^= 1
	if err := a.Put(altered); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("a chunk of the right length with a bit flipped: %v", err)
	}
	if _, err := a.Whole(); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("none of its chunks is here: %v", err)
	}
	for _, c := range chunks {
		must(t, a.Put(c))
	}
	if err := a.Put(chunks[0]); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("one chunk more: %v", err)
	}
	content, err := a.Whole()
	must(t, err)
	must(t, content.Close())
	a.Ready()
	if err := take(s, 12); err == nil {
		t.Error("raft's own content was taken for what has arrived")
	}
	must(t, a.Close())
	if l, err := s.List(); len(l) > 0 || err != nil {
		t.Fatal(l, err)
	}
	if came, err := deliver(s, 12, 100); came != 0 || err != nil {
		t.Fatalf("%d chunks came again: %v", came, err)
	}
	if _, err := s.Arrive(13, 2, []snap.Item{{Length: 1 << 30}}); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("a chunk of a gigabyte: %v", err)
	}
}

// TestFailedSyncOfAnArrival: what has arrived can be read after its sync failed, and is not on the disk. A snapshot
// that continues from there is on the disk, in this process and the next.
func TestFailedSyncOfAnArrival(t *testing.T) {
	for seed := range uint64(20) {
		for _, restart := range []bool{false, true} {
			disk := fs.NewMem()
			s := open(t, disk)
			disk.Inject(func(op fs.Op, name string) error {
				if op == fs.OpSync && strings.HasSuffix(name, ".part") {
					return syscall.EIO
				}
				return nil
			})
			if came, err := deliver(s, 12, 6); came != 6 || !errors.Is(err, syscall.EIO) {
				t.Fatalf("%d chunks came: %v", came, err)
			}
			disk.Inject(nil)
			if restart {
				disk = disk.Kill()
				s = open(t, disk)
			}
			if came, err := deliver(s, 12, 100); came != 6 || err != nil {
				t.Fatalf("%d chunks came: %v", came, err)
			}
			s = open(t, disk.Crash(seed))
			l, err := s.List()
			if len(l) != 1 || err != nil {
				t.Fatalf("seed %d, restart %v: after the power went there are %d snapshots: %v", seed, restart, len(l), err)
			}
			if got := read(t, s, l[0].ID); !bytes.Equal(got, contentOf(12)) {
				t.Fatalf("seed %d, restart %v: after the power went %d bytes of the snapshot are there, of %d", seed, restart, len(got), len(contentOf(12)))
			}
		}
	}
}

// TestArrivalLetGoBeforeItIsTaken: what raft was told to write in place of the content is no content, if by then there
// is nothing that it stands for.
func TestArrivalLetGoBeforeItIsTaken(t *testing.T) {
	s := open(t, fs.NewMem())
	a, err := s.Arrive(12, 2, itemsOf(chunksOf(12)))
	must(t, err)
	for _, c := range chunksOf(12) {
		must(t, a.Put(c))
	}
	content, err := a.Whole()
	must(t, err)
	must(t, content.Close())
	sign := a.Ready()
	must(t, a.Close()) // the connection broke
	if err := adopt(s, 12, sign); err == nil {
		t.Error("a snapshot was made of what stands for one")
	}
	if got := indexes(t, s); len(got) > 0 {
		t.Errorf("there are snapshots of %v", got)
	}
}

// TestArrivalsThatNeverCome leave no more behind than the last of them brought.
func TestArrivalsThatNeverCome(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	for index := range uint64(20) {
		var chunks [][]byte
		for i := range byte(8) {
			chunks = append(chunks, bytes.Repeat([]byte{byte(index), i}, 1000))
		}
		a, err := s.Arrive(index+1, 2, itemsOf(chunks))
		must(t, err)
		for _, c := range chunks[:7] {
			must(t, a.Put(c))
		}
		must(t, a.Close())
	}
	infos, err := disk.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		if info.Size > 2*8*2024 {
			t.Errorf("%s has %d bytes, and the last snapshot on its way had 16,000", info.Name, info.Size)
		}
	}
	if len(infos) != 1 {
		t.Errorf("%d files, want what arrived", len(infos))
	}
}

// TestDamagedArrivals flips each byte of what has arrived: those chunks come again.
func TestDamagedArrivals(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	if came, err := deliver(s, 12, 8); came != 8 || err == nil {
		t.Fatal(came, err)
	}
	part := filepath.Join(dir, "arriving.part")
	info, err := disk.Stat(part)
	must(t, err)
	whole, err := fs.ReadFile(disk, part)
	must(t, err)
	for at := range info.Size {
		disk := fs.NewMem()
		s := open(t, disk)
		must(t, fs.WriteFile(disk, part, whole))
		must(t, disk.FlipByte(part, at, uint(at)))
		if came, err := deliver(s, 12, 100); came < 5 || err != nil {
			t.Fatalf("byte %d: %d chunks came: %v", at, came, err)
		}
		if got := indexes(t, s); !slices.Equal(got, []uint64{12}) {
			t.Fatalf("byte %d: %v", at, got)
		}
	}
	t.Logf("%d flips of what has arrived of a snapshot: the chunks came again each time", info.Size)
}

// TestKillWhileArriving: whatever the moment, what has arrived is whole or comes again, and snapshots that were there
// stay.
func TestKillWhileArriving(t *testing.T) {
	story := func(s *snap.Store) (acked uint64) {
		if take(s, 12) == nil {
			acked = 12
		}
		_, _ = deliver(s, 15, 2)
		for _, index := range []uint64{15, 18} {
			if _, err := deliver(s, index, 100); err == nil {
				acked = index
			}
		}
		return acked
	}
	var points fail.Points
	points.Record()
	if acked := story(open(t, fs.NewMem(), func(c *snap.Config) { c.Fail = &points })); acked != 18 {
		t.Fatal(acked)
	}
	for name, hits := range points.Hits() {
		for hit := 1; hit <= hits; hit++ {
			for seed := range uint64(6) {
				var points fail.Points
				disk := fs.NewMem()
				s := open(t, disk, func(c *snap.Config) { c.Fail = &points })
				var after *fs.Mem
				points.Arm(name, hit, fail.Kill(func() { after = disk.Crash(seed) }))
				acked := story(s)
				what := fmt.Sprintf("%s %d seed %d", name, hit, seed)
				if after == nil {
					t.Fatal(what, "was not reached")
				}
				s = open(t, after)
				indexes(t, s) // all that is listed is whole
				if newest, _ := s.Newest(); newest < acked {
					t.Fatalf("%s: %d is there, %d was acknowledged", what, newest, acked)
				}
				if bad := setAside(t, after); len(bad) > 0 {
					t.Fatalf("%s: damaged %v", what, bad)
				}
				if _, err := deliver(s, 21, 100); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				l, err := s.List()
				must(t, err)
				if !bytes.Equal(read(t, s, l[0].ID), contentOf(21)) {
					t.Fatal(what)
				}
			}
		}
	}
}

// FuzzPart: whatever lies where a snapshot arrives, it arrives.
func FuzzPart(f *testing.F) {
	disk := fs.NewMem()
	_, _ = deliver(open(f, disk), 12, 3)
	part := filepath.Join(dir, "arriving.part")
	some, err := fs.ReadFile(disk, part)
	must(f, err)
	f.Add(some)
	f.Add(some[:len(some)-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, file []byte) {
		disk := fs.NewMem()
		s := open(t, disk)
		must(t, fs.WriteFile(disk, part, file))
		if _, err := deliver(s, 12, 100); err != nil {
			t.Fatal(err)
		}
		if got := indexes(t, s); !slices.Equal(got, []uint64{12}) {
			t.Fatal(got)
		}
	})
}
