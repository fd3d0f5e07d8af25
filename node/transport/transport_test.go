package transport

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testGroups = 8

func TestGroupsElectAndApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(20, w.names...)
		w.agree()
	})
}

// apply writes n values to each group through its leader among nodes.
func (w *world) apply(n int, nodes ...string) {
	w.t.Helper()
	for g := uint32(1); g <= testGroups; g++ {
		r := w.elect(g, nodes...)
		var futures []raft.ApplyFuture
		for i := range n {
			futures = append(futures, r.Apply(fmt.Appendf(nil, "%d/%d", g, i), time.Second))
		}
		for _, f := range futures {
			if err := f.Error(); err != nil {
				w.t.Fatalf("group %d: %v", g, err)
			}
		}
	}
}

// agree waits until all replicas of every group have applied the same.
func (w *world) agree() {
	w.t.Helper()
	within(w.t, 30*time.Second, "equal states everywhere", func() bool {
		for g := uint32(1); g <= testGroups; g++ {
			want := w.nodes[w.names[0]].rafts[g].fsm.all()
			for _, n := range w.names[1:] {
				if !slices.Equal(w.nodes[n].rafts[g].fsm.all(), want) {
					return false
				}
			}
		}
		return true
	})
}

func TestMajorityGoesOnWithoutANodeThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(5, w.names...)
		for range 3 {
			w.net.isolate("a", true, "b", "c")
			within(t, 10*time.Second, "node a leads nothing", func() bool {
				for g := uint32(1); g <= testGroups; g++ {
					if w.nodes["a"].rafts[g].State() == raft.Leader {
						return false
					}
				}
				return true
			})
			w.apply(5, "b", "c")
			w.net.isolate("a", false, "b", "c")
			w.agree()
		}
	})
}

func TestOneWayCutIsNoticedAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(5, w.names...)
		w.net.cut("a", "b", true) // b hears nothing from a
		time.Sleep(10 * time.Second)
		w.net.cut("a", "b", false)
		w.apply(5, w.names...)
		w.agree()
	})
}

func TestRestartedNodeCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(5, w.names...)
		before := w.nodes["c"]
		before.stop()
		w.net.reset("c")
		delete(w.nodes, "c")
		w.apply(5, "a", "b")
		after := w.start("c", nil)
		for g := uint32(1); g <= testGroups; g++ {
			after.again(g, before.rafts[g])
		}
		w.apply(5, w.names...)
		w.agree()
	})
}

// again starts a replica on the stores that an earlier one left.
func (n *testNode) again(group uint32, old *testRaft) *testRaft {
	n.w.t.Helper()
	cfg := raftConfig(fmt.Sprint(old.group.replica))
	r := &testRaft{group: n.Group(group, old.group.local), fsm: &testFSM{}, store: old.store, snaps: old.snaps}
	var err error
	if r.Raft, err = raft.NewRaft(cfg, r.fsm, r.store, r.store, r.snaps, r.group); err != nil {
		n.w.t.Fatal(err)
	}
	n.rafts[group] = r
	return r
}

func TestLaggardGetsASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(1, w.names...)
		w.net.isolate("c", true, "a", "b")
		big := make([]byte, 200<<10) // several chunks in all
		for g := uint32(1); g <= testGroups; g++ {
			r := w.elect(g, "a", "b")
			for range 12 {
				if err := r.Apply(big, time.Second).Error(); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
			if first, _ := r.store.FirstIndex(); first < 3 {
				t.Fatalf("group %d still has entry %d: no snapshot will be needed", g, first)
			}
		}
		w.net.isolate("c", false, "a", "b")
		w.agree()
		for g := uint32(1); g <= testGroups; g++ {
			if list, _ := w.nodes["c"].rafts[g].snaps.List(); len(list) == 0 {
				t.Errorf("group %d: node c has caught up without a snapshot", g)
			}
		}
	})
}

func TestLeadershipTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(3, w.names...)
		w.agree()
		for g := uint32(1); g <= testGroups; g++ {
			for _, to := range w.names {
				r, target := w.elect(g, w.names...), w.nodes[to].rafts[g]
				if r == target {
					continue
				}
				start := time.Now()
				if err := r.LeadershipTransferToServer(raft.ServerID(fmt.Sprint(target.group.replica)), target.group.local).Error(); err != nil {
					t.Fatal(err)
				}
				if got := w.elect(g, w.names...); got != target {
					t.Fatalf("group %d went to %s", g, got.group.local)
				}
				if d := time.Since(start); d > 300*time.Millisecond {
					t.Errorf("group %d took %s to move", g, d)
				}
			}
		}
		w.apply(3, w.names...)
		w.agree()
	})
}

// A follower far behind is sent more than a frame holds at a time.
func TestEntriesBeyondAFrameGoInSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(testGroups)
		w.apply(1, w.names...)
		w.net.isolate("c", true, "a", "b")
		r := w.elect(1, "a", "b")
		for i := range 40 {
			if err := r.Apply(append(fmt.Append(nil, i), make([]byte, 60<<10)...), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
		}
		w.net.isolate("c", false, "a", "b")
		w.agree()
		if got := len(w.nodes["c"].rafts[1].fsm.all()); got != 41 {
			t.Fatalf("node c has applied %d entries, want 41", got)
		}
	})
}
