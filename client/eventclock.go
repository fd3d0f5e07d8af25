package client

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// EventClock is how far the event clock of a namespace has come.
type EventClock struct {
	// Epoch is a number that grows each time an operator sets the clock.
	Epoch uint64
	// Now is the largest time of an event in any shard. Oldest is that time in the shard that is furthest behind. They
	// are zero before the first event. Shards follow each other within a second, when they are written to.
	Now, Oldest time.Time
}

// EventClock asks for the event clock of a namespace, over all shards; nil before storage version 11.
func (c *Client) EventClock(ctx context.Context, ns string, opts ...AskOption) (*EventClock, error) {
	table, err := c.Table(ctx)
	if err != nil || table.GetVersion() < proto.VersionEventClocks {
		return nil, err
	}
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_EventClock{EventClock: &ebbv1.EventClockQuestion{}}}
	a, err := c.askOne(ctx, "event clock", "", q, opts)
	if err != nil {
		return nil, err
	}
	clock := a.GetEventClock().GetClock()
	return &EventClock{
		Epoch: clock.GetEpoch(), Now: timeOf(clock.GetNowUs()), Oldest: timeOf(a.GetEventClock().GetOldestUs()),
	}, nil
}

// SetEventClock sets the event clock of a namespace in all shards, forward or back, and begins a new epoch of the
// clock. If the clock goes back, keys with a later event begin anew. So do sets, distincts and blooms that were written
// to while it was ahead. The other keys are as they were at that time. SetEventClock needs the role admin. It returns
// when all shards have set the clock, or the first error.
func (c *Client) SetEventClock(ctx context.Context, ns string, to time.Time) (*EventClock, error) {
	req := &ebbv1.Namespace{Name: namespaceOr(ns), ClockSetting: &ebbv1.ClockSetting{TimeUs: to.UnixMicro()}}
	if _, err := c.settingsOf(ctx, ns); err != nil {
		return nil, err
	}
	set, err := c.putNamespace(ctx, "set event clock", req, false)
	if err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		clock, err := c.EventClock(ctx, ns)
		if err != nil || clock == nil || clock.Epoch >= set.GetClockSetting().GetEpoch() && !clock.Oldest.IsZero() {
			return clock, err
		}
		if err := c.sleep(ctx, c.backoff(tries, nil)); err != nil {
			return nil, c.fail(attempt{op: "set event clock", key: ns}, proto.ErrDeadline.Errorf(
				"the clock of namespace %s is set, and not all shards have heard of it", namespaceOr(ns)).
				WithHint("ebb namespace clock "+namespaceOr(ns)+" shows when they have"))
		}
	}
}

// seenClocks are the latest event clocks in answers. With them a client never gets an earlier time than before.
type seenClocks struct {
	mu     sync.Mutex
	latest map[string]*ebbv1.EventClock // by namespace; values never change
}

// note keeps the clock of an answer.
func (s *seenClocks) note(ns string, clock *ebbv1.EventClock) {
	if clock == nil {
		return
	}
	ns = namespaceOr(ns)
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.latest[ns]; have != nil && !proto.Later(clock, have) {
		return
	}
	if s.latest == nil {
		s.latest = make(map[string]*ebbv1.EventClock)
	}
	s.latest[ns] = clock
}

// of returns the clocks that were seen of the namespaces of questions.
func (s *seenClocks) of(questions ...*ebbv1.Question) (seen []*ebbv1.SeenClock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.latest) == 0 {
		return nil
	}
	before := ""
	for _, q := range questions {
		ns := namespaceOr(q.GetNamespace())
		if clock := s.latest[ns]; clock != nil && ns != before {
			seen = append(seen, &ebbv1.SeenClock{Namespace: ns, Clock: clock})
			before = ns
		}
	}
	return seen
}

// all returns the clocks that were seen of all namespaces, for a question whose namespace is in its text.
func (s *seenClocks) all() (seen []*ebbv1.SeenClock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ns, clock := range s.latest {
		seen = append(seen, &ebbv1.SeenClock{Namespace: ns, Clock: clock})
	}
	return seen
}
