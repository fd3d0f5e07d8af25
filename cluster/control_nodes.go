package cluster

import (
	"slices"
	"strconv"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// ReplicationMax bounds the replicas of a shard.
	ReplicationMax = 9
	// removedMax is how many names of removed nodes are kept.
	removedMax = 1000
)

// joinNode makes a node a member that follows the control group. A member that lost its disk gets a new replica
// instead. joinNode returns the id of the replica of the control group; a repeated command from the same disk gets the
// same id.
func (c *Control) joinNode(cmd *ebbv1.JoinNode) (uint64, *proto.Error) {
	table, record := c.Table(), cmd.GetRecord()
	switch {
	case table.ClusterID() == "":
		return 0, errStarting()
	case cmd.GetClusterId() != "" && cmd.GetClusterId() != table.ClusterID():
		return 0, proto.ErrWrongCluster.Errorf("node %s wants to join cluster %s: this is cluster %s", record.GetName(), cmd.GetClusterId(), table.ClusterID())
	case record.GetDisk() == "":
		return 0, proto.ErrBadRequest.Errorf("node %s does not say which disk it has", record.GetName())
	}
	if err := CheckNodeName(record.GetName()); err != nil {
		return 0, err
	}
	if table.Version() >= proto.VersionPeerProofs && table.tokens.Len() > 0 && !cmd.GetProven() {
		return 0, ErrUnprovenNode(record.GetName())
	}
	have := table.Node(record.GetName())
	if have == nil {
		if cmd.GetTakesPlace() {
			return 0, ErrRemoved(record.GetName(), table.ClusterID())
		}
		return c.addNode(record)
	}
	if have.GetDisk() == record.GetDisk() {
		id, _ := table.ReplicaOn(have.GetName(), ControlShard)
		return id, nil
	}
	if !cmd.GetReplace() {
		return 0, errNodeExists(have)
	}
	return c.replace(cmd)
}

// ErrRemoved returns the error for a node that was removed from the cluster.
func ErrRemoved(node, clusterID string) *proto.Error {
	return proto.ErrWrongCluster.Errorf("node %s was removed from cluster %s", node, clusterID).
		WithHint("to let it join again, start it with an empty --data-dir and --join")
}

// ErrUnprovenNode returns the error for a node that wants to join a cluster with tokens, and does not prove that it is
// a node.
func ErrUnprovenNode(node string) *proto.Error {
	return proto.ErrUnauthenticated.Errorf("node %s may not join: the cluster has tokens, and the node does not "+
		"prove to its members that it is one", node).
		WithHint(proto.HintProofs)
}

func errNodeExists(have *ebbv1.NodeRecord) *proto.Error {
	return proto.ErrDuplicateNode.Errorf("cluster has a node %s already, at %s", have.GetName(), have.GetGrpcAddress()).
		WithHint("give this node a name of its own, with --node; or stop the other one first, if its disk is lost")
}

// addNode adds a node that is new.
func (c *Control) addNode(record *ebbv1.NodeRecord) (uint64, *proto.Error) {
	table := c.Table()
	if len(table.Nodes()) >= int(table.Shards()) {
		return 0, proto.ErrBadRequest.Errorf("node %s: the cluster has %d shards and as many nodes, so there is nothing for it to hold", record.GetName(), table.Shards())
	}
	wire := edit(table)
	wire.Nodes = put(wire.Nodes, newNodeRecord(record), (*ebbv1.NodeRecord).GetName)
	wire.Removed = slices.DeleteFunc(slices.Clone(wire.Removed), func(name string) bool { return name == record.GetName() })
	replica := c.assignReplicaID(wire, &ebbv1.ReplicaRecord{Node: record.GetName(), Nonvoter: true, Joining: true})
	control := editShard(wire, ControlShard)
	control.Replicas = append(control.Replicas, replica)
	c.swap(wire)
	return replica.Id, nil
}

func newNodeRecord(record *ebbv1.NodeRecord) *ebbv1.NodeRecord {
	want := pb.Clone(record).(*ebbv1.NodeRecord)
	want.ProtoReflect().SetUnknown(nil)
	want.Alive, want.Enrolled, want.State = false, false, ebbv1.NodeState_NODE_STATE_UNSPECIFIED
	return want
}

