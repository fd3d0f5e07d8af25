package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// clockAge is how old a cached event clock may be when it is used. From clockRenew on the shards are asked again,
	// while requests still use the cached one. The shards' own answers may be stale by clockLag.
	clockAge   = 100 * time.Millisecond
	clockRenew = clockAge / 2
	clockLag   = time.Second - clockAge - clockWait
	// clockWait is how long a question or a write waits for the other shards to report their event clocks.
	clockWait = 300 * time.Millisecond
	// clockFirst is how long, from the first one on, questions and writes of a namespace wait for all shards to report
	// their clocks. After a start, shards that already answer may be far behind those that do not answer yet. After
	// clockFirst they do not wait for silent shards any more. clockAgain is the pause between two tries.
	clockFirst = 4 * time.Second
	clockAgain = 20 * time.Millisecond
)

// eventClocks caches the event clocks of namespaces: for each the latest time that any shard has reported.
type eventClocks struct {
	mu     sync.Mutex // guards what follows; not held while asking
	clocks map[string]*knownClock
}

type knownClock struct {
	clock  *ebbv1.EventClock // never changed
	at     time.Time         // when the shards were asked
	asking chan struct{}     // closed when the asking ends; nil while none is under way
	first  time.Time         // when the clock was first requested
	all    bool              // all shards have answered once
}

// incomplete reports whether requests still wait for shards that have not answered since the start.
func (k *knownClock) incomplete(now time.Time) bool {
	since := now.Sub(k.first)
	return !k.all && since >= 0 && since < clockFirst
}

// find returns the cached clock, and whether the caller must ask all shards now. While another caller asks, the cached
// clock is used, however old. If there is none, or not all shards have answered yet, wait closes when the asking ends.
func (e *eventClocks) find(namespace string, now time.Time) (clock *ebbv1.EventClock, ask bool, wait <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.of(namespace)
	if k.first.IsZero() {
		k.first = now
	}
	old := k.at.IsZero() || now.Sub(k.at) >= clockAge || now.Before(k.at)
	incomplete := k.incomplete(now)
	switch {
	case k.asking == nil && (old || incomplete || now.Sub(k.at) >= clockRenew):
		k.asking = make(chan struct{})
		return k.clock, true, nil
	case incomplete || old && k.clock == nil:
		return k.clock, false, k.asking
	}
	return k.clock, false, nil
}

// of returns the entry of a namespace, and makes it if there is none. e.mu is held.
func (e *eventClocks) of(namespace string) *knownClock {
	k := e.clocks[namespace]
	if k == nil {
		if e.clocks == nil || len(e.clocks) >= proto.NamespacesMax {
			e.clocks = make(map[string]*knownClock)
		}
		k = &knownClock{}
		e.clocks[namespace] = k
	}
	return k
}

// note records the clock of one shard.
func (e *eventClocks) note(namespace string, clock *ebbv1.EventClock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.of(namespace); k.clock == nil || proto.Later(clock, k.clock) {
		k.clock = clock
	}
}

// record stores the clock that shards reported at a time, nil if they did not answer, and returns the latest known
// clock. all says that every shard has answered.
func (e *eventClocks) record(namespace string, clock *ebbv1.EventClock, all bool, at time.Time) *ebbv1.EventClock {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.clocks[namespace]
	if k == nil {
		return clock
	}
	k.all = k.all || all
	if k.asking != nil {
		close(k.asking)
		k.asking = nil
	}
	if clock != nil || k.clock != nil { // otherwise the next caller asks at once
		k.at = at
	}
	if clock != nil && (k.clock == nil || proto.Later(clock, k.clock)) {
		k.clock = clock
	}
	return k.clock
}

// incomplete reports whether requests still wait for shards of the namespace that have not answered since the start.
func (e *eventClocks) incomplete(namespace string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.clocks[namespace]
	return k != nil && k.incomplete(now)
}

// known returns the cached clock, however old; nil if there is none.
func (e *eventClocks) known(namespace string) *ebbv1.EventClock {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.clocks[namespace]; k != nil {
		return k.clock
	}
	return nil
}

// EventClock returns the latest event time that any shard of a namespace had at most a second ago. It returns nil if
// the namespace has no event clock, or before storage version 11. If the shards do not answer in time, it returns the
// cached clock. Until all shards have answered once it waits for them, at most clockFirst.
func (c *Coordinator) EventClock(ctx context.Context, namespace string) *ebbv1.EventClock {
	table := c.cfg.Table()
	ns := table.Namespace(namespace)
	if !followsOneClock(table, ns) {
		return nil
	}
	namespace = ns.GetName()
	for ctx.Err() == nil {
		at := c.cfg.Now()
		known, ask, wait := c.clocks.find(namespace, at)
		switch {
		case ask:
			clock, all := c.tryClock(ctx, table, namespace)
			known = c.clocks.record(namespace, clock, all, at)
		case wait != nil:
			known = c.awaitClock(ctx, namespace, wait)
		default:
			return known
		}
		if !c.clocks.incomplete(namespace, c.cfg.Now()) {
			return known
		}
	}
	return c.clocks.known(namespace)
}

