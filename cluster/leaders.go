package cluster

import (
	"iter"
	"sync/atomic"
	"time"
)

// electionsMax is how many election timeouts a node waits for a new leader after its replica lost the leader. Its
// replica is among the first to learn of a new leader. If it knows none after that time, other nodes may know more.
const electionsMax = 2

// ElectionTimeout returns how long a group may be without a leader before it elects another. It depends on the number
// of shards of the cluster: heartbeats are sent ten times as often, so more groups need longer intervals.
func ElectionTimeout(shards uint32) time.Duration {
	switch {
	case shards <= 64:
		return time.Second
	case shards <= 256:
		return 3 * time.Second
	}
	return 5 * time.Second
}

// Leaders keeps the last known leader of each shard. It is a hint, local to this node and not replicated. Its sources
// are this node's own Raft groups and NOT_LEADER answers. It takes no locks.
type Leaders struct {
	hints []atomic.Pointer[hint] // by shard; nil: nothing known
}

type hint struct {
	node string // "" when the term has no known leader
	term uint64
	over chan struct{} // closed when another hint replaces this one

	seen string    // the leader when this node's own replica last knew one
	lost time.Time // when the replica saw its leadership end; zero while it leads, or if none was known
}

// NewLeaders returns hints for groups 0 to shards.
func NewLeaders(shards uint32) *Leaders {
	return &Leaders{hints: make([]atomic.Pointer[hint], shards+1)}
}

// Observe records what a replica of this node observed: node leads the shard in this term or, if node is "", no leader
// is known. An older term than the recorded one changes nothing. A second report without a leader in between does not
// remove a guess: perhaps no replica contacts this one, and it knows less than others.
func (l *Leaders) Observe(shard uint32, node string, term uint64) {
	if int(shard) >= len(l.hints) {
		return
	}
	slot := &l.hints[shard]
	for {
		old := slot.Load()
		if old != nil && (old.term > term || old.term == term && (old.node == node || node == "" && !old.led())) {
			return
		}
		if replace(slot, old, old.after(node, term)) {
			return
		}
	}
}

// Correct records that asked does not lead the shard, and that leader may. It takes effect only while the hint still
// names asked, or no node, so that a slow answer never overrides newer knowledge.
func (l *Leaders) Correct(shard uint32, asked, leader string) {
	if int(shard) >= len(l.hints) || asked == leader {
		return
	}
	slot := &l.hints[shard]
	for {
		old := slot.Load()
		next := hint{node: leader}
		if old != nil {
			if old.node != asked && old.node != "" {
				return
			}
			next.term, next.seen, next.lost = old.term, old.seen, old.lost
		}
		if replace(slot, old, &next) {
			return
		}
	}
}

// replace replaces the hint old by next, and wakes all waiters. It returns false if old was replaced before.
func replace(slot *atomic.Pointer[hint], old, next *hint) bool {
	next.over = make(chan struct{})
	if !slot.CompareAndSwap(old, next) {
		return false
	}
	if old != nil {
		close(old.over)
	}
	return true
}

// led reports whether the shard has a leader, as far as this node's own replica knows.
func (h *hint) led() bool { return h != nil && h.seen != "" && h.lost.IsZero() }

// after returns the hint after one more observation of this node's own replica.
func (h *hint) after(node string, term uint64) *hint {
	switch {
	case node != "":
		return &hint{node: node, term: term, seen: node}
	case h.led():
		return &hint{term: term, seen: h.seen, lost: time.Now()}
	case h != nil:
		return &hint{node: h.node, term: term, seen: h.seen, lost: h.lost}
	}
	return &hint{term: term}
}

// lost returns the former leader if this node's own replica saw the leadership end less than within ago, and no other
// leader is known. It returns "" otherwise, also if the replica never knew a leader: then it may have just been created
// or started.
func (l *Leaders) lost(shard uint32, within time.Duration) (former string) {
	if int(shard) >= len(l.hints) {
		return ""
	}
	if h := l.hints[shard].Load(); h != nil && h.node == "" && !h.lost.IsZero() && time.Since(h.lost) < within {
		return h.seen
	}
	return ""
}

// leadershipEnd returns a channel that closes when the hint changes for one of the shards that the node leads; nil if
// the node leads none of them.
func (l *Leaders) leadershipEnd(node string, shards iter.Seq[uint32]) <-chan struct{} {
	for shard := range shards {
		if int(shard) < len(l.hints) {
			if h := l.hints[shard].Load(); h != nil && h.node == node {
				return h.over
			}
		}
	}
	return nil
}

// Leader returns the node last known to lead the shard and the term of the last observation; "" if no leader is known.
func (l *Leaders) Leader(shard uint32) (node string, term uint64) {
	if int(shard) >= len(l.hints) {
		return "", 0
	}
	if h := l.hints[shard].Load(); h != nil {
		return h.node, h.term
	}
	return "", 0
}
