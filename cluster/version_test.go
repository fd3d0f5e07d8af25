package cluster

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func raiseCommand(to uint32, epoch uint64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RaiseVersion{RaiseVersion: &ebbv1.RaiseVersion{To: to, Epoch: epoch}}}
}

// The version in force rises and never falls; it outlives other changes of the table, and snapshots.
func TestVersionRises(t *testing.T) {
	if result := (testControl{t, NewControl()}).apply(raiseCommand(2, 0)); result.GetError() == nil {
		t.Error("a cluster that is not born has raised its version")
	}
	s := bornCluster(t)
	for _, step := range []struct{ to, want uint32 }{{1, 1}, {3, 3}, {2, 3}, {3, 3}} {
		if e := s.apply(raiseCommand(step.to, s.c.Table().Epoch())).GetError(); e != nil || s.c.Table().Version() != step.want {
			t.Errorf("raised to %d: %d is in force (%v), want %d", step.to, s.c.Table().Version(), e, step.want)
		}
	}
	epoch := s.c.Table().Epoch()
	s.apply(raiseCommand(3, epoch))
	if s.c.Table().Epoch() != epoch {
		t.Error("the same version again made another table")
	}
	if e := s.apply(raiseCommand(4, epoch-1)).GetError(); e.GetCode() != ebbv1.Code_CODE_TOO_STALE || s.c.Table().Version() != 3 {
		t.Errorf("raised by who had asked the members of an older table: %d is in force, %v", s.c.Table().Version(), e)
	}
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "clicks"}))
	var snapshot bytes.Buffer
	if _, err := s.c.WriteTo(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored := NewControl()
	if err := restored.Restore(&snapshot); err != nil || restored.Table().Version() != 3 {
		t.Errorf("version %d after a snapshot (%v)", restored.Table().Version(), err)
	}
}

// A build that cannot run with version 1 founds clusters at the oldest that it knows.
func TestClustersAreBornAtAVersion(t *testing.T) {
	birth := mustTable(t, nodeNames(3), 8, 0)
	for _, oldest := range []uint32{0, 1, 4} {
		s := testControl{t, NewControl()}
		if e := s.apply(initCommand("cluster-a", birth.WithVersion(oldest))).GetError(); e != nil {
			t.Fatal(e)
		}
		if got := s.c.Table().Version(); got != max(oldest, 1) {
			t.Errorf("born at version %d by a build that knows %d", got, oldest)
		}
	}
	if birth.Version() != 1 {
		t.Error("WithVersion has changed the table it was asked of")
	}
}

func TestNextVersion(t *testing.T) {
	at := func(version uint32) *Table { return mustTable(t, nodeNames(3), 8, 0).WithVersion(version) }
	for _, c := range []struct {
		what     string
		force    uint32
		reported [][2]uint32 // of ebb-0, ebb-1, ...; the zero value of one that does not answer
		next     uint32
		held     []string
	}{
		{"all know a newer one", 1, [][2]uint32{{1, 2}, {1, 2}, {1, 2}}, 2, nil},
		{"as far as all go", 1, [][2]uint32{{1, 4}, {1, 3}, {1, 5}}, 3, nil},
		{"one does not", 1, [][2]uint32{{1, 2}, {1, 1}, {1, 2}}, 1, []string{"ebb-1"}},
		{"one does not answer", 1, [][2]uint32{{1, 2}, {1, 2}, {}}, 1, []string{"ebb-2"}},
		{"one is so new that it could not run", 2, [][2]uint32{{1, 3}, {4, 5}, {1, 3}}, 2, nil},
		{"the newest is in force", 2, [][2]uint32{{1, 2}, {1, 2}, {1, 2}}, 2, []string{"ebb-0", "ebb-1", "ebb-2"}},
		{"one is older than what is in force", 3, [][2]uint32{{1, 4}, {1, 2}, {1, 4}}, 3, []string{"ebb-1"}},
	} {
		reported := map[string]proto.Versions{"stranger": {Oldest: 1, Newest: 1}}
		for i, v := range c.reported {
			if v != [2]uint32{} {
				reported[nodeNames(3)[i]] = proto.Versions{Oldest: v[0], Newest: v[1]}
			}
		}
		next, held := NextVersion(at(c.force), reported)
		if next != c.next || !slices.Equal(held, c.held) {
			t.Errorf("%s: next %d, held back by %v; want %d, %v", c.what, next, held, c.next, c.held)
		}
	}
}

// As long as builds may be around that know only version 1, records of shards are as those make them.
func TestRecordsHaveEpochsFromVersion2(t *testing.T) {
	s := bornCluster(t)
	join := func(name string) uint64 {
		t.Helper()
		if e := s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{Record: &ebbv1.NodeRecord{Name: name, Disk: "d"}}}}).GetError(); e != nil {
			t.Fatal(e)
		}
		return s.c.Table().Shard(ControlShard).GetEpoch()
	}
	if epoch := join("guest"); epoch != 0 {
		t.Errorf("a record of epoch %d while version 1 is in force", epoch)
	}
	s.apply(raiseCommand(proto.VersionRecordEpochs, s.c.Table().Epoch()))
	if epoch := join("other"); epoch == 0 || epoch != s.c.Table().Epoch() {
		t.Errorf("a record of epoch %d, want %d", epoch, s.c.Table().Epoch())
	}
}
