package cluster

import (
	"iter"
	"sync/atomic"
)

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
}

// NewLeaders returns hints for groups 0 to shards.
func NewLeaders(shards uint32) *Leaders {
	return &Leaders{hints: make([]atomic.Pointer[hint], shards+1)}
}

// Observe tells what a Raft group said: node leads the shard in this term, or
// nobody known does when node is "". An older term than the one already
// observed changes nothing.
func (l *Leaders) Observe(shard uint32, node string, term uint64) {
	if int(shard) >= len(l.hints) {
		return
	}
	slot := &l.hints[shard]
	for {
		old := slot.Load()
		if old != nil && (old.term > term || old.term == term && old.node == node) {
			return
		}
		if replace(slot, old, node, term) {
			return
		}
	}
}

// Correct tells that asked turned out not to lead the shard, and that leader
// might. It holds only while the hint still names asked (or nobody), so that an
// answer that took long never overrides newer knowledge.
func (l *Leaders) Correct(shard uint32, asked, leader string) {
	if int(shard) >= len(l.hints) || asked == leader {
		return
	}
	slot := &l.hints[shard]
	for {
		old := slot.Load()
		var term uint64
		if old != nil {
			if old.node != asked && old.node != "" {
				return
			}
			term = old.term
		}
		if replace(slot, old, leader, term) {
			return
		}
	}
}

// replace puts another hint in the place of one, unless that is gone already, and tells who waits for it.
func replace(slot *atomic.Pointer[hint], old *hint, node string, term uint64) bool {
	if !slot.CompareAndSwap(old, &hint{node, term, make(chan struct{})}) {
		return false
	}
	if old != nil {
		close(old.over)
	}
	return true
}

// nobody reports whether it was observed, and not just never heard, that nobody leads the shard.
func (l *Leaders) nobody(shard uint32) bool {
	node, term := l.Leader(shard)
	return node == "" && term > 0
}

// reign returns a channel that is closed when what is known of the leader of one of the shards changes, which is the node; nil if that leads none of them.
func (l *Leaders) reign(node string, shards iter.Seq[uint32]) <-chan struct{} {
	for shard := range shards {
		if int(shard) < len(l.hints) {
			if h := l.hints[shard].Load(); h != nil && h.node == node {
				return h.over
			}
		}
	}
	return nil
}

// Leader returns the node last known to lead the shard and the term of the last
// observation; "" if nobody is known.
func (l *Leaders) Leader(shard uint32) (node string, term uint64) {
	if int(shard) >= len(l.hints) {
		return "", 0
	}
	if h := l.hints[shard].Load(); h != nil {
		return h.node, h.term
	}
	return "", 0
}
