package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

const (
	// joinEvery is how often a node that wants to join asks.
	joinEvery = 200 * time.Millisecond
	// joinMax is how long an answer may take.
	joinMax = 5 * time.Second
)

// join asks the cluster that gossip has found to make this node a member, until the cluster does so or refuses for
// good. The node then has a replica of the control group, still empty, and gets all other data through it.
func (n *Node) join(ctx context.Context) error {
	for {
		resp, err := n.askToJoin(ctx)
		switch takes := n.dir.identity().TakesPlace; {
		case err == nil:
			return n.joined(resp)
		case takes && errors.Is(err, proto.ErrWrongCluster):
			return Removed{proto.AsError(err)}
		case final(err) || ctx.Err() != nil:
			return err
		case errors.Is(err, proto.ErrDiskNotLost) && !takes:
			if err := n.dir.update(func(id *identity) { id.TakesPlace = true }); err != nil {
				return err
			}
		}
		n.phase.enter(phaseJoining, proto.AsError(err).Message)
		select {
		case <-time.After(joinEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// final reports whether an error will be the same at the next try.
func final(err error) bool {
	for _, e := range []error{proto.ErrDuplicateNode, proto.ErrWrongCluster, proto.ErrBadRequest, proto.ErrNewerVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// askToJoin asks one node after the other, until one returns the control leader's answer.
func (n *Node) askToJoin(ctx context.Context) (*ebbv1.ManageResponse, error) {
	last := error(proto.ErrUnreachable.Errorf("none of %s answers that belongs to a cluster%s", strings.Join(n.cfg.Join, ", "), n.unjoined()))
	for _, m := range n.directory.members() {
		if m.Node == n.cfg.Name || !m.Alive || m.Cluster == "" {
			continue
		}
		peer, err := n.peers.Peer(m.Node)
		if err != nil {
			last = err
			continue
		}
		asked, refused := n.surveyed(ctx, []string{m.Node})
		proven, doubt, err := n.provenReports(asked, refused)
		switch {
		case err != nil:
			return nil, err
		case len(proven) < len(asked):
			// another process may have answered for the node
			last = proto.ErrUnreachable.Errorf("%s", proto.AsError(doubt).Message).WithHint(proto.AsError(doubt).Hint)
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, joinMax)
		resp, err := peer.Manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Join{
			Join: &ebbv1.JoinNode{
				Record: n.record(), ClusterId: n.dir.identity().ClusterID, Protocol: proto.WireVersion,
				StorageOldest: n.cfg.Storage.Oldest, StorageNewest: n.cfg.Storage.Newest, TakesPlace: n.dir.identity().TakesPlace,
			},
		}})
		cancel()
		if err == nil || final(err) || errors.Is(err, proto.ErrDiskNotLost) { // that is the control leader's word, and the others would ask it again
			return resp, err
		}
		coded := proto.AsError(err)
		last = coded.Errorf("node %s: %s", m.Node, coded.Message)
	}
	return nil, last
}

// unjoined returns what is wrong with the join addresses, to append to a sentence about them; "" if no fault is known.
func (n *Node) unjoined() string {
	g := n.directory.gossip.Load()
	if g == nil {
		return ""
	}
	if why := g.Unjoined(); why != "" {
		return " (" + why + ")"
	}
	return ""
}

// joined stores the identity and the table of the cluster that this node has joined.
func (n *Node) joined(resp *ebbv1.ManageResponse) error {
	table, err := cluster.NewTable(resp.GetTable())
	if err != nil {
		return proto.ErrInternal.Errorf("the cluster's table: %v", err)
	}
	if err := n.prepare(cluster.ControlShard); err != nil {
		return err
	}
	err = n.dir.update(func(id *identity) {
		id.Layout = max(id.Layout, table.Version())
		id.ClusterID, id.Shards, id.Replication, id.Founded, id.TakesPlace = table.ClusterID(), table.Shards(), table.Replication(), true, false
		id.Replicas = map[uint32]replicaRecord{cluster.ControlShard: {ID: resp.GetReplica(), Epoch: table.Epoch()}}
	})
	if err != nil {
		return err
	}
	if err := n.dir.saveTable(table); err != nil {
		return err
	}
	n.tables.saved.Store(table)
	if g := n.directory.gossip.Load(); g != nil {
		g.Announce()
	}
	n.logger.Info("joined a cluster", "cluster_id", table.ClusterID(), "shards", table.Shards(), "nodes", len(table.Nodes()), "replica", resp.GetReplica())
	return nil
}

// admit makes a node a member, on the control leader. A node with the name of a member and another disk takes that
// member's place. It does so only when it is certain enough that no process has the old disk any more. admit sets the
// fields that it decides itself, whatever the request has in them.
func (n *Node) admit(ctx context.Context, c *control, join *ebbv1.JoinNode) (*ebbv1.ManageResponse, error) {
	if err := n.speaks(join); err != nil {
		return nil, err
	}
	join.Replace, join.LedWithout, join.Proven = false, nil, rpc.ProvenNode(ctx)
	if n.access.InForce() && !join.Proven { // the control group checks it too, from a storage version on
		return nil, cluster.ErrUnprovenNode(join.GetRecord().GetName())
	}
	if have := n.Table().Node(join.GetRecord().GetName()); have != nil && have.GetDisk() != join.GetRecord().GetDisk() {
		taken, led, err := n.lostDisks.judge(ctx, n, have, join.GetRecord().GetDisk())
		if err != nil {
			return nil, err
		}
		join.Replace, join.LedWithout = !taken, led
	}
	if join.GetTakesPlace() && n.Table().Version() < proto.VersionTakesPlace { // judged by what is applied here, since not all know the field
		if n.Table().Node(join.GetRecord().GetName()) == nil {
			return nil, cluster.ErrRemoved(join.GetRecord().GetName(), n.clusterID())
		}
		join.TakesPlace = false
	}
	result, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: join}})
	if err != nil {
		return nil, err
	}
	n.logger.Info("a node joins", "name", join.GetRecord().GetName(), "at", join.GetRecord().GetGrpcAddress(), "replaces_disk", join.GetReplace(), "replica", result.GetReplica())
	return &ebbv1.ManageResponse{Table: c.state.control.Table().Wire(), Replica: result.GetReplica()}, nil
}
