package client

import (
	"context"
	"sync"
	"time"
)

// A gate bounds how many increments of a client's direct calls are on their way at once: about as many as the cluster
// acknowledges in the time that it takes when it is idle. What comes beyond waits here, where it costs the cluster
// nothing. In the queues of nodes it would be late by the time that it is applied: a cluster given ten times its load
// would then do work that no caller waits for any more.
//
// The bound follows the time that calls take, as congestion control of networks does (AIMD, Chiu and Jain 1989). It
// grows while calls are fast and it holds others back, and shrinks when most are slow. Calls go in the order they came,
// until waiting takes long. Then the newest goes first ("adaptive LIFO"): the callers of the oldest are about to give
// up.
type gate struct {
	now func() time.Time

	mu    sync.Mutex // guards all below
	limit float64    // increments that may be on their way
	open  int        // increments that are
	first *ticket    // calls on their way, the oldest first
	last  *ticket
	queue []*ticket // calls that wait, the oldest first
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

// ticket is one call at a gate.
type ticket struct {
	weight     int       // increments
	since      time.Time // when it came, and then when it got through
	through    chan struct{}
	prev, next *ticket // on the way
	counts     bool    // among those on their way
}

const (
	// gateLimitMin lets the smallest client make use of a group commit.
	gateLimitMin = 16
	// gateLimitStart is what a slow cluster acknowledges soon. It doubles until calls are slow.
	gateLimitStart = 256
	// gateLimitMax is what no client reaches.
	gateLimitMax = 1 << 24
	// gateTargetMin: what takes no longer is fast. It is several syncs of a slow disk.
	gateTargetMin = 50 * time.Millisecond
	// gateTarget: what takes so many times as long as the quickest lately is slow.
	gateTarget = 4
	// gateStuck: what takes so many times as long as what is slow waits for a leader or a node, not in a queue, and
	// takes no part of the limit any more.
	gateStuck = 8
	// gatePeriod is for how long the quickest call counts, once or twice.
	gatePeriod = 20 * time.Second
	// gateShrink to gateShrinkMost is what is left of the limit after a round that was slow, the less the slower, and
	// gateGrow is what it grows by after one that was not.
	gateShrink, gateShrinkMost, gateGrow = 0.7, 0.25, 0.1
)

func newGate(now func() time.Time) *gate {
	t := now()
	return &gate{now: now, limit: gateLimitStart, period: t, round: t}
}

// enter waits until so many increments may go, and returns what leave takes, and whether it had to wait. It fails when
// ctx ends.
func (g *gate) enter(ctx context.Context, weight int) (p *ticket, waited bool, err error) {
	g.mu.Lock()
	p = &ticket{weight: weight, since: g.now()}
	if len(g.queue) == 0 && g.admits(p.since) {
		g.begin(p, p.since)
		g.mu.Unlock()
		return p, false, nil
	}
	g.held = true
	p.through = make(chan struct{})
	g.queue = append(g.queue, p)
	if g.timer == nil {
		g.timer = time.AfterFunc(gateTargetMin, g.look)
	}
	g.mu.Unlock()
	select {
	case <-p.through:
		return p, true, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.queue {
		if other == p {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return nil, true, context.Cause(ctx)
		}
	}
	return p, true, nil // it got through at the same moment
}

// leave ends a call that got through.
func (g *gate) leave(p *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.drop(p)
	g.note(now, p)
	g.admit(now)
}

// admits reports whether another call may go.
func (g *gate) admits(now time.Time) bool {
	if g.open < int(g.limit) {
		return true
	}
	for p := g.first; p != nil && now.Sub(p.since) > gateStuck*g.target(); p = g.first {
		g.drop(p)
	}
	return g.open < int(g.limit)
}

// admit lets through what may go.
func (g *gate) admit(now time.Time) {
	for len(g.queue) > 0 && g.admits(now) {
		at := 0
		if now.Sub(g.queue[0].since) > g.target() {
			at = len(g.queue) - 1
		}
		p := g.queue[at]
		if at == 0 {
			g.queue[0] = nil
			g.queue = g.queue[1:]
		} else {
			g.queue[at] = nil
			g.queue = g.queue[:at]
		}
		g.begin(p, now)
		close(p.through)
	}
}

// look lets through what may go though no call has ended.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(g.now())
	if g.timer = nil; len(g.queue) > 0 {
		g.timer = time.AfterFunc(gateTargetMin, g.look)
	}
}

func (g *gate) begin(p *ticket, now time.Time) {
	p.since, p.counts, p.prev = now, true, g.last
	if g.last != nil {
		g.last.next = p
	} else {
		g.first = p
	}
	g.last = p
	g.open += p.weight
}

// drop takes a call out of those on their way.
func (g *gate) drop(p *ticket) {
	if !p.counts {
		return
	}
	p.counts = false
	g.open -= p.weight
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		g.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		g.last = p.prev
	}
	p.prev, p.next = nil, nil
}

