package node

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A group is thin when some of its voters are away and it could not do without
// one more. A whole group never is, however small: waiting would not make it larger.
func TestThin(t *testing.T) {
	for _, c := range []struct {
		voters, up int
		want       bool
	}{
		{1, 1, false},
		{2, 2, false},
		{2, 1, true},
		{3, 3, false},
		{3, 2, true},
		{3, 1, true},
		{4, 3, true},
		{5, 5, false},
		{5, 4, false},
		{5, 3, true},
		{7, 5, false},
		{7, 4, true},
	} {
		voters := []string{"ebb-0", "ebb-1", "ebb-2", "ebb-3", "ebb-4", "ebb-5", "ebb-6"}[:c.voters]
		alive := func(node string) bool { return slices.Index(voters, node) < c.up }
		if got := thin(voters, alive); got != c.want {
			t.Errorf("%d of %d voters up: thin = %v", c.up, c.voters, got)
		}
	}
}

func TestSeated(t *testing.T) {
	c := raft.Configuration{Servers: []raft.Server{
		{Suffrage: raft.Voter, ID: "1", Address: "ebb-0/1"}, {Suffrage: raft.Nonvoter, ID: "2", Address: "ebb-1/2"},
	}}
	for address, want := range map[raft.ServerAddress]bool{"ebb-0/1": true, "ebb-1/2": true, "ebb-1/3": false, "ebb-2/2": false, "": false} {
		if got := seated(c, address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}

// What is not the node's own work does not keep it from having started, and
// only serving makes it ready.
func TestStartupAndReadinessByPhase(t *testing.T) {
	n := &Node{cfg: Config{Name: "ebb-0"}, tables: newTables(nil), phase: newPhase(slog.New(slog.NewTextHandler(io.Discard, nil)))}
	n.groups.Store(&groups{})
	for _, c := range []struct {
		phase   string
		started bool
		ready   error
	}{
		{phaseStarting, false, proto.ErrStarting},
		{phaseJoining, true, proto.ErrStarting},
		{phaseRestoring, false, proto.ErrStarting},
		{phaseReplaying, true, proto.ErrStarting},
		{phaseServing, true, nil},
		{phaseStopping, true, proto.ErrShuttingDown},
	} {
		n.phase.enter(c.phase, "")
		if err := n.startup(); (err == nil) != c.started {
			t.Errorf("%s: startup: %v", c.phase, err)
		}
		if err := n.Readiness(); !errors.Is(err, c.ready) {
			t.Errorf("%s: readiness: %v, want %v", c.phase, err, c.ready)
		}
	}
}

// How long a node serves counts from the first time.
func TestServesFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPhase(slog.New(slog.NewTextHandler(io.Discard, nil)))
		time.Sleep(time.Second)
		if got := p.servesFor(); got != 0 {
			t.Errorf("before it serves: %v", got)
		}
		for range 2 {
			p.enter(phaseServing, "")
			time.Sleep(time.Second)
		}
		if got := p.servesFor(); got != 2*time.Second {
			t.Errorf("served for %v, want 2s", got)
		}
	})
}

// A node that is new, or lost its disk, is not ready before it has what it is to hold. From then on, what moves does
// not matter. A node that gets nothing is ready after a while.
func TestReadyWithItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		birth, err := cluster.InitialTable([]string{"ebb-0", "ebb-1", "ebb-2"}, 4, 3)
		if err != nil {
			t.Fatal(err)
		}
		table := func(change func(r *ebbv1.ShardRecord, i int)) *cluster.Table {
			wire := protobuf.Clone(birth.Wire()).(*ebbv1.Table)
			wire.ClusterId = "c"
			for _, record := range wire.GetPlacement() {
				for i := range record.GetReplicas() {
					change(record, i)
				}
			}
			made, err := cluster.NewTable(wire)
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		on2 := func(r *ebbv1.ShardRecord, i int) bool { return r.GetShard() > 0 && r.Replicas[i].GetNode() == "ebb-2" }
		whole := table(func(*ebbv1.ShardRecord, int) {})
		partly := table(func(r *ebbv1.ShardRecord, i int) {
			if on2(r, i) && r.GetShard()%2 == 0 {
				r.Replicas[i].Joining = true
				r.Target = []string{"ebb-0", "ebb-1", "ebb-2"}
			}
		})
		n := &Node{cfg: Config{Name: "ebb-2"}, phase: newPhase(slog.New(slog.NewTextHandler(io.Discard, nil)))}
		n.groups.Store(&groups{})
		n.phase.enter(phaseServing, "")
		for _, c := range []struct {
			what  string
			table *cluster.Table
			ready bool
		}{{"half of it", partly, false}, {"all of it", whole, true}, {"something moves", partly, true}} {
			n.tables = newTables(c.table)
			if err := n.Readiness(); (err == nil) != c.ready || err != nil && !errors.Is(err, proto.ErrStarting) {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		late := &Node{cfg: Config{Name: "ebb-9"}, phase: newPhase(slog.New(slog.NewTextHandler(io.Discard, nil))), tables: newTables(whole)}
		late.groups.Store(&groups{})
		late.phase.enter(phaseServing, "")
		look := func(d time.Duration, there bool) {
			for range d / watchEvery {
				time.Sleep(watchEvery)
				late.continuousUptime.look(there)
			}
		}
		if err := late.Readiness(); err == nil {
			t.Error("a node that has just joined is ready")
		}
		look(shareMax-time.Second, true)
		if late.Readiness() == nil {
			t.Error("a node is ready before it could be given anything")
		}
		time.Sleep(2 * shareMax) // the process is stopped
		look(shareMax-time.Second, true)
		if late.Readiness() == nil {
			t.Error("a node that stood still is ready with nothing")
		}
		look(2*shareMax, false)
		if late.Readiness() == nil {
			t.Error("a node that heard of no leader is ready with nothing")
		}
		if look(shareMax, true); late.Readiness() != nil {
			t.Error("a node that is given nothing is never ready")
		}
	})
}
