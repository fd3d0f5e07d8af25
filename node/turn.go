package node

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// turn is whose it is to ask for votes first when a leader is gone. Two that ask at the same time vote for themselves both, and
// wait for one or two election timeouts. So all but the first of those that followed hold back, the next one for as much as followers
// notice a silence after one another, and those after it for twice that: three or more of them stand together, as they would by Raft alone.
// Who is told that there is a leader still asks again, until the other has noticed too.
//
// What is held back and asked again are pre-votes, which promise nothing: none of it touches who may be elected.
type turn struct {
	timeout  time.Duration          // of elections
	rank     func() int             // how many of those that followed come first
	standing func(term uint64) bool // whether this replica still wants to be elected in a term
	ask      func(q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error
	ended    <-chan struct{}
}

const (
	// turnParts of an election timeout are what the next in turn holds back longer: the leader's heartbeats reach followers up
	// to a fifth of it after one another, and a vigil looks twenty times in it.
	turnParts = 4
	// againParts of it are how long who asks in vain waits before it asks again.
	againParts = 20
	// insistParts of it are for how long it does.
	insistParts = 2
)

// hold is how long a replica holds back.
func (t *turn) hold() time.Duration {
	return min(time.Duration(t.rank())*t.timeout/turnParts, t.timeout/insistParts)
}

// preVote asks for a pre-vote when it is this replica's turn.
func (t *turn) preVote(q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error {
	if hold := t.hold(); hold > 0 && !t.wait(hold, q.Term) {
		a.Term = q.Term // refused, as far as Raft is concerned
		return nil
	}
	for began := time.Now(); ; {
		err := t.ask(q, a)
		if err != nil || a.Granted || a.Term >= q.Term || time.Since(began) >= t.timeout/insistParts || !t.wait(t.timeout/againParts, q.Term) {
			return err
		}
		*a = raft.RequestPreVoteResponse{}
	}
}

// wait waits, and reports whether there is still a point in asking.
func (t *turn) wait(d time.Duration, term uint64) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return t.standing(term)
	case <-t.ended:
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

// standing reports whether this member is a candidate for a term, or about to be one.
func (m *member) standing(term uint64) bool {
	i := m.now.Load()
	return i != nil && i.raft.State() == raft.Candidate && i.raft.CurrentTerm() < term
}

// ending is closed once.
type ending struct {
	once sync.Once
	ch   chan struct{}
}

func newEnding() *ending { return &ending{ch: make(chan struct{})} }

func (e *ending) end() { e.once.Do(func() { close(e.ch) }) }
