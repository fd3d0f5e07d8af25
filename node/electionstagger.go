package node

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// electionStagger orders the pre-votes of followers whose leader is gone. Two candidates that ask at the same time vote
// for themselves, and both wait for one or two election timeouts. So all followers but the first delay their pre-votes.
// The second waits for the longest time that may lie between the moments at which two followers notice a silence. The
// others wait for twice that: from the third on, candidates collide as they would by Raft alone. A candidate whose peer
// still sees a leader asks again, until the peer has noticed too.
//
// It delays and repeats pre-votes only, which promise nothing. It does not change which replica can be elected.
type electionStagger struct {
	timeout     time.Duration          // of elections
	rank        func() int             // how many followers ask before this one
	campaigning func(term uint64) bool // whether this replica still wants to be elected in a term
	ask         func(q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error
	ended       <-chan struct{}
}

const (
	// An election timeout divided by staggerParts is the delay of one rank. Heartbeats reach followers up to a fifth of
	// the timeout after one another, and a leaderFailureDetector looks twenty times in it.
	staggerParts = 4
	// The timeout divided by retryParts is how long a candidate waits before it asks again.
	retryParts = 20
	// The timeout divided by retryLimitParts is how long a candidate keeps asking, and the longest delay.
	retryLimitParts = 2
)

// delay is how long a replica waits before it asks.
func (s *electionStagger) delay() time.Duration {
	return min(time.Duration(s.rank())*s.timeout/staggerParts, s.timeout/retryLimitParts)
}

// preVote asks for a pre-vote after this replica's delay.
func (s *electionStagger) preVote(q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error {
	if delay := s.delay(); delay > 0 && !s.wait(delay, q.Term) {
		a.Term = q.Term // refused, as far as Raft is concerned
		return nil
	}
	for began := time.Now(); ; {
		err := s.ask(q, a)
		if err != nil || a.Granted || a.Term >= q.Term || time.Since(began) >= s.timeout/retryLimitParts || !s.wait(s.timeout/retryParts, q.Term) {
			return err
		}
		*a = raft.RequestPreVoteResponse{}
	}
}

// wait waits for d, and reports whether the replica is still a candidate for the term.
func (s *electionStagger) wait(d time.Duration, term uint64) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return s.campaigning(term)
	case <-s.ended:
		return false
	}
}

// rank returns how many of the voters that followed the last leader come before this one; 0 if there was none yet.
func (m *member) rank() int {
	former := m.former.Load()
	if former == nil {
		return 0
	}
	_, nodes := m.voters()
	rank := 0
	for _, node := range nodes {
		if node == m.node {
			return rank
		}
		if node != *former {
			rank++
		}
	}
	return 0
}

// campaigning reports whether this member is a candidate, or about to be one, for a term.
func (m *member) campaigning(term uint64) bool {
	i := m.now.Load()
	return i != nil && i.raft.State() == raft.Candidate && i.raft.CurrentTerm() < term
}

// ending is a channel that is closed at most once.
type ending struct {
	once sync.Once
	ch   chan struct{}
}

func newEnding() *ending { return &ending{ch: make(chan struct{})} }

func (e *ending) end() { e.once.Do(func() { close(e.ch) }) }
