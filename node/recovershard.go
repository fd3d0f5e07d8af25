package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A shard whose majority is lost for good continues with one replica, when an operator asks for it:
//
//	control leader     checks that there is no majority, and reports what may be lost
//	control group      marks the others as lost, and the chosen one as all that is left (Control.recoverShard)
//	its node           ends its Raft, makes it the only member, and starts it (recoverHere)
//	                   it elects itself, commits all that its log has, and gets new replicas as after a lost disk
//
// The table is changed first: otherwise the leader would add the others again. After a crash at any point the recovery
// continues, since the node acts by the table.

// recoverShard checks whether a shard can be recovered, and what that loses. It recovers the shard, unless in a dry
// run.
func (n *Node) recoverShard(
	ctx context.Context, c *control, req *ebbv1.ChangeClusterRequest,
) (*ebbv1.ChangeClusterResponse, error) {
	want, table := req.GetRecover(), c.state.control.Table()
	shard := want.GetShard()
	if shard == cluster.ControlShard || !table.Has(shard) {
		return nil, proto.ErrBadRequest.Errorf("there is no shard %d: there are 1 to %d", shard, table.Shards())
	}
	replicas := table.Replicas(shard)
	at := slices.IndexFunc(replicas, func(r *ebbv1.ReplicaRecord) bool {
		return r.GetNode() == want.GetNode() && !r.GetLost()
	})
	if at < 0 {
		return nil, proto.ErrBadRequest.Errorf("node %s holds no replica of shard %d", want.GetNode(), shard).
			WithHint("ebb cluster shards shows who does")
	}
	of := make(map[string]*ebbv1.ReplicaStatus)
	for _, r := range replicas {
		of[r.GetNode()] = n.replicaOn(ctx, r.GetNode(), shard)
	}
	if err := recoverable(shard, replicas, of); err != nil {
		return nil, err
	}
	keeps := of[want.GetNode()]
	switch {
	case keeps.GetReplica() != replicas[at].GetId():
		return nil, proto.ErrUnreachable.Errorf("node %s does not answer with its replica of shard %d",
			want.GetNode(), shard).WithHint("start the node first")
	case keeps.GetRole() == roleDamaged:
		return nil, proto.ErrCorrupt.Errorf("the replica of shard %d on node %s is damaged", shard, want.GetNode()).
			WithHint("recover from another, or restore its data directory")
	}
	resp := &ebbv1.ChangeClusterResponse{Epoch: table.Epoch(), Warnings: n.lostBy(ctx, table, shard, keeps)}
	if req.GetDryRun() {
		return resp, nil
	}
	cmd := &ebbv1.ControlCommand{
		IdempotencyKey: req.GetIdempotencyKey(),
		Body: &ebbv1.ControlCommand_RecoverShard{RecoverShard: &ebbv1.RecoverShard{
			Shard: shard, Node: want.GetNode(), Replica: keeps.GetReplica(),
		}},
	}
	if _, err := c.propose(ctx, cmd); err != nil {
		return nil, err
	}
	for _, warning := range resp.Warnings {
		n.logger.Warn("shard is recovered from one replica", "shard", shard, "from", want.GetNode(), "loses", warning)
	}
	now := c.state.control.Table()
	resp.Epoch, resp.Moves = now.Epoch(), cluster.Moves(now)
	return resp, nil
}

// recoverControl is recoverShard for the control group. That group cannot change its table without a majority, so the
// node itself does the work. The others keep their replicas, which their leader brings in line: none of them may have
// applied an entry that this one lacks.
func (n *Node) recoverControl(
	ctx context.Context, req *ebbv1.ChangeClusterRequest,
) (*ebbv1.ChangeClusterResponse, error) {
	g, table, node := n.groups.Load(), n.Table(), req.GetRecover().GetNode()
	switch {
	case g == nil:
		return nil, proto.ErrStarting.Errorf("node %s is starting", n.cfg.Name)
	case node != n.cfg.Name && forwarded(ctx):
		return nil, proto.ErrBadRequest.Errorf("this is node %s, not %s", n.cfg.Name, node)
	case node != n.cfg.Name:
		peer, err := n.peers.Peer(node)
		if err != nil {
			return nil, err
		}
		return peer.ChangeCluster(metadata.AppendToOutgoingContext(ctx, forwardedKey, "1"), req)
	}
	replicas, of := table.Replicas(cluster.ControlShard), make(map[string]*ebbv1.ReplicaStatus)
	for _, r := range replicas {
		of[r.GetNode()] = n.replicaOn(ctx, r.GetNode(), cluster.ControlShard)
	}
	if err := recoverable(cluster.ControlShard, replicas, of); err != nil {
		return nil, err
	}
	keeps := of[n.cfg.Name]
	if keeps == nil {
		return nil, proto.ErrBadRequest.Errorf("node %s holds no replica of the control group", n.cfg.Name)
	}
	for name, status := range of {
		if status.GetLastIndex() > keeps.GetLastIndex() {
			return nil, proto.ErrBadRequest.Errorf("node %s has entries of the control group up to %d, node %s up to %d",
				name, status.GetLastIndex(), n.cfg.Name, keeps.GetLastIndex()).WithHint("recover it from node " + name)
		}
	}
	resp := &ebbv1.ChangeClusterResponse{
		Epoch: table.Epoch(), Warnings: n.lostBy(ctx, table, cluster.ControlShard, keeps),
	}
	for _, r := range replicas {
		if of[r.GetNode()] == nil {
			resp.Warnings = append(resp.Warnings, fmt.Sprintf(
				"node %s does not answer: start it again with an empty data directory only", r.GetNode()))
		}
	}
	if req.GetDryRun() {
		return resp, nil
	}
	if err := g.control.restartAs(g.control.becomeAll); err != nil {
		return nil, err
	}
	n.logger.Warn("a replica is all that is left of the control group", "replica", keeps.GetReplica())
	err := n.dir.lacks(cluster.ControlShard, keeps.GetReplica(), nil)
	g.control.campaign()
	return resp, err
}

