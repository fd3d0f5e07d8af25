package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// announceMax is how long a change of the table waits until the other nodes have it. A caller that asks one of them
	// right after then sees the change.
	announceMax = 500 * time.Millisecond
	// registerEvery is how often the control leader compares its node records with gossip.
	registerEvery = time.Second
)

// control is this node's part of the control group.
type control struct {
	*member
	state *controlMachine
	birth *cluster.Table // the table that a new cluster starts with; nil on a node that is not a founder
	// known returns the storage versions that the founders know, as far as they answer; this node's are included.
	known  func(context.Context) map[string]proto.Versions
	bore   atomic.Bool // this process founded the cluster
	logger *slog.Logger

	mu     sync.Mutex // guards closed; nothing is added to wg once closed is set
	closed bool
	wg     sync.WaitGroup
}

func newControl(
	s memberConfig, birth *cluster.Table, known func(context.Context) map[string]proto.Versions, logger *slog.Logger,
	changed func(),
) *control {
	c := &control{
		state:  &controlMachine{control: cluster.NewControl(), changed: changed},
		birth:  birth,
		known:  known,
		logger: logger,
	}
	s.machine, s.led = c.state, c.lead
	c.member = newMember(s)
	return c
}

// stop ends the member, as replica.stop does.
func (c *control) stop() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.leave()
	c.member.stop()
	c.wg.Wait()
}

// goFunc runs f in a goroutine that stop waits for. If stop has begun, it does not run f and returns false.
func (c *control) goFunc(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// lead founds the cluster, if this node is a founder and no leader did so before. It does nothing while this node
// stops.
func (c *control) lead(uint64) {
	i := c.now.Load()
	_ = c.goFunc(func() {
		if i.settle() != nil || c.birth == nil || c.state.control.Table().ClusterID() != "" {
			return
		}
		birth := c.initialTable(c.known(context.Background()))
		id := newIdentity()
		if _, err := c.propose(context.Background(), &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_InitCluster{
			InitCluster: &ebbv1.InitCluster{ClusterId: id, Table: birth.Wire()},
		}}); err == nil {
			c.bore.Store(true)
			c.logger.Info("a cluster is born", "cluster_id", id, "shards", c.birth.Shards(), "replication", c.birth.Replication())
		} else if errors.Is(err, proto.ErrMessageTooLarge) {
			c.logger.Error("no cluster is born: its table does not fit into an entry; give it fewer shards or replicas, or its nodes shorter names", "err", err)
		}
	})
}

// initialTable returns the table that a new cluster starts with, at the newest storage version that all founders know.
// A founder that does not answer is assumed to run this node's build. There is nothing yet that an older build would
// have to read. With an older version, counts made until that founder answers would follow older rules.
func (c *control) initialTable(known map[string]proto.Versions) *cluster.Table {
	for _, node := range c.birth.Nodes() {
		if _, answered := known[node.GetName()]; !answered {
			known[node.GetName()] = known[c.node]
		}
	}
	next, _ := cluster.NextVersion(c.birth, known)
	return c.birth.WithVersion(next)
}

// newIdentity returns a random, unique identity.
func newIdentity() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// notLeader returns the error for requests to a member that does not lead.
func (c *control) notLeader() *proto.Error {
	e := proto.ErrNotLeader.Errorf("node %s does not lead the control group", c.node)
	if leader := c.leader(); leader != c.node {
		e.Leader = leader
	}
	return e
}

// outcome is the result of a proposal, or its error.
type outcome struct {
	result *ebbv1.ControlResult
	err    error
}

// propose puts a command into the control group's log and waits for its result.
func (c *control) propose(ctx context.Context, cmd *ebbv1.ControlCommand) (*ebbv1.ControlResult, error) {
	return c.proposeAll(ctx, cmd)
}

