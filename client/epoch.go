package client

import (
	"context"
	"slices"
)

// epoch counts the commands sealed between two flushes. The lock of its writer guards all but done.
type epoch struct {
	open   int // commands on their way
	closed bool
	done   chan struct{} // closed when closed and open is 0
	sum    Undelivered
}

func (e *epoch) note(lost, unknown, refused int64, err error) {
	e.sum.Lost += lost
	e.sum.Unknown += unknown
	e.sum.Refused += refused
	if e.sum.Err == nil {
		e.sum.Err = err
	}
}

// settled notes the end of a command.
func (e *epoch) settled() {
	e.open--
	e.finish()
}

// finish announces that all commands of a closed epoch are settled.
func (e *epoch) finish() {
	if e.closed && e.open == 0 {
		close(e.done)
	}
}

// epochs are those of a writer, whose lock guards them.
type epochs struct {
	now  *epoch   // of what is sealed now
	past []*epoch // of which no Flush has reported the end
}

func newEpochs() epochs { return epochs{now: &epoch{done: make(chan struct{})}} }

// turn begins a new epoch, and returns those before.
func (s *epochs) turn() []*epoch {
	s.past = append(s.past, s.now)
	s.now.closed = true
	s.now.finish()
	s.now = &epoch{done: make(chan struct{})}
	return slices.Clone(s.past)
}

// verdict sums up epochs that are done and that no other Flush has reported, and forgets them.
func (s *epochs) verdict(done []*epoch) error {
	var all epoch
	for _, e := range done {
		if i := slices.Index(s.past, e); i >= 0 {
			s.past = slices.Delete(s.past, i, i+1)
			all.note(e.sum.Lost, e.sum.Unknown, e.sum.Refused, e.sum.Err)
		}
	}
	if all.sum.Err == nil {
		return nil
	}
	return &all.sum
}

// await waits until all that a Flush is about is settled.
func (c *Client) await(ctx context.Context, list []*epoch) error {
	for _, e := range list {
		select {
		case <-e.done:
		case <-ctx.Done():
			return c.fail(attempt{op: "flush"}, context.Cause(ctx))
		}
	}
	return nil
}
