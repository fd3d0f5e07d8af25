package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/transport"
)

const (
	// pauseMax is how long writes to a shard wait for its leadership to change hands.
	pauseMax = time.Second
	// catchUpMax is how long the next leader may take to get the last entries.
	catchUpMax = 500 * time.Millisecond
	// handOverMore is how much longer a change of leadership may take than the
	// message that starts it, since a transfer that hangs keeps Raft from any
	// other (hashicorp/raft #696).
	handOverMore = time.Second
	// handOverPoll is how often to look whether it happened.
	handOverPoll = 2 * time.Millisecond
	// balanceAfter keeps leaders where they are in the first seconds of a node.
	balanceAfter = 10 * time.Second
	// balanceEvery is the pace at which leaders move to where they should be.
	balanceEvery = 250 * time.Millisecond
	// balanceRetry is how long a shard is left alone after a transfer failed.
	balanceRetry = 30 * time.Second
)

// handOver moves the leadership of a shard to another voter, and reports whether
// this replica leads no longer. It happens with nothing on its way and only to
// a follower that has the whole log, one at a time; the observed leader counts
// and not Raft's future, which may never come.
func (r *replica) handOver(to raft.Server) bool {
	if !r.transferring.CompareAndSwap(false, true) {
		return false
	}
	defer r.transferring.Store(false)
	defer r.proposer.resume()
	if !r.proposer.pause(pauseMax) || !r.caughtUp(to.ID, catchUpMax) {
		return false
	}
	r.now.Load().raft.LeadershipTransferToServer(to.ID, to.Address)
	return eventually(controlTimeout(r.timeout)+handOverMore, func() bool { _, leads := r.leading(); return !leads })
}

// caughtUp waits until a follower has the whole log.
func (r *replica) caughtUp(id raft.ServerID, atMost time.Duration) bool {
	return eventually(atMost, func() bool {
		missing, heard := r.behind(id)
		return heard && missing == 0
	})
}

// eventually looks until what it looks for is so, or time is up.
func eventually(atMost time.Duration, so func() bool) bool {
	for start := time.Now(); !so(); time.Sleep(handOverPoll) {
		if time.Since(start) > atMost {
			return false
		}
	}
	return true
}

// heir returns the voter to hand a shard over to: of the nodes that fit the one
// preferred, or else any.
func (r *replica) heir(preferred string, fit func(node string) bool) (raft.Server, bool) {
	var heir raft.Server
	found := false
	_, nodes := r.voters()
	for _, s := range r.configuration().Servers {
		node, _, err := transport.ParseAddress(s.Address)
		if err != nil || s.Suffrage != raft.Voter || node == r.node || !fit(node) {
			continue
		}
		missing, heard := r.behind(s.ID)
		if !heard || missing > appendEntriesMax || !r.keeper.usable(node, r.node, nodes) {
			continue
		}
		if !found || node == preferred {
			heir, found = s, true
		}
	}
	return heir, found
}

// balancer moves leaderships one at a time: to the node that the table prefers,
// gently, and away from this node when its clock is unfit.
type balancer struct {
	node     string
	replicas []*replica // of this node
	table    func() *cluster.Table
	alive    func(node string) bool
	logger   *slog.Logger
	started  time.Time

	mu     sync.Mutex // guards what follows
	unfit  map[*replica]bool
	failed map[*replica]time.Time
}

func newBalancer(node string, replicas []*replica, table func() *cluster.Table, alive func(string) bool, logger *slog.Logger) *balancer {
	return &balancer{
		node: node, replicas: replicas, table: table, alive: alive, logger: logger,
		started: time.Now(), unfit: make(map[*replica]bool), failed: make(map[*replica]time.Time),
	}
}

// skewed asks to move a shard away from this node.
func (b *balancer) skewed(r *replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfit[r] = true
}

// run balances until ctx ends.
func (b *balancer) run(ctx context.Context) {
	ticker := time.NewTicker(balanceEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.flee()
			b.move()
		}
	}
}

// flee hands over the shards that this node's clock may not lead.
func (b *balancer) flee() {
	b.mu.Lock()
	unfit := b.unfit
	b.unfit = make(map[*replica]bool)
	b.mu.Unlock()
	for r := range unfit {
		b.try(r, "", "clock")
	}
}

// move hands over at most one shard that another node should lead.
func (b *balancer) move() {
	if time.Since(b.started) < balanceAfter {
		return
	}
	table := b.table()
	for _, r := range b.replicas {
		preferred := table.Preferred(r.group)
		if _, leads := r.leading(); !leads || preferred == b.node || !b.alive(preferred) || b.failedLately(r) {
			continue
		}
		b.try(r, preferred, "balance")
		return
	}
}

func (b *balancer) failedLately(r *replica) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.failed[r]
	return ok && time.Since(at) < balanceRetry
}

// try hands one shard over, to preferred unless that is empty.
func (b *balancer) try(r *replica, preferred, why string) {
	heir, ok := r.heir(preferred, func(node string) bool { return preferred == "" || node == preferred })
	if ok && r.handOver(heir) {
		b.logger.Debug("leadership handed over", "shard", r.group, "to", heir.Address, "why", why)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[r] = time.Now()
}

// leaveAll hands over everything that this node leads, as far as others can
// take it before the deadline.
func (b *balancer) leaveAll(atMost time.Duration) {
	deadline := time.Now().Add(atMost)
	table := b.table()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, 4)
	for _, r := range b.replicas {
		if _, leads := r.leading(); !leads || time.Now().After(deadline) {
			continue
		}
		if heir, ok := r.heir(table.Preferred(r.group), b.alive); ok {
			slots <- struct{}{}
			wg.Go(func() { r.handOver(heir); <-slots })
		}
	}
}