// assignReplicaID gives a replica an id that no replica had before.
func (c *Control) assignReplicaID(wire *ebbv1.Table, r *ebbv1.ReplicaRecord) *ebbv1.ReplicaRecord {
	wire.ReplicasGiven++
	r.Id = wire.ReplicasGiven
	return r
}

// editShard returns a copy of a group's record in a wire table for changes; its lists are still shared. The copy gets
// the next epoch, unless the storage version is too old to have epochs in records.
func editShard(wire *ebbv1.Table, shard uint32) *ebbv1.ShardRecord {
	r := wire.Placement[shard]
	wire.Placement[shard] = &ebbv1.ShardRecord{Shard: r.Shard, Replicas: r.Replicas, Preferred: r.Preferred, Target: r.Target, Why: r.Why}
	if wire.Version >= proto.VersionRecordEpochs {
		wire.Placement[shard].Epoch = wire.Epoch + 1
	}
	return wire.Placement[shard]
}

// choosePreferred chooses the node that should lead: the first node of the target, if it has the data. Otherwise it
// keeps the preferred node, or takes another that stays.
func choosePreferred(record *ebbv1.ShardRecord) {
	best := -1
	for i, r := range record.Replicas {
		if best < 0 || preferenceRank(record, r) > preferenceRank(record, record.Replicas[best]) {
			best = i
		}
	}
	record.Preferred = record.Replicas[best].GetNode()
}

func preferenceRank(record *ebbv1.ShardRecord, r *ebbv1.ReplicaRecord) (rank int) {
	if r.GetLost() {
		return -1
	}
	if !r.GetLeaving() && !r.GetJoining() {
		rank += 8
	}
	if !r.GetNonvoter() {
		rank += 4
	}
	if len(record.Target) > 0 && record.Target[0] == r.GetNode() {
		rank += 2
	}
	if record.Preferred == r.GetNode() {
		rank++
	}
	return rank
}

// setNodeState changes the state of a node: in use, drained or to be removed. A node can only leave if the others are
// enough for the replicas.
func (c *Control) setNodeState(cmd *ebbv1.SetNodeState) *proto.Error {
	table := c.Table()
	have := table.Node(cmd.GetNode())
	if have == nil {
		return proto.ErrBadRequest.Errorf("the cluster has no node %q", cmd.GetNode()).WithHint("see ebb cluster nodes")
	}
	if have.GetState() == cmd.GetState() {
		return nil
	}
	if cmd.GetState() != ebbv1.NodeState_NODE_STATE_UNSPECIFIED {
		if err := table.checkSpare(cmd.GetNode()); err != nil {
			return err
		}
	}
	want := pb.Clone(have).(*ebbv1.NodeRecord)
	want.State = cmd.GetState()
	wire := edit(table)
	wire.Nodes = put(wire.Nodes, want, (*ebbv1.NodeRecord).GetName)
	c.swap(wire)
	return nil
}

// checkSpare returns an error if the replicas need this node.
func (t *Table) checkSpare(node string) *proto.Error {
	left := 0
	for _, n := range t.Nodes() {
		if n.GetName() != node && n.GetState() == ebbv1.NodeState_NODE_STATE_UNSPECIFIED {
			left++
		}
	}
	switch {
	case left == 0:
		return proto.ErrBadRequest.Errorf("node %s is the last one that holds data", node).
			WithHint("join another node first: ebb serve --join HOST:PORT")
	case left < int(t.Replication()):
		return proto.ErrBadRequest.Errorf("without node %s there are %d nodes, and each shard has %d replicas", node, left, t.Replication()).
			WithHint("join another node first, or lower the number: ebb cluster replication " + strconv.Itoa(left))
	}
	return nil
}

// setReplication changes how many replicas each shard has.
func (c *Control) setReplication(cmd *ebbv1.SetReplication) *proto.Error {
	table, want := c.Table(), cmd.GetReplication()
	nodes := 0
	for _, n := range table.Nodes() {
		if n.GetState() == ebbv1.NodeState_NODE_STATE_UNSPECIFIED {
			nodes++
		}
	}
	switch {
	case table.Shards() == 0:
		return errStarting()
	case want < 1 || want > ReplicationMax:
		return proto.ErrBadRequest.Errorf("replication %d: it is 1 to %d", want, ReplicationMax)
	case int(want) > nodes:
		return proto.ErrBadRequest.Errorf("replication %d on %d nodes: there must be a node for each replica", want, nodes).
			WithHint("join further nodes first: ebb serve --join HOST:PORT")
	case want == table.Replication():
		return nil
	}
	wire := edit(table)
	wire.Replication = want
	c.swap(wire)
	return nil
}

