package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/shard"
)

const (
	// startWorkers is how many groups start at a time, most of which wait for
	// the disk, and restoreWorkers how many of them decode a snapshot.
	startWorkers   = 32
	restoreWorkers = 2
)

// groups are this node's members of all Raft groups.
type groups struct {
	control  *control
	replicas []*replica // in the order of their shards
	byShard  []*replica // by shard; nil where this node has none
	members  []*member  // of control and replicas
}

// newGroups assembles the members that the birth table gives this node. None
// runs yet.
func (n *Node) newGroups(birth *cluster.Table) (*groups, error) {
	g := &groups{byShard: make([]*replica, birth.Shards()+1)}
	slots := make(chan struct{}, restoreWorkers)
	for id := range birth.Shards() + 1 {
		replicaID, here := birth.ReplicaOn(n.cfg.Name, id)
		if !here {
			continue
		}
		s, err := n.seat(birth, id, replicaID)
		if err != nil {
			return nil, err
		}
		if id == cluster.ControlShard {
			g.control = newControl(s, birth, n.logger, n.tables.note)
			g.members = append(g.members, g.control.member)
			continue
		}
		r := newReplica(s, newShardMachine(shard.ID(id), func() shard.Memory { return mapped.New() }, slots, &n.counts.apply, n.unions), replicaConfig{
			keeper: n.keeper, lore: n.lore, confirm: n.confirm, skewed: n.skewed, unheeded: n.unheeded, counts: &n.counts,
		})
		g.replicas = append(g.replicas, r)
		g.byShard[id] = r
		g.members = append(g.members, r.member)
	}
	if g.control == nil {
		return nil, proto.ErrInternal.Errorf("node %s has no member of the control group", n.cfg.Name)
	}
	return g, nil
}

// seat is where a member of a group sits.
func (n *Node) seat(birth *cluster.Table, group uint32, replica uint64) (seat, error) {
	log := n.log.Group(group)
	snaps, err := snap.Open(snap.Config{
		FS: n.cfg.FS, Dir: n.dir.snapshots(group), Logger: n.logger, Fail: n.cfg.Fail, OnBoundary: log.SetBoundary,
	})
	if err != nil {
		return seat{}, err
	}
	address := transport.Address(n.cfg.Name, replica)
	return seat{
		group: group, replica: replica, node: n.cfg.Name, timeout: electionTimeout(birth.Shards()),
		wal: log, snaps: snaps, events: n.events, disk: n.disk,
		carrier: func() carrier { return n.mux.Group(group, address) },
		logger:  newQuiet(n.logger, n.repeats, group),
		seen:    func(leader string, term uint64) { n.leaders.Observe(group, leader, term) },
	}, nil
}

// configuration is the first one of a group: every founder computes the same bytes.
func configuration(birth *cluster.Table, group uint32) raft.Configuration {
	var c raft.Configuration
	for _, r := range birth.Replicas(group) {
		s := raft.Server{Suffrage: raft.Voter, ID: serverID(r.GetId()), Address: transport.Address(r.GetNode(), r.GetId())}
		if r.GetNonvoter() {
			s.Suffrage = raft.Nonvoter
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}

// start runs all members, several at a time. A founder's members get their
// first configuration; of others, one without a term has lost it.
func (g *groups) start(birth *cluster.Table, founded bool, each func(started int)) error {
	return parallel(startWorkers, g.members, each, func(m *member) error {
		if !founded {
			if err := m.bootstrap(configuration(birth, m.group)); err != nil {
				return err
			}
		}
		if err := m.intact(); err != nil {
			return err
		}
		return m.start()
	})
}

// intact reports a member that has lost what it had, or a part of it: an empty
// replica would break promises that this one has made, and one whose log does not
// reach down to its snapshot would miss entries without knowing. A snapshot does
// not make up for the log: it holds neither term nor vote. There is a term from
// the first configuration on, and it is none before the snapshot's; a vote there
// need not be, for a replica may never have been asked.
func (m *member) intact() error {
	term, err := m.wal.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return fmt.Errorf("group %d: %w", m.group, err)
	}
	snapshots, err := m.snaps.List()
	if err != nil {
		return fmt.Errorf("group %d: %w", m.group, err)
	}
	have, reached := uint64(0), uint64(1)
	if len(snapshots) > 0 {
		have, reached = snapshots[0].Index, max(reached, snapshots[0].Term)
	}
	if term < reached {
		return proto.ErrCorrupt.Errorf("group %d: its log is in term %d and was in %d: the log was deleted or replaced by an older one", m.group, term, reached).
			WithHint("restore the data directory")
	}
	if !m.wal.Continues(have) {
		return proto.ErrCorrupt.Errorf("group %d: the newest sound snapshot ends at entry %d and the log does not go on from there: a snapshot is damaged or was deleted", m.group, have).
			WithHint("restore the data directory")
	}
	return nil
}

// parallel calls f for all items, at most workers at a time, and returns the
// first error. each is told how many are done.
func parallel[T any](workers int, items []T, each func(done int), f func(T) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards first and done
	var first error
	done := 0
	slots := make(chan struct{}, workers)
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }() // also if f ends the goroutine, as a log does that has failed
			err := f(item)
			mu.Lock()
			defer mu.Unlock()
			done++
			if err != nil && first == nil {
				first = err
			}
			each(done)
		})
	}
	wg.Wait()
	return first
}

// inTerm answers a read barrier of another node.
func (g *groups) inTerm(group uint32, replica, term uint64) bool {
	if group == cluster.ControlShard {
		return g.control.inTerm(replica, term)
	}
	return int(group) < len(g.byShard) && g.byShard[group] != nil && g.byShard[group].inTerm(replica, term)
}

// campaign makes newborn groups elect the leader that the table prefers.
func (g *groups) campaign(birth *cluster.Table) {
	for _, m := range g.members {
		if birth.Preferred(m.group) == m.node && m.leader() == "" {
			m.campaign()
		}
	}
}

// replayed returns how far the log is applied, in entries, and how many groups
// have a leader and all of what it had committed when it was heard first.
func (g *groups) replayed() (applied, last uint64, current int) {
	for _, m := range g.members {
		i := m.now.Load()
		if i == nil {
			continue
		}
		applied += i.raft.AppliedIndex()
		last += i.raft.LastIndex()
		if m.current(i) {
			current++
		}
	}
	return applied, last, current
}

// current reports whether a member knows its leader and what is committed, and
// has applied that.
func (m *member) current(i *incarnation) bool {
	commit := i.raft.CommitIndex()
	return m.leader() != "" && commit > 0 && i.raft.AppliedIndex() >= commit
}

// stop stops all members at once.
func (g *groups) stop() {
	var wg sync.WaitGroup
	wg.Go(g.control.stop)
	for _, r := range g.replicas {
		wg.Go(r.stop)
	}
	wg.Wait()
}

// await polls until so returns true; it returns ctx's error if that comes first.
func await(ctx context.Context, every time.Duration, so func() bool) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for !so() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
