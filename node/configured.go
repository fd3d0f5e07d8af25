package node

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// configured is what a machine knows of its group's configurations, which Raft hands over as it commits them.
type configured struct {
	at    atomic.Uint64 // the newest entry handed over that changed it; 0 for none
	leaps atomic.Uint64 // how many differed from the one before by more than one server

	last *raft.Configuration // nil: not known. Of the goroutine that applies
}

// note takes down what is among entries, which come in order.
func (c *configured) note(entries []*raft.Log) {
	for _, e := range entries {
		if e.Type != raft.LogConfiguration || e.Index <= c.at.Load() { // a restarted Raft hands over its log again
			continue
		}
		next := raft.DecodeConfiguration(e.Data)
		if c.last != nil && serversChanged(c.last, &next) > 1 {
			c.leaps.Add(1)
		}
		c.last = &next
		c.at.Store(e.Index)
	}
}

// restored says that entries were left out, which a snapshot includes.
func (c *configured) restored() { c.last = nil }

// serversChanged is how many servers came, went or got another vote between two configurations. Where it is one, any
// two majorities of them have a server in common.
func serversChanged(before, after *raft.Configuration) (changed int) {
	votes := make(map[raft.ServerID]raft.ServerSuffrage, len(before.Servers))
	for _, s := range before.Servers {
		votes[s.ID] = s.Suffrage
	}
	for _, s := range after.Servers {
		if vote, had := votes[s.ID]; !had || vote != s.Suffrage {
			changed++
		}
		delete(votes, s.ID)
	}
	return changed + len(votes)
}

// MembershipLeaps is how many committed configurations of the groups here differed from the one before by more than one
// server, since they are here. It is 0, or two majorities may have been without a server in common.
func (n *Node) MembershipLeaps() (leaps uint64) {
	if g := n.groups.Load(); g != nil {
		for _, m := range g.members {
			leaps += m.machine.configured().leaps.Load()
		}
	}
	return leaps
}
