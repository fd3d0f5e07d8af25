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
	// announceMax is how long a change of the table waits for the other nodes to
	// hear of it. Whoever asks one of them right after sees the change then.
	announceMax = 500 * time.Millisecond
	// registerEvery is how often the control leader compares its node records with gossip.
	registerEvery = time.Second
)

// control is this node's part of the control group.
type control struct {
	*member
	state *controlMachine
	birth *cluster.Table // the table that a new cluster starts with; nil on a node that founded none
	// known are the storage versions that the founders know, as far as they answer; this node's among them
	known  func(context.Context) map[string]proto.Versions
	bore   atomic.Bool // the cluster was born by this process
	logger *slog.Logger

	mu     sync.Mutex // guards closed, and that nothing is added to wg after it
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

// goFunc runs f in a goroutine that stop waits for; it reports false, and does
// not run it, if stop has begun.
func (c *control) goFunc(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// lead gives a new cluster its identity, unless this node is stopping.
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

// initialTable is the table that a new cluster starts with, under the newest storage version that all founders know.
// One that does not answer yet is taken to have this node's build: there is nothing yet that an older one could have to
// read, and what is counted until it comes would follow older laws.
func (c *control) initialTable(known map[string]proto.Versions) *cluster.Table {
	for _, node := range c.birth.Nodes() {
		if _, answered := known[node.GetName()]; !answered {
			known[node.GetName()] = known[c.node]
		}
	}
	next, _ := cluster.NextVersion(c.birth, known)
	return c.birth.WithVersion(next)
}

// newIdentity draws a name that nothing else has.
func newIdentity() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// notLeader is the refusal of a member that does not lead.
func (c *control) notLeader() *proto.Error {
	e := proto.ErrNotLeader.Errorf("node %s does not lead the control group", c.node)
	if leader := c.leader(); leader != c.node {
		e.Leader = leader
	}
	return e
}

// outcome is what became of a proposal.
type outcome struct {
	result *ebbv1.ControlResult
	err    error
}

// propose puts a command into the control group's log and waits for its result.
func (c *control) propose(ctx context.Context, cmd *ebbv1.ControlCommand) (*ebbv1.ControlResult, error) {
	return c.proposeAll(ctx, cmd)
}

// proposeAll puts commands into the control group's log, one after the other without waiting in between, so that they
// are synced together, and waits for their results. It returns the last, or the first with an error; the commands
// behind that may have been applied, too.
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

// commit proposes entries and waits for their results, and for the other nodes to hear of them.
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

// announce tells the followers that an entry is committed. Heartbeats do not
// say so, and an idle group's followers would hear of it with its next entry
// or after commitTimeout; so another entry follows at once.
func (c *control) announce(index uint64) {
	i := c.now.Load()
	if i.settle() != nil {
		return
	}
	eventually(announceMax, func() bool { return c.followersKnow(i, index) })
}

// followersKnow reports whether all followers that answer know that index is committed.
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

// register keeps the node records in step with what running asks the nodes say
// of themselves, while this node leads the control group.
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

// put writes a node's record, if it differs from the one there is.
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
