package node

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// recallMax is how long a starting node waits for what others remember of its replicas. Nodes that do not answer by
	// then are asked again until they do.
	recallMax = time.Second
	// recallEvery is how often it asks them in that time, and how often it checks whether a short replica has
	// everything again.
	recallEvery = 100 * time.Millisecond
	// saveAckedEvery is how often changes in what this node remembers of others are saved. Later changes are lost with
	// the process.
	saveAckedEvery = 5 * time.Second
)

// recollection keeps replicas that lack what they acknowledged from voting. A data directory that was restored from an
// older copy, or a disk that lost what it had synced, leaves a log that is intact and too short:
//
//	node                                             the others
//	asks, before its replicas run          >         remember how far each log reached (package acked)
//	a replica whose log ends before that is short:
//	  it saves that, and takes over the term
//	  it neither votes nor asks for votes
//	  it takes entries and snapshots       <         their leader sends what is missing
//	its log reaches as far: it votes again
//
// This is sound, since such a replica promises only what it has. It acknowledges what it has stored, under the newest
// term in which it ever took part, so that no deposed leader can use it. A leader that was elected without its vote has
// everything that was committed. When entries of a leader have brought the replica's log as far as it once was, the
// replica has that as well. So it need not be replaced, unlike a damaged replica: what it has is right.
//
// If two of three replicas are short, the third finds no majority: the shard answers nothing, and the nodes report why.
// Only `ebb cluster recover` helps then, or the directories that were replaced.
type recollection struct {
	n      *Node
	memory *acked.Memory // of the replicas of other nodes

	mu     sync.Mutex // guards what follows
	marks  map[acked.Replica]acked.Mark
	silent []string               // nodes that have not answered since this one started
	fresh  map[acked.Replica]bool // marks that rose since replicas were compared with them
	epoch  uint64                 // the newest epoch of a table that a node reported
	held   []uint64               // replicas of this node by that table

	news chan struct{} // holds a token when another node has reported something unasked
}

func newRecollection(n *Node) *recollection {
	table := n.Table()
	memory, err := acked.Load(n.dir.fs, n.dir.file(ackedName), func(r acked.Replica) bool {
		is := func(have *ebbv1.ReplicaRecord) bool { return have.GetId() == r.ID }
		return table.ClusterID() == "" || slices.ContainsFunc(table.Replicas(r.Group), is)
	})
	if err != nil {
		n.logger.Warn("cannot read what replicas of other nodes acknowledged: it is remembered anew", "err", err)
	}
	return &recollection{
		n: n, memory: memory, marks: make(map[acked.Replica]acked.Mark), fresh: make(map[acked.Replica]bool),
		news: make(chan struct{}, 1),
	}
}

// save is called every saveAckedEvery by one goroutine, and at the end.
func (c *recollection) save() {
	if err := c.memory.Save(c.n.dir.fs, c.n.dir.file(ackedName)); err != nil {
		const message = "cannot write down what the replicas of other nodes acknowledged"
		if skipped, ok := c.n.repeats.due(message, time.Now()); ok {
			c.n.logger.Warn(message, "err", err, "times_unsaid", skipped)
		}
	}
}

// ask asks all other nodes at once, until all have answered or recallMax is over.
func (c *recollection) ask(ctx context.Context) {
	c.mu.Lock()
	c.silent = slices.DeleteFunc(slices.Clone(c.n.kin()), func(node string) bool { return node == c.n.cfg.Name })
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, recallMax)
	defer cancel()
	_ = await(ctx, recallEvery, func() bool { return c.askSilent(ctx) })
}

// askSilent asks the nodes that have not answered yet, and reports whether all have.
func (c *recollection) askSilent(ctx context.Context) bool {
	c.mu.Lock()
	silent := slices.Clone(c.silent)
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, node := range silent {
		wg.Go(func() {
			resp, answered := c.askNode(ctx, node)
			c.note(resp.GetReplicas())
			c.mu.Lock()
			defer c.mu.Unlock()
			if resp.GetEpoch() > c.epoch {
				c.epoch, c.held = resp.GetEpoch(), resp.GetHeld()
			}
			if answered {
				c.silent = slices.DeleteFunc(c.silent, func(s string) bool { return s == node })
			}
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.silent) == 0
}

// note stores what another node remembers of replicas here.
func (c *recollection) note(all []*ebbv1.Acknowledged) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range all {
		if a.GetNode() != c.n.cfg.Name {
			continue
		}
		r := acked.Replica{Group: a.GetShard(), ID: a.GetReplica()}
		if mark := c.marks[r].Join(acked.MarkOf(a)); mark != c.marks[r] {
			c.marks[r], c.fresh[r] = mark, true
		}
	}
}

// askNode asks one node. A build that does not know the request remembers nothing, and counts as answered.
func (c *recollection) askNode(ctx context.Context, node string) (resp *ebbv1.AcknowledgedResponse, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, recallMax)
	defer cancel()
	peer, err := c.n.peers.Peer(node)
	if err != nil {
		return nil, false
	}
	resp, err = peer.Acknowledged(ctx, &ebbv1.AcknowledgedRequest{
		Node: c.n.cfg.Name, ClusterId: c.n.dir.identity().ClusterID, Known: c.memory.Wire(node),
	})
	for _, e := range []error{
		proto.ErrUnreachable, proto.ErrDeadline, proto.ErrStarting, proto.ErrShuttingDown, context.Canceled,
	} {
		if errors.Is(err, e) {
			return nil, false
		}
	}
	if err != nil {
		c.n.logger.Warn("another node does not say what replicas here acknowledged to it", "other", node, "err", err)
		return nil, true
	}
	return resp, true
}

