package node

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// reconcileEvery is how often a node compares its replicas with the table.
	reconcileEvery = 250 * time.Millisecond
	// leaderlessMax is how long a node knows no leader of the control group before it asks the other nodes whether it
	// is still a member.
	leaderlessMax = 3 * time.Second
)

// replicaReconciler makes the replicas of this node match the table: it creates those that are missing, and deletes
// those that the table does not list any more.
type replicaReconciler struct {
	n               *Node
	doneEpoch       uint64    // of the last table that was reconciled
	leaderlessSince time.Time // since when the control group has no known leader; zero: it has one
}

// look is called every reconcileEvery by one goroutine.
func (r *replicaReconciler) look(ctx context.Context) {
	r.checkMembership(ctx)
	table := r.n.Table()
	id := r.n.dir.identity()
	if table.Epoch() == r.doneEpoch || table.ClusterID() == "" || table.Epoch() < id.Replicas[cluster.ControlShard].Epoch {
		return
	}
	if err := r.n.checkRemoved(table); err != nil {
		r.n.fatal(err)
		return
	}
	for shard := uint32(1); shard <= table.Shards() && ctx.Err() == nil; shard++ {
		if err := r.reconcile(table, shard, id.Replicas[shard]); err != nil {
			r.n.fatal(err)
			return
		}
	}
	r.doneEpoch = table.Epoch()
}

// checkMembership asks the other nodes for their table when this node has known no control leader for a while: the
// control group sends nothing to a node that it has removed.
func (r *replicaReconciler) checkMembership(ctx context.Context) {
	now := time.Now()
	if r.n.groups.Load().control.leader() != "" {
		r.leaderlessSince = time.Time{}
		return
	}
	if r.leaderlessSince.IsZero() {
		r.leaderlessSince = now
	}
	if now.Sub(r.leaderlessSince) < leaderlessMax {
		return
	}
	r.leaderlessSince = now
	for _, name := range r.n.others() {
		wire, from, err := r.n.tableFrom(ctx, name)
		if err != nil || !r.n.believes(from) || wire.GetClusterId() != r.n.clusterID() || wire.GetEpoch() <= r.n.Table().Epoch() {
			continue
		}
		if table, err := cluster.NewTable(wire); err == nil {
			if err := r.n.checkRemoved(table); err != nil {
				r.n.fatal(err)
			}
			return
		}
	}
}

// checkRemoved returns Removed if a table does not list this node on this disk.
func (n *Node) checkRemoved(table *cluster.Table) error {
	record := table.Node(n.cfg.Name)
	switch {
	case record == nil:
		return Removed{cluster.ErrRemoved(n.cfg.Name, table.ClusterID())}
	case record.GetDisk() != "" && record.GetDisk() != n.dir.identity().Disk:
		return Removed{proto.ErrWrongCluster.Errorf("node %s of cluster %s has another disk now: what data directory %s holds was given up as lost", n.cfg.Name, table.ClusterID(), n.cfg.DataDir).
			WithHint("delete the directory, or start it as another node: with an empty one, --join and another --node")}
	}
	return nil
}

// reconcile makes this node's replica of one shard match the table.
func (r *replicaReconciler) reconcile(table *cluster.Table, shard uint32, have replicaRecord) error {
	if err := r.n.recoverHere(table, shard, have); err != nil {
		return err
	}
	wanted, listed := uint64(0), false
	for _, replica := range table.Replicas(shard) {
		if replica.GetNode() == r.n.cfg.Name {
			listed = listed || replica.GetId() == have.ID
			if !replica.GetLeaving() {
				wanted = replica.GetId()
			}
		}
	}
	if have.ID != 0 && !listed && table.Epoch() >= have.Epoch {
		if err := r.n.drop(shard, have.ID); err != nil {
			return err
		}
		have = replicaRecord{}
	}
	// Ids only grow. An id below the one of this disk's replica of the control group belonged to the disk before it. An
	// empty replica with that id would vote a second time.
	if have.ID == 0 && wanted != 0 && wanted >= r.n.dir.identity().Replicas[cluster.ControlShard].ID {
		return r.n.make(shard, replicaRecord{ID: wanted, Epoch: table.Epoch()})
	}
	return nil
}