// tryClock asks all shards once. If some do not answer and are still waited for, it pauses before it returns: a caller
// that waits for this try asks next.
func (c *Coordinator) tryClock(
	ctx context.Context, table *Table, namespace string,
) (clock *ebbv1.EventClock, all bool) {
	asking, cancel := context.WithTimeout(ctx, clockWait)
	defer cancel()
	clock, all = c.askClock(asking, table, namespace, &ebbv1.AskRequest{
		Consistency: ebbv1.Consistency_CONSISTENCY_BOUNDED, MaxStalenessUs: clockLag.Microseconds(),
	}, 0)
	if !all && c.clocks.incomplete(namespace, c.cfg.Now()) {
		pause := time.NewTimer(clockAgain)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	return clock, all
}

// awaitClock waits until another caller's asking ends, and returns the cached clock.
func (c *Coordinator) awaitClock(ctx context.Context, namespace string, wait <-chan struct{}) *ebbv1.EventClock {
	ctx, cancel := context.WithTimeout(ctx, clockWait+clockAgain)
	defer cancel()
	select {
	case <-wait:
	case <-ctx.Done():
	}
	return c.clocks.known(namespace)
}

// followsOneClock reports whether all shards of a namespace follow one event clock.
func followsOneClock(table *Table, ns *ebbv1.Namespace) bool {
	return ns != nil && proto.OnEventTime(ns) && table.Version() >= proto.VersionEventClocks && !proto.BySlice(ns)
}

// NoteEventClock records the event clock that a shard of this node has reached.
func (c *Coordinator) NoteEventClock(namespace string, clock *ebbv1.EventClock) {
	c.clocks.note(namespace, clock)
}

// KnownEventClock returns the cached event clock of a namespace, however old; nil if there is none.
func (c *Coordinator) KnownEventClock(namespace string) *ebbv1.EventClock {
	return c.clocks.known(namespace)
}

// askClock asks all shards for their event clock, with the consistency of req. all says that every shard has answered.
// If settings is not 0, the shards first take over that version of the namespace's settings, as of the clock that this
// node knows. This node's own replicas are asked first, if the consistency allows it and they are fresh enough.
func (c *Coordinator) askClock(
	ctx context.Context, table *Table, namespace string, req *ebbv1.AskRequest, settings uint64,
) (clock *ebbv1.EventClock, all bool) {
	req.AllowPartial = true
	req.Questions = []*ebbv1.Question{{
		Namespace: namespace, Ask: &ebbv1.Question_EventClock{EventClock: &ebbv1.EventClockQuestion{}},
	}}
	p, err := plan(table, req)
	if err != nil {
		return nil, false
	}
	if settings != 0 {
		known := c.clocks.known(namespace)
		for _, part := range p.parts {
			part.question.SettingsVersion, part.question.Clock = settings, known
		}
	}
	c.scatter(ctx, table, p)
	answer := p.fold(ctx)[0]
	if answer.GetError() != nil {
		return nil, false
	}
	return answer.GetEventClock().GetClock(), len(answer.GetCoverage().GetShardsFailed()) == 0
}

// date adds to the questions for shards which version of the namespace is meant. For a namespace with an event clock it
// adds the latest time that this node or the caller has seen.
func (c *Coordinator) date(ctx context.Context, table *Table, p *askPlan) {
	var of *ebbv1.Namespace
	var clock *ebbv1.EventClock
	for i := range p.parts {
		q := p.parts[i].question
		ns := table.Namespace(q.GetQuestion().GetNamespace())
		q.NamespaceVersion, q.HashSeed = ns.GetVersion(), ns.GetHashSeed()
		if ns == nil || !proto.OnEventTime(ns) || q.GetQuestion().GetEventClock() != nil {
			continue
		}
		if ns != of {
			of, clock = ns, p.seenClock(table, ns, c.clockFor(ctx, p.req, ns.GetName()))
			if clock == nil && table.Version() >= proto.VersionEventClocks {
				clock = &ebbv1.EventClock{} // a shard without the namespace yet learns that it is on event time
			}
		}
		q.Clock = clock
	}
}

// clockFor returns the event clock for a request. A request that accepts answers of any age does not wait for silent
// shards.
func (c *Coordinator) clockFor(ctx context.Context, req *ebbv1.AskRequest, namespace string) *ebbv1.EventClock {
	if req.GetConsistency() == ebbv1.Consistency_CONSISTENCY_ANY {
		once, cancel := context.WithTimeout(ctx, clockWait)
		defer cancel()
		ctx = once
	}
	return c.EventClock(ctx, namespace)
}

// seenClock returns the later of a clock and the one that the caller has seen.
func (p *askPlan) seenClock(table *Table, ns *ebbv1.Namespace, clock *ebbv1.EventClock) *ebbv1.EventClock {
	for _, seen := range p.req.GetSeen() {
		if proto.Later(seen.GetClock(), clock) && table.Namespace(seen.GetNamespace()) == ns {
			clock = seen.GetClock()
		}
	}
	return clock
}

// coverClock records in a coverage the event time at which a shard answered.
func coverClock(c *ebbv1.Coverage, part *askPart) {
	if part.question.GetClock() == nil || proto.QuestionAsOf(part.question.GetQuestion()) != 0 {
		return
	}
	said := &ebbv1.EventClock{Epoch: part.answer.GetClockEpoch(), NowUs: part.answer.GetAsOfUs()}
	if c.Clock == nil || proto.Later(said, c.Clock) {
		c.Clock = said
	}
}