// neverReached is what a replica lacks that is to be dropped: no log reaches that position.
var neverReached = acked.Position{Term: math.MaxUint64}

// givenUp reports whether another node has a newer table by which a replica of a shard is not this node's. An operator
// may have recovered the shard from another replica since. With others that return too, this replica could form a
// majority of its own.
func (c *recollection) givenUp(group uint32, t replicaRecord) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return group != cluster.ControlShard && c.epoch > c.n.Table().Epoch() && c.epoch >= t.Epoch &&
		!slices.Contains(c.held, t.ID)
}

// mark returns what a replica acknowledged, as far as others have reported it.
func (c *recollection) mark(group uint32, replica uint64) acked.Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[acked.Replica{Group: group, ID: replica}]
}

// compare finds the short replicas, before they run.
func (c *recollection) compare(members []*member) error {
	for _, m := range members {
		if _, err := c.judge(m); err != nil {
			return err
		}
	}
	return nil
}

// judge makes a replica that does not run abstain if it is short, and reports whether it is. A replica whose log cannot
// be read is left to the code that starts it.
func (c *recollection) judge(m *member) (short bool, err error) {
	mark := c.mark(m.group, m.replica)
	if before := m.lacks.Load(); before != nil {
		mark = mark.Join(*before)
	}
	if c.givenUp(m.group, c.n.dir.identity().Replicas[m.group]) {
		c.n.logger.Warn("a replica is not this node's any more, as others say: it does not vote",
			"shard", m.group, "replica", m.replica)
		mark.Position = neverReached
		m.lacks.Store(&mark) // not saved: the newer table drops it
		return true, nil
	}
	end, err := m.end()
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	if err := m.enter(mark.Ballot, end.Before(mark.Position)); err != nil {
		return false, err
	}
	if !end.Before(mark.Position) {
		return false, nil
	}
	c.n.logger.Error("the log of a replica lacks what it acknowledged: it does not vote until others have brought it",
		"shard", m.group, "replica", m.replica, "ends_at", end.Index, "of_term", end.Term,
		"acknowledged", mark.Index, "acknowledged_term", mark.Term)
	m.lacks.Store(&mark)
	return true, c.n.dir.lacks(m.group, m.replica, &mark)
}

// expect prepares an empty replica that is made because the table lists it. If the replica acknowledged anything, it is
// not new: the data directory is older than the replica.
func (c *recollection) expect(group uint32, t *replicaRecord) error {
	mark := c.mark(group, t.ID)
	if mark == (acked.Mark{}) {
		return nil
	}
	c.n.logger.Error("a replica is gone that acknowledged entries: it does not vote until the others have brought them",
		"shard", group, "replica", t.ID, "acknowledged", mark.Index, "acknowledged_term", mark.Term)
	t.Lacks = &mark
	return enterTerm(c.n.log.Group(group), mark.Ballot, true)
}

// look lets replicas vote again whose logs reach as far as they once did.
func (c *recollection) look() {
	for _, m := range c.n.groups.Load().members {
		lacks := m.lacks.Load()
		if lacks == nil || m.now.Load() == nil {
			continue
		}
		end, err := m.end()
		if err != nil || end.Before(lacks.Position) {
			continue
		}
		if err := c.n.dir.lacks(m.group, m.replica, nil); err != nil {
			continue // it is tried again
		}
		m.vote()
		c.n.logger.Info("the log of a replica reaches as far as it once did: it votes again",
			"shard", m.group, "replica", m.replica, "ends_at", end.Index, "of_term", end.Term)
	}
}

// run asks nodes that did not answer when this one started, and handles reports of nodes that started later.
func (c *recollection) run(ctx context.Context) {
	ticker := time.NewTicker(recallMax)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.news:
		case <-ticker.C:
			c.mu.Lock()
			c.silent = slices.DeleteFunc(c.silent, func(node string) bool { return c.n.Table().Node(node) == nil })
			none := len(c.silent) == 0
			c.mu.Unlock()
			if none {
				continue
			}
			c.askSilent(ctx)
		}
		c.judgeLate()
	}
}

