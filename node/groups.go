package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/cores"
	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// startWorkers is how many groups start at a time. Most of them wait for the disk.
const startWorkers = 32

// restoreWorkers is how many groups decode a snapshot at a time.
func restoreWorkers() int { return max(2, cores.Count()) }

// groups are this node's members of all Raft groups. It is immutable: when a member is added or removed, a new value
// replaces it.
type groups struct {
	control  *control
	replicas []*replica // in the order of their shards
	byShard  []*replica // by shard; nil where this node has none
	members  []*member  // of control and replicas
}

// newGroups assembles the members of this node, without starting them. birth is the table that a new cluster starts
// with; nil if this node is not a founder.
func (n *Node) newGroups(has map[uint32]replicaRecord, birth *cluster.Table) (*groups, error) {
	control, ok := has[cluster.ControlShard]
	if !ok {
		return nil, proto.ErrCorrupt.Errorf("data directory %s: %s names no member of the control group", n.cfg.DataDir, identityName).WithHint(lostIdentity)
	}
	s, err := n.memberConfig(cluster.ControlShard, control.ID)
	if err != nil {
		return nil, err
	}
	g := &groups{
		control: newControl(s, birth, n.founderVersions, n.logger, n.tables.note),
		byShard: make([]*replica, n.dir.identity().Shards+1),
	}
	g.control.lacks.Store(control.Lacks)
	g.control.state.control.SetLimits(n.cfg.ControlLimits)
	g.members = append(g.members, g.control.member)
	for _, id := range slices.Sorted(maps.Keys(has)) {
		if id == cluster.ControlShard || int(id) >= len(g.byShard) {
			continue
		}
		r, err := n.newReplica(id, has[id])
		if err != nil {
			return nil, err
		}
		g = g.with(r)
	}
	return g, nil
}

// newReplica assembles a replica of a shard, without starting it. If a repair was interrupted when the node stopped,
// the repair continues: the state on disk is still the one that differed.
func (n *Node) newReplica(id uint32, t replicaRecord) (*replica, error) {
	s, err := n.memberConfig(id, t.ID)
	if err != nil {
		return nil, err
	}
	machine := newShardMachine(shard.ID(id), func() shard.Memory { return mapped.New() }, n.restores, &n.counts.apply, n.unions, n.audits)
	machine.limit(n.cfg.ShardLimits)
	machine.fail, s.arrivals.machine = n.cfg.Fail, machine
	r := newReplica(s, machine, replicaConfig{
		keeper: n.keeper, namespaces: n.namespaces, confirm: n.confirm, skewed: n.skewed, onNamespaceRejected: n.onNamespaceRejected,
		knownClock: func(ns string) *ebbv1.EventClock { return n.coordinator.KnownEventClock(ns) },
		counts:     &n.counts, limits: n.cfg.Limits,
	})
	r.lacks.Store(t.Lacks)
	if t.Differs > 0 {
		r.quarantined.Store(true)
		n.repairs <- repair{r, t.Differs, true} // there is room for all replicas
	}
	return r, nil
}

// with returns the groups with r added, a replica of a shard that had none.
func (g *groups) with(r *replica) *groups {
	h := &groups{control: g.control, byShard: slices.Clone(g.byShard)}
	h.byShard[r.group] = r
	return h.listed()
}

// without returns the groups with the replica of a shard removed.
func (g *groups) without(shard uint32) *groups {
	h := &groups{control: g.control, byShard: slices.Clone(g.byShard)}
	h.byShard[shard] = nil
	return h.listed()
}

// listed fills in replicas and members.
func (g *groups) listed() *groups {
	g.members = append(g.members, g.control.member)
	for _, r := range g.byShard {
		if r != nil {
			g.replicas, g.members = append(g.replicas, r), append(g.members, r.member)
		}
	}
	return g
}