// recoverable returns an error if a shard has a leader, or enough voters to elect one.
func recoverable(shard uint32, replicas []*ebbv1.ReplicaRecord, of map[string]*ebbv1.ReplicaStatus) error {
	voters, sound := 0, 0
	for _, r := range replicas {
		status := of[r.GetNode()]
		if status.GetRole() == roleLeader {
			return proto.ErrBadRequest.Errorf("shard %d has a leader, on node %s: it need not be recovered",
				shard, r.GetNode())
		}
		if r.GetNonvoter() {
			continue
		}
		voters++
		if !r.GetLost() && status.GetReplica() == r.GetId() && !status.GetQuarantined() {
			sound++
		}
	}
	if 2*sound > voters {
		return proto.ErrBadRequest.Errorf("shard %d has %d of %d replicas that vote: they will elect a leader",
			shard, sound, voters).WithHint("wait some seconds, and look with ebb status --shards")
	}
	return nil
}

// lostBy returns, as texts, which acknowledged entries of a shard one replica is known to lack.
func (n *Node) lostBy(
	ctx context.Context, table *cluster.Table, shard uint32, keeps *ebbv1.ReplicaStatus,
) (lost []string) {
	for _, r := range table.Replicas(shard) {
		mark := acked.Mark{}
		for _, node := range append(n.others(), n.cfg.Name) {
			all, err := n.rememberedBy(ctx, node, r.GetNode())
			if err != nil {
				continue
			}
			for _, a := range all {
				if a.GetShard() == shard && a.GetReplica() == r.GetId() {
					mark = mark.Join(acked.MarkOf(a))
				}
			}
		}
		if mark.Index > keeps.GetLastIndex() {
			lost = append(lost, fmt.Sprintf(
				"entries %d to %d of shard %d, which node %s acknowledged, are lost: node %s has entries up to %d",
				keeps.GetLastIndex()+1, mark.Index, shard, r.GetNode(), keeps.GetNode(), keeps.GetLastIndex()))
		}
	}
	if len(lost) == 0 {
		lost = append(lost, fmt.Sprintf("no entry of shard %d behind %d is known to be acknowledged; "+
			"what only nodes knew that do not answer may be lost", shard, keeps.GetLastIndex()))
	}
	return lost
}

// rememberedBy asks a node what it remembers of the replicas of another one.
func (n *Node) rememberedBy(ctx context.Context, node, of string) ([]*ebbv1.Acknowledged, error) {
	if node == n.cfg.Name {
		return n.recollection.memory.Wire(of), nil
	}
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peer, err := n.peers.Peer(node)
	if err != nil {
		return nil, err
	}
	resp, err := peer.Acknowledged(ctx, &ebbv1.AcknowledgedRequest{Node: of, ClusterId: n.clusterID()})
	return resp.GetReplicas(), err
}

// recoverHere makes a replica of this node the only member of its group if the table says so, once.
func (n *Node) recoverHere(table *cluster.Table, shard uint32, have replicaRecord) error {
	at := slices.IndexFunc(table.Replicas(shard), func(r *ebbv1.ReplicaRecord) bool {
		return r.GetNode() == n.cfg.Name && r.GetId() == have.ID && r.GetRecovers() > have.Recovers
	})
	r := n.groups.Load().byShard[shard]
	if at < 0 || r == nil {
		return nil
	}
	epoch := table.Replicas(shard)[at].GetRecovers()
	if !r.alone() || r.lacks.Load() != nil {
		if err := r.restartAs(func() error { return r.becomeAll() }); err != nil {
			return err
		}
		n.logger.Warn("a replica is all that is left of its shard, and the only member of its group now",
			"shard", shard, "replica", have.ID)
	}
	err := n.dir.update(func(id *identity) {
		if t, ok := id.Replicas[shard]; ok && t.ID == have.ID {
			t.Lacks, t.Recovers = nil, epoch
			id.Replicas[shard] = t
		}
	})
	r.campaign()
	return err
}

// becomeAll makes a member that does not run the only member of its group. The configuration is an entry of a term that
// has no other entry, so that no other log has another entry in its place. All entries before it in the log are
// committed with it.
func (m *member) becomeAll() error {
	end, err := m.end()
	if err != nil {
		return err
	}
	term, err := m.wal.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return err
	}
	if lacks := m.lacks.Load(); lacks != nil {
		term = max(term, lacks.Ballot)
	}
	term++
	if err := m.enter(term, true); err != nil {
		return err
	}
	entry := &raft.Log{
		Index: end.Index + 1, Term: term, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: serverID(m.replica), Address: transport.Address(m.node, m.replica),
		}}}),
	}
	if err := m.wal.StoreLog(entry); err != nil {
		return err
	}
	m.lacks.Store(nil)
	return nil
}