// target is how long a call may take that is not slow.
func (g *gate) target() time.Duration { return max(gateTargetMin, gateTarget*g.minLatency) }

// note takes the time of a call down, and moves the limit when a round ends: when a call has ended that came after the
// last move, and so tells of it.
func (g *gate) note(now time.Time, p *ticket) {
	took := now.Sub(p.since)
	if g.minLatency == 0 || took < g.minLatency {
		g.minLatency = took
	}
	g.heldLately = g.heldLately || g.held
	switch {
	case !g.probe.began.IsZero():
		g.probed(now, p)
		return
	case g.nextMinLatency == 0 || took < g.nextMinLatency:
		g.nextMinLatency = took
	}
	if now.Sub(g.period) > gatePeriod {
		if g.heldLately {
			g.probe = probe{began: now, limit: g.limit}
			g.limit = gateLimitMin
			return
		}
		g.minLatency, g.nextMinLatency, g.period = g.nextMinLatency, 0, now
	}
	if !p.since.After(g.round) {
		return
	}
	if took > g.target() {
		g.slow += p.weight
	} else {
		g.fast += p.weight
	}
	if now.Sub(g.round) < g.minLatency {
		return
	}
	switch {
	case g.slow > g.fast:
		shrink := min(gateShrink, max(gateShrinkMost, float64(g.target())/float64(took)))
		g.limit, g.steady = max(gateLimitMin, min(g.limit, float64(g.open))*shrink), true
	case g.held && g.steady:
		g.limit = min(gateLimitMax, g.limit*(1+gateGrow))
	case g.held:
		g.limit = min(gateLimitMax, 2*g.limit)
	}
	g.startRound(now)
}

func (g *gate) startRound(now time.Time) {
	g.round, g.fast, g.slow, g.held = now, 0, 0, len(g.queue) > 0
}

// probe measures what a quick call takes while calls wait: for a moment only few are on their way. Otherwise each
// period's quickest would have waited for the others, a bit longer in each ("ProbeRTT" of BBR).
type probe struct {
	began   time.Time // zero: none is under way
	drained time.Time // when those that came before it had left; zero: not yet
	limit   float64   // that holds again afterwards
}

// probed takes down a call that ends while a probe is under way. The first one that came when the others had left ends
// the probe.
func (g *gate) probed(now time.Time, p *ticket) {
	switch {
	case !g.probe.drained.IsZero() && p.since.After(g.probe.drained):
		before := g.minLatency
		g.minLatency, g.nextMinLatency, g.period, g.heldLately = now.Sub(p.since), 0, now, false
		g.steady = g.steady && g.minLatency < 2*before // otherwise the limit was found for another cluster
		g.limit, g.probe = g.probe.limit, probe{}
		g.startRound(now)
	case g.probe.drained.IsZero() && (g.first == nil || g.first.since.After(g.probe.began)):
		g.probe.drained = now
	}
}
