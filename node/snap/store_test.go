package snap_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
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
	for _, chunk := range chunksOf(index) {
		if _, err := k.Write(chunk); err != nil {
			return errors.Join(err, k.Cancel())
		}
	}
	return k.Close()
}

// chunksOf are a state's of an index: one changes at every index, another at every second, ...
func chunksOf(index uint64) (chunks [][]byte) {
	for i := uint64(1); i <= 12; i++ {
		chunks = append(chunks, bytes.Repeat(fmt.Appendf(nil, "%d of %d;", i, index-index%i), int(i)))
	}
	return chunks
}

func contentOf(index uint64) []byte { return bytes.Join(chunksOf(index), nil) }

// content reads all of a snapshot.
func content(s *snap.Store, id string) (*raft.SnapshotMeta, []byte, error) {
	meta, r, err := s.Open(id)
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(r)
	return meta, data, errors.Join(err, r.Close())
}

// indexes opens and verifies all that is listed.
func indexes(t *testing.T, s *snap.Store) []uint64 {
	t.Helper()
	metas, err := s.List()
	must(t, err)
	var found []uint64
	for _, m := range metas {
		meta, data, err := content(s, m.ID)
		must(t, err)
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
	disk.SetCapacity(700)
	if err := take(s, 100); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if infos, err := disk.ReadDir(dir); err != nil || len(infos) != 0 {
		t.Fatal(infos, err)
	}
	disk.SetCapacity(0)
	must(t, take(s, 100))
}

// TestEveryFlippedByteIsFound flips each byte of each section of each file in turn, all 8 bits of it with EBB_FLIPS=all
// and else one. The oldest file is there only for the chunks that newer snapshots have of it: a snapshot that is not as
// it was written is never served, the ones that do not need the byte are, and the next snapshot is sound.
func TestEveryFlippedByteIsFound(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	for _, index := range []uint64{12, 13, 14} {
		must(t, take(s, index))
	}
	infos, err := disk.ReadDir(dir)
	must(t, err)
	if len(infos) != 3 {
		t.Fatalf("files %v", infos)
	}
	bits := 1
	if os.Getenv("EBB_FLIPS") == "all" {
		bits = 8
	}
	sections := make([][]snap.Section, len(infos))
	for i, info := range infos {
		sections[i] = snap.Sections(t, disk, filepath.Join(dir, info.Name))
	}
	flips, refused := map[string]int{}, map[string]int{}
	for i, info := range infos {
		name, found := filepath.Join(dir, info.Name), 0
		for _, section := range sections[i] {
			for at := section.From; at < section.To; at++ {
				for bit := range bits {
					crashed := disk.Crash(uint64(at))
					must(t, crashed.FlipByte(name, at, uint(at)+uint(bit)))
					bad := readDamaged(t, crashed, fmt.Sprintf("%s byte %d", info.Name, at))
					if own := strings.TrimSuffix(info.Name, ".snap"); i > 0 && !slices.Contains(bad, own) {
						t.Fatalf("%s byte %d: opened", info.Name, at)
					}
					if flips[section.Name]++; len(bad) > 0 {
						refused[section.Name]++
						found++
					}
				}
			}
		}
		if found < bits*int(info.Size)/3 {
			t.Errorf("%s: %d of %d bytes are needed", info.Name, found, info.Size)
		}
	}
	for _, section := range slices.Sorted(maps.Keys(flips)) {
		t.Logf("%-11s of %d files, %6d flips: %6d refused, %5d of bytes that no snapshot needs any more", section, len(infos), flips[section], refused[section], flips[section]-refused[section])
	}
	if bad := readDamaged(t, disk.Crash(0), "without damage"); len(bad) > 0 {
		t.Fatal(bad)
	}
}

// readDamaged reads all snapshots on a disk with damage, takes another, and returns those that were refused.
func readDamaged(t *testing.T, disk fs.FS, what string) (bad []string) {
	t.Helper()
	var log bytes.Buffer
	s, err := snap.Open(snap.Config{FS: disk, Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for _, index := range []uint64{14, 13} {
		id := fmt.Sprintf("%020d-%020d-%d", index, 2, index-11)
		if _, data, err := content(s, id); err != nil {
			bad = append(bad, id)
		} else if !bytes.Equal(data, contentOf(index)) {
			t.Fatalf("%s: snapshot %d is served with other bytes", what, index)
		}
	}
	said := log.String()
	if n := strings.Count(said, "level=ERROR"); n < len(bad) || len(bad) == 0 && strings.Contains(said, "id="+fmt.Sprintf("%020d", 14)) {
		t.Fatalf("%s: an operator reads %q", what, said)
	}
	if err := take(s, 15); err != nil {
		t.Fatalf("%s: the next snapshot: %v", what, err)
	}
	l, err := s.List()
	must(t, err)
	if !bytes.Equal(read(t, s, l[0].ID), contentOf(15)) {
		t.Fatalf("%s: then there is snapshot %d", what, l[0].Index)
	}
	return bad
}

func TestEveryTruncationIsFound(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	must(t, take(s, 3))
	must(t, take(s, 4))
	infos, err := disk.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		name := filepath.Join(dir, info.Name)
		whole, err := fs.ReadFile(disk, name)
		must(t, err)
		for n := range len(whole) {
			must(t, fs.WriteFile(disk, name, whole[:n]))
			again := open(t, disk)
			l, err := again.List()
			must(t, err)
			if len(l) > 0 && (l[0].Index != 3 || info.Name == infos[0].Name) {
				t.Fatalf("%s cut to %d bytes: snapshot %d is listed", info.Name, n, l[0].Index)
			}
			for _, i := range infos { // as they were
				if bad := filepath.Join(dir, i.Name); exists(t, disk, bad+".bad") {
					must(t, disk.Rename(bad+".bad", bad))
				}
			}
		}
		must(t, fs.WriteFile(disk, name, whole))
	}
}

func exists(t *testing.T, disk fs.FS, name string) bool {
	t.Helper()
	ok, err := fs.Exists(disk, name)
	must(t, err)
	return ok
}

// TestOnlyWhatIsNewIsWritten: a snapshot writes the chunks that the one before has not, and is whole when all others
// are gone but those it names.
func TestOnlyWhatIsNewIsWritten(t *testing.T) {
	var count snap.Counts
	disk := fs.NewMem()
	s := open(t, disk, func(c *snap.Config) { c.Count = &count })
	state := make([][]byte, 400)
	rng := rand.New(rand.NewPCG(1, 2))
	change := func(i int) {
		state[i] = make([]byte, 1+rng.IntN(4000))
		for j := range state[i] {
			state[i][j] = byte(rng.Uint32())
		}
	}
	for i := range state {
		change(i)
	}
	var dirty, wrote, last int
	most := 0.0
	for index := range uint64(80) {
		for range rng.IntN(60) {
			i := rng.IntN(40 + int(index)*4) // some are never changed
			change(i)
			dirty += len(state[i])
		}
		content, list := len(bytes.Join(state, nil)), len(state)*30+2000
		before := count.Written.Load()
		must(t, write(s, index+1, state))
		if index == 0 {
			dirty, last = 0, 0
			continue
		}
		now := int(count.Written.Load() - before)
		dirty, wrote, most = dirty+list, wrote+now, max(most, float64(now)/float64(dirty-last+list))
		last = dirty
		if used, files := size(t, disk); used > 3*content+16*list || files > 18 {
			t.Fatalf("snapshot %d: %d files have %d bytes, of a state of %d", index, files, used, content)
		}
		if index%8 == 0 {
			s = open(t, disk, func(c *snap.Config) { c.Count = &count }) // its newest has been read below
		}
		l, err := s.List()
		must(t, err)
		if got := read(t, s, l[0].ID); !bytes.Equal(got, bytes.Join(state, nil)) {
			t.Fatalf("snapshot %d is another one", index)
		}
	}
	t.Logf("%d bytes written, of which %d were new or of lists, at most %.2f times as many at once; %d reused", wrote, dirty, most, count.Reused.Load())
	if wrote > dirty*6/5 || most > 1.5 {
		t.Errorf("%d bytes are written of which %d are new, at most %.2f times as many at once", wrote, dirty, most)
	}
}

func write(s *snap.Store, index uint64, state [][]byte) error {
	k, err := s.Create(1, index, 1, configuration, 1, nil)
	if err != nil {
		return err
	}
	for _, chunk := range state {
		if _, err := k.Write(chunk); err != nil {
			return errors.Join(err, k.Cancel())
		}
	}
	return k.Close()
}

func read(t *testing.T, s *snap.Store, id string) []byte {
	t.Helper()
	_, data, err := content(s, id)
	must(t, err)
	return data
}

func size(t *testing.T, disk fs.FS) (bytes, files int) {
	t.Helper()
	infos, err := disk.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		bytes += int(info.Size)
	}
	return bytes, len(infos)
}

// TestBuiltOnWhatGoes: the files that a snapshot builds on stay while it is written, though two newer ones have come
// since.
func TestBuiltOnWhatGoes(t *testing.T) {
	s := open(t, fs.NewMem())
	must(t, take(s, 12))
	k, err := s.Create(1, 23, 3, configuration, 22, nil)
	must(t, err)
	for index := uint64(13); index <= 22; index++ {
		must(t, take(s, index))
	}
	for _, chunk := range chunksOf(23) {
		_, err := k.Write(chunk)
		must(t, err)
	}
	must(t, k.Close())
	if got := indexes(t, s); !slices.Equal(got, []uint64{23, 22}) {
		t.Fatal(got)
	}
}

// TestDamageIsNotPassedOn: what was found damaged is written again by the next snapshot, and one that was begun before
// fails.
func TestDamageIsNotPassedOn(t *testing.T) {
	disk := fs.NewMem()
	s := open(t, disk)
	must(t, take(s, 12))
	must(t, take(s, 13))
	late, err := s.Create(1, 14, 2, configuration, 13, nil)
	must(t, err)
	_, err = late.Write(chunksOf(14)[11])
	must(t, err)
	l, err := s.List()
	must(t, err)
	must(t, disk.FlipByte(filepath.Join(dir, l[1].ID+".snap"), 16+100, 1)) // a chunk of both
	for _, m := range l {
		if _, _, err := content(s, m.ID); !errors.Is(err, proto.ErrCorrupt) {
			t.Errorf("snapshot %d: %v, want CORRUPT", m.Index, err)
		}
	}
	if err := late.Close(); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("a snapshot built on what is damaged: %v, want CORRUPT", err)
	}
	must(t, take(s, 15))
	must(t, take(s, 16))
	if got := indexes(t, s); !slices.Equal(got, []uint64{16, 15}) {
		t.Fatal(got)
	}
}

