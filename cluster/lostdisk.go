package cluster

import (
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// replace gives a node whose disk is lost a new one: its replicas leave, and it gets new ones. The command is refused
// if a group would keep no majority: such a group could never agree that the replica is gone.
//
// A group whose count is in doubt may still have a leader. Its majority may then need a replica that was to leave. So
// only the lost replica leaves now. A replica that was to leave stays a member, or becomes one again. Once this is
// settled, the group is moved to its target.
func (c *Control) replace(cmd *ebbv1.JoinNode) (uint64, *proto.Error) {
	table, record := c.Table(), cmd.GetRecord()
	if err := table.Survives(record.GetName(), cmd.GetLedWithout()); err != nil {
		return 0, err
	}
	doubts := table.InDoubt(record.GetName())
	wire := edit(table)
	want := newNodeRecord(record)
	want.State = table.Node(record.GetName()).GetState()
	wire.Nodes = put(wire.Nodes, want, (*ebbv1.NodeRecord).GetName)
	voted := false
	for id := range wire.Placement {
		if _, here := table.ReplicaOn(record.GetName(), uint32(id)); !here {
			continue
		}
		shard := editShard(wire, uint32(id))
		shard.Replicas = slices.Clone(shard.Replicas)
		for i, r := range shard.Replicas {
			switch {
			case r.GetNode() == record.GetName():
				voted = voted || id == ControlShard && !r.GetNonvoter()
				gone := pb.CloneOf(r)
				gone.Joining, gone.Leaving, gone.Lost = false, true, table.marksLost()
				shard.Replicas[i] = gone
			case slices.Contains(doubts, uint32(id)):
				shard.Replicas[i] = asMember(shard, r)
			}
		}
		if len(shard.Target) == 0 {
			shard.Target = targetOf(table.Shard(uint32(id)))
		}
		shard.Why = record.GetName() + " lost its disk"
		choosePreferred(shard)
	}
	replica := c.assignReplicaID(wire, &ebbv1.ReplicaRecord{Node: record.GetName(), Nonvoter: !voted, Joining: true})
	control := editShard(wire, ControlShard)
	control.Replicas = append(slices.Clone(control.Replicas), replica)
	c.swap(wire)
	return replica.Id, nil
}

// loseReplica marks one replica of a shard as lost: it leaves, and its node gets a new one. A replica that is already
// lost, or that the shard does not have any more, stays as it is.
func (c *Control) loseReplica(cmd *ebbv1.LoseReplica) *proto.Error {
	table, id := c.Table(), cmd.GetShard()
	if table.Version() < proto.VersionLoseReplica {
		return proto.ErrStarting.Errorf("replicas are replaced one by one from storage version %d on, "+
			"and %d is in force", proto.VersionLoseReplica, table.Version()).
			WithHint("upgrade all nodes, and wait some seconds: ebb status shows the version in force")
	}
	if id == ControlShard || !table.Has(id) {
		return proto.ErrBadRequest.Errorf("there is no shard %d", id)
	}
	at := slices.IndexFunc(table.Replicas(id), func(r *ebbv1.ReplicaRecord) bool {
		return r.GetId() == cmd.GetReplica() && r.GetNode() == cmd.GetNode()
	})
	if at < 0 || table.Replicas(id)[at].GetLost() {
		return nil
	}
	if holds, stay, gone := table.count(id, cmd.GetNode()); holds && stay <= gone {
		return proto.ErrCorrupt.Errorf("shard %d: without the damaged replica of node %s no majority of it is left: "+
			"%d of %d voters", id, cmd.GetNode(), stay, stay+gone).
			WithHint("wait until other nodes are back and moves are done; " +
				"or restore the data directory, or the cluster from a backup")
	}
	wire := edit(table)
	record := editShard(wire, id)
	if len(record.Target) == 0 {
		record.Target = targetOf(table.Shard(id))
	}
	record.Replicas = slices.Clone(record.Replicas)
	gone := pb.CloneOf(record.Replicas[at])
	gone.Joining, gone.Leaving, gone.Lost = false, true, true
	record.Replicas[at] = gone
	record.Why = cmd.GetNode() + " has a damaged replica"
	choosePreferred(record)
	c.swap(wire)
	return nil
}

// asMember returns a replica that was to leave as one that is to be a member. Other replicas are returned as they are,
// and so are lost ones, and one whose node is to hold another replica.
func asMember(record *ebbv1.ShardRecord, r *ebbv1.ReplicaRecord) *ebbv1.ReplicaRecord {
	another := slices.ContainsFunc(record.GetReplicas(), func(o *ebbv1.ReplicaRecord) bool { return o.GetNode() == r.GetNode() && !o.GetLeaving() })
	if !r.GetLeaving() || r.GetLost() || another {
		return r
	}
	stays := pb.CloneOf(r)
	stays.Leaving, stays.Joining = false, true
	return stays
}

func (t *Table) marksLost() bool { return t.Version() >= proto.VersionLostReplicas }

// Whether a group has a majority left when a node's disk is lost is decided in two ways.
//
// By count, of the replicas in its record that may vote. While the group is being changed, the record does not show
// which replicas are in its configuration, only which may be:
//
//	stay   neither join nor leave   in the configuration, with their data
//	maybe  join or leave            in it or not; a voter in it has its data
//	gone   lost, this one included  in it or not, and never answers again
//
// So the configuration has at most stay+maybe+gone voters. Replicas of maybe in the configuration only add to the
// answering ones. In the worst case it has none of maybe and all of gone: so a majority is certain if stay > gone. With
// A lost now:
//
//	{A B C}                       2 > 1    certain, whatever other replicas join or leave
//	{A B}                         1 = 1    nothing is left that could agree on anything
//	{A B, C leaves}               1 = 1    {A B C} is led by B or C, {A B} is not
//	{A B, D joins}                1 = 1    {A B D} is led, {A B} is not
//	{A B, C leaves, D joins}      1 = 1    {A B C}, {A B C D} and {A B D} are all led
//	{A leaves, B, D joins}        1 = 1    {A B D} and {B D} are, {A B} is not
//	{A joins, C leaves}           0 < 1    {C} is, {A C} and {A} are not
//	{A B C, D lost and leaves}    2 = 2    {A B C} is led, {A B C D} is not
//
// By evidence, where the count is not certain. A leader is in contact with a majority. If it still leads when the lost
// disk has not been in contact for a while, it leads without that disk. A group that is only going to be changed, and
// is in the state that its record says, needs no evidence: there the count is exact. The control group is also changed
// by its targets, without a mark in the record. A replica that votes by its record may not have its vote yet, and one
// that does not may still have it.

// count returns whether a node holds a replica of a group that may vote. stay is how many others are certainly in the
// configuration with their data. gone is how many that may be in it never answer again, the node's own included.
func (t *Table) count(group uint32, node string) (holds bool, stay, gone int) {
	for _, r := range t.Replicas(group) {
		switch {
		case r.GetLost():
			gone++
		case r.GetNonvoter() || r.GetJoining() && !t.marksLost():
		case r.GetNode() == node:
			holds = true
			gone++
		case r.GetJoining() || r.GetLeaving() && t.marksLost():
		default:
			stay++
		}
	}
	return holds, stay, gone
}

// InDoubt returns the groups for which only evidence can show whether they keep a majority without a node's disk.
func (t *Table) InDoubt(node string) (groups []uint32) {
	for id, record := range t.placement {
		holds, stay, gone := t.count(uint32(id), node)
		if holds && stay <= gone && t.marksLost() && (id == ControlShard || underWay(record)) {
			groups = append(groups, uint32(id))
		}
	}
	return groups
}

// Survives returns an error if a group would keep no majority without a node's disk. ledWithout are the groups for
// which there is evidence that they have a leader without it.
func (t *Table) Survives(node string, ledWithout []uint32) *proto.Error {
	doubts := t.InDoubt(node)
	for id := range t.placement {
		group := uint32(id)
		holds, stay, gone := t.count(group, node)
		switch {
		case !holds || stay > gone:
		case !slices.Contains(doubts, group):
			return proto.ErrWrongCluster.Errorf("node %s has lost its disk, and held 1 of %d replicas of group %d: without it there is no majority that could give it a new one", node, stay+gone, id).
				WithHint("start it with the --data-dir it had, or restore the cluster from a backup")
		case !slices.Contains(ledWithout, group):
			return proto.ErrWrongCluster.Errorf("node %s has lost its disk while the members of group %d were being changed, and nobody leads that without it: so it was needed for a majority", node, id).
				WithHint("start it with the --data-dir it had, or restore the cluster from a backup")
		}
	}
	return nil
}

// OnlyCopies returns the groups whose only replica with data is on a node.
func (t *Table) OnlyCopies(node string) (groups []uint32) {
	for id, record := range t.placement {
		others := slices.ContainsFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool {
			return r.GetNode() != node && !r.GetJoining() && !r.GetLost()
		})
		if _, here := t.ReplicaOn(node, uint32(id)); here && !others {
			groups = append(groups, uint32(id))
		}
	}
	return groups
}
