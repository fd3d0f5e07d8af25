package node

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// moveEvery is how often a node compares the groups that it leads with the table.
	moveEvery = 250 * time.Millisecond
	// stepMax is how long one step may take.
	stepMax = 10 * time.Second
	// stepsAtOnce is how many groups of a node are changed at a time.
	stepsAtOnce = 8
	// hasLogMax is how many entries a new replica may lack when it gets its vote.
	hasLogMax = 64
)

// mover makes the groups that this node leads match the table, one step at a time. cluster.NextStep decides which step
// is next; the group's own configuration shows how far it is.
type mover struct {
	n     *Node
	wg    sync.WaitGroup
	slots chan struct{}

	mu   sync.Mutex // guards busy
	busy map[*member]bool
}

func newMover(n *Node) *mover {
	return &mover{n: n, slots: make(chan struct{}, stepsAtOnce), busy: make(map[*member]bool)}
}

// look is called every moveEvery by one goroutine.
func (v *mover) look(ctx context.Context) {
	table := v.n.Table()
	if table.ClusterID() == "" {
		return
	}
	g := v.n.groups.Load()
	v.start(ctx, table, g.control.member, g.control)
	for _, r := range g.replicas {
		v.start(ctx, table, r.member, r)
	}
}

// movable is a group that this node leads, whatever it replicates.
type movable interface {
	// settle returns when everything that the log had is committed.
	settle() error
	// giveTo hands the group over to a voter that stays, and reports whether it did.
	giveTo(stays func(node string) bool) bool
}

// start begins the next step of a group, if there is one and none is in progress.
func (v *mover) start(ctx context.Context, table *cluster.Table, m *member, group movable) {
	if _, leads := m.leading(); !leads {
		return
	}
	switch step := cluster.NextStep(table.Shard(m.group), membersOf(m.configuration()), m.replica, v.lives, m.hasLog); step.Action {
	case cluster.StepNone, cluster.StepWait:
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy[m] {
		return
	}
	select {
	case v.slots <- struct{}{}:
	default:
		return
	}
	v.busy[m] = true
	v.wg.Go(func() {
		defer func() {
			<-v.slots
			v.mu.Lock()
			defer v.mu.Unlock()
			delete(v.busy, m)
		}()
		ctx, cancel := context.WithTimeout(ctx, stepMax)
		defer cancel()
		v.step(ctx, m, group)
	})
}

// lives reports whether a node looks alive, so that it may have made a replica.
func (v *mover) lives(node string, _ uint64) bool {
	return node == v.n.cfg.Name || v.n.directory.alive(node)
}

// membersOf translates a Raft configuration.
func membersOf(c raft.Configuration) []cluster.Server {
	var all []cluster.Server
	for _, s := range c.Servers {
		id, err := strconv.ParseUint(string(s.ID), 10, 64)
		if err == nil {
			all = append(all, cluster.Server{Replica: id, Voter: s.Suffrage == raft.Voter})
		}
	}
	return all
}

// hasLog reports whether a follower has nearly the whole log, by its own answers.
func (m *member) hasLog(replica uint64) bool {
	missing, heard := m.behind(serverID(replica))
	return heard && missing <= hasLogMax
}

// step makes one change. It reads the configuration first, when that is known to be committed. Then it reads the
// table's record, from the control leader. Raft refuses the change if the configuration has changed since. So a leader
// that was paused cannot undo what others did during that time.
func (v *mover) step(ctx context.Context, m *member, group movable) {
	i := m.now.Load()
	term, leads := m.leading()
	if !leads || group.settle() != nil {
		return
	}
	configuration, at := m.configuration(), m.configuredAt()
	// Another leader may have replaced this one since, and may have appended a configuration that is not committed.
	// This node must not report that configuration or act on it.
	if now, leads := m.leading(); !leads || now != term {
		return
	}
	resp, err := v.n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Order{Order: m.group}})
	if err != nil {
		v.n.logger.Debug("the control group cannot be asked about a shard", "group", m.group, "err", err)
		return
	}
	record := resp.GetRecord()
	there := func(node string, replica uint64) bool {
		return v.lives(node, replica) && v.n.prepared(ctx, node, m.group, replica)
	}
	step := cluster.NextStep(record, membersOf(configuration), m.replica, there, m.hasLog)
	address := transport.Address(step.Node, step.Replica)
	if step.Action == cluster.StepNone || step.Action == cluster.StepWait || v.n.cfg.Fail.Hit("move.before."+step.Action.String()) != nil {
		return
	}
	switch step.Action {
	case cluster.StepAdd:
		err = i.reconfigure(i.raft.AddNonvoter(serverID(step.Replica), address, at, stepMax))
	case cluster.StepPromote:
		err = i.reconfigure(i.raft.AddVoter(serverID(step.Replica), address, at, stepMax))
	case cluster.StepDemote:
		err = i.reconfigure(i.raft.DemoteVoter(serverID(step.Replica), at, stepMax))
	case cluster.StepRemove:
		err = i.reconfigure(i.raft.RemoveServer(serverID(step.Replica), at, stepMax))
	case cluster.StepTransferLeadership:
		if !group.giveTo(func(node string) bool { return stays(record, node) }) {
			return
		}
	case cluster.StepSettle:
		err = v.settle(ctx, record, configuration)
	}
	if v.n.cfg.Fail.Hit("move.after."+step.Action.String()) != nil {
		return
	}
	v.n.counts.moves.step(step.Action, err)
	say := v.n.logger.With("group", m.group, "replica", step.Replica, "of", step.Node, "why", step.Why)
	if err != nil {
		say.Warn("membership: "+step.Action.String(), "err", err)
		return
	}
	say.Info("membership: " + step.Action.String())
}

