package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// A crash test runs groups side by side, each doing what raft would, one
// operation after another. At a failpoint the power goes, or the process. What
// is found afterwards must be, for each group, the state after the last
// acknowledged operation, or that after the one that was under way: nothing
// else is lost, nothing invented, nothing half done.
type crashTest struct {
	point string
	hit   int
	seed  uint64
	cut   func(disk *fs.Mem, seed uint64) *fs.Mem
}

const crashGroups = 4

// history is what one group did.
type history struct {
	acked   *model
	pending *model // with the operation under way, which failed
	op      operation
}

func (c crashTest) run(t *testing.T) {
	disk := fs.NewMem()
	var points fail.Points
	var after atomic.Pointer[fs.Mem]
	l, err := wal.Open(wal.Config{FS: disk, Dir: dir, EndFile: endName, SegmentBytes: 4 << 10, TailBytes: 2 << 10, Fail: &points})
	must(t, err)
	points.Arm(c.point, c.hit, fail.Kill(func() { after.Store(c.cut(disk, c.seed)) }))
	histories := workload(l, c.seed, 60, &points)
	_ = l.Close()
	if after.Load() == nil { // it got through: then die now
		after.Store(c.cut(disk, c.seed))
	}
	found, err := wal.Open(wal.Config{FS: after.Load(), Dir: dir, EndFile: endName, SegmentBytes: 4 << 10, TailBytes: 2 << 10})
	must(t, err)
	for id, h := range histories {
		h.check(t, found.Group(uint32(id)))
	}
	// What was seen once is durable: raft may have built on it already.
	after.Store(after.Load().Crash(c.seed + 1))
	_ = found.Close()
	found, err = wal.Open(wal.Config{FS: after.Load(), Dir: dir, EndFile: endName, SegmentBytes: 4 << 10, TailBytes: 2 << 10})
	must(t, err)
	for id, h := range histories {
		if d := differ(found.Group(uint32(id)), h.acked, h.acked.reach()); d != "" {
			t.Fatalf("group %d, seen and then lost: %s", id, d)
		}
	}
	// The log continues from there, and a second opening sees the same and more.
	for id, h := range histories {
		g := found.Group(uint32(id))
		last, _ := g.LastIndex()
		must(t, g.StoreLog(entry(last+1, 99, 10)))
		must(t, h.acked.StoreLog(entry(last+1, 99, 10)))
	}
	must(t, found.Close())
	found, err = wal.Open(wal.Config{FS: after.Load(), Dir: dir, EndFile: endName, SegmentBytes: 4 << 10})
	must(t, err)
	for id, h := range histories {
		if d := differ(found.Group(uint32(id)), h.acked, h.acked.reach()); d != "" {
			t.Fatalf("group %d, opened twice: %s", id, d)
		}
	}
	must(t, found.Close())
}

// workload runs the groups until each has done its operations or the log fails.
func workload(l *wal.Log, seed uint64, operations int, points *fail.Points) []*history {
	histories := make([]*history, crashGroups)
	var wg sync.WaitGroup
	for id := range histories {
		h := &history{acked: newModel()}
		histories[id] = h
		wg.Go(func() { h.work(l.Group(uint32(id)), rand.New(rand.NewPCG(seed, uint64(id))), operations) })
	}
	// After a failure the calls block until Close, as they must.
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-l.Failed():
		_ = l.Close()
		<-done
	}
	return histories
}

// work does operations one by one. The log's answer to CurrentTerm after a
// failure ends the goroutine, so the one under way is noted first.
func (h *history) work(g *wal.Group, r *rand.Rand, operations int) {
	for range operations {
		h.op = draw(r, h.acked)
		h.pending = h.acked.clone()
		if err := h.op.do(h.pending); err != nil {
			panic(err)
		}
		if err := h.op.do(g); err != nil {
			return
		}
		h.acked, h.pending = h.pending, nil
	}
}

