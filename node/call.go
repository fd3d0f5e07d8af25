package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// call collects the results of one request, whose commands may wait at several shards. Each position is finished once,
// when its result is known.
type call struct {
	left  atomic.Int32
	done  chan struct{} // closed when left is 0
	over  atomic.Bool   // no caller waits any more
	until time.Time     // when the caller stops waiting; zero: not known

	sender uint64 // the sender of the request, as a hash; 0: this node

	mu      sync.Mutex // guards what follows
	results []*ebbv1.CommandResult
}

// proposed stands for the result of a command that may be in the log already.
var proposed = new(ebbv1.CommandResult)

func newCall(commands int) *call {
	c := &call{done: make(chan struct{}), results: make([]*ebbv1.CommandResult, commands)}
	c.left.Store(int32(commands))
	if commands == 0 {
		close(c.done)
	}
	return c
}

// expired reports whether no caller waits any more.
func (c *call) expired(now time.Time) bool {
	return c.over.Load() || !c.until.IsZero() && !now.Before(c.until)
}

// claim is called before a command goes into an entry. It reports false for a command for which no caller waits any
// more.
func (c *call) claim(at int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over.Load() {
		return false
	}
	c.results[at] = proposed
	return true
}

// finish sets the result of one command.
func (c *call) finish(at int, result *ebbv1.CommandResult) {
	c.mu.Lock()
	c.results[at] = result
	c.mu.Unlock()
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// fail finishes one command with an error.
func (c *call) fail(at int, err *proto.Error) {
	c.finish(at, &ebbv1.CommandResult{Error: err.Wire()})
}

// wait returns all results. If ctx ends first, or this node's disk begins to hang, it returns errors for the missing
// results. The outcome of a command that may be in the log already is unknown; the other commands will not be applied.
func (c *call) wait(ctx context.Context, hung <-chan struct{}) []*ebbv1.CommandResult {
	why := whyLate
	select {
	case <-c.done:
		return c.results
	case <-ctx.Done():
	case <-hung:
		why = "the disk of this node hangs"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over.Store(true)
	results := make([]*ebbv1.CommandResult, len(c.results))
	for i, r := range c.results {
		switch r {
		case nil:
			r = &ebbv1.CommandResult{Error: errNotApplied(why).Wire()}
		case proposed:
			err := proto.ErrUnknownOutcome.Errorf("%s: it may or may not be applied", why).
				WithHint(proto.UnknownOutcomeHint)
			r = &ebbv1.CommandResult{Error: err.Wire()}
		}
		results[i] = r
	}
	return results
}

// whyLate is why a write has no result.
const whyLate = "the deadline passed while the write waited"

// errNotApplied returns the error of a command that was never proposed.
func errNotApplied(why string) *proto.Error {
	return proto.ErrOverloaded.Errorf("%s, and it is not applied", why)
}
