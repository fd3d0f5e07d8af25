package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func loseCommand(shard uint32, node string, replica uint64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_LoseReplica{
		LoseReplica: &ebbv1.LoseReplica{Shard: shard, Node: node, Replica: replica},
	}}
}

// A damaged replica is given up once, if the others are a majority, and its node is to have another.
func TestLoseReplica(t *testing.T) {
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionLoseReplica, s.c.Table().Epoch()))
	const shard = 3
	first := s.c.Table().Replicas(shard)[0]
	other := s.c.Table().Replicas(shard)[1]
	for range 2 { // a node that was not answered asks again
		if e := s.apply(loseCommand(shard, first.GetNode(), first.GetId())).GetError(); e != nil {
			t.Fatal(e)
		}
		lost := 0
		for _, r := range s.c.Table().Replicas(shard) {
			if r.GetLost() {
				lost++
				if r.GetId() != first.GetId() || !r.GetLeaving() {
					t.Errorf("lost is %v", r)
				}
			}
		}
		if lost != 1 || s.c.Table().Shard(shard).GetPreferred() == first.GetNode() {
			t.Errorf("%d are lost, %s is preferred", lost, s.c.Table().Shard(shard).GetPreferred())
		}
	}
	before := s.c.Table().Epoch()
	for name, cmd := range map[string]*ebbv1.ControlCommand{
		"a second of three":         loseCommand(shard, other.GetNode(), other.GetId()),
		"of the control group":      loseCommand(ControlShard, first.GetNode(), 1),
		"of no shard":               loseCommand(99, first.GetNode(), 1),
		"that is another node's":    loseCommand(shard, other.GetNode(), first.GetId()),
		"that the shard never had":  loseCommand(shard, first.GetNode(), 4711),
		"of a node that is unknown": loseCommand(shard, "ebb-9", first.GetId()),
	} {
		if s.apply(cmd); s.c.Table().Epoch() != before {
			t.Errorf("a replica %s is given up", name)
		}
	}
	e := s.apply(loseCommand(shard, other.GetNode(), other.GetId())).GetError()
	if e.GetCode() != ebbv1.Code_CODE_CORRUPT {
		t.Errorf("a second of three: %v", e)
	}
	again := reborn(t, s.c).Table().Shard(shard)
	if len(again.GetTarget()) != 3 {
		t.Errorf("it is to lie on %v", again.GetTarget())
	}
}

// Before all nodes know the command it is refused.
func TestLoseReplicaOfEarlierVersions(t *testing.T) {
	s := bornCluster(t)
	r := s.c.Table().Replicas(1)[0]
	if e := s.apply(loseCommand(1, r.GetNode(), r.GetId())).GetError(); e.GetCode() != ebbv1.Code_CODE_STARTING {
		t.Errorf("%v", e)
	}
}
