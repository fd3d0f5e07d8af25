package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func recoverCommand(shard uint32, node string, replica uint64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RecoverShard{
		RecoverShard: &ebbv1.RecoverShard{Shard: shard, Node: node, Replica: replica},
	}}
}

// A shard continues with one replica. The others are lost until its configuration says that they are gone. Then it gets
// new ones on the nodes that it lay on.
func TestRecoverShard(t *testing.T) {
	s := bornCluster(t)
	const shard = 3
	keeps := s.c.Table().Replicas(shard)[1]
	if e := s.apply(recoverCommand(shard, keeps.GetNode(), keeps.GetId())).GetError(); e == nil {
		t.Error("it is recovered under an older storage version")
	}
	s.apply(raiseCommand(proto.VersionRecoverShard, s.c.Table().Epoch()))
	before := s.c.Table().Epoch()
	for name, cmd := range map[string]*ebbv1.ControlCommand{
		"of the control group": recoverCommand(ControlShard, keeps.GetNode(), 1),
		"of no shard":          recoverCommand(99, keeps.GetNode(), keeps.GetId()),
		"of another node":      recoverCommand(shard, "ebb-9", keeps.GetId()),
		"that never was":       recoverCommand(shard, keeps.GetNode(), 4711),
	} {
		if s.apply(cmd); s.c.Table().Epoch() != before {
			t.Errorf("a replica %s is all that is left", name)
		}
	}
	for range 2 { // a caller that was not answered asks again
		if e := s.apply(recoverCommand(shard, keeps.GetNode(), keeps.GetId())).GetError(); e != nil {
			t.Fatal(e)
		}
		if now := s.c.Table().Epoch(); now != before+1 {
			t.Errorf("epoch %d, before it was %d", now, before)
		}
		for _, r := range s.c.Table().Replicas(shard) {
			switch is := r.GetId() == keeps.GetId(); {
			case is && (r.GetLost() || r.GetLeaving() || r.GetJoining() || r.GetRecovers() != before+1):
				t.Errorf("what is left is %v", r)
			case !is && !(r.GetLost() && r.GetLeaving() && r.GetRecovers() == 0):
				t.Errorf("another one is %v", r)
			}
		}
	}
	record := reborn(t, s.c).Table().Shard(shard)
	if len(record.GetTarget()) != 3 || record.GetPreferred() != keeps.GetNode() {
		t.Errorf("it is to lie on %v, and %s is to lead", record.GetTarget(), record.GetPreferred())
	}
	s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SettleShard{SettleShard: &ebbv1.SettleShard{
		Shard: shard, Replicas: []uint64{keeps.GetId()}, Epoch: record.GetEpoch(),
	}}})
	if left := s.c.Table().Replicas(shard); len(left) != 1 || left[0].GetRecovers() != 0 {
		t.Errorf("settled it has %v", left)
	}
}