// check compares a group with what may have become of it.
func (h *history) check(t *testing.T, g *wal.Group) {
	t.Helper()
	d := differ(g, h.acked, h.acked.reach())
	if d == "" {
		h.pending = nil
		return
	}
	if h.pending == nil {
		t.Fatalf("group %d lost what was acknowledged: %s", g.ID(), d)
	}
	if d2 := differ(g, h.pending, max(h.acked.reach(), h.pending.reach())); d2 != "" {
		t.Fatalf("group %d is neither before nor after %v: %s; %s", g.ID(), h.op, d, d2)
	}
	h.acked, h.pending = h.pending, nil
}

func powerCut(disk *fs.Mem, seed uint64) *fs.Mem { return disk.Crash(seed) }
func killed(disk *fs.Mem, _ uint64) *fs.Mem      { return disk.Kill() }

// hits runs the workload undisturbed and returns how often it passes each point.
func hits(t *testing.T) map[string]int {
	var points fail.Points
	points.Record()
	l, err := wal.Open(wal.Config{FS: fs.NewMem(), Dir: dir, EndFile: endName, SegmentBytes: 4 << 10, Fail: &points})
	must(t, err)
	workload(l, 1, 60, &points)
	must(t, l.Close())
	return points.Hits()
}

// TestKillAtEveryFailpoint dies at every failpoint, early and late, by losing
// power and by losing the process.
func TestKillAtEveryFailpoint(t *testing.T) {
	all := hits(t)
	want := []string{
		"wal.applied", "wal.create", "wal.create.rename", "wal.create.sync", "wal.create.syncdir", "wal.mark",
		"wal.remove", "wal.remove.syncdir", "wal.roll", "wal.rolled", "wal.seal", "wal.seal.sync", "wal.sync", "wal.synced", "wal.write",
	}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Fatalf("failpoints hit: %v", got)
	}
	seeds := uint64(30)
	if testing.Short() {
		seeds = 4
	}
	for _, name := range want {
		t.Run(name, func(t *testing.T) {
			for seed := range seeds {
				// Early and late; a few run past the workload's end.
				hit := 1 + int(rand.New(rand.NewPCG(seed, 7)).Uint64N(uint64(max(1, all[name]*2/3))))
				for how, cut := range map[string]func(*fs.Mem, uint64) *fs.Mem{"power": powerCut, "process": killed} {
					t.Run(fmt.Sprintf("%s hit=%d seed=%d", how, hit, seed), func(t *testing.T) {
						crashTest{name, hit, seed, cut}.run(t)
					})
				}
			}
		})
	}
}

// TestVoteIsNeverMixed: dying anywhere in a vote leaves the old vote or the new
// one, never the term of one with the candidate of the other. With the vote
// stored in two writes (raft #661) the test finds a mixed one.
func TestVoteIsNeverMixed(t *testing.T) {
	if mixed := mixedVotes(t, false); mixed != 0 {
		t.Fatalf("%d mixed votes", mixed)
	}
	if mixed := mixedVotes(t, true); mixed == 0 {
		t.Fatal("the fault that this contains was not seen")
	}
}

func mixedVotes(t *testing.T, split bool) (mixed int) {
	for _, point := range []string{"wal.write", "wal.sync", "wal.synced", "wal.applied", "wal.mark"} {
		for hit := 1; hit <= 6; hit++ {
			for seed := range uint64(8) {
				disk := fs.NewMem()
				var points fail.Points
				l := open(t, disk, func(c *wal.Config) { c.Fail, c.Fatal = &points, nil })
				if split {
					wal.SplitVote(l)
				}
				var after *fs.Mem
				g := l.Group(1)
				must(t, voteOp(2, "ebb-0/1").do(g))
				points.Arm(point, hit, fail.Kill(func() { after = disk.Crash(seed) }))
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = voteOp(3, "ebb-1/2").do(g)
					_ = voteOp(4, "ebb-2/3").do(g)
				}()
				select {
				case <-done:
				case <-l.Failed():
				}
				_ = l.Close()
				<-done
				if after == nil {
					continue
				}
				l = open(t, after)
				term, _ := l.Group(1).GetUint64([]byte("LastVoteTerm"))
				candidate, _ := l.Group(1).Get([]byte("LastVoteCand"))
				if !slices.Contains([]string{"2 ebb-0/1", "3 ebb-1/2", "4 ebb-2/3"}, fmt.Sprintf("%d %s", term, candidate)) {
					mixed++
				}
				must(t, l.Close())
			}
		}
	}
	return mixed
}

