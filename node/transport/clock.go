package transport

import (
	"math"
	"sync"
	"time"
)

const (
	// clockSamples is from how many of the last samples the best is taken.
	clockSamples = 3
	// clockFresh is how long a sample is good for.
	clockFresh = 10 * time.Second
	// anytime is when samples may have been asked for where no jump matters.
	anytime = time.Duration(math.MinInt64)
)

// clock is what we know of a peer's wall clock.
//
// A sample says what the peer's clock showed at a moment of our monotonic clock, so that a jump of our own wall clock
// shows in Offset at once. While our machine stands still (suspended, its virtual machine paused), our monotonic clock
// does too: old samples know nothing of that time. If our wall clock is set right when the machine runs again, that is
// a jump, and a caller that needs to be sure asks for samples since. If it is not, nothing here tells until the peer is
// heard again.
type clock struct {
	mu      sync.Mutex // guards what follows
	samples [clockSamples]clockSample
	next    int
}

type clockSample struct {
	sent time.Duration // our monotonic time, when we asked
	at   time.Duration // and when the answer was here
	wall int64         // the peer's wall clock then, µs since the Unix epoch
	rtt  time.Duration
	set  bool
}

// sample takes a pong that arrived at now. The peer's clock is taken to have
// been read in the middle of the round trip; what the peer held is not part of it.
func (c *clock) sample(now time.Duration, p *pong) {
	rtt := now - p.sent - p.held
	if rtt < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples[c.next] = clockSample{sent: p.sent, at: now, wall: p.wall + (rtt / 2).Microseconds(), rtt: rtt, set: true}
	c.next = (c.next + 1) % clockSamples
}

// offset returns how far the peer's clock is ahead of wall, our clock at the
// monotonic time now; ok is false without a fresh sample that was asked for since
// then. The sample with the shortest round trip is the best: its error is at most
// half of that.
func (c *clock) offset(now time.Duration, wall time.Time, since time.Duration) (ahead, rtt time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var best clockSample
	for _, s := range c.samples {
		if s.set && s.sent >= since && now-s.at <= clockFresh && (!best.set || s.rtt < best.rtt) {
			best = s
		}
	}
	if !best.set {
		return 0, 0, false
	}
	theirs := time.UnixMicro(best.wall).Add(now - best.at)
	return theirs.Sub(wall), best.rtt, true
}
