package node

import (
	"cmp"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// forwardedKey marks a request to the control leader that was forwarded once.
	forwardedKey = "ebb-forwarded"
	// leaderPoll is how often to look for a control leader while there is none.
	leaderPoll = 20 * time.Millisecond
	// localMax is how long a request that changed the table waits until this node has the change.
	localMax = time.Second
	// statusMax is how long another node may take to answer a status request.
	statusMax = time.Second
	// checksumsMax is how long that may take when checksums are asked for.
	checksumsMax = 30 * time.Second
)

// clusterView is the cluster as the edges see it: what they may read and ask through this node.
type clusterView struct{ n *Node }

// Table returns the table as this node knows it; nil before it knows one.
func (v clusterView) Table() *ebbv1.Table {
	t := v.n.Table()
	if t.ClusterID() == "" {
		return nil
	}
	return v.n.annotate(t)
}

// annotate returns a copy of the table with what is not part of it: who leads, and which nodes are alive according to
// gossip.
func (n *Node) annotate(t *cluster.Table) *ebbv1.Table {
	wire := t.Wire()
	out := &ebbv1.Table{
		ClusterId: wire.ClusterId, Epoch: wire.Epoch, Shards: wire.Shards, Replication: wire.Replication,
		Namespaces: wire.Namespaces, DroppedVersion: wire.DroppedVersion, ReplicasGiven: wire.ReplicasGiven, Removed: wire.Removed, Version: t.Version(),
		Nodes:     make([]*ebbv1.NodeRecord, len(wire.Nodes)),
		Placement: make([]*ebbv1.ShardRecord, len(wire.Placement)),
	}
	for i, record := range wire.Nodes {
		out.Nodes[i] = n.lively(record)
	}
	for i, record := range wire.Placement {
		leader, term := n.leaders.Leader(record.Shard)
		out.Placement[i] = &ebbv1.ShardRecord{
			Shard: record.Shard, Replicas: record.Replicas, Preferred: record.Preferred, Leader: leader, Term: term,
			Target: record.Target, Why: record.Why, Epoch: record.Epoch,
		}
	}
	return out
}

// lively returns a node's record with the newest addresses that gossip knows.
func (n *Node) lively(record *ebbv1.NodeRecord) *ebbv1.NodeRecord {
	out := &ebbv1.NodeRecord{
		Name: record.Name, GrpcAddress: record.GrpcAddress, HttpAddress: record.HttpAddress,
		GossipAddress: record.GossipAddress, Version: record.Version, Alive: n.directory.alive(record.Name),
		Enrolled: record.Enrolled, Zone: record.Zone, Disk: record.Disk, State: record.State,
	}
	if record.Name == n.cfg.Name {
		own := n.record()
		out.GrpcAddress, out.HttpAddress, out.GossipAddress, out.Version = own.GrpcAddress, own.HttpAddress, own.GossipAddress, own.Version
	} else if m, ok := n.directory.member(record.Name); ok && m.GRPC != "" {
		out.GossipAddress, out.Version = m.Gossip, m.Version
		if !reaches(out.GrpcAddress, m.GRPC) {
			out.GrpcAddress = m.GRPC
		}
		if !reaches(out.HttpAddress, m.HTTP) {
			out.HttpAddress = m.HTTP
		}
	}
	return out
}

// SetNamespace creates or changes a namespace. If another node leads the control group, the request is forwarded to it,
// once.
func (v clusterView) SetNamespace(ctx context.Context, req *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	if err := v.n.budgetable(req.GetNamespace()); err != nil {
		return nil, err
	}
	if err := v.n.hashable(req.GetNamespace()); err != nil {
		return nil, err
	}
	if err := v.n.roomy(req.GetNamespace()); err != nil {
		return nil, err
	}
	if err := v.n.clockable(req.GetNamespace()); err != nil {
		return nil, err
	}
	// Under an event clock, new settings apply from the newest event that was acknowledged before this request. So this
	// node first asks for that event. It then makes every shard take over the settings before it answers.
	name := cmp.Or(req.GetNamespace().GetName(), proto.DefaultNamespace)
	before, here := v.n.Table().Namespace(name), !forwarded(ctx)
	if here && before != nil {
		v.n.coordinator.RefreshEventClock(ctx, name)
	}
	resp, err := v.n.setNamespace(ctx, req)
	if err != nil {
		return resp, err
	}
	v.n.awaitNamespace(ctx, resp.GetNamespace())
	if here && before != nil {
		v.n.coordinator.TellSettings(ctx, resp.GetNamespace())
	}
	return resp, nil
}

