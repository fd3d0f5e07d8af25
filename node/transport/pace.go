package transport

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// pace limits the snapshot bytes per second that a node sends, for all groups together.
type pace struct {
	limiter *rate.Limiter // nil: no limit
	longest time.Duration // the longest delay of a frame: the receiver gives up a stream without progress
	waited  atomic.Int64  // nanoseconds, over all snapshots
}

// newPace returns a pace; if bytes is 0, there is no limit.
func newPace(bytes int64, longest time.Duration) *pace {
	p := &pace{longest: longest}
	if bytes > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(bytes), wordBytes+chunkBytes)
	}
	return p
}

// wait returns when a frame of so many bytes may be sent, or the cause for which ctx ended. Frames are sent in the
// order of the calls. A frame that would wait for longer than longest is sent after that time, and is not counted.
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