// FuzzOpen: a file of any bytes, together with one that it may name, is refused or read as far as its chunks are sound.
func FuzzOpen(f *testing.F) {
	disk := fs.NewMem()
	s := open(f, disk)
	must(f, take(s, 12))
	must(f, take(s, 13))
	infos, err := disk.ReadDir(dir)
	must(f, err)
	old, err := fs.ReadFile(disk, filepath.Join(dir, infos[0].Name))
	must(f, err)
	whole, err := fs.ReadFile(disk, filepath.Join(dir, infos[1].Name))
	must(f, err)
	f.Add(whole)
	f.Add(old)
	f.Add(whole[:len(whole)/2])
	f.Fuzz(func(t *testing.T, file []byte) {
		disk := fs.NewMem()
		must(t, fs.MakeDir(disk, dir))
		must(t, fs.WriteFile(disk, filepath.Join(dir, infos[0].Name), old))
		must(t, fs.WriteFile(disk, filepath.Join(dir, infos[1].Name), file))
		s, err := snap.Open(snap.Config{FS: disk, Dir: dir})
		if errors.Is(err, proto.ErrNewerVersion) {
			return
		}
		must(t, err)
		l, err := s.List()
		must(t, err)
		for _, m := range l {
			if _, data, err := content(s, m.ID); err == nil && int64(len(data)) != m.Size {
				t.Fatalf("%d bytes of %d", len(data), m.Size)
			}
		}
		must(t, take(s, 14))
	})
}

