package node

import (
	"context"
	"maps"
	"slices"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// planEvery is how often the control leader computes the placement of shards.
	planEvery = 500 * time.Millisecond
	// planAfter is how long a new control leader waits, so that it has learned of all nodes.
	planAfter = 3 * time.Second
	// movesAtOnce is how many shards of the cluster may have a move under way.
	movesAtOnce = 4
)

// planner decides, on the control leader, where shards are placed and which moves begin.
type planner struct {
	n *Node

	turn   chan struct{} // guards what follows; held by a token, also while a change is proposed
	term   uint64        // of the control group; what follows was seen in it
	since  time.Time
	dead   map[string]time.Time // since when a node does not answer
	halted string               // why rebalancing is halted, as last logged
	seen   uint64               // epoch at which nothing was left to do, with the dispositions in then
	then   map[string]cluster.NodeDisposition
	gone   map[string]time.Time // the value of dead at that epoch
}

func newPlanner(n *Node) *planner {
	return &planner{n: n, turn: make(chan struct{}, 1), dead: make(map[string]time.Time)}
}

// begin waits until no other change is being made, as long as ctx lasts.
func (p *planner) begin(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return proto.ErrOverloaded.Errorf("another change of the cluster is under way")
	}
}

func (p *planner) end() { <-p.turn }

// look is called every planEvery by one goroutine.
func (p *planner) look(ctx context.Context) {
	if p.begin(ctx) != nil {
		return
	}
	defer p.end()
	c := p.n.groups.Load().control
	term, leads := c.leading()
	table := c.state.control.Table()
	if !leads || table.ClusterID() == "" {
		return
	}
	if term != p.term {
		p.term, p.since, p.seen = term, time.Now(), 0
		clear(p.dead)
	}
	p.count(table)
	if time.Since(p.since) < planAfter {
		return
	}
	if halted := cluster.RebalanceHalted(table, p.n.directory.alive); halted != p.halted {
		p.halted = halted
		if halted != "" {
			p.n.logger.Warn("rebalancing paused", "cause", halted)
		}
	}
	if p.halted == "" {
		p.plan(ctx, c, table)
	}
}

// count notes which nodes do not answer, and since when.
func (p *planner) count(table *cluster.Table) {
	now := time.Now()
	for _, record := range table.Nodes() {
		switch _, known := p.dead[record.GetName()]; {
		case p.n.directory.alive(record.GetName()):
			delete(p.dead, record.GetName())
		case !known:
			p.dead[record.GetName()] = now
		}
	}
}

// longDead reports whether a node has been dead for so long that its replicas are replaced on other nodes.
func (p *planner) longDead(node string) bool {
	since, dead := p.dead[node]
	return dead && time.Since(since) >= p.n.cfg.ReplaceAfter
}

// dispositions returns the current dispositions of the nodes. The turn is held.
func (p *planner) dispositions(table *cluster.Table) map[string]cluster.NodeDisposition {
	return cluster.Dispositions(table, p.answers, p.longDead)
}

// answers reports whether a node answered at the last count. A plan uses a single count. Otherwise a node that changes
// in between would leave the plan half made, and it would count as done.
func (p *planner) answers(node string) bool {
	_, dead := p.dead[node]
	return !dead
}

// there reports whether the replica to which a cancelled move returns is where it was, by the status of its node. A
// node with another disk does not have it.
func (p *planner) there(ctx context.Context, table *cluster.Table, m *ebbv1.BeginMove) bool {
	if m.GetKeep() == 0 {
		return true
	}
	return p.n.prepared(ctx, nodeOf(table, m.GetShard(), m.GetKeep()), m.GetShard(), m.GetKeep())
}

// plan proposes new targets, and begins moves. The turn is held.
func (p *planner) plan(ctx context.Context, c *control, table *cluster.Table) {
	dispositions := p.dispositions(table)
	if table.Epoch() == p.seen && maps.Equal(dispositions, p.then) && maps.Equal(p.dead, p.gone) {
		return
	}
	if targets := cluster.ComputePlacement(table, dispositions, false); len(targets) > 0 {
		if err := p.writeTargets(ctx, c, targets); err != nil {
			return
		}
		table = c.state.control.Table()
	}
	if p.n.cfg.Fail.Hit("plan.laid") != nil {
		return
	}
	moves := cluster.NextMoves(table, p.answers, p.n.cfg.Limits.MovesAtOnce)
	for _, m := range moves {
		if !p.there(ctx, table, m) {
			continue
		}
		if p.n.cfg.Fail.Hit("plan.begin") != nil {
			return
		}
		if _, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: m}}); err != nil {
			p.n.logger.Debug("a move does not begin", "shard", m.GetShard(), "err", err)
			return
		}
		if m.GetKeep() != 0 {
			p.n.logger.Info("a move is taken back", "shard", m.GetShard(), "stays", nodeOf(table, m.GetShard(), m.GetKeep()), "replica", m.GetKeep(), "why", table.Shard(m.GetShard()).GetWhy())
			continue
		}
		p.n.logger.Info("a move begins", "shard", m.GetShard(), "to", m.GetTo(), "from", nodeOf(table, m.GetShard(), m.GetFrom()), "why", table.Shard(m.GetShard()).GetWhy())
		p.n.counts.moves.begun.Add(1)
	}
	if len(moves) == 0 {
		p.seen, p.then, p.gone = table.Epoch(), dispositions, maps.Clone(p.dead)
	}
}