// judgeLate compares running replicas with later reports. That may come too late: a replica that turns out to be short
// may have voted already.
func (c *recollection) judgeLate() {
	c.mu.Lock()
	fresh := c.fresh
	c.fresh = make(map[acked.Replica]bool)
	c.mu.Unlock()
	for _, m := range c.n.groups.Load().members {
		if !fresh[acked.Replica{Group: m.group, ID: m.replica}] || m.lacks.Load() != nil {
			continue
		}
		if end, err := m.end(); err != nil || !end.Before(c.mark(m.group, m.replica).Position) {
			continue
		}
		if err := m.restartAs(func() error { _, err := c.judge(m); return err }); err != nil {
			c.n.logger.Error("cannot keep a short replica from voting", "shard", m.group, "err", err)
			c.n.fatal(err)
			return
		}
	}
}

// Acknowledged answers a node that starts: it returns what this node remembers of the other's replicas, and stores what
// the other remembers of this node's. It returns WRONG_CLUSTER to a node of another cluster.
func (v clusterView) Acknowledged(
	_ context.Context, req *ebbv1.AcknowledgedRequest,
) (*ebbv1.AcknowledgedResponse, error) {
	own := v.n.dir.identity().ClusterID
	if theirs := req.GetClusterId(); own != "" && theirs != "" && own != theirs {
		return nil, proto.ErrWrongCluster.Errorf("node %s belongs to cluster %s, node %s to %s",
			v.n.cfg.Name, own, req.GetNode(), theirs)
	}
	if req.GetNode() == "" {
		return nil, proto.ErrBadRequest.Errorf("no node is named")
	}
	if len(req.GetKnown()) > 0 {
		v.n.recollection.note(req.GetKnown())
		select {
		case v.n.recollection.news <- struct{}{}:
		default:
		}
	}
	table := v.n.Table()
	resp := &ebbv1.AcknowledgedResponse{
		Replicas: v.n.recollection.memory.Wire(req.GetNode()), Epoch: table.Epoch(),
	}
	for shard := uint32(1); shard <= table.Shards(); shard++ {
		for _, r := range table.Replicas(shard) {
			if r.GetNode() == req.GetNode() && !r.GetLost() {
				resp.Held = append(resp.Held, r.GetId())
			}
		}
	}
	return resp, nil
}

// end returns the last entry that a member has in its log or its newest snapshot.
func (m *member) end() (end acked.Position, err error) {
	snapshots, err := m.snaps.List()
	if err != nil {
		return end, err
	}
	if len(snapshots) > 0 {
		end = acked.Position{Term: snapshots[0].Term, Index: snapshots[0].Index}
	}
	last, err := m.wal.LastIndex()
	if err != nil || last == 0 {
		return end, err
	}
	var entry raft.Log
	if err := m.wal.GetLog(last, &entry); err != nil {
		return end, err
	}
	if at := (acked.Position{Term: entry.Term, Index: entry.Index}); end.Before(at) {
		end = at
	}
	return end, nil
}

// enter moves a member that does not run to a term in which it took part. It does not vote in that term, since it may
// have voted already.
func (m *member) enter(term uint64, short bool) error { return enterTerm(m.wal, term, short) }

func enterTerm(store raft.StableStore, term uint64, short bool) error {
	now, err := store.GetUint64([]byte("CurrentTerm"))
	if err != nil || now >= term && !short {
		return err
	}
	term = max(now, term)
	voted, err := store.GetUint64([]byte("LastVoteTerm"))
	if err != nil {
		return err
	}
	if voted < term {
		err = errors.Join(store.SetUint64([]byte("LastVoteTerm"), term),
			store.Set([]byte("LastVoteCand"), []byte("unknown")))
	}
	return errors.Join(err, store.SetUint64([]byte("CurrentTerm"), term))
}

// vote lets a member that runs vote again, and ask for votes.
func (m *member) vote() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lacks.Store(nil)
	i := m.now.Load()
	abstain(i.link.carrier, false)
	err := i.reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = m.timeout, m.timeout })
	if err != nil {
		m.logger.Error("cannot enable elections", "error", err)
	}
}

// abstain keeps a replica from voting, and from asking for votes, or allows it again.
func abstain(c carrier, on bool) {
	if c, ok := c.(interface{ Abstain(on bool) }); ok {
		c.Abstain(on)
	}
}

// short counts the members that lack what they acknowledged.
func (g *groups) short() (count int) {
	if g == nil {
		return 0
	}
	for _, m := range g.members {
		if m.lacks.Load() != nil {
			count++
		}
	}
	return count
}

// errShort returns the error for a replica that does not vote.
func (m *member) errShort(lacks acked.Mark) *proto.Error {
	if lacks.Position == neverReached {
		return proto.ErrNoLeader.Errorf("node %s: the replica of group %d is not its any more", m.node, m.group)
	}
	end, _ := m.end() // a log that cannot be read does not count
	return proto.ErrNoLeader.Errorf("node %s: the replica of group %d has entries up to %d, and acknowledged %d: "+
		"it does not vote until others have brought them", m.node, m.group, end.Index, lacks.Index).
		WithHint("start the other nodes of the group; or restore the data directory that this node had")
}
