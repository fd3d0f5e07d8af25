package client

import (
	"context"
	"sync"
	"time"
)

// A writeLimiter bounds how many increments of a client's direct calls are on their way at once: about as many as the
// cluster acknowledges in the time that it takes when it is idle. What comes beyond waits here, where it costs the
// cluster nothing. In the queues of nodes it would be late by the time that it is applied: a cluster given ten times
// its load would then do work that no caller waits for any more.
//
// The bound follows the time that calls take, as congestion control of networks does (AIMD, Chiu and Jain 1989). It
// grows while calls are fast and it holds others back, and shrinks when most are slow. Calls go in the order they came,
// until waiting takes long. Then the newest goes first ("adaptive LIFO"): the callers of the oldest are about to give
// up.
type writeLimiter struct {
	now func() time.Time

	mu    sync.Mutex // guards all below
	limit float64    // increments that may be on their way
	open  int        // increments that are
	first *permit    // calls on their way, the oldest first
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
	prev, next *permit // on the way
	counts     bool    // among those on their way
}

const (
	// writeLimitMin lets the smallest client make use of a group commit.
	writeLimitMin = 16
	// writeLimitStart is what a slow cluster acknowledges soon. It doubles until calls are slow.
	writeLimitStart = 256
	// writeLimitMax is what no client reaches.
	writeLimitMax = 1 << 24
	// fastWriteMin: what takes no longer is fast. It is several syncs of a slow disk.
	fastWriteMin = 50 * time.Millisecond
	// slowWriteFactor: what takes so many times as long as the quickest lately is slow.
	slowWriteFactor = 4
	// stuckWriteFactor: what takes so many times as long as what is slow waits for a leader or a node, not in a queue,
	// and takes no part of the limit any more.
	stuckWriteFactor = 8
	// minLatencyPeriod is for how long the quickest call counts, once or twice.
	minLatencyPeriod = 20 * time.Second
	// writeLimitShrink to writeLimitShrinkMost is what is left of the limit after a round that was slow, the less the
	// slower, and writeLimitGrow is what it grows by after one that was not.
	writeLimitShrink, writeLimitShrinkMost, writeLimitGrow = 0.7, 0.25, 0.1
)

func newWriteLimiter(now func() time.Time) *writeLimiter {
	t := now()
	return &writeLimiter{now: now, limit: writeLimitStart, period: t, round: t}
}

// acquire waits until so many increments may go. It returns what release takes, and whether it had to wait. It fails
// when ctx ends.
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

// admits reports whether another call may go.
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

// admitLater admits what may go though no call has ended.
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

// drop takes a call out of those on their way.
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

// target is how long a call may take that is not slow.
func (l *writeLimiter) target() time.Duration { return max(fastWriteMin, slowWriteFactor*l.minLatency) }

// observe records the time of a call, and moves the limit when a round ends: when a call has ended that came after the
// last move, and so tells of it.
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

// probe measures what a quick call takes while calls wait: for a moment only few are on their way. Otherwise each
// period's quickest would have waited for the others, a bit longer in each ("ProbeRTT" of BBR).
type probe struct {
	began   time.Time // zero: none is under way
	drained time.Time // when those that came before it had left; zero: not yet
	limit   float64   // that holds again afterwards
}

// observeProbe records a call that ends while a probe is under way. The first one that came when the others had left
// ends the probe.
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
