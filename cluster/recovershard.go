package cluster

import (
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// recoverShard keeps one replica of a shard and marks the others as lost: they leave. The node of the kept replica
// makes it the only member of its group. Without a majority there is no other way. After that the shard has a leader,
// and gets other replicas like any shard that has too few. The proposer checks that there is no majority; the state
// machine cannot.
func (c *Control) recoverShard(cmd *ebbv1.RecoverShard) *proto.Error {
	table, id := c.Table(), cmd.GetShard()
	if table.Version() < proto.VersionRecoverShard {
		return proto.ErrStarting.Errorf("shards are recovered from storage version %d on, and %d is in force",
			proto.VersionRecoverShard, table.Version()).
			WithHint("upgrade all nodes, and wait some seconds: ebb status shows the version in force")
	}
	if id == ControlShard || !table.Has(id) {
		return proto.ErrBadRequest.Errorf("there is no shard %d", id)
	}
	at := slices.IndexFunc(table.Replicas(id), func(r *ebbv1.ReplicaRecord) bool {
		return r.GetId() == cmd.GetReplica() && r.GetNode() == cmd.GetNode()
	})
	switch {
	case at < 0 || table.Replicas(id)[at].GetLost():
		return proto.ErrBadRequest.Errorf("node %s holds no replica %d of shard %d",
			cmd.GetNode(), cmd.GetReplica(), id)
	case table.Replicas(id)[at].GetRecovers() > 0:
		return nil // the command came twice
	}
	wire := edit(table)
	record := editShard(wire, id)
	if len(record.Target) == 0 {
		record.Target = targetOf(table.Shard(id))
	}
	record.Replicas = slices.Clone(record.Replicas)
	for i, r := range record.Replicas {
		is := pb.CloneOf(r)
		if i == at {
			is.Joining, is.Leaving, is.Nonvoter, is.Recovers = false, false, false, table.Epoch()+1
		} else {
			is.Joining, is.Leaving, is.Lost = false, true, true
		}
		record.Replicas[i] = is
	}
	record.Why = "recovered from the replica of " + cmd.GetNode()
	choosePreferred(record)
	c.swap(wire)
	return nil
}