// memberConfig returns the configuration of a member, without its machine.
func (n *Node) memberConfig(group uint32, replica uint64) (memberConfig, error) {
	log, hurt := n.log.Group(group), new(atomic.Bool)
	snaps, err := snap.Open(snap.Config{
		FS: n.diskAdmission.reserve.Most(), Dir: n.dir.snapshots(group), Logger: n.logger, Fail: n.cfg.Fail, Count: &n.counts.snapshot.files, OnBoundary: log.SetBoundary, Continues: log.Continues,
		Owner:    fmt.Sprintf("disk %s, group %d, replica %d", n.dir.identity().Disk, group, replica),
		OnDamage: func() { hurt.Store(true) }, SyncBytes: n.cfg.Limits.SnapshotSyncBytes,
		Files: n.cfg.Limits.SnapshotFiles,
	})
	if err != nil {
		return memberConfig{}, err
	}
	address, to := transport.Address(n.cfg.Name, replica), &arrivals{store: snaps, count: &n.counts.snapshot}
	remembered := n.recollection.memory.Group(group)
	return memberConfig{
		group: group, replica: replica, node: n.cfg.Name, timeout: cluster.ElectionTimeout(n.dir.identity().Shards),
		appends: n.cfg.Limits.AppendEntries, commits: n.cfg.Limits.CommitEvery,
		wal: log, snaps: snaps, hurt: hurt, events: n.events, stall: n.stall,
		arrivals: to, carrier: func() carrier {
			g := n.mux.Group(group, address)
			g.Receive(to)
			g.Remember(remembered)
			return g
		},
		fatal: n.fatal, logger: newRaftLogger(n.logger, n.repeats, group),
		seen: func(leader string, term uint64) { n.leaders.Observe(group, leader, term) },
	}, nil
}

// configuration returns the first configuration of a group: every founder computes the same bytes.
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

// start starts all members, several at a time. If birth is not nil, this node is a founder, and members without state
// get their first configuration from birth. If birth is nil, a member without a term has lost it.
//
// It returns the replicas of shards that cannot run because their stored data is damaged; these are no longer members.
// A damaged member of the control group is an error, since only that group could replace it.
func (g *groups) start(birth *cluster.Table, each func(started int)) (damaged []*damagedReplica, err error) {
	var mu sync.Mutex // guards damaged
	err = parallel(startWorkers, g.members, each, func(m *member) error {
		if birth != nil {
			if err := m.bootstrap(configuration(birth, m.group)); err != nil {
				return err
			}
		}
		err := m.intact()
		if err == nil {
			err = m.start()
		}
		if err != nil && m.group != cluster.ControlShard && errors.Is(err, proto.ErrCorrupt) {
			mu.Lock()
			defer mu.Unlock()
			damaged = append(damaged, &damagedReplica{shard: m.group, replica: m.replica, why: err})
			return nil
		}
		return err
	})
	if err == nil && len(damaged) > 0 && g.control.alone() {
		return nil, damaged[0].why // a single node has no other copy
	}
	return damaged, err
}

// intact returns an error if a member has lost its stored state, or a part of it. An empty replica would break promises
// that this one has made. A replica whose log does not reach down to its snapshot would miss entries without knowing. A
// snapshot does not replace the log: it holds neither term nor vote. A term is stored from the first configuration on,
// and is never below the snapshot's term. A vote may be missing, since a replica may never have been asked for one.
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

// parallel calls f for all items, at most workers at a time, and returns the first error. It calls each with the number
// of items that are done.
func parallel[T any](workers int, items []T, each func(done int), f func(T) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards first and done
	var first error
	done := 0
	slots := make(chan struct{}, workers)
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }() // also if f ends the goroutine, as it does when a log entry cannot be read
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

// campaign starts elections in groups without a leader: in new groups at the member that the table prefers, and in
// groups of one at their only member.
func (g *groups) campaign(birth *cluster.Table, newCluster bool) {
	for _, m := range g.members {
		if m.leader() == "" && (newCluster && birth.Preferred(m.group) == m.node || m.alone()) {
			m.campaign()
		}
	}
}

// alone reports whether a member is the only voter of its group.
func (m *member) alone() bool {
	_, nodes := m.voters()
	return len(nodes) == 1 && nodes[0] == m.node
}

// replayed returns how far the log is applied, in entries, summed over all groups. current is how many groups have a
// leader and have applied all entries known to be committed. A group whose replica has moved away counts too, since it
// will never learn of a leader.
func (g *groups) replayed() (applied, last uint64, current int) {
	for _, m := range g.members {
		if m.over() {
			current++
			continue
		}
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

// current reports whether a member knows its leader and the commit index, and has applied all entries up to it. A
// member that lacks entries that it acknowledged counts as current, since it may never get them.
func (m *member) current(i *incarnation) bool {
	commit := i.raft.CommitIndex()
	return m.lacks.Load() != nil || m.leader() != "" && commit > 0 && i.raft.AppliedIndex() >= commit
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

// await polls until so returns true. It returns ctx's error if ctx ends first.
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
