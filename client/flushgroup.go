package client

import (
	"context"
	"slices"
)

// flushGroup counts the commands finished between two flushes. The lock of its writer guards all but done.
type flushGroup struct {
	open   int // commands on their way
	closed bool
	done   chan struct{} // closed when closed and open is 0
	sum    Undelivered
}

func (e *flushGroup) note(lost, unknown, refused int64, err error) {
	e.sum.Lost += lost
	e.sum.Unknown += unknown
	e.sum.Refused += refused
	if e.sum.Err == nil {
		e.sum.Err = err
	}
}

// settled notes the end of a command.
func (e *flushGroup) settled() {
	e.open--
	e.finish()
}

// finish announces that all commands of a closed group are settled.
func (e *flushGroup) finish() {
	if e.closed && e.open == 0 {
		close(e.done)
	}
}

// flushGroups are the groups of a writer, whose lock guards them.
type flushGroups struct {
	now  *flushGroup   // of the commands that are finished now
	past []*flushGroup // whose end no Flush has reported
}

func newFlushGroups() flushGroups { return flushGroups{now: &flushGroup{done: make(chan struct{})}} }

// next begins a new group, and returns the earlier ones.
func (s *flushGroups) next() []*flushGroup {
	s.past = append(s.past, s.now)
	s.now.closed = true
	s.now.finish()
	s.now = &flushGroup{done: make(chan struct{})}
	return slices.Clone(s.past)
}

// result sums up groups that are done and that no other Flush has reported, and removes them.
func (s *flushGroups) result(done []*flushGroup) error {
	var all flushGroup
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

// await waits until all commands of the groups of a Flush are settled.
func (c *Client) await(ctx context.Context, list []*flushGroup) error {
	for _, e := range list {
		select {
		case <-e.done:
		case <-ctx.Done():
			return c.fail(attempt{op: "flush"}, context.Cause(ctx))
		}
	}
	return nil
}
