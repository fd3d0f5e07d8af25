package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TestNextStep: what the leader of a group, replica 1, does with what the table wants and what the group is.
func TestNextStep(t *testing.T) {
	stays := func(id uint64) *ebbv1.ReplicaRecord { return &ebbv1.ReplicaRecord{Id: id, Node: "n"} }
	joins := func(id uint64) *ebbv1.ReplicaRecord { return &ebbv1.ReplicaRecord{Id: id, Node: "n", Joining: true} }
	leaves := func(id uint64) *ebbv1.ReplicaRecord { return &ebbv1.ReplicaRecord{Id: id, Node: "n", Leaving: true} }
	follows := func(id uint64) *ebbv1.ReplicaRecord {
		return &ebbv1.ReplicaRecord{Id: id, Node: "n", Nonvoter: true}
	}
	absent := func(id uint64, nonvoter bool) *ebbv1.ReplicaRecord {
		return &ebbv1.ReplicaRecord{Id: id, Node: "absent", Joining: true, Nonvoter: nonvoter}
	}
	away := func(id uint64) *ebbv1.ReplicaRecord { return &ebbv1.ReplicaRecord{Id: id, Node: "absent"} }
	lost := func(id uint64) *ebbv1.ReplicaRecord {
		return &ebbv1.ReplicaRecord{Id: id, Node: "n", Leaving: true, Lost: true} // its node answers, on another disk
	}
	v := func(id uint64) Server { return Server{id, true} }
	n := func(id uint64) Server { return Server{id, false} }
	for _, c := range []struct {
		what   string
		record []*ebbv1.ReplicaRecord
		group  []Server
		behind bool
		want   Action
		of     uint64
	}{
		{"at rest", []*ebbv1.ReplicaRecord{stays(1), stays(2), stays(3)}, []Server{v(1), v(2), v(3)}, false, StepNone, 0},
		{"a new replica is not a member", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), joins(4)}, []Server{v(1), v(2), v(3)}, false, StepAdd, 4},
		{"it has no data yet", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), joins(4)}, []Server{v(1), v(2), v(3), n(4)}, true, StepWait, 4},
		{"it has the data", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), joins(4)}, []Server{v(1), v(2), v(3), n(4)}, false, StepPromote, 4},
		{"it has the data, and its node does not answer", []*ebbv1.ReplicaRecord{stays(1), absent(4, false)}, []Server{v(1), n(4)}, false, StepWait, 4},
		{"its node has not made it", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), absent(4, false)}, []Server{v(1), v(2), v(3)}, false, StepWait, 4},
		{"one that has not come is not waited for by the next", []*ebbv1.ReplicaRecord{stays(1), absent(2, true), joins(3)}, []Server{v(1)}, false, StepAdd, 3},
		{"nor by who leaves", []*ebbv1.ReplicaRecord{stays(1), absent(2, true), leaves(3)}, []Server{v(1), n(3)}, false, StepRemove, 3},
		{"nor is anything said of it", []*ebbv1.ReplicaRecord{stays(1), absent(2, true)}, []Server{v(1)}, false, StepNone, 0},
		{"what was given up has left", []*ebbv1.ReplicaRecord{stays(1), leaves(4)}, []Server{v(1)}, false, StepSettle, 0},
		{"it votes, and the old one goes", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), joins(4)}, []Server{v(1), v(2), v(3), v(4)}, false, StepRemove, 3},
		{"the old one leads", []*ebbv1.ReplicaRecord{leaves(1), stays(2), stays(3), joins(4)}, []Server{v(1), v(2), v(3), v(4)}, false, StepTransferLeadership, 1},
		{"the table does not know yet", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3), joins(4)}, []Server{v(1), v(2), v(4)}, false, StepSettle, 0},
		{"a lost disk goes before another comes", []*ebbv1.ReplicaRecord{stays(1), stays(2), leaves(3)}, []Server{v(1), v(2), v(3)}, false, StepRemove, 3},
		{"a member was dropped from the table", []*ebbv1.ReplicaRecord{stays(1), stays(2)}, []Server{v(1), v(2), n(9)}, false, StepRemove, 9},
		{"who follows needs no vote", []*ebbv1.ReplicaRecord{stays(1), follows(2)}, []Server{v(1), n(2)}, false, StepNone, 0},
		{"who voted is to follow", []*ebbv1.ReplicaRecord{stays(1), stays(2), follows(3)}, []Server{v(1), v(2), v(3)}, false, StepDemote, 3},
		{"not before another votes", []*ebbv1.ReplicaRecord{stays(1), stays(2), follows(3)}, []Server{v(1), n(2), v(3)}, false, StepPromote, 2},
		{"those that would stay have no majority that answers", []*ebbv1.ReplicaRecord{stays(1), away(2), leaves(3)}, []Server{v(1), v(2), v(3)}, false, StepWait, 3},
		{"nor would they if the leader went", []*ebbv1.ReplicaRecord{leaves(1), away(2), stays(3)}, []Server{v(1), v(2), v(3)}, false, StepWait, 1},
		{"nor if it lost its vote", []*ebbv1.ReplicaRecord{stays(1), away(2), follows(3)}, []Server{v(1), v(2), v(3)}, false, StepWait, 3},
		{"nor if one went that the table does not have", []*ebbv1.ReplicaRecord{stays(1), away(2)}, []Server{v(1), v(2), v(9)}, false, StepWait, 9},
		{"one without a vote can go", []*ebbv1.ReplicaRecord{stays(1), stays(3), away(2), leaves(4)}, []Server{v(1), v(2), v(3), n(4)}, false, StepRemove, 4},
		{"one that does not answer can go", []*ebbv1.ReplicaRecord{stays(1), {Id: 2, Node: "absent", Leaving: true}, leaves(3), stays(4)}, []Server{v(1), v(2), v(3), v(4)}, false, StepRemove, 2},
		{"one goes though another cannot", []*ebbv1.ReplicaRecord{leaves(3), stays(1), away(2), {Id: 4, Node: "absent", Leaving: true}}, []Server{v(1), v(2), v(3), v(4)}, false, StepRemove, 4},
		{"a lost replica goes before another joins", []*ebbv1.ReplicaRecord{stays(1), stays(2), lost(3), joins(4)}, []Server{v(1), v(2), v(3)}, false, StepRemove, 3},
		{"if enough are left", []*ebbv1.ReplicaRecord{stays(1), away(2), lost(3), joins(4)}, []Server{v(1), v(2), v(3)}, false, StepAdd, 4},
		{"one that is lost does not answer, whatever its node does", []*ebbv1.ReplicaRecord{stays(1), lost(2), leaves(3)}, []Server{v(1), v(2), v(3)}, false, StepRemove, 2},
		{"who leads is to follow", []*ebbv1.ReplicaRecord{follows(1), stays(2), stays(3)}, []Server{v(1), v(2), v(3)}, false, StepTransferLeadership, 1},
	} {
		got := NextStep(&ebbv1.ShardRecord{Replicas: c.record}, c.group, 1, func(node string, _ uint64) bool { return node != "absent" }, func(uint64) bool { return !c.behind })
		if got.Action != c.want || got.Replica != c.of {
			t.Errorf("%s: %s %d, want %s %d", c.what, got.Action, got.Replica, c.want, c.of)
		}
	}
}