func TestNewerFormatIsRefused(t *testing.T) {
	disk := fs.NewMem()
	must(t, take(open(t, disk), 3))
	infos, err := disk.ReadDir(dir)
	must(t, err)
	snap.SetVersion(t, disk, filepath.Join(dir, infos[0].Name), 3)
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
	for i := uint64(1); i <= 7; i++ {
		must(t, take(s, i))
	}
	if n := len(points.Names()); n < 6 {
		t.Fatal(points.Names())
	}
	for name, hits := range points.Hits() {
		for hit := 1; hit <= hits; hit++ {
			for seed := range uint64(12) {
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
	for i := uint64(1); i <= 7; i++ {
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

// Of the snapshots that were set aside the last one stays for inspection.
func TestOneDamagedSnapshotIsKept(t *testing.T) {
	disk := fs.NewMem()
	s, err := snap.Open(snap.Config{FS: disk, Dir: "/snap"})
	must(t, err)
	last := ""
	for i := uint64(1); i <= 4; i++ {
		sink, err := s.Create(raft.SnapshotVersionMax, i, 1, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = fmt.Fprintf(sink, "state %d", i)
		must(t, err)
		must(t, sink.Close())
		last = "/snap/" + sink.ID() + ".snap"
		must(t, disk.FlipByte(last, 20, 3))
		if err := s.Verify(func(int) error { return nil }); !errors.Is(err, proto.ErrCorrupt) {
			t.Fatalf("snapshot %d: %v, want CORRUPT", i, err)
		}
	}
	infos, err := disk.ReadDir("/snap")
	must(t, err)
	if len(infos) != 1 || "/snap/"+infos[0].Name != last+".bad" {
		t.Errorf("there are %v, want %s.bad", infos, last)
	}
}
