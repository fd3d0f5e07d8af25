package node

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
)

const (
	// freshMax is how long to wait for the epoch of the control leader's table, and then for this node's table to reach
	// it.
	freshMax = time.Second
	// freshEvery is the least time between two requests for that epoch.
	freshEvery = 50 * time.Millisecond
)

// freshTable makes this node's table as new as the control leader's was at the call. Nodes learn of a namespace that
// another node created or undeleted some milliseconds later, and after a restart some seconds later. Until then they
// must not report that it does not exist. Callers that come while a request is in flight share the next one.
type freshTable struct {
	ask   func(ctx context.Context) (uint64, error)     // returns the epoch of the control leader's table
	await func(ctx context.Context, epoch uint64) error // returns when this node's table has that epoch

	mu   sync.Mutex  // guards what follows
	next *freshRound // the last one that was begun or waits; nil before the first
	last time.Time   // when the last one began
}

// freshRound is one request for the epoch of the control leader's table.
type freshRound struct {
	begun bool // a caller that comes now needs a later one; guarded by mu
	done  chan struct{}
	epoch uint64 // both are set before done is closed
	err   error
}

// confirm returns when this node's table is as new as the control leader's was at the call, or the error NO_LEADER.
func (f *freshTable) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*freshMax)
	defer cancel()
	r := f.join()
	select {
	case <-r.done:
	case <-ctx.Done():
		return errTableUnknown(ctx.Err())
	}
	if r.err != nil {
		return errTableUnknown(r.err)
	}
	if err := f.await(ctx, r.epoch); err != nil {
		return errTableUnknown(err)
	}
	return nil
}

func errTableUnknown(err error) error {
	return proto.ErrNoLeader.Errorf("the namespace is not known here, and the control group cannot be asked: %v", err).
		WithHint("try again")
}

// join returns a round that begins after the call.
func (f *freshTable) join() *freshRound {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil || f.next.begun {
		r := &freshRound{done: make(chan struct{})}
		wait := time.Until(f.last.Add(freshEvery))
		if f.next == nil {
			wait = 0
		}
		f.next = r
		time.AfterFunc(max(wait, 0), func() { f.run(r) })
	}
	return f.next
}

func (f *freshTable) run(r *freshRound) {
	defer close(r.done)
	f.mu.Lock()
	r.begun, f.last = true, time.Now()
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), freshMax)
	defer cancel()
	r.epoch, r.err = f.ask(ctx)
}
