package transport

import (
	"math"
	"sync"
	"time"
)

const (
	// clockSamples is how many last samples are kept; the best of them is used.
	clockSamples = 3
	// clockFresh is how long a sample is valid.
	clockFresh = 10 * time.Second
	// anytime, as the earliest time of a sample, accepts every sample: for callers that ignore clock jumps.
	anytime = time.Duration(math.MinInt64)
)

// clock is what this node knows about a peer's wall clock.
//
// A sample pairs the peer's wall clock with a moment of our monotonic clock, so a jump of our own wall clock shows in
// the offset at once. While our machine is suspended, our monotonic clock stops too, so old samples do not include that
// time. If our wall clock is corrected when the machine resumes, that is a jump; a caller that must be sure asks for
// samples since then. If it is not corrected, the error shows only when the peer's next sample arrives.
type clock struct {
	mu      sync.Mutex // guards what follows
	samples [clockSamples]clockSample
	next    int
}

type clockSample struct {
	sent time.Duration // our monotonic time when we sent the ping
	at   time.Duration // our monotonic time when the answer arrived
	wall int64         // the peer's wall clock then, µs since the Unix epoch
	rtt  time.Duration
	set  bool
}

// sample takes a pong that arrived at now. It assumes that the peer read its clock in the middle of the round trip; the
// time that the peer held the ping is not part of the round trip.
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

// offset returns how far the peer's clock is ahead of wall, our wall clock at the monotonic time now. ok is false if
// there is no fresh sample whose ping was sent at or after since. It uses the sample with the shortest round trip: the
// error is at most half of that.
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
