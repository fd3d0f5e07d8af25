package node

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// configured is what a machine knows of its group's configurations, which Raft hands over as it commits them.
type configured struct {
	at    atomic.Uint64 // the newest configuration entry handed over; 0 for none
	leaps atomic.Uint64 // how many differed from the one before by more than one server

	last *raft.Configuration // nil: not known. Only for the goroutine that applies
}

// note records the configurations among entries, which come in order.
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

// restored is called when a snapshot has replaced entries: the last configuration is then not known.
func (c *configured) restored() { c.last = nil }

// serversChanged returns how many servers were added, removed or got another suffrage between two configurations. If it
// is one, any two majorities of the configurations have a server in common.
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

// MembershipLeaps returns how many committed configurations of this node's groups differed from the previous one by
// more than one server. It counts since the node has the group. If it is not 0, two majorities may have had no server
// in common.
func (n *Node) MembershipLeaps() (leaps uint64) {
	if g := n.groups.Load(); g != nil {
		for _, m := range g.members {
			leaps += m.machine.configured().leaps.Load()
		}
	}
	return leaps
}
