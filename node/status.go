package node

import (
	"cmp"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// record is what this node says of itself.
func (n *Node) record() *ebbv1.NodeRecord {
	a := n.Addresses()
	return &ebbv1.NodeRecord{
		Name:          n.cfg.Name,
		GrpcAddress:   n.cfg.told(n.cfg.AdvertiseGRPC, a.GRPC),
		HttpAddress:   n.cfg.told(n.cfg.AdvertiseHTTP, a.HTTP),
		GossipAddress: cmp.Or(n.cfg.AdvertiseGossip, a.Gossip),
		Alive:         true,
		Version:       n.cfg.Version,
		Enrolled:      n.dir.identity().Founded,
	}
}

// Status reports on this node: what it is doing, and how its replicas are.
func (n *Node) Status() *ebbv1.NodeStatus {
	name, detail := n.phase.now()
	s := &ebbv1.NodeStatus{
		Node: n.record(), Phase: name, Detail: detail, StartedUs: n.started.UnixMicro(),
		LogBytes: uint64(max(0, n.log.Stats().Bytes)),
	}
	g := n.groups.Load()
	if g == nil {
		return s
	}
	if c := g.control.status(); c != nil {
		s.Replicas = append(s.Replicas, c)
	}
	for _, r := range g.replicas {
		if status := r.status(); status != nil {
			status.NowUs, status.Keys = r.state.clock.Load(), r.state.keys()
			s.Replicas = append(s.Replicas, status)
		}
	}
	return s
}

// status reports on a member; nil before it runs. What is applied is by Raft's
// count, which includes entries of its own that never reach the machine.
func (m *member) status() *ebbv1.ReplicaStatus {
	i := m.now.Load()
	if i == nil {
		return nil
	}
	return &ebbv1.ReplicaStatus{
		Shard: m.group, Replica: m.replica, Node: m.node,
		Role: strings.ToLower(i.raft.State().String()), Term: i.raft.CurrentTerm(),
		CommitIndex: i.raft.CommitIndex(), AppliedIndex: i.raft.AppliedIndex(), LastIndex: i.raft.LastIndex(),
		Leader: m.leader(),
	}
}

// readiness says why this node is not ready; nil when it is.
func (n *Node) readiness() error {
	name, detail := n.phase.now()
	if name != phaseServing {
		return proto.ErrStarting.Errorf("node %s is %s: %s", n.cfg.Name, name, detail)
	}
	for _, m := range n.groups.Load().members {
		if i := m.now.Load(); m.leader() == "" || i.raft.State() == raft.Shutdown {
			return proto.ErrNoLeader.Errorf("node %s: group %d has no leader", n.cfg.Name, m.group)
		}
	}
	return nil
}