// make makes an empty replica, which waits until its group's leader sends it the data.
func (n *Node) make(shard uint32, record replicaRecord) error {
	if err := n.prepare(shard); err != nil {
		return err
	}
	if err := n.recollection.expect(shard, &record); err != nil {
		return err
	}
	if err := n.cfg.Fail.Hit("host.prepared"); err != nil {
		return err
	}
	if err := n.dir.update(func(id *identity) { id.Replicas[shard] = record }); err != nil {
		return err
	}
	if err := n.cfg.Fail.Hit("host.listed"); err != nil {
		return err
	}
	r, err := n.newReplica(shard, record)
	if err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	n.serveGroups(n.groups.Load().with(r))
	n.logger.Info("an empty replica waits for its data", "shard", shard, "replica", record.ID)
	return nil
}

// drop ends a replica that the table no longer lists, and deletes its data.
func (n *Node) drop(shard uint32, replica uint64) error {
	g := n.groups.Load()
	r := g.byShard[shard]
	n.serveGroups(g.without(shard))
	if r != nil {
		r.stop()
	}
	if err := n.dir.update(func(id *identity) { delete(id.Replicas, shard) }); err != nil {
		return err
	}
	if err := n.cfg.Fail.Hit("host.unlisted"); err != nil {
		return err
	}
	n.logger.Info("a replica has moved away and its data is deleted", "shard", shard, "replica", replica)
	return n.wipe(shard)
}

// serveGroups replaces the groups that this node serves.
func (n *Node) serveGroups(g *groups) {
	n.groups.Store(g)
	n.backend.replicas.Store(&g.byShard)
}

// prepare makes room for an empty replica: it deletes what is left of an earlier one, and stores a term. The term
// distinguishes the replica from one that lost its log.
func (n *Node) prepare(group uint32) error {
	if err := n.wipe(group); err != nil {
		return err
	}
	return n.log.Group(group).SetUint64([]byte("CurrentTerm"), 1)
}

// wipe deletes what a group has stored.
func (n *Node) wipe(group uint32) error {
	if err := n.log.Group(group).Forget(); err != nil {
		return err
	}
	dir := n.dir.snapshots(group)
	if there, err := fs.Exists(n.cfg.FS, dir); err != nil || !there {
		return err
	}
	if err := n.cfg.FS.RemoveAll(dir); err != nil {
		return diskError(n.cfg.DataDir, "delete snapshots", err)
	}
	return nil
}

// clear deletes what is left of replicas that this node no longer has, since it stopped before it could delete that.
func (n *Node) clear(has map[uint32]replicaRecord) error {
	for _, group := range n.log.GroupIDs() {
		if _, ok := has[group]; ok {
			continue
		}
		if err := n.wipe(group); err != nil {
			return err
		}
	}
	return nil
}

// prepared reports whether a node has a replica of a group, so that it can be sent the data.
func (n *Node) prepared(ctx context.Context, node string, group uint32, replica uint64) bool {
	return n.replicaOn(ctx, node, group).GetReplica() == replica
}

// sound reports whether a node answers and has a replica of a shard that is not in quarantine.
func (n *Node) sound(node string, shard uint32) bool {
	r := n.replicaOn(n.ctx, node, shard)
	return r != nil && !r.GetQuarantined()
}

// replicaOn returns the status of a node's replica of a group; nil if it has none, or does not answer.
func (n *Node) replicaOn(ctx context.Context, node string, group uint32) *ebbv1.ReplicaStatus {
	return replicaOf(n.statusOn(ctx, node), group)
}

func replicaOf(status *ebbv1.NodeStatus, group uint32) *ebbv1.ReplicaStatus {
	for _, r := range status.GetReplicas() {
		if r.GetShard() == group {
			return r
		}
	}
	return nil
}

// statusOn returns the status of a node; nil if it does not answer.
func (n *Node) statusOn(ctx context.Context, node string) *ebbv1.NodeStatus {
	if node == n.cfg.Name {
		return n.Status()
	}
	peer, err := n.peers.Peer(node)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	resp, err := peer.NodeStatus(ctx, &ebbv1.StatusRequest{})
	if err != nil || len(resp.GetNodes()) == 0 {
		return nil
	}
	return resp.Nodes[0]
}
