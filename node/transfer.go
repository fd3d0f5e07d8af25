package node

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/transport"
)

const (
	// pauseMax is how long writes to a shard wait while its leadership is transferred.
	pauseMax = time.Second
	// catchUpMax is how long the next leader may take to get the last entries: two round trips in a network where an
	// answer takes half a second.
	catchUpMax = time.Second
	// handOverMore is how much longer a transfer of leadership may take than the message that starts it. The limit is
	// needed, since a transfer that hangs keeps Raft from any other (hashicorp/raft #696).
	handOverMore = time.Second
	// handOverPoll is how often to check whether it happened.
	handOverPoll = 2 * time.Millisecond
	// balanceAfter is how long after its start a node moves no leaderships.
	balanceAfter = 10 * time.Second
	// balanceEvery is the interval at which leaderships move to the preferred nodes.
	balanceEvery = 250 * time.Millisecond
	// balanceRetry is how long a shard is not moved again after a transfer failed.
	balanceRetry = 30 * time.Second
)

// handOver moves the leadership of a shard to another voter, and reports whether this replica no longer leads. It waits
// until no entry is in flight, and moves leadership only to a follower that has the whole log. Only one transfer of a
// shard runs at a time. It observes the leader instead of Raft's future, which may never resolve.
func (r *replica) handOver(to raft.Server) bool { return r.handOverWithin(pauseMax, to) }

// handOverWithin is handOver, with its own limit for entries in flight.
func (r *replica) handOverWithin(atMost time.Duration, to raft.Server) bool {
	if !r.transferring.CompareAndSwap(false, true) {
		return false
	}
	defer r.transferring.Store(false)
	defer r.proposer.resume()
	return r.proposer.pause(atMost) && r.cede(to)
}

// cede makes another voter campaign once it has the whole log, and reports whether this member no longer leads.
func (m *member) cede(to raft.Server) bool {
	if !m.caughtUp(to.ID, catchUpMax) {
		return false
	}
	m.now.Load().raft.LeadershipTransferToServer(to.ID, to.Address)
	return eventually(controlTimeout(m.timeout)+handOverMore, func() bool { _, leads := m.leading(); return !leads })
}

// caughtUp waits until a follower has the whole log, and reports whether that happened in time.
func (m *member) caughtUp(id raft.ServerID, atMost time.Duration) bool {
	return eventually(atMost, func() bool {
		missing, heard := m.behind(id)
		return heard && missing == 0
	})
}

// eventually polls until so returns true or the time is up, and reports which.
func eventually(atMost time.Duration, so func() bool) bool {
	for start := time.Now(); !so(); time.Sleep(handOverPoll) {
		if time.Since(start) > atMost {
			return false
		}
	}
	return true
}

// heir returns the voter to hand a shard over to. Among the nodes that fit, it takes the preferred one, or else the one
// that lacks the fewest entries.
func (r *replica) heir(preferred string, fit func(node string) bool) (raft.Server, bool) {
	_, nodes := r.voters()
	return r.member.heir(preferred, func(node string) bool { return fit(node) && r.keeper.usable(node, r.node, nodes) })
}

// heir is replica.heir without the check of clocks.
func (m *member) heir(preferred string, fit func(node string) bool) (heir raft.Server, found bool) {
	least := uint64(appendEntriesMax)
	for _, s := range m.configuration().Servers {
		node, _, err := transport.ParseAddress(s.Address)
		if err != nil || s.Suffrage != raft.Voter || node == m.node || !fit(node) {
			continue
		}
		missing, heard := m.behind(s.ID)
		switch {
		case !heard || missing > appendEntriesMax:
		case node == preferred:
			return s, true
		case !found || missing < least:
			heir, least, found = s, missing, true
		}
	}
	return heir, found
}

// balancer moves leaderships, one at a time and slowly, to the nodes that the table prefers. It also moves them away
// from this node when its clock is unfit.
type balancer struct {
	node     string
	replicas func() []*replica // of this node
	table    func() *cluster.Table
	alive    func(node string) bool
	sound    func(node string, shard uint32) bool // reports that a node's replica may lead; it may take a moment
	slow     func(node string) bool               // whether a slow disk makes a node hand over what it gets; may wait
	logger   *slog.Logger
	started  time.Time
	every    time.Duration // see Limits.BalanceEvery
	after    time.Duration // see Limits.BalanceAfter

	mu     sync.Mutex // guards what follows
	unfit  map[*replica]bool
	failed map[*replica]time.Time
}

func newBalancer(node string, replicas func() []*replica, table func() *cluster.Table, alive func(string) bool, sound func(string, uint32) bool, slow func(string) bool, logger *slog.Logger) *balancer {
	return &balancer{
		node: node, replicas: replicas, table: table, alive: alive, sound: sound, slow: slow, logger: logger,
		started: time.Now(), every: balanceEvery, after: balanceAfter, unfit: make(map[*replica]bool), failed: make(map[*replica]time.Time),
	}
}

// skewed asks to move the leadership of a shard away from this node.
func (b *balancer) skewed(r *replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfit[r] = true
}

