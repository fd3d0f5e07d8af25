package node

import (
	"context"
	"slices"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// damagedReplica is a replica of a shard that cannot run, because what this node stored of it is damaged. It has the
// term, the votes and the entries that it acknowledged, but not the state that they build on. So it never runs again:
//
//	node              control group                 the shard's leader
//	cannot start it
//	asks          >   marks it as lost          >   removes it from the configuration
//	deletes it    <   drops it                  <
//	makes another <   gives the node another    >   adds that without a vote, sends all, and then gives it a vote
//
// The other replicas of the node serve during that time. Invariant: the node deletes the damaged replica only when the
// shard's other replicas have removed it from their configuration, which needs a majority. Until then its log is
// evidence.
type damagedReplica struct {
	shard   uint32
	replica uint64
	why     error
	said    string // the refusal that was logged last
}

// damagedEvery is how often a node asks for other replicas in place of damaged ones.
const damagedEvery = time.Second

// replaceDamaged asks the control group to replace damaged replicas, until all of them are given up.
func (n *Node) replaceDamaged(ctx context.Context, damaged []*damagedReplica) {
	if len(damaged) == 0 {
		return
	}
	for _, d := range damaged {
		n.logger.Error("replica is damaged: the node serves without it, and asks for another",
			"shard", d.shard, "replica", d.replica, "err", d.why)
	}
	n.damaged.Store(&damaged)
	n.wg.Go(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		watch(ctx, damagedEvery, func() {
			gaveUp := func(d *damagedReplica) bool { return n.gaveUp(ctx, d) }
			left := slices.DeleteFunc(slices.Clone(*n.damaged.Load()), gaveUp)
			n.damaged.Store(&left)
			if len(left) == 0 {
				cancel()
			}
		})
	})
}

// gaveUp reports whether a damaged replica no longer belongs to this node. If it still does, gaveUp asks the control
// group to mark it as lost.
func (n *Node) gaveUp(ctx context.Context, d *damagedReplica) bool {
	if n.dir.identity().Replicas[d.shard].ID != d.replica {
		n.logger.Info("damaged replica is given up, and its data deleted", "shard", d.shard, "replica", d.replica)
		return true
	}
	if table := n.Table(); table.ClusterID() == "" || lost(table, d) {
		return false
	}
	_, err := n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Lost{Lost: &ebbv1.LoseReplica{
		Shard: d.shard, Node: n.cfg.Name, Replica: d.replica,
	}}})
	if err != nil && err.Error() != d.said {
		d.said = err.Error()
		n.logger.Warn("cannot replace a damaged replica yet", "shard", d.shard, "err", err,
			"try", proto.AsError(err).Hint)
	}
	return false
}

// othersSound returns an error unless a majority of the shard's other voters is sound. Only then may a damaged replica
// be given up: if two of three are damaged, each may have acknowledged entries that the third does not have.
func (n *Node) othersSound(d *ebbv1.LoseReplica) error {
	others, sound := 0, 0
	for _, r := range n.Table().Replicas(d.GetShard()) {
		if r.GetId() == d.GetReplica() || r.GetNonvoter() || r.GetJoining() {
			continue
		}
		if others++; !r.GetLost() && n.sound(r.GetNode(), d.GetShard()) {
			sound++
		}
	}
	if sound <= others/2 {
		return proto.ErrNoLeader.Errorf("shard %d: the replica of node %s is damaged, and %d of the %d others are "+
			"whole: no majority", d.GetShard(), d.GetNode(), sound, others).
			WithHint("start the nodes that are down, or restore the data directory of one whose replica is damaged")
	}
	return nil
}

// lost reports whether a table marks a damaged replica as lost.
func lost(table *cluster.Table, d *damagedReplica) bool {
	return slices.ContainsFunc(table.Replicas(d.shard), func(r *ebbv1.ReplicaRecord) bool {
		return r.GetId() == d.replica && r.GetLost()
	})
}

// damagedStatus reports on the damaged replicas of this node.
func (n *Node) damagedStatus() (all []*ebbv1.ReplicaStatus) {
	if list := n.damaged.Load(); list != nil {
		for _, d := range *list {
			all = append(all, &ebbv1.ReplicaStatus{
				Shard: d.shard, Replica: d.replica, Node: n.cfg.Name, Role: roleDamaged, Quarantined: true,
			})
		}
	}
	return all
}