// written makes a log of some segments and returns its disk, what it holds, and
// its segments, oldest first.
func written(t *testing.T, operations int) (*fs.Mem, []*history, []string) {
	disk := fs.NewMem()
	l := open(t, disk, func(c *wal.Config) { c.SegmentBytes = 4 << 10 })
	histories := workload(l, 5, operations, nil)
	must(t, l.Close())
	infos, err := disk.ReadDir(dir)
	must(t, err)
	var names []string
	for _, info := range infos {
		b, err := fs.ReadFile(disk, filepath.Join(dir, info.Name))
		must(t, err)
		if len(wal.Batches(b)) > 1 {
			names = append(names, filepath.Join(dir, info.Name))
		}
	}
	return disk, histories, names
}

// TestTornTailAtEveryByte tears the last batch at every byte: zeros or garbage
// follow, in a file as long as before. The log opens without that batch, nothing
// before it is gone, and the file is still as long.
func TestTornTailAtEveryByte(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	m := newModel()
	g := l.Group(3)
	for i := uint64(1); i <= 5; i++ {
		must(t, errors.Join(g.StoreLog(entry(i, 1, 50)), m.StoreLog(entry(i, 1, 50))))
	}
	must(t, g.StoreLogs([]*raftLog{entry(6, 1, 40), entry(7, 1, 40)}))
	must(t, l.Close())
	name := filepath.Join(dir, "0000000001.wal")
	whole, err := fs.ReadFile(disk, name)
	must(t, err)
	starts := wal.Batches(whole)
	from, to := starts[len(starts)-2], starts[len(starts)-1]
	for at := from; at < to; at++ {
		for _, fill := range []byte{0, 0xa5} {
			torn := slices.Clone(whole)
			for i := at; i < len(torn); i++ {
				torn[i] = 0
				if i < to {
					torn[i] = fill
				}
			}
			must(t, fs.WriteFile(disk, name, torn))
			l := open(t, disk)
			if d := differ(l.Group(3), m, 9); d != "" && at < to-7 { // the last bytes may be padding
				t.Fatalf("torn at byte %d of %d: %s", at-from, to-from, d)
			}
			must(t, l.Close())
			left, err := fs.ReadFile(disk, name)
			must(t, err)
			ends := wal.Batches(left)
			if rest := left[ends[len(ends)-1]+wal.BatchHeaderLen:]; bytes.ContainsFunc(rest, func(r rune) bool { return r != 0 }) {
				t.Fatalf("torn at byte %d: the torn bytes are still there", at-from)
			}
			if len(left) != len(whole) {
				t.Fatalf("torn at byte %d: %d bytes are left of %d", at-from, len(left), len(whole))
			}
			l = open(t, disk)
			last, _ := l.Group(3).LastIndex()
			must(t, l.Group(3).StoreLog(entry(last+1, 2, 30)))
			must(t, l.Close())
		}
	}
}

func contents(t *testing.T, disk fs.FS) map[string][]byte {
	infos, err := disk.ReadDir(dir)
	must(t, err)
	all := map[string][]byte{}
	for _, info := range infos {
		all[info.Name], err = fs.ReadFile(disk, filepath.Join(dir, info.Name))
		must(t, err)
	}
	return all
}

// TestMissingSegmentIsFound removes each segment that is not the last in turn.
func TestMissingSegmentIsFound(t *testing.T) {
	disk, _, names := written(t, 40)
	for i, name := range names[:len(names)-1] {
		b, err := fs.ReadFile(disk, name)
		must(t, err)
		must(t, disk.Remove(name))
		if _, err := wal.Open(wal.Config{FS: disk, Dir: dir}); !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), "missing") {
			t.Fatalf("segment %d of %d: %v", i, len(names), err)
		}
		must(t, fs.WriteFile(disk, name, b))
	}
	l := open(t, disk)
	must(t, l.Close())
}