// reconfigure waits until a change of the configuration is committed.
func (i *incarnation) reconfigure(future raft.IndexFuture) error {
	return withShutdown(future, i.life).Error()
}

// configuredAt returns the index of the group's newest committed configuration.
func (m *member) configuredAt() uint64 {
	at := m.machine.configured().at.Load()
	snapshots, err := m.snaps.List()
	if err == nil && len(snapshots) > 0 {
		at = max(at, snapshots[0].ConfigurationIndex)
	}
	return at
}

// stays reports whether a node's replica is to remain a voter of a group.
func stays(record *ebbv1.ShardRecord, node string) bool {
	for _, r := range record.GetReplicas() {
		if r.GetNode() == node && !r.GetLeaving() && !r.GetNonvoter() {
			return true
		}
	}
	return false
}

// settle reports to the control group which members a group has. record is the control group's record of that group.
func (v *mover) settle(ctx context.Context, record *ebbv1.ShardRecord, c raft.Configuration) error {
	settled := &ebbv1.SettleShard{Shard: record.GetShard(), Epoch: record.GetEpoch()}
	for _, s := range membersOf(c) {
		settled.Replicas = append(settled.Replicas, s.Replica)
	}
	_, err := v.n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Settle{Settle: settled}})
	return err
}

// settle implements movable. Reads wait until the state machine has the last committed entry. So that must be an entry
// that reaches the state machine, which Raft's own barriers do not.
func (r *replica) settle() error { return r.proposer.tick().Error() }

// settle implements movable.
func (c *control) settle() error { return c.now.Load().settle() }

// giveTo implements movable.
func (r *replica) giveTo(stays func(node string) bool) bool {
	heir, ok := r.heir("", stays)
	return ok && r.handOver(heir)
}

// giveTo implements movable.
func (c *control) giveTo(stays func(node string) bool) bool {
	heir, ok := c.heir("", stays)
	return ok && c.cede(heir)
}

// manage executes a request to the control leader. If another node leads, the request is forwarded to it, once.
func (n *Node) manage(ctx context.Context, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	var resp *ebbv1.ManageResponse
	err := n.asControlLeader(ctx, func(c *control) (err error) {
		resp, err = n.manageHere(ctx, c, req)
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.Manage(ctx, req)
		return err
	})
	return resp, err
}

// controlPeer is the control leader, if that is another node.
type controlPeer interface {
	Manage(context.Context, *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error)
	ChangeCluster(context.Context, *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error)
	SetNamespace(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error)
	DeleteNamespace(context.Context, *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error)
	UndeleteNamespace(context.Context, *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error)
	RestoreNamespaces(context.Context, *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error)
	CreateToken(context.Context, *ebbv1.CreateTokenRequest) (*ebbv1.CreateTokenResponse, error)
	RevokeToken(context.Context, *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error)
}

// asControlLeader calls here if this node leads the control group, and else there with the node that does. A request
// that was forwarded is not forwarded again.
func (n *Node) asControlLeader(ctx context.Context, here func(*control) error, there func(context.Context, controlPeer) error) error {
	g := n.groups.Load()
	if g == nil {
		return proto.ErrStarting.Errorf("node %s is starting", n.cfg.Name)
	}
	leader, err := n.controlLeader(ctx, g.control)
	switch {
	case err != nil:
		return err
	case leader == n.cfg.Name:
		return here(g.control)
	case forwarded(ctx):
		return g.control.notLeader()
	}
	peer, err := n.peers.Peer(leader)
	if err != nil {
		return err
	}
	return there(metadata.AppendToOutgoingContext(ctx, forwardedKey, "1"), peer)
}

func (n *Node) manageHere(ctx context.Context, c *control, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	switch body := req.GetBody().(type) {
	case *ebbv1.ManageRequest_Join:
		return n.admit(ctx, c, body.Join)
	case *ebbv1.ManageRequest_Order:
		return c.order(ctx, body.Order)
	case *ebbv1.ManageRequest_Settle:
		_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SettleShard{SettleShard: body.Settle}})
		return new(ebbv1.ManageResponse), err
	case *ebbv1.ManageRequest_Lost:
		if err := n.othersSound(body.Lost); err != nil {
			return nil, err
		}
		_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_LoseReplica{LoseReplica: body.Lost}})
		return new(ebbv1.ManageResponse), err
	case *ebbv1.ManageRequest_Purged:
		_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_NamespacesPurged{NamespacesPurged: body.Purged}})
		return new(ebbv1.ManageResponse), err
	}
	return nil, proto.ErrBadRequest.Errorf("nothing is asked that this version knows")
}

// order returns a group's record, and the epoch of the table, after everything that was acknowledged before the call.
func (c *control) order(ctx context.Context, group uint32) (*ebbv1.ManageResponse, error) {
	if _, leads := c.leading(); !leads {
		return nil, c.notLeader()
	}
	done := make(chan error, 1)
	if !c.goFunc(func() { done <- c.settle() }) {
		return nil, errShuttingDown(c.group)
	}
	select {
	case err := <-done:
		if err != nil {
			return nil, proto.ErrNoLeader.Errorf("the control group: %v", err)
		}
	case <-ctx.Done():
		return nil, proto.ErrNoLeader.Errorf("the control group: %v", ctx.Err())
	}
	table := c.state.control.Table()
	record := table.Shard(group)
	if record == nil {
		return nil, proto.ErrBadRequest.Errorf("there is no group %d", group)
	}
	return &ebbv1.ManageResponse{Record: record, Epoch: table.Epoch()}, nil
}
