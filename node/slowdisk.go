package node

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// slowDiskAtOnce is how many groups a node with a slow disk hands over at the same time, as a node that stops does.
	slowDiskAtOnce = 4
	// slowDiskPause is how long such a handover waits for entries in flight. Each may wait for the sync in progress and
	// for its own. A sync takes less than muteAfter, or the disk counts as stalled.
	slowDiskPause = 2 * muteAfter
	// slowDiskRetry is how long a group rests after it had no node to go to, or its handover failed.
	slowDiskRetry = 5 * time.Second
	// statusFresh is how long a cached status of a node is used.
	statusFresh = 2 * time.Second
)

// pacer keeps this node's diskPace.
type pacer struct {
	slowest func() time.Duration // the slowest sync since the last call
	logger  *slog.Logger
	pace    atomic.Pointer[diskPace]
}

func newPacer(slowest func() time.Duration, logger *slog.Logger) *pacer {
	p := &pacer{slowest: slowest, logger: logger}
	p.pace.Store(new(diskPace))
	return p
}

func (p *pacer) now() diskPace { return *p.pace.Load() }

// look is called every paceEvery.
func (p *pacer) look() {
	was := p.now()
	now := was.after(p.slowest())
	p.pace.Store(&now)
	switch usual := now.usual().Round(time.Millisecond); {
	case now.slow && !was.slow:
		p.logger.Warn("the disk is slow: this node hands over what it leads to nodes with faster ones", "sync", usual, "limit", slowSync)
	case was.slow && !now.slow:
		p.logger.Info("the disk is no longer slow", "sync", usual)
	}
}

// statusCache holds the statuses of other nodes. It asks a node again only when its status is not fresh.
type statusCache struct {
	ask func(node string) *ebbv1.NodeStatus // nil: no answer; it may take a moment

	mu   sync.Mutex // guards kept
	kept map[string]keptStatus
}

type keptStatus struct {
	at     time.Time
	status *ebbv1.NodeStatus
}

func newStatusCache(ask func(string) *ebbv1.NodeStatus) *statusCache {
	return &statusCache{ask: ask, kept: make(map[string]keptStatus)}
}

// of returns the status of a node; nil if it does not answer.
func (c *statusCache) of(node string) *ebbv1.NodeStatus {
	c.mu.Lock()
	have, known := c.kept[node]
	c.mu.Unlock()
	if known && time.Since(have.at) < statusFresh {
		return have.status
	}
	status := c.ask(node)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[node] = keptStatus{time.Now(), status}
	return status
}

// forget drops the statuses of nodes for which known returns false.
func (c *statusCache) forget(known func(node string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(node string, _ keptStatus) bool { return !known(node) })
}

// slow reports whether a node reports that its disk is slow.
func (c *statusCache) slow(node string) bool { return c.of(node).GetDiskSlow() }

// slowDiskBalancer hands over the groups that this node leads while its disk is slow, to voters with faster disks. A
// leader acknowledges an entry only after its own sync, but does not wait for its slowest follower.
type slowDiskBalancer struct {
	node     string
	pace     func() diskPace
	groups   func() *groups
	alive    func(node string) bool
	statuses *statusCache
	count    *atomic.Uint64 // groups handed over
	logger   *slog.Logger

	resting map[*member]time.Time // until this time
}

func newSlowDiskBalancer(node string, pace func() diskPace, groups func() *groups, alive func(string) bool, statuses *statusCache, count *atomic.Uint64, logger *slog.Logger) *slowDiskBalancer {
	return &slowDiskBalancer{node: node, pace: pace, groups: groups, alive: alive, statuses: statuses, count: count, logger: logger, resting: make(map[*member]time.Time)}
}

// look is called every balanceEvery by one goroutine, and hands over a few groups.
func (b *slowDiskBalancer) look() {
	pace := b.pace()
	if !pace.handsOver() {
		clear(b.resting)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	g, begun := b.groups(), 0
	for _, m := range g.members {
		if _, leads := m.leading(); !leads || time.Now().Before(b.resting[m]) {
			continue
		}
		b.resting[m] = time.Now().Add(slowDiskRetry)
		takes := b.takers(m, pace)
		if len(takes) == 0 {
			continue
		}
		wg.Go(func() { b.handOver(g, m, takes) })
		if begun++; begun == slowDiskAtOnce {
			return
		}
	}
}

// takers returns the nodes with faster disks that can lead a group, sorted by name.
func (b *slowDiskBalancer) takers(m *member, pace diskPace) (takes []string) {
	_, nodes := m.voters()
	for _, node := range nodes {
		if node == b.node || !b.alive(node) {
			continue
		}
		status := b.statuses.of(node)
		if r := replicaOf(status, m.group); r != nil && !r.GetQuarantined() && welcoming(status, pace) {
			takes = append(takes, node)
		}
	}
	slices.Sort(takes)
	return takes
}

// welcoming reports whether a node's disk is fast enough to take over leaders. A build that does not report its disk
// counts as one with a fast disk.
func welcoming(status *ebbv1.NodeStatus, pace diskPace) bool {
	return !status.GetDiskSlow() && pace.lighter(time.Duration(status.GetSyncUs())*time.Microsecond)
}

// handOver hands one group over. It spreads the groups over the nodes that take them.
func (b *slowDiskBalancer) handOver(g *groups, m *member, takes []string) {
	first := takes[int(m.group)%len(takes)]
	fit := func(node string) bool { return slices.Contains(takes, node) }
	handed := false
	if m.group == cluster.ControlShard {
		if heir, ok := m.heir(first, fit); ok {
			handed = m.cede(heir)
		}
	} else if r := g.byShard[m.group]; r != nil {
		if heir, ok := r.heir(first, fit); ok {
			handed = r.handOverWithin(slowDiskPause, heir)
		}
	}
	if handed {
		b.count.Add(1)
	}
	b.logger.Debug("the disk is slow", "group", m.group, "to", takes, "handed_over", handed)
}
