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
	// yieldAtOnce is how many groups a node with a slow disk hands over at the same time, as one that stops does.
	yieldAtOnce = 4
	// yieldPause is how long entries on their way may take to land then: each may wait for a sync that is under way and for its own, which
	// take less than muteAfter each, or the disk hangs.
	yieldPause = 2 * muteAfter
	// yieldRetry is how long a group is left alone for which there was nobody, or whose hand-over failed.
	yieldRetry = 5 * time.Second
	// statusFresh is how long what a node has said of itself is good for.
	statusFresh = 2 * time.Second
)

// pacer keeps this node's diskPace.
type pacer struct {
	slowest func() time.Duration // sync since the last call
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

// statusCache has what other nodes say of themselves, asked again only when that is not fresh.
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

// of returns what a node says; nil if it does not answer.
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

// forget drops what nodes said that known does not report.
func (c *statusCache) forget(known func(node string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(node string, _ keptStatus) bool { return !known(node) })
}

// slow reports whether a node says that its disk is slow.
func (c *statusCache) slow(node string) bool { return c.of(node).GetDiskSlow() }

// yielder hands over what this node leads while its disk is slow, to voters whose disks are not. A leader cannot acknowledge anything before it has
// synced it; of followers the slowest is not waited for.
type yielder struct {
	node     string
	pace     func() diskPace
	groups   func() *groups
	alive    func(node string) bool
	statuses *statusCache
	count    *atomic.Uint64 // groups handed over
	logger   *slog.Logger

	resting map[*member]time.Time // until when
}

func newYielder(node string, pace func() diskPace, groups func() *groups, alive func(string) bool, statuses *statusCache, count *atomic.Uint64, logger *slog.Logger) *yielder {
	return &yielder{node: node, pace: pace, groups: groups, alive: alive, statuses: statuses, count: count, logger: logger, resting: make(map[*member]time.Time)}
}

// look is called every balanceEvery by one goroutine, and hands over a few groups.
func (y *yielder) look() {
	pace := y.pace()
	if !pace.yields() {
		clear(y.resting)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	g, begun := y.groups(), 0
	for _, m := range g.members {
		if _, leads := m.leading(); !leads || time.Now().Before(y.resting[m]) {
			continue
		}
		y.resting[m] = time.Now().Add(yieldRetry)
		takes := y.takers(m, pace)
		if len(takes) == 0 {
			continue
		}
		wg.Go(func() { y.yield(g, m, takes) })
		if begun++; begun == yieldAtOnce {
			return
		}
	}
}

// takers returns the nodes of the voters that are worth handing a group over to, by name.
func (y *yielder) takers(m *member, pace diskPace) (takes []string) {
	_, nodes := m.voters()
	for _, node := range nodes {
		if node == y.node || !y.alive(node) {
			continue
		}
		status := y.statuses.of(node)
		if r := replicaOf(status, m.group); r != nil && !r.GetQuarantined() && welcoming(status, pace) {
			takes = append(takes, node)
		}
	}
	slices.Sort(takes)
	return takes
}

// welcoming reports whether a node's disk is that much faster. A build that says nothing of its disk counts as one with a fast one.
func welcoming(status *ebbv1.NodeStatus, pace diskPace) bool {
	return !status.GetDiskSlow() && pace.lighter(time.Duration(status.GetSyncUs())*time.Microsecond)
}

// yield hands one group over: each to another of those that take it, so that none gets all.
func (y *yielder) yield(g *groups, m *member, takes []string) {
	first := takes[int(m.group)%len(takes)]
	fit := func(node string) bool { return slices.Contains(takes, node) }
	handed := false
	if m.group == cluster.ControlShard {
		if heir, ok := m.heir(first, fit); ok {
			handed = m.cede(heir)
		}
	} else if r := g.byShard[m.group]; r != nil {
		if heir, ok := r.heir(first, fit); ok {
			handed = r.handOverWithin(yieldPause, heir)
		}
	}
	if handed {
		y.count.Add(1)
	}
	y.logger.Debug("the disk is slow", "group", m.group, "to", takes, "handed_over", handed)
}