// TestRefusedMembership: what the control group refuses, it refuses with a word that helps.
func TestRefusedMembership(t *testing.T) {
	table, err := InitialTable([]string{"ebb-0", "ebb-1", "ebb-2"}, 8, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range table.wire.Nodes {
		n.Disk = "disk of " + n.Name
	}
	s := testControl{t, NewControl()}
	s.apply(initCommand("c", table))
	join := func(name, disk, cluster string, replace bool) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{
			Record: &ebbv1.NodeRecord{Name: name, Disk: disk}, ClusterId: cluster, Replace: replace,
		}}}
	}
	move := func(shard uint32, to string, from uint64) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: &ebbv1.BeginMove{Shard: shard, To: to, From: from}}}
	}
	for _, c := range []struct {
		what string
		cmd  *ebbv1.ControlCommand
		want ebbv1.Code
	}{
		{"a node of another cluster", join("ebb-3", "d", "another", false), ebbv1.Code_CODE_WRONG_CLUSTER},
		{"a name that is taken", join("ebb-1", "d", "", false), ebbv1.Code_CODE_DUPLICATE_NODE},
		{"a disk that says nothing", join("ebb-3", "", "", false), ebbv1.Code_CODE_BAD_REQUEST},
		{"a name that is none", join("a/b", "d", "", false), ebbv1.Code_CODE_BAD_REQUEST},
		{"one of two replicas is lost", join("ebb-1", "d", "", true), ebbv1.Code_CODE_WRONG_CLUSTER},
		{"a state for nobody", stateCommand("ebb-9", ebbv1.NodeState_NODE_STATE_DRAINING), ebbv1.Code_CODE_BAD_REQUEST},
		{"a move of nothing", move(1, "", 99), ebbv1.Code_CODE_BAD_REQUEST},
		{"a move to nobody", move(1, "ebb-9", 0), ebbv1.Code_CODE_BAD_REQUEST},
		{"a move of no shard", move(9, "ebb-0", 0), ebbv1.Code_CODE_BAD_REQUEST},
		{"no replicas", &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetReplication{SetReplication: &ebbv1.SetReplication{}}}, ebbv1.Code_CODE_BAD_REQUEST},
	} {
		before := s.c.Table()
		if got := s.apply(c.cmd).GetError().GetCode(); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
		if s.c.Table() != before {
			t.Errorf("%s: the table has changed", c.what)
		}
	}
	if e := s.apply(stateCommand("ebb-0", ebbv1.NodeState_NODE_STATE_DRAINING)).GetError(); e != nil {
		t.Fatalf("drain one of three at two replicas: %v", e)
	}
	if e := s.apply(stateCommand("ebb-1", ebbv1.NodeState_NODE_STATE_LEAVING)).GetError(); e.GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
		t.Errorf("the last but one of two goes: %v", e)
	}
}