// setTargets sets the targets of groups. For the control group it also changes at once which replicas are to vote.
func (c *Control) setTargets(cmd *ebbv1.SetTargets) *proto.Error {
	table := c.Table()
	wire := edit(table)
	for _, target := range cmd.GetTargets() {
		if err := table.checkTarget(target); err != nil {
			return err
		}
		record := editShard(wire, target.GetShard())
		record.Target, record.Why = slices.Clone(target.GetNodes()), target.GetWhy()
		if target.GetShard() == ControlShard {
			record.Replicas = slices.Clone(record.Replicas)
			for i, r := range record.Replicas {
				record.Replicas[i] = pb.CloneOf(r)
				record.Replicas[i].Nonvoter = !slices.Contains(record.Target, r.Node)
			}
		}
		choosePreferred(record)
	}
	if len(cmd.GetTargets()) > 0 {
		c.swap(wire)
	}
	return nil
}

func (t *Table) checkTarget(target *ebbv1.SetTargets_Target) *proto.Error {
	if !t.Has(target.GetShard()) || len(target.GetNodes()) == 0 {
		return proto.ErrBadRequest.Errorf("target of shard %d with %d nodes: there is no such shard, or nowhere for it to be", target.GetShard(), len(target.GetNodes()))
	}
	for i, node := range target.GetNodes() {
		if t.Node(node) == nil || slices.Contains(target.GetNodes()[:i], node) {
			return proto.ErrBadRequest.Errorf("target of shard %d: node %q is none of the cluster, or is named twice", target.GetShard(), node)
		}
	}
	return nil
}

// beginMove changes a group's record: one replica joins, one leaves, or both. The group's leader then changes the Raft
// configuration. During a change there are only three other moves: a joining replica may leave, so that another can
// join instead; a replica that follows the control group may leave; and a leaving replica may stay.
func (c *Control) beginMove(cmd *ebbv1.BeginMove) *proto.Error {
	table := c.Table()
	have := table.Shard(cmd.GetShard())
	switch {
	case have == nil:
		return proto.ErrBadRequest.Errorf("there is no shard %d", cmd.GetShard())
	case cmd.GetKeep() != 0:
		return c.cancelMove(have, cmd.GetKeep())
	case underWay(have) && !mayLeave(have, cmd.GetFrom()):
		return proto.ErrBadRequest.Errorf("shard %d is being moved already", cmd.GetShard())
	case cmd.GetTo() != "" && (table.Node(cmd.GetTo()) == nil || holds(have, cmd.GetTo())):
		return proto.ErrBadRequest.Errorf("shard %d to node %q: it is none of the cluster, or has a replica", cmd.GetShard(), cmd.GetTo())
	}
	wire := edit(table)
	record := editShard(wire, cmd.GetShard())
	record.Replicas = slices.Clone(record.Replicas)
	if from := cmd.GetFrom(); from != 0 {
		at := slices.IndexFunc(record.Replicas, func(r *ebbv1.ReplicaRecord) bool { return r.GetId() == from })
		if at < 0 || len(record.Replicas) == 1 && cmd.GetTo() == "" {
			return proto.ErrBadRequest.Errorf("shard %d has no replica %d, or no other", cmd.GetShard(), from)
		}
		record.Replicas[at] = pb.CloneOf(record.Replicas[at])
		record.Replicas[at].Joining, record.Replicas[at].Leaving = false, true
	}
	if cmd.GetTo() != "" {
		record.Replicas = append(record.Replicas, c.assignReplicaID(wire, &ebbv1.ReplicaRecord{Node: cmd.GetTo(), Joining: true}))
	}
	choosePreferred(record)
	c.swap(wire)
	return nil
}

// cancelMove changes a replica from leaving to joining. The record does not show whether the replica is still a member;
// the group's leader finds that out.
func (c *Control) cancelMove(have *ebbv1.ShardRecord, replica uint64) *proto.Error {
	at := slices.IndexFunc(have.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetId() == replica })
	if at < 0 || asMember(have, have.Replicas[at]) == have.Replicas[at] {
		return proto.ErrBadRequest.Errorf("shard %d has no replica %d that leaves and could stay", have.GetShard(), replica)
	}
	wire := edit(c.Table())
	record := editShard(wire, have.GetShard())
	record.Replicas = slices.Clone(record.Replicas)
	record.Replicas[at] = asMember(record, record.Replicas[at])
	choosePreferred(record)
	c.swap(wire)
	return nil
}

