package node

import (
	"time"

	"github.com/hashicorp/raft"
)

// DefaultMoveRate is Config.MoveRate when it is 0: half of what a network of a gigabit a second carries.
const DefaultMoveRate = 64 << 20

// hurried is a carrier that sends snapshots at a limited rate, except to those who are needed.
type hurried interface {
	Hurry(needed func(replica uint64) bool)
}

// needed reports whether this leader's group can commit nothing without a follower.
func (m *member) needed(replica uint64) bool {
	i := m.now.Load()
	term, leads := m.leading()
	if i == nil || !leads {
		return false
	}
	return pivotal(m.configuration().Servers, serverID(m.replica), serverID(replica), func(id raft.ServerID) bool {
		p := i.link.progressOf(id, term)
		return !p.install && time.Since(p.heard) < m.timeout/2
	})
}

// pivotal reports whether the voters of a group have no majority without one of them: too few others are the leader or keep up. Who has no vote is not pivotal, however
// few are left: it gets its vote by an entry that is committed without it.
func pivotal(servers []raft.Server, leader, one raft.ServerID, keepsUp func(raft.ServerID) bool) bool {
	votes, voters, others := false, 0, 0
	for _, s := range servers {
		switch {
		case s.Suffrage != raft.Voter:
			continue
		case s.ID == one:
			votes = true
		case s.ID == leader || keepsUp(s.ID):
			others++
		}
		voters++
	}
	return votes && 2*others <= voters
}
