package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// clockAge is how old what a node knows of an event clock may be when it is used. From clockRenew on it is asked
	// for again, while requests still use it. What the shards say may be older by clockLag.
	clockAge   = 100 * time.Millisecond
	clockRenew = clockAge / 2
	clockLag   = time.Second - clockAge - clockWait
	// clockWait is how long a question, or a write, waits for the other shards to say how far they are.
	clockWait = 300 * time.Millisecond
	// clockFirst is how long questions and writes of a namespace wait for all shards to say how far they are, from the
	// first one on. After a start, shards that answer already may be far behind those that do not answer yet.
	// A shard that stays silent longer holds them up no more. clockAgain is the pause between two tries.
	clockFirst = 4 * time.Second
	clockAgain = 20 * time.Millisecond
)

// eventClocks is what a node knows of the event clocks of namespaces: how far each has come in any shard.
type eventClocks struct {
	mu     sync.Mutex // guards what follows; not held while asking
	clocks map[string]*knownClock
}

type knownClock struct {
	clock  *ebbv1.EventClock // never changed
	at     time.Time         // of the asking
	asking chan struct{}     // closed when it ends; nil while none is under way
	first  time.Time         // when the clock was looked for first
	all    bool              // all shards have answered once
}

// incomplete reports whether shards that have not answered since the start are still waited for.
func (k *knownClock) incomplete(now time.Time) bool {
	since := now.Sub(k.first)
	return !k.all && since >= 0 && since < clockFirst
}

// find returns what is known, and whether the caller is to ask all shards now. While another one asks, what is known is
// used, however old; if there is nothing, or not from all shards, there is something to wait for.
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

// of returns what is known of a namespace. e.mu is held.
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

// note notes the clock of one shard.
func (e *eventClocks) note(namespace string, clock *ebbv1.EventClock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.of(namespace); k.clock == nil || proto.Later(clock, k.clock) {
		k.clock = clock
	}
}

// record stores the clock that shards answered at a time, nil if they did not answer, and returns the newest clock
// known. all says that each of them has answered.
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
	if clock != nil || k.clock != nil { // else the next one asks at once
		k.at = at
	}
	if clock != nil && (k.clock == nil || proto.Later(clock, k.clock)) {
		k.clock = clock
	}
	return k.clock
}

// incomplete reports whether shards that have not answered since the start are still waited for.
func (e *eventClocks) incomplete(namespace string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.clocks[namespace]
	return k != nil && k.incomplete(now)
}

// known returns what was last heard, however long ago; nil for nothing.
func (e *eventClocks) known(namespace string) *ebbv1.EventClock {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.clocks[namespace]; k != nil {
		return k.clock
	}
	return nil
}

// EventClock returns how far the event clock of a namespace has come in any shard, a second ago or later; nil if it has
// none, or before storage version 11. If the shards do not answer in time, it is what was known before. Until all
// shards have answered once it waits for them, at most clockFirst.
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

// tryClock asks all shards once. After a try that lacks some, while they are waited for, it pauses: whoever waits for
// this try asks next.
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

// awaitClock waits for what another one asks, and returns what is known then.
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

// NoteEventClock notes how far the event clock of a namespace has come in a shard of this node.
func (c *Coordinator) NoteEventClock(namespace string, clock *ebbv1.EventClock) {
	c.clocks.note(namespace, clock)
}

// KnownEventClock returns what this node has last heard of an event clock; nil for nothing.
func (c *Coordinator) KnownEventClock(namespace string) *ebbv1.EventClock {
	return c.clocks.known(namespace)
}

// askClock asks all shards, with the consistency of a request: this node's own replicas first, if they may be behind
// and are not too far. They take over the settings of the namespace of a version first, if that is not 0, as of the
// time that this node knows of. all says that each has answered.
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

// date puts into the questions to shards which namespace of its name is meant, and of one with an event clock how far
// that has come: as far as this node knows, or the caller.
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
				clock = &ebbv1.EventClock{} // a shard that has not heard of the namespace knows that it lives by events
			}
		}
		q.Clock = clock
	}
}

// clockFor is the event clock for a request. One that takes answers of any age does not wait for silent shards.
func (c *Coordinator) clockFor(ctx context.Context, req *ebbv1.AskRequest, namespace string) *ebbv1.EventClock {
	if req.GetConsistency() == ebbv1.Consistency_CONSISTENCY_ANY {
		once, cancel := context.WithTimeout(ctx, clockWait)
		defer cancel()
		ctx = once
	}
	return c.EventClock(ctx, namespace)
}

// seenClock is the later of a clock and what the caller has seen of it.
func (p *askPlan) seenClock(table *Table, ns *ebbv1.Namespace, clock *ebbv1.EventClock) *ebbv1.EventClock {
	for _, seen := range p.req.GetSeen() {
		if proto.Later(seen.GetClock(), clock) && table.Namespace(seen.GetNamespace()) == ns {
			clock = seen.GetClock()
		}
	}
	return clock
}

// coverClock notes in a coverage the time of an event clock at which a shard answered.
func coverClock(c *ebbv1.Coverage, part *askPart) {
	if part.question.GetClock() == nil || proto.QuestionAsOf(part.question.GetQuestion()) != 0 {
		return
	}
	said := &ebbv1.EventClock{Epoch: part.answer.GetClockEpoch(), NowUs: part.answer.GetAsOfUs()}
	if c.Clock == nil || proto.Later(said, c.Clock) {
		c.Clock = said
	}
}