// mayLeave reports whether a replica may be made to leave although its group is being changed.
func mayLeave(record *ebbv1.ShardRecord, replica uint64) bool {
	return slices.ContainsFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool {
		return r.GetId() == replica && !r.GetLeaving() && (r.GetJoining() || record.GetShard() == ControlShard && r.GetNonvoter())
	})
}

// settleShard updates the record to a group's committed configuration: replicas that left are dropped, and those that
// joined become members. A node that is to be removed is dropped with its last replica. The command is refused if the
// record is newer than the one that the leader compared: the leader may have been paused since.
func (c *Control) settleShard(cmd *ebbv1.SettleShard) *proto.Error {
	table := c.Table()
	have := table.Shard(cmd.GetShard())
	if have == nil {
		return proto.ErrBadRequest.Errorf("there is no shard %d", cmd.GetShard())
	}
	if !underWay(have) {
		return nil // the command came twice
	}
	if cmd.GetEpoch() != have.GetEpoch() {
		return proto.ErrTooStale.Errorf("shard %d: its members were compared with the record of epoch %d, and there is one of epoch %d", cmd.GetShard(), cmd.GetEpoch(), have.GetEpoch())
	}
	wire := edit(table)
	record := editShard(wire, cmd.GetShard())
	record.Replicas = nil
	for _, r := range have.GetReplicas() {
		member := slices.Contains(cmd.GetReplicas(), r.GetId())
		if r.GetLeaving() && !member {
			continue
		}
		is := pb.CloneOf(r)
		is.Joining = r.GetJoining() && !member
		is.Recovers = 0
		record.Replicas = append(record.Replicas, is)
	}
	if !slices.ContainsFunc(record.Replicas, func(r *ebbv1.ReplicaRecord) bool { return !r.GetNonvoter() }) {
		return proto.ErrBadRequest.Errorf("shard %d would have no voter", cmd.GetShard())
	}
	choosePreferred(record)
	dropRemovedNodes(wire)
	c.swap(wire)
	return nil
}

// dropRemovedNodes drops nodes that were to be removed and hold no replica.
func dropRemovedNodes(wire *ebbv1.Table) {
	holding := make(map[string]bool)
	for _, record := range wire.Placement {
		for _, r := range record.GetReplicas() {
			holding[r.GetNode()] = true
		}
	}
	wire.Nodes = slices.DeleteFunc(wire.Nodes, func(n *ebbv1.NodeRecord) bool {
		gone := n.GetState() == ebbv1.NodeState_NODE_STATE_LEAVING && !holding[n.GetName()]
		if gone {
			wire.Removed = append(slices.Clone(wire.Removed), n.GetName())
		}
		return gone
	})
	wire.Removed = wire.Removed[max(0, len(wire.Removed)-removedMax):]
}

// WasRemoved reports whether a node of that name was a member and has been removed.
func (t *Table) WasRemoved(node string) bool { return slices.Contains(t.wire.GetRemoved(), node) }

// Target returns the nodes that are to hold a group, the one that should lead first. For the control group it returns
// the nodes that are to vote.
func (t *Table) Target(shard uint32) []string { return targetOf(t.Shard(shard)) }

// UnderWay reports whether a group's membership is being changed.
func (t *Table) UnderWay(shard uint32) bool { return underWay(t.Shard(shard)) }

// Share returns how many shards have a voter on a node, and how many more are to have one there.
func (t *Table) Share(node string) (held, due int) {
	for number := uint32(1); number <= t.Shards(); number++ {
		votes := slices.ContainsFunc(t.Replicas(number), func(r *ebbv1.ReplicaRecord) bool {
			return r.GetNode() == node && !r.GetNonvoter() && !r.GetJoining() && !r.GetLeaving()
		})
		switch {
		case votes:
			held++
		case slices.Contains(t.Target(number), node):
			due++
		}
	}
	return held, due
}

// replicasGiven returns the newest replica id of a table, also of one that does not record it.
func replicasGiven(wire *ebbv1.Table) uint64 {
	newest := wire.GetReplicasGiven()
	for _, record := range wire.GetPlacement() {
		for _, r := range record.GetReplicas() {
			newest = max(newest, r.GetId())
		}
	}
	return newest
}