// proposeAll puts commands into the control group's log, without waiting between them, so that they are synced
// together. It then waits for their results. It returns the last result, or the first with an error; the commands after
// that one may have been applied too.
func (c *control) proposeAll(ctx context.Context, cmds ...*ebbv1.ControlCommand) (*ebbv1.ControlResult, error) {
	entries := make([][]byte, len(cmds))
	for i, cmd := range cmds {
		raw, err := protobuf.Marshal(cmd)
		if err != nil {
			return nil, proto.ErrInternal.Errorf("encode control command: %v", err)
		}
		if err := cluster.CheckControlCommand(raw); err != nil {
			return nil, err
		}
		entries[i] = raw
	}
	if _, ok := c.leading(); !ok {
		return nil, c.notLeader()
	}
	done := make(chan outcome, 1)
	if !c.goFunc(func() { done <- c.commit(entries) }) {
		return nil, errShuttingDown(c.group)
	}
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return nil, errUnknownOutcome(c.group, "the deadline passed")
	}
}

// commit proposes entries, waits for their results, and waits until the other nodes know that they are committed.
func (c *control) commit(entries [][]byte) (last outcome) {
	futures := make([]raft.ApplyFuture, len(entries))
	for i, entry := range entries {
		futures[i] = c.member.propose(entry)
	}
	for _, future := range futures {
		if last = c.await(future); last.err != nil {
			return last
		}
	}
	if len(futures) > 0 {
		c.announce(futures[len(futures)-1].Index())
	}
	return last
}

// await waits for a proposal's result.
func (c *control) await(future raft.ApplyFuture) outcome {
	err := future.Error()
	c.refused.note(err)
	switch {
	case err == nil:
	case err == raft.ErrNotLeader, err == raft.ErrLeadershipTransferInProgress:
		return outcome{err: c.notLeader()}
	case errors.Is(err, proto.ErrMessageTooLarge):
		return outcome{err: err}
	default:
		return outcome{err: errUnknownOutcome(c.group, err.Error())}
	}
	result, _ := future.Response().(*ebbv1.ControlResult)
	if result == nil {
		return outcome{err: errUnknownOutcome(c.group, "the entry was applied before")}
	}
	if e := proto.FromWire(result.GetError()); e != nil {
		return outcome{result: result, err: e}
	}
	return outcome{result: result}
}

// announce makes the followers learn that an entry is committed. Heartbeats do not carry the commit index. Followers of
// an idle group would learn it only with the next entry or after commitTimeout, so another entry follows at once.
func (c *control) announce(index uint64) {
	i := c.now.Load()
	if i.settle() != nil {
		return
	}
	eventually(announceMax, func() bool { return c.followersKnow(i, index) })
}

// followersKnow reports whether all followers that are in contact know that index is committed.
func (c *control) followersKnow(i *incarnation, index uint64) bool {
	term, leads := c.leading()
	if !leads {
		return true
	}
	for _, s := range c.configuration().Servers {
		if s.ID == serverID(c.replica) {
			continue
		}
		p := i.link.progressOf(s.ID, term)
		if p.sentCommit < index && time.Since(p.lastContact) < c.timeout/2 {
			return false
		}
	}
	return true
}

// register keeps the node records equal to what records returns, while this node leads the control group.
func (c *control) register(ctx context.Context, every time.Duration, records func(context.Context) []*ebbv1.NodeRecord) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, leads := c.leading(); !leads || c.state.control.Table().ClusterID() == "" {
			continue
		}
		for _, record := range records(ctx) {
			c.put(ctx, record)
		}
	}
}

// put writes a node's record, if it differs from the table's.
func (c *control) put(ctx context.Context, record *ebbv1.NodeRecord) {
	have := c.state.control.Table().Node(record.GetName())
	if have == nil || sameRecord(have, record) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_PutNode{PutNode: &ebbv1.PutNode{Record: record}}})
	if err != nil {
		c.logger.Debug("node record not written", "node", record.GetName(), "err", err)
	}
}

func sameRecord(a, b *ebbv1.NodeRecord) bool {
	return a.GetGrpcAddress() == b.GetGrpcAddress() && a.GetHttpAddress() == b.GetHttpAddress() &&
		a.GetGossipAddress() == b.GetGossipAddress() && a.GetVersion() == b.GetVersion() && a.GetEnrolled() == b.GetEnrolled() &&
		a.GetDisk() == b.GetDisk() && a.GetZone() == b.GetZone()
}
