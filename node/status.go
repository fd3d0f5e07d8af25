package node

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Roles of replicas in a status, in addition to Raft's own roles.
const (
	roleLeader  = "leader"
	roleDamaged = "damaged" // see damagedReplica
	roleShort   = "short"   // see recollection
)

// record returns this node's record, as the node reports it.
func (n *Node) record() *ebbv1.NodeRecord {
	a := n.Addresses()
	return &ebbv1.NodeRecord{
		Name:          n.cfg.Name,
		GrpcAddress:   n.cfg.advertised(n.cfg.AdvertiseGRPC, a.GRPC),
		HttpAddress:   n.cfg.advertised(n.cfg.AdvertiseHTTP, a.HTTP),
		GossipAddress: cmp.Or(n.cfg.AdvertiseGossip, a.Gossip),
		Alive:         true,
		Version:       n.cfg.Version,
		Enrolled:      n.dir.identity().Founded,
		Zone:          n.cfg.Zone,
		Disk:          n.dir.identity().Disk,
	}
}

// Status returns what this node is doing, and the state of its replicas.
func (n *Node) Status() *ebbv1.NodeStatus {
	name, detail := n.phase.now()
	s := &ebbv1.NodeStatus{
		Node: n.record(), Phase: name, Detail: detail, StartedUs: n.started.UnixMicro(),
		LogBytes: uint64(max(0, n.log.Stats().Bytes)), StorageOldest: n.cfg.Storage.Oldest, StorageNewest: n.cfg.Storage.Newest,
		ReceivedBytes: n.counts.snapshot.came.Load(), HeldBytes: n.counts.snapshot.held.Load(),
		Guarded: n.access.InForce(), DiskSlow: n.pace.now().slow, SyncUs: uint64(n.pace.now().usual().Microseconds()),
	}
	if n.trust == nil {
		s.ProofsShown, s.ProofsAccepted = n.access.ProofKeys()
	}
	s.ClockUs = n.cfg.Clock.Now().UnixMicro()
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
			status.Quarantined = status.Quarantined || r.quarantined.Load()
			s.Replicas = append(s.Replicas, status)
		}
	}
	s.Replicas = append(s.Replicas, n.damagedStatus()...)
	s.Hears, s.Met = g.hears(), n.knownPeers.all(n.mux.Contacted())
	return s
}

// hears returns the nodes whose replicas had contact with this node's lately, sorted by name.
func (g *groups) hears() []string {
	heard := make(map[string]bool)
	for _, m := range g.members {
		for _, node := range m.hears() {
			heard[node] = true
		}
	}
	return slices.Sorted(maps.Keys(heard))
}

// hears returns the nodes of followers that have answered this leader within its lease. On a follower, it returns the
// node of the leader.
func (m *member) hears() (nodes []string) {
	if _, leads := m.leading(); !leads {
		if leader := m.leader(); leader != "" && leader != m.node {
			return []string{leader}
		}
		return nil
	}
	for _, s := range m.configuration().Servers {
		node, _, err := transport.ParseAddress(s.Address)
		if _, heard := m.behind(s.ID); err == nil && heard && node != m.node {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// status returns the status of a member; nil before it runs. The applied index is Raft's, which includes Raft's own
// entries that never reach the machine.
func (m *member) status() *ebbv1.ReplicaStatus {
	i := m.now.Load()
	if i == nil {
		return nil
	}
	role := i.raft.State()
	if _, leads := m.leading(); role == raft.Leader && !leads {
		role = raft.Follower // its disk hangs: Raft may not have looked at its lease since, and others must not take this for a leader with a majority
	}
	s := &ebbv1.ReplicaStatus{
		Shard: m.group, Replica: m.replica, Node: m.node,
		Role: strings.ToLower(role.String()), Term: i.raft.CurrentTerm(),
		CommitIndex: i.raft.CommitIndex(), AppliedIndex: i.raft.AppliedIndex(), LastIndex: i.raft.LastIndex(),
		Leader: m.leader(), ReceivedBytes: m.arrivals.came.Load(), HeldBytes: m.arrivals.held.Load(), ComingBytes: m.arrivals.left.Load(),
	}
	if lacks := m.lacks.Load(); lacks != nil {
		s.Role, s.Quarantined, s.AcknowledgedIndex = roleShort, true, lacks.Index
	}
	return s
}