func (n *Node) setNamespace(ctx context.Context, req *ebbv1.SetNamespaceRequest) (resp *ebbv1.SetNamespaceResponse, err error) {
	err = n.asControlLeader(ctx, func(c *control) error {
		result, err := c.propose(ctx, &ebbv1.ControlCommand{
			Body:           &ebbv1.ControlCommand_SetNamespace{SetNamespace: req},
			IdempotencyKey: req.GetIdempotencyKey(),
		})
		resp = &ebbv1.SetNamespaceResponse{Namespace: result.GetNamespace()}
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.SetNamespace(ctx, req)
		return err
	})
	return resp, err
}

func forwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, forwardedKey)) > 0
}

// controlLeader returns the node that leads the control group. It waits for a leader as long as ctx lasts.
func (n *Node) controlLeader(ctx context.Context, c *control) (string, error) {
	var leader string
	if await(ctx, leaderPoll, func() bool { leader = c.leader(); return leader != "" }) != nil {
		return "", proto.ErrNoLeader.Errorf("the control group has no leader").
			WithHint("see ebb status: a majority of its nodes must be up")
	}
	return leader, nil
}

// awaitNamespace waits, at most localMax, until this node's table has a namespace's new version.
func (n *Node) awaitNamespace(ctx context.Context, ns *ebbv1.Namespace) {
	ctx, cancel := context.WithTimeout(ctx, localMax)
	defer cancel()
	_ = await(ctx, handOverPoll, func() bool { // a timeout does no harm: the change is made
		return n.Table().Defined(ns.GetName()).GetVersion() >= ns.GetVersion()
	})
}

// DeleteNamespace marks a namespace as deleted, or ends its grace time.
func (v clusterView) DeleteNamespace(ctx context.Context, req *ebbv1.DeleteNamespaceRequest) (resp *ebbv1.DeleteNamespaceResponse, err error) {
	grace := proto.GraceDefaultUS
	if req.GraceUs != nil {
		grace = req.GetGraceUs()
	}
	err = v.n.asControlLeader(ctx, func(c *control) error {
		now, err := c.timeOfDeletion(ctx, v.n.keeper)
		if err != nil {
			return err
		}
		result, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_DeleteNamespace{
			DeleteNamespace: &ebbv1.DeleteNamespace{Name: req.GetName(), NowUs: now, GraceUs: grace},
		}, IdempotencyKey: req.GetIdempotencyKey()})
		resp = &ebbv1.DeleteNamespaceResponse{Namespace: result.GetNamespace()}
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.DeleteNamespace(ctx, req)
		return err
	})
	if err == nil {
		v.n.awaitNamespace(ctx, resp.GetNamespace())
	}
	return resp, err
}

// UndeleteNamespace reverses the deletion of a namespace.
func (v clusterView) UndeleteNamespace(ctx context.Context, req *ebbv1.UndeleteNamespaceRequest) (resp *ebbv1.UndeleteNamespaceResponse, err error) {
	err = v.n.asControlLeader(ctx, func(c *control) error {
		result, err := c.propose(ctx, &ebbv1.ControlCommand{
			Body:           &ebbv1.ControlCommand_UndeleteNamespace{UndeleteNamespace: req},
			IdempotencyKey: req.GetIdempotencyKey(),
		})
		resp = &ebbv1.UndeleteNamespaceResponse{Namespace: result.GetNamespace()}
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.UndeleteNamespace(ctx, req)
		return err
	})
	if err == nil {
		v.n.awaitNamespace(ctx, resp.GetNamespace())
	}
	return resp, err
}

