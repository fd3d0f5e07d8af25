package cluster

import "sync/atomic"

// Leaders remembers who was last known to lead each shard. It is a hint, local
// to this node and not replicated: fed by what its own Raft groups observe and
// by NOT_LEADER answers. It takes no locks.
type Leaders struct {
	hints []atomic.Pointer[hint] // by shard; nil: nothing known
}

type hint struct {
	node string // "" when the term has no known leader
	term uint64
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
		if slot.CompareAndSwap(old, &hint{node, term}) {
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
		if slot.CompareAndSwap(old, &hint{leader, term}) {
			return
		}
	}
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
