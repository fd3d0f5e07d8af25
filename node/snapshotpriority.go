package node

import (
	"time"

	"github.com/hashicorp/raft"
)

// DefaultMoveRate is Config.MoveRate when it is 0, in bytes a second: half of what a network of a gigabit a second
// carries.
const DefaultMoveRate = 64 << 20

// snapshotPrioritizer is a transport that limits the rate of snapshots, except to quorum-critical replicas.
type snapshotPrioritizer interface {
	Prioritize(critical func(replica uint64) bool)
}

// quorumCritical reports whether the group of this leader can commit nothing without a follower.
func (m *member) quorumCritical(replica uint64) bool {
	i := m.now.Load()
	term, leads := m.leading()
	if i == nil || !leads {
		return false
	}
	return noQuorumWithout(m.configuration().Servers, serverID(m.replica), serverID(replica), func(id raft.ServerID) bool {
		p := i.link.progressOf(id, term)
		return !p.install && time.Since(p.lastContact) < m.timeout/2
	})
}

// noQuorumWithout reports whether the voters of a group have no majority without one of them: too few of the others
// are the leader or keep up. A replica without a vote is never quorum-critical: the entry that gives it a vote commits
// without it.
func noQuorumWithout(servers []raft.Server, leader, one raft.ServerID, keepsUp func(raft.ServerID) bool) bool {
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