// TestLateSettlement: a node follows the control group, whose leader does not wait for it, and is then told to leave.
// What the leader meant to say before the node was a member comes only now: the record has changed since, so it does
// not count, and the node is a member of the table until it has gone.
func TestLateSettlement(t *testing.T) {
	table, err := InitialTable([]string{"ebb-0", "ebb-1", "ebb-2"}, 8, 2)
	if err != nil {
		t.Fatal(err)
	}
	s := testControl{t, NewControl()}
	s.apply(initCommand("c", table.WithVersion(proto.VersionRecordEpochs)))
	must := func(cmd *ebbv1.ControlCommand) *ebbv1.ControlResult {
		t.Helper()
		result := s.apply(cmd)
		if e := result.GetError(); e != nil {
			t.Fatal(e)
		}
		return result
	}
	settle := func(epoch uint64, members ...uint64) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SettleShard{SettleShard: &ebbv1.SettleShard{Shard: ControlShard, Replicas: members, Epoch: epoch}}}
	}
	var members []uint64
	for _, r := range s.c.Table().Replicas(ControlShard) {
		members = append(members, r.GetId())
	}
	joined := must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{Record: &ebbv1.NodeRecord{Name: "guest", Disk: "d"}}}}).GetReplica()
	late := settle(s.c.Table().Shard(ControlShard).GetEpoch(), members...)
	must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: &ebbv1.BeginMove{Shard: ControlShard, From: joined}}})
	if code := s.apply(late).GetError().GetCode(); code != ebbv1.Code_CODE_TOO_STALE {
		t.Errorf("what was said of an older record: %v, want TOO_STALE", code)
	}
	if _, here := s.c.Table().ReplicaOn("guest", ControlShard); !here {
		t.Error("the replica is dropped though it is a member")
	}
	must(settle(s.c.Table().Shard(ControlShard).GetEpoch(), members...))
	if _, here := s.c.Table().ReplicaOn("guest", ControlShard); here {
		t.Error("what has left is not dropped")
	}
}
