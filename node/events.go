package node

import (
	"sync"

	"github.com/hashicorp/raft"
)

// events receives the changes of leadership of all groups. Raft blocks until its observers (and a NotifyCh) have taken
// a change. So one goroutine does nothing but receive: it adds the member to a set, which is never full. Another
// goroutine acts on the set.
type events struct {
	observed chan raft.Observation
	stop     chan struct{}
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	members map[*raft.Raft]*member
	dirty   map[*member]struct{}
	wake    chan struct{} // holds one token while dirty is not empty
}

func newEvents() *events {
	e := &events{
		observed: make(chan raft.Observation, 128),
		stop:     make(chan struct{}),
		members:  make(map[*raft.Raft]*member),
		dirty:    make(map[*member]struct{}),
		wake:     make(chan struct{}, 1),
	}
	e.wg.Go(e.listen)
	e.wg.Go(e.act)
	return e
}

// close stops the goroutines. It must be called after the shutdown of every member.
func (e *events) close() {
	close(e.stop)
	e.wg.Wait()
}

// observe starts to receive the changes of a member's new incarnation. Its current state counts as a change.
func (e *events) observe(m *member, r *raft.Raft) {
	e.mu.Lock()
	e.members[r] = m
	e.mu.Unlock()
	r.RegisterObserver(raft.NewObserver(e.observed, true, ofLeadership))
	e.mark(m)
}

// forget drops an incarnation that was shut down: its changes are ignored.
func (e *events) forget(r *raft.Raft) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.members, r)
}

func ofLeadership(o *raft.Observation) bool {
	switch o.Data.(type) {
	case raft.RaftState, raft.LeaderObservation:
		return true
	}
	return false
}

func (e *events) listen() {
	for {
		select {
		case o := <-e.observed:
			e.mu.Lock()
			m := e.members[o.Raft]
			e.mu.Unlock()
			if m != nil {
				e.mark(m)
			}
		case <-e.stop:
			return
		}
	}
}

// mark adds a member to the set of members to look at.
func (e *events) mark(m *member) {
	e.mu.Lock()
	e.dirty[m] = struct{}{}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *events) act() {
	for {
		select {
		case <-e.wake:
			for _, m := range e.take() {
				m.look()
			}
		case <-e.stop:
			return
		}
	}
}

func (e *events) take() []*member {
	e.mu.Lock()
	defer e.mu.Unlock()
	members := make([]*member, 0, len(e.dirty))
	for m := range e.dirty {
		members = append(members, m)
	}
	clear(e.dirty)
	return members
}