// askNamespaces returns the control leader's namespaces, deleted or not, and the epoch of its table.
func (n *Node) askNamespaces(ctx context.Context) ([]*ebbv1.Namespace, uint64, error) {
	g := n.groups.Load()
	if g == nil {
		return nil, 0, proto.ErrStarting.Errorf("node %s is starting", n.cfg.Name)
	}
	leader, err := n.controlLeader(ctx, g.control)
	if err != nil {
		return nil, 0, err
	}
	if leader == n.cfg.Name {
		table := n.Table()
		return table.AllNamespaces(), table.Epoch(), nil
	}
	table, err := n.tableOf(ctx, leader)
	return table.GetNamespaces(), table.GetEpoch(), err
}

// leaderEpoch returns the epoch of the table after all changes that were acknowledged before the call. A control leader
// that was just elected may not have applied them yet, so the request makes it apply them first.
func (n *Node) leaderEpoch(ctx context.Context) (uint64, error) {
	resp, err := n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Order{Order: cluster.ControlShard}})
	if err != nil || resp.GetEpoch() > 0 {
		return resp.GetEpoch(), err
	}
	_, epoch, err := n.askNamespaces(ctx) // the leader is of an older build
	return epoch, err
}

// awaitEpoch waits until this node's table has the epoch, or a later one.
func (n *Node) awaitEpoch(ctx context.Context, epoch uint64) error {
	return await(ctx, handOverPoll, func() bool { return n.Table().Epoch() >= epoch })
}

// NodeStatus reports on this node alone.
func (v clusterView) NodeStatus(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	ctx, cancel := reporting(ctx, checksumsMax)
	defer cancel()
	own, err := v.n.summed(ctx, req)
	if err != nil {
		return nil, err
	}
	return &ebbv1.StatusResponse{ClusterId: v.n.clusterID(), Version: v.n.Table().Version(), Tokens: v.n.tokens(), Nodes: []*ebbv1.NodeStatus{own}}, nil
}

// reporting limits a report to a tenth less than the caller waits, so that what is known by then arrives in time.
func reporting(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	if end, ends := ctx.Deadline(); ends {
		atMost = min(atMost, time.Until(end)*9/10)
	}
	return context.WithTimeout(ctx, atMost)
}

// Status reports on all nodes, this one first.
func (v clusterView) Status(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	n := v.n
	atMost := statusMax
	if len(req.GetChecksums()) > 0 {
		atMost = checksumsMax
	}
	ctx, cancel := reporting(ctx, atMost)
	defer cancel()
	names := n.others()
	reports := make([]*ebbv1.NodeStatus, len(names))
	var own *ebbv1.NodeStatus
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { own, err = n.summed(ctx, req) }) // at the same time as the others
	for i, name := range names {
		wg.Go(func() {
			if peer, err := n.peers.Peer(name); err == nil {
				if resp, err := peer.NodeStatus(ctx, req); err == nil && len(resp.GetNodes()) > 0 {
					reports[i] = resp.Nodes[0]
				}
			}
		})
	}
	if wg.Wait(); err != nil {
		return nil, err
	}
	out := &ebbv1.StatusResponse{ClusterId: n.clusterID(), Version: n.Table().Version(), Tokens: n.tokens(), Nodes: []*ebbv1.NodeStatus{own}}
	for i, name := range names {
		if reports[i] == nil {
			out.Unreachable = append(out.Unreachable, name)
			continue
		}
		out.Nodes = append(out.Nodes, reports[i])
	}
	return out, nil
}

// others returns the names of all nodes of the cluster but this one.
func (n *Node) others() []string {
	var names []string
	for _, record := range n.Table().Nodes() {
		if record.GetName() != n.cfg.Name {
			names = append(names, record.GetName())
		}
	}
	return names
}
