package client

import (
	"context"
	"sync"
	"time"
)

// A writeLimiter bounds how many increments of a client's direct calls are in flight at once. The bound is about as
// many as the cluster acknowledges in the time that a call takes when the cluster is idle. Further calls wait here,
// where they cost the cluster nothing. In the queues of nodes they would be applied too late: a cluster given ten times
// its load would do work that no caller waits for any more.
//
// The bound follows the time that calls take, like congestion control in networks (AIMD, Chiu and Jain 1989). It grows
// while calls are fast and it holds others back. It shrinks when most calls are slow. Calls are admitted in the order
// they came, until waiting takes long. Then the newest is admitted first ("adaptive LIFO"): the callers of the oldest
// are about to give up.
type writeLimiter struct {
	now func() time.Time

	mu    sync.Mutex // guards all below
	limit float64    // increments that may be in flight
	open  int        // increments in flight
	first *permit    // calls in flight, the oldest first
	last  *permit
	queue []*permit // calls that wait, the oldest first
	timer *time.Timer

	minLatency, nextMinLatency time.Duration // the shortest that a call took in the last period, and in this one
	period                     time.Time     // when this period began
	heldLately                 bool          // the limit held a call back in this period
	probe                      probe
	steady                     bool      // the limit has shrunk before, so it grows slowly
	held                       bool      // the limit held a call back in this round
	round                      time.Time // when this round began
	fast, slow                 int       // increments of calls that began and ended in this round
}

// permit is one call at a writeLimiter.
type permit struct {
	weight     int       // increments
	since      time.Time // when it came, and then when it was admitted
	admitted   chan struct{}
	prev, next *permit // in the list of calls in flight
	counts     bool    // it is in that list
}

const (
	// writeLimitMin lets the smallest client make use of a group commit.
	writeLimitMin = 16
	// writeLimitStart is the first limit, which a slow cluster acknowledges soon. The limit doubles until calls are
	// slow.
	writeLimitStart = 256
	// writeLimitMax is more than any client reaches.
	writeLimitMax = 1 << 24
	// fastWriteMin: a call that takes no longer is fast. Several syncs of a slow disk take that long.
	fastWriteMin = 50 * time.Millisecond
	// slowWriteFactor: a call that takes so many times as long as the fastest recent call is slow.
	slowWriteFactor = 4
	// stuckWriteFactor: a call that takes so many times as long as target waits for a leader or a node, not in a queue.
	// It no longer counts against the limit.
	stuckWriteFactor = 8
	// minLatencyPeriod is the period of minLatency: the fastest call counts for one or two periods.
	minLatencyPeriod = 20 * time.Second
	// writeLimitShrink to writeLimitShrinkMost is the factor of the limit after a slow round: the slower, the smaller.
	// writeLimitGrow is the part by which the limit grows after a round that was not slow.
	writeLimitShrink, writeLimitShrinkMost, writeLimitGrow = 0.7, 0.25, 0.1
)

func newWriteLimiter(now func() time.Time) *writeLimiter {
	t := now()
	return &writeLimiter{now: now, limit: writeLimitStart, period: t, round: t}
}

// acquire waits until weight increments may be sent. It returns the permit for release, and whether it had to wait. It
// fails when ctx ends.
func (l *writeLimiter) acquire(ctx context.Context, weight int) (p *permit, waited bool, err error) {
	l.mu.Lock()
	p = &permit{weight: weight, since: l.now()}
	if len(l.queue) == 0 && l.admits(p.since) {
		l.begin(p, p.since)
		l.mu.Unlock()
		return p, false, nil
	}
	l.held = true
	p.admitted = make(chan struct{})
	l.queue = append(l.queue, p)
	if l.timer == nil {
		l.timer = time.AfterFunc(fastWriteMin, l.admitLater)
	}
	l.mu.Unlock()
	select {
	case <-p.admitted:
		return p, true, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range l.queue {
		if other == p {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			return nil, true, context.Cause(ctx)
		}
	}
	return p, true, nil // it was admitted at the same moment
}

// release ends a call that was admitted.
func (l *writeLimiter) release(p *permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.drop(p)
	l.observe(now, p)
	l.admit(now)
}

// admits reports whether another call may be sent. It first drops stuck calls if the limit is reached.
func (l *writeLimiter) admits(now time.Time) bool {
	if l.open < int(l.limit) {
		return true
	}
	for p := l.first; p != nil && now.Sub(p.since) > stuckWriteFactor*l.target(); p = l.first {
		l.drop(p)
	}
	return l.open < int(l.limit)
}

// admit admits the calls that may go.
func (l *writeLimiter) admit(now time.Time) {
	for len(l.queue) > 0 && l.admits(now) {
		at := 0
		if now.Sub(l.queue[0].since) > l.target() {
			at = len(l.queue) - 1
		}
		p := l.queue[at]
		if at == 0 {
			l.queue[0] = nil
			l.queue = l.queue[1:]
		} else {
			l.queue[at] = nil
			l.queue = l.queue[:at]
		}
		l.begin(p, now)
		close(p.admitted)
	}
}

// admitLater admits the calls that may be sent although no call has ended.
func (l *writeLimiter) admitLater() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admit(l.now())
	if l.timer = nil; len(l.queue) > 0 {
		l.timer = time.AfterFunc(fastWriteMin, l.admitLater)
	}
}

