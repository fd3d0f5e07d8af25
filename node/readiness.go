package node

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
)

const (
	// readyLagMax is how many committed entries of a group a ready node may still have to apply.
	readyLagMax = 4096
	// companyMax is how long a restarted node waits for other nodes that are away.
	companyMax = time.Minute
	// shareMax is how long a node without shards waits until it gets some, counted while it could get them.
	shareMax = 10 * time.Second
)

// continuousUptime is how long, without a break, the cluster could have given the node shards. A node that was stopped,
// or did not get new tables, may have been given shards that it does not know of.
type continuousUptime struct {
	awake awake
	lasts atomic.Int64 // nanoseconds
}

// look is called every watchEvery, by one goroutine. there reports whether the node serves and knows a leader of the
// control group.
func (a *continuousUptime) look(there bool) {
	if ran := a.awake.step(); there && ran < stoodAfter {
		a.lasts.Add(int64(ran))
	} else {
		a.lasts.Store(0)
	}
}

// startup returns what this node still has to do by itself before it can take part; nil when that is done. It does not
// depend on other nodes.
func (n *Node) startup() error {
	switch name, detail := n.phase.now(); name {
	case phaseStarting, phaseRestoring:
		return proto.ErrStarting.Errorf("node %s is %s: %s", n.cfg.Name, name, detail)
	}
	return nil
}

// attend is called every watchEvery by one goroutine.
func (n *Node) attend() {
	n.continuousUptime.look(n.phase.hasServed() && n.groups.Load().control.leader() != "")
}

// Readiness returns why this node should get no requests, or why no other node may be stopped yet; nil if there is no
// such reason. It is the answer of the readiness probe.
func (n *Node) Readiness() error {
	switch name, detail := n.phase.now(); name {
	case phaseServing:
	case phaseStopping:
		return proto.ErrShuttingDown.Errorf("node %s is %s: %s", n.cfg.Name, name, detail)
	default:
		return proto.ErrStarting.Errorf("node %s is %s: %s", n.cfg.Name, name, detail)
	}
	if err := n.settled(); err != nil {
		return err
	}
	alone := n.again && n.phase.servesFor() < companyMax
	table := n.Table()
	for _, m := range n.groups.Load().members {
		if table.UnderWay(m.group) && m.group != cluster.ControlShard {
			continue // its replica is about to become a member, or to be none
		}
		if err := m.ready(); err != nil {
			return err
		}
		if _, voters := m.voters(); alone && thin(voters, n.directory.alive) {
			return proto.ErrStarting.Errorf("node %s is back, but a majority of group %d needs every node that is up: another may not be stopped now", n.cfg.Name, m.group)
		}
	}
	return nil
}

// settled returns an error until a node that is new, or has lost its disk, has got all of its share. Until then another
// node with the same shards must not be stopped. Later moves do not make the node unready again.
func (n *Node) settled() error {
	table := n.Table()
	if n.whole.Load() || table.ClusterID() == "" {
		return nil
	}
	switch held, due := table.Share(n.cfg.Name); {
	case due > 0:
		return proto.ErrStarting.Errorf("node %s has %d of the %d shards that it is to hold: `ebb cluster moves` shows the others on their way", n.cfg.Name, held, held+due)
	case held == 0 && time.Duration(n.continuousUptime.lasts.Load()) < shareMax:
		return proto.ErrStarting.Errorf("node %s has just joined and has no shards yet", n.cfg.Name)
	}
	n.whole.Store(true)
	return nil
}

// ready returns why this member does not take its full part in its group; nil if it does.
func (m *member) ready() error {
	i := m.now.Load()
	if lacks := m.lacks.Load(); lacks != nil {
		return m.errShort(*lacks)
	}
	if i == nil || i.raft.State() == raft.Shutdown || m.leader() == "" {
		return proto.ErrNoLeader.Errorf("node %s: group %d has no leader", m.node, m.group)
	}
	if !seated(m.configuration(), transport.Address(m.node, m.replica)) {
		return proto.ErrStarting.Errorf("node %s: group %d does not count replica %d among its members", m.node, m.group, m.replica)
	}
	commit := i.raft.CommitIndex()
	if lag := commit - min(commit, i.raft.AppliedIndex()); lag > readyLagMax {
		return proto.ErrStarting.Errorf("node %s: group %d has %d committed entries to apply", m.node, m.group, lag)
	}
	return nil
}

// seated reports whether a configuration has a server at an address.
func seated(c raft.Configuration, address raft.ServerAddress) bool {
	for _, s := range c.Servers {
		if s.Address == address {
			return true
		}
	}
	return false
}

// thin reports whether a group whose voters are not all alive would lose its
// majority with one more of them.
func thin(voters []string, alive func(node string) bool) bool {
	up := 0
	for _, v := range voters {
		if alive(v) {
			up++
		}
	}
	return up < len(voters) && 2*(up-1) <= len(voters)
}