// run balances until ctx ends.
func (b *balancer) run(ctx context.Context) {
	ticker := time.NewTicker(b.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.evacuate()
			b.move()
		}
	}
}

// evacuate hands over the shards that this node may not lead because of its clock.
func (b *balancer) evacuate() {
	b.mu.Lock()
	unfit := b.unfit
	b.unfit = make(map[*replica]bool)
	b.mu.Unlock()
	for r := range unfit {
		b.try(r, "", "clock")
	}
}

// move hands over at most one shard: one that another node should lead.
func (b *balancer) move() {
	if time.Since(b.started) < b.after {
		return
	}
	table := b.table()
	for _, r := range b.replicas() {
		preferred := table.Preferred(r.group)
		if _, leads := r.leading(); !leads || preferred == b.node || table.UnderWay(r.group) || !b.alive(preferred) || b.failedLately(r) || b.slow(preferred) {
			continue
		}
		if b.sound(preferred, r.group) {
			b.try(r, preferred, "balance")
		} else {
			b.rest(r)
		}
		return
	}
}

func (b *balancer) failedLately(r *replica) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.failed[r]
	return ok && time.Since(at) < balanceRetry
}

// try hands over one shard: to preferred, or to any voter if that is empty.
func (b *balancer) try(r *replica, preferred, why string) {
	heir, ok := r.heir(preferred, func(node string) bool { return preferred == "" || node == preferred })
	if ok && r.handOver(heir) {
		b.logger.Debug("leadership handed over", "shard", r.group, "to", heir.Address, "why", why)
		return
	}
	b.rest(r)
}

// rest keeps the balancer from moving a shard for balanceRetry.
func (b *balancer) rest(r *replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.failed, func(_ *replica, at time.Time) bool { return time.Since(at) >= balanceRetry })
	b.failed[r] = time.Now()
}

// leaveAll hands over everything that this node leads. It repeats that until the node leads nothing that others could
// take, or the time is up: an heir may still lack entries, and an election may return a shard to this node.
func (b *balancer) leaveAll(atMost time.Duration) {
	d := departure{
		b: b, table: b.table(), deadline: time.Now().Add(atMost),
		failed: make(map[string]bool), asked: make(map[*replica]map[string]bool), offers: make(map[*replica]int),
	}
	eventually(atMost, d.round)
}

// departure is what a stopping node knows of the nodes to which it offers its shards.
type departure struct {
	b        *balancer
	table    *cluster.Table
	deadline time.Time

	mu     sync.Mutex                   // guards what follows
	failed map[string]bool              // nodes that did not take the last shard that was offered to them
	asked  map[*replica]map[string]bool // nodes that were offered a shard since all were offered it
	offers map[*replica]int             // how often each shard was offered
}

// round offers every shard that this node leads to one other node, a few at a time. It reports whether none is left to
// offer.
func (d *departure) round() bool {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	done := true
	for _, r := range d.b.replicas() {
		slots <- struct{}{}
		_, leads := r.leading()
		if !leads || time.Now().After(d.deadline) || !othersAlive(r.member, d.b.node, d.b.alive) {
			<-slots
			continue
		}
		done = false
		wg.Go(func() {
			defer func() { <-slots }()
			if r.transferring.Load() {
				return // it is being moved already
			}
			if heir, node, ok := d.heir(r); ok {
				d.note(r, node, r.handOverWithin(d.patience(r), heir))
			}
		})
	}
	wg.Wait()
	return done
}

// othersAlive reports whether a group has a voter on a node that is alive and is not this one.
func othersAlive(m *member, self string, alive func(node string) bool) bool {
	_, nodes := m.voters()
	return slices.ContainsFunc(nodes, func(node string) bool { return node != self && alive(node) })
}

// heir returns the node to which a shard is offered next. It prefers nodes that took what they were offered, and offers
// to each node once before any twice. A node whose clock is wrong or unknown is better than an election.
func (d *departure) heir(r *replica) (heir raft.Server, node string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := func(node string) bool { return d.b.alive(node) && !d.asked[r][node] }
	good := func(node string) bool { return open(node) && !d.failed[node] }
	preferred := d.table.Preferred(r.group)
	for _, pick := range []func() (raft.Server, bool){
		func() (raft.Server, bool) { return r.heir(preferred, good) },
		func() (raft.Server, bool) { return r.heir(preferred, open) },
		func() (raft.Server, bool) { return r.member.heir(preferred, open) },
	} {
		if heir, ok = pick(); ok {
			node, _, _ = transport.ParseAddress(heir.Address) // heir has parsed it
			return heir, node, true
		}
	}
	delete(d.asked, r)
	return raft.Server{}, "", false
}

// patience is how long a handover of a shard waits for entries in flight: twice as long each time, since a slow disk is
// no quicker the next time.
func (d *departure) patience(r *replica) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(pauseMax<<min(d.offers[r], 10), max(0, time.Until(d.deadline)))
}

// note records the result of an offer.
func (d *departure) note(r *replica, node string, taken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.offers[r]++
	d.failed[node] = !taken
	if d.asked[r] == nil {
		d.asked[r] = make(map[string]bool)
	}
	d.asked[r][node] = true
}