func (l *writeLimiter) begin(p *permit, now time.Time) {
	p.since, p.counts, p.prev = now, true, l.last
	if l.last != nil {
		l.last.next = p
	} else {
		l.first = p
	}
	l.last = p
	l.open += p.weight
}

// drop removes a call from the calls in flight.
func (l *writeLimiter) drop(p *permit) {
	if !p.counts {
		return
	}
	p.counts = false
	l.open -= p.weight
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
}

// target is how long a call may take without being slow.
func (l *writeLimiter) target() time.Duration { return max(fastWriteMin, slowWriteFactor*l.minLatency) }

// observe records the time of a call, and changes the limit when a round ends. A round ends with a call that began
// after the last change, and so shows its effect.
func (l *writeLimiter) observe(now time.Time, p *permit) {
	took := now.Sub(p.since)
	if l.minLatency == 0 || took < l.minLatency {
		l.minLatency = took
	}
	l.heldLately = l.heldLately || l.held
	switch {
	case !l.probe.began.IsZero():
		l.observeProbe(now, p)
		return
	case l.nextMinLatency == 0 || took < l.nextMinLatency:
		l.nextMinLatency = took
	}
	if now.Sub(l.period) > minLatencyPeriod {
		if l.heldLately {
			l.probe = probe{began: now, limit: l.limit}
			l.limit = writeLimitMin
			return
		}
		l.minLatency, l.nextMinLatency, l.period = l.nextMinLatency, 0, now
	}
	if !p.since.After(l.round) {
		return
	}
	if took > l.target() {
		l.slow += p.weight
	} else {
		l.fast += p.weight
	}
	if now.Sub(l.round) < l.minLatency {
		return
	}
	switch {
	case l.slow > l.fast:
		shrink := min(writeLimitShrink, max(writeLimitShrinkMost, float64(l.target())/float64(took)))
		l.limit, l.steady = max(writeLimitMin, min(l.limit, float64(l.open))*shrink), true
	case l.held && l.steady:
		l.limit = min(writeLimitMax, l.limit*(1+writeLimitGrow))
	case l.held:
		l.limit = min(writeLimitMax, 2*l.limit)
	}
	l.startRound(now)
}

func (l *writeLimiter) startRound(now time.Time) {
	l.round, l.fast, l.slow, l.held = now, 0, 0, len(l.queue) > 0
}

// probe measures the time of a fast call while calls wait: for a moment only few are in flight. Without it the fastest
// call of each period would include a wait for the others, a bit longer in each period ("ProbeRTT" of BBR).
type probe struct {
	began   time.Time // zero: none is under way
	drained time.Time // when the calls before the probe had ended; zero: not yet
	limit   float64   // restored after the probe
}

// observeProbe records a call that ends during a probe. The first call that began after the others had ended ends the
// probe.
func (l *writeLimiter) observeProbe(now time.Time, p *permit) {
	switch {
	case !l.probe.drained.IsZero() && p.since.After(l.probe.drained):
		before := l.minLatency
		l.minLatency, l.nextMinLatency, l.period, l.heldLately = now.Sub(p.since), 0, now, false
		l.steady = l.steady && l.minLatency < 2*before // otherwise the limit was found for another cluster
		l.limit, l.probe = l.probe.limit, probe{}
		l.startRound(now)
	case l.probe.drained.IsZero() && (l.first == nil || l.first.since.After(l.probe.began)):
		l.probe.drained = now
	}
}
