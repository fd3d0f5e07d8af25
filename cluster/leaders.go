package cluster

import (
	"iter"
	"sync/atomic"
	"time"
)

// electionsMax is for how many election timeouts a node that lost a leader waits to hear of another. Its replica is
// among the first to hear of one that is elected; when it has heard of none for so long, the others may know what it
// does not.
const electionsMax = 2

// ElectionTimeout is one setting of the cluster, derived from its number of
// shards: how long a group may be without a leader before it elects another.
// Heartbeats go ten times as often, so more groups need longer ones.
func ElectionTimeout(shards uint32) time.Duration {
	switch {
	case shards <= 64:
		return time.Second
	case shards <= 256:
		return 3 * time.Second
	}
	return 5 * time.Second
}

// Leaders remembers who was last known to lead each shard. It is a hint, local
// to this node and not replicated: fed by what its own Raft groups observe and
// by NOT_LEADER answers. It takes no locks.
type Leaders struct {
	hints []atomic.Pointer[hint] // by shard; nil: nothing known
}

type hint struct {
	node string // "" when the term has no known leader
	term uint64
	over chan struct{} // closed when another takes its place

	seen string    // who led when this node's own replica last heard of a leader
	lost time.Time // when it heard that that one leads no more; zero while it does, or when none was ever heard of
}

// NewLeaders returns hints for groups 0 to shards.
func NewLeaders(shards uint32) *Leaders {
	return &Leaders{hints: make([]atomic.Pointer[hint], shards+1)}
}

// Observe takes what a Raft group said: node leads the shard in this term, or no known node does when node is "". An
// older term than the one already observed changes nothing. A replica may say again that there is no leader, without
// having heard of one since. That is no news and takes no guess away: perhaps no replica calls this one, and it knows
// less than others.
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

// Correct tells that asked turned out not to lead the shard, and that leader might. It holds only while the hint still
// names asked (or no node), so that an answer that took long never overrides newer knowledge.
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

// replace puts another hint in the place of one, unless that is gone already, and wakes all that wait for it.
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

// led reports whether the shard has a leader, by the last that was heard of it.
func (h *hint) led() bool { return h != nil && h.seen != "" && h.lost.IsZero() }

// after returns what is known once another observation was made.
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

// lost returns whom this node's own replica of the shard has heard to lead no more, less than so long ago, and knows no
// successor of; "" if there is no such node. A replica that has heard of no leader yet has lost none: it may be one
// that is being made, or has just started.
func (l *Leaders) lost(shard uint32, within time.Duration) (former string) {
	if int(shard) >= len(l.hints) {
		return ""
	}
	if h := l.hints[shard].Load(); h != nil && h.node == "" && !h.lost.IsZero() && time.Since(h.lost) < within {
		return h.seen
	}
	return ""
}

// leadershipEnd returns a channel that closes when this node learns of another leader of one of the shards that the
// node leads; nil if the node leads none of them.
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
