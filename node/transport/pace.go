package transport

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// pace keeps the snapshots that a node sends, all groups together, below a number of bytes a second.
type pace struct {
	limiter *rate.Limiter // nil: none
	longest time.Duration // that a frame is held back: the other side gives up what makes no progress
	waited  atomic.Int64  // nanoseconds, over all snapshots
}

// newPace makes one; with bytes a second of 0 nothing waits.
func newPace(bytes int64, longest time.Duration) *pace {
	p := &pace{longest: longest}
	if bytes > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(bytes), wordBytes+chunkBytes)
	}
	return p
}

// wait returns when a frame of so many bytes may go, or else the cause for which ctx has ended. Frames go in the order
// in which they come. One that would have to wait for longer than it may goes then, and is not counted.
func (p *pace) wait(ctx context.Context, bytes int) error {
	if p.limiter == nil {
		return nil
	}
	start := time.Now()
	turn := p.limiter.ReserveN(start, bytes)
	pause := turn.DelayFrom(start)
	if pause > p.longest {
		turn.CancelAt(start)
		pause = p.longest
	}
	if pause == 0 {
		return nil
	}
	defer func() { p.waited.Add(int64(time.Since(start))) }()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		turn.Cancel()
		return context.Cause(ctx)
	}
}