func nodeOf(table *cluster.Table, shard uint32, replica uint64) string {
	for _, r := range table.Replicas(shard) {
		if r.GetId() == replica {
			return r.GetNode()
		}
	}
	return ""
}

// writeTargets proposes targets. The targets of a thousand shards do not fit into one entry. If not all are written,
// the next look computes new ones. It does not for a rebalance, whose caller gets the error and repeats it.
func (p *planner) writeTargets(ctx context.Context, c *control, targets []*ebbv1.SetTargets_Target) error {
	var parts []*ebbv1.ControlCommand
	for some := range proto.InBatches(targets, proto.EntryBytesSoft) {
		parts = append(parts, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetTargets{SetTargets: &ebbv1.SetTargets{Targets: some}}})
	}
	if _, err := c.proposeAll(ctx, parts...); err != nil {
		p.n.logger.Debug("cannot write targets", "err", err)
		return err
	}
	whys := make(map[string]int)
	for _, t := range targets {
		whys[t.GetWhy()]++
	}
	for _, why := range slices.Sorted(maps.Keys(whys)) {
		p.n.logger.Info("placement changed", "shards", whys[why], "why", why)
	}
	return nil
}

// ChangeCluster changes which nodes hold replicas, or recovers a shard. If another node leads the control group, the
// request is forwarded to it, once.
func (v clusterView) ChangeCluster(ctx context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	if r := req.GetRecover(); r != nil && r.GetShard() == cluster.ControlShard {
		return v.n.recoverControl(ctx, req)
	}
	var resp *ebbv1.ChangeClusterResponse
	err := v.n.asControlLeader(ctx, func(c *control) (err error) {
		if resp, err = v.n.planner.change(ctx, c, req); err == nil {
			v.n.measure(ctx, resp.GetMoves())
		}
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.ChangeCluster(ctx, req)
		return err
	})
	return resp, err
}

// Manage executes a request of another node to the control leader.
func (v clusterView) Manage(ctx context.Context, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	return v.n.manage(ctx, req)
}

// change simulates a change, and makes it unless it is a dry run. It returns the moves that follow.
func (p *planner) change(ctx context.Context, c *control, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	defer p.end()
	table := c.state.control.Table()
	if table.ClusterID() == "" {
		return nil, proto.ErrStarting.Errorf("the cluster has no identity yet")
	}
	if req.GetRecover() != nil {
		return p.n.recoverShard(ctx, c, req)
	}
	p.count(table)
	cmd := commandOf(req)
	if err := p.mayGo(table, req.GetRemove()); err != nil {
		return nil, err
	}
	paper, err := cluster.Foresee(table, cmd, p.dispositions, req.GetRebalance())
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		if cmd != nil {
			cmd.IdempotencyKey = req.GetIdempotencyKey()
			if _, err := c.propose(ctx, cmd); err != nil {
				return nil, err
			}
			change := protobuf.CloneOf(req)
			change.IdempotencyKey = nil
			p.n.logger.Info("the cluster is changed", "change", change.String())
		}
		if targets := cluster.ComputePlacement(c.state.control.Table(), p.dispositions(c.state.control.Table()), true); req.GetRebalance() && len(targets) > 0 {
			if err := p.writeTargets(ctx, c, targets); err != nil {
				return nil, err
			}
		}
	}
	moves := cluster.Moves(paper)
	cluster.ExplainWaits(paper, moves, p.n.directory.alive)
	return &ebbv1.ChangeClusterResponse{
		Moves: moves, Epoch: c.state.control.Table().Epoch(), Waits: cluster.RebalanceHalted(paper, p.n.directory.alive),
		Warnings: cluster.Risks(table, paper, p.n.directory.alive),
	}, nil
}

// commandOf returns the command to the control group for a change; nil if the change needs none.
func commandOf(req *ebbv1.ChangeClusterRequest) *ebbv1.ControlCommand {
	state := func(node string, s ebbv1.NodeState) *ebbv1.ControlCommand {
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNodeState{SetNodeState: &ebbv1.SetNodeState{Node: node, State: s}}}
	}
	switch change := req.GetChange().(type) {
	case *ebbv1.ChangeClusterRequest_Drain:
		return state(change.Drain, ebbv1.NodeState_NODE_STATE_DRAINING)
	case *ebbv1.ChangeClusterRequest_Activate:
		return state(change.Activate, ebbv1.NodeState_NODE_STATE_UNSPECIFIED)
	case *ebbv1.ChangeClusterRequest_Remove:
		return state(change.Remove, ebbv1.NodeState_NODE_STATE_LEAVING)
	case *ebbv1.ChangeClusterRequest_Replication:
		return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetReplication{SetReplication: &ebbv1.SetReplication{Replication: change.Replication}}}
	}
	return nil
}

// mayGo refuses to remove a node that does not answer and holds the only copy of a shard.
func (p *planner) mayGo(table *cluster.Table, node string) error {
	if node == "" || p.n.directory.alive(node) {
		return nil
	}
	if only := table.OnlyCopies(node); len(only) > 0 {
		return proto.ErrBadRequest.Errorf("node %s does not answer and holds the only copy of %d shards, such as %d", node, len(only), only[len(only)-1]).
			WithHint("start it again, so that they can move away; or restore the cluster from a backup")
	}
	return nil
}
