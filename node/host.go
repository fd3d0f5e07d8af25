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
	// hostEvery is how often a node compares its replicas with the table.
	hostEvery = 250 * time.Millisecond
	// outcastAfter is how long a node hears of no leader of the control group
	// before it asks others whether it is still a member.
	outcastAfter = 3 * time.Second
)

// host makes the replicas that the table gives this node, and deletes those that it has
// taken away.
type host struct {
	n    *Node
	done uint64    // epoch of the last table that was seen to
	deaf time.Time // since when no leader of the control group is known
}

// look is called every hostEvery by one goroutine.
func (h *host) look(ctx context.Context) {
	h.listen(ctx)
	table := h.n.Table()
	id := h.n.dir.identity()
	if table.Epoch() == h.done || table.ClusterID() == "" || table.Epoch() < id.Replicas[cluster.ControlShard].Epoch {
		return
	}
	if err := h.n.outcast(table); err != nil {
		h.n.fatal(err)
		return
	}
	for shard := uint32(1); shard <= table.Shards() && ctx.Err() == nil; shard++ {
		if err := h.keep(table, shard, id.Replicas[shard]); err != nil {
			h.n.fatal(err)
			return
		}
	}
	h.done = table.Epoch()
}

// listen asks the other nodes for their table when the control group has said nothing for a while: who was removed from
// it is not told.
func (h *host) listen(ctx context.Context) {
	now := time.Now()
	if h.n.groups.Load().control.leader() != "" {
		h.deaf = time.Time{}
		return
	}
	if h.deaf.IsZero() {
		h.deaf = now
	}
	if now.Sub(h.deaf) < outcastAfter {
		return
	}
	h.deaf = now
	for _, name := range h.n.others() {
		wire, from, err := h.n.tableFrom(ctx, name)
		if err != nil || !h.n.believes(from) || wire.GetClusterId() != h.n.clusterID() || wire.GetEpoch() <= h.n.Table().Epoch() {
			continue
		}
		if table, err := cluster.NewTable(wire); err == nil {
			if err := h.n.outcast(table); err != nil {
				h.n.fatal(err)
			}
			return
		}
	}
}

// outcast says that a table has not, or no more, this node on this disk.
func (n *Node) outcast(table *cluster.Table) error {
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

// keep makes one shard here what the table wants it to be.
func (h *host) keep(table *cluster.Table, shard uint32, have tenure) error {
	if err := h.n.recoverHere(table, shard, have); err != nil {
		return err
	}
	wanted, listed := uint64(0), false
	for _, r := range table.Replicas(shard) {
		if r.GetNode() == h.n.cfg.Name {
			listed = listed || r.GetId() == have.ID
			if !r.GetLeaving() {
				wanted = r.GetId()
			}
		}
	}
	if have.ID != 0 && !listed && table.Epoch() >= have.Epoch {
		if err := h.n.drop(shard, have.ID); err != nil {
			return err
		}
		have = tenure{}
	}
	// Ids only grow. One below that of this disk's own replica of the control group was given to the disk before it: made again here, empty, it
	// would vote a second time.
	if have.ID == 0 && wanted != 0 && wanted >= h.n.dir.identity().Replicas[cluster.ControlShard].ID {
		return h.n.make(shard, tenure{ID: wanted, Epoch: table.Epoch()})
	}
	return nil
}

// make makes an empty replica, which waits for its group's leader to bring it the data.
func (n *Node) make(shard uint32, t tenure) error {
	if err := n.prepare(shard); err != nil {
		return err
	}
	if err := n.recollection.expect(shard, &t); err != nil {
		return err
	}
	if err := n.cfg.Fail.Hit("host.prepared"); err != nil {
		return err
	}
	if err := n.dir.update(func(id *identity) { id.Replicas[shard] = t }); err != nil {
		return err
	}
	if err := n.cfg.Fail.Hit("host.listed"); err != nil {
		return err
	}
	r, err := n.newReplica(shard, t)
	if err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	n.host(n.groups.Load().with(r))
	n.logger.Info("an empty replica waits for its data", "shard", shard, "replica", t.ID)
	return nil
}

// drop ends a replica that the table does not have any more, and deletes its data.
func (n *Node) drop(shard uint32, replica uint64) error {
	g := n.groups.Load()
	r := g.byShard[shard]
	n.host(g.without(shard))
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

// host makes groups those that this node serves.
func (n *Node) host(g *groups) {
	n.groups.Store(g)
	n.backend.replicas.Store(&g.byShard)
}

// prepare makes room for an empty replica: nothing is left of an earlier one, and it has a term, by which it
// can be told from one that lost its log.
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

// clear deletes what is left of replicas that this node has not, since it stopped before it could.
func (n *Node) clear(has map[uint32]tenure) error {
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

// replicaOn returns how a node's replica of a group is; nil if it has none, or does not answer.
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

// statusOn returns how a node is; nil if it does not answer.
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
