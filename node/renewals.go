package node

import (
	"context"
	"sync"
	"time"
)

// renewals sees to it that this node learns of the newest event of a namespace once for each change of its settings,
// before it brings that to its shards; and again, if not all shards said so.
type renewals struct {
	mu   sync.Mutex // guards last
	last map[string]*renewal
}

// renewal is one for the settings of a version.
type renewal struct {
	version uint64
	done    chan struct{} // closed when the clock is known, or was not to be learnt
	again   time.Time     // when to try again; zero: it is known. Set before done is closed
}

// renewAgain is the time between a try that failed and the next one. Callers until then proceed with what is known.
const renewAgain = 2 * time.Second

// over reports whether a try has failed, and the next one is due.
func (r *renewal) over() bool {
	select {
	case <-r.done:
		return !r.again.IsZero() && !time.Now().Before(r.again)
	default:
		return false
	}
}

// once calls renew, unless it was called for this version or a later one: then it waits until that has returned. renew
// reports whether it need not be called again.
func (r *renewals) once(ctx context.Context, namespace string, version uint64, renew func() bool) {
	r.mu.Lock()
	was := r.last[namespace]
	if was != nil && was.version >= version && !was.over() {
		r.mu.Unlock()
		select {
		case <-was.done:
		case <-ctx.Done():
		}
		return
	}
	now := &renewal{version: version, done: make(chan struct{})}
	if r.last == nil {
		r.last = make(map[string]*renewal)
	}
	r.last[namespace] = now
	r.mu.Unlock()
	defer close(now.done)
	if !renew() {
		now.again = time.Now().Add(renewAgain)
	}
}
