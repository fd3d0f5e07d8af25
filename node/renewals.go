package node

import (
	"context"
	"sync"
	"time"
)

// renewals refreshes a namespace's event clock on this node once for each change of its settings, before the node
// brings them to its shards. It does so again if not all shards answered.
type renewals struct {
	mu   sync.Mutex // guards last
	last map[string]*renewal
}

// renewal is the refresh for one version of the settings.
type renewal struct {
	version uint64
	done    chan struct{} // closed when the clock is known, or could not be learnt
	again   time.Time     // when to try again; zero: it is known. Set before done is closed
}

// renewAgain is the time between a failed attempt and the next one. Until then callers proceed with what is known.
const renewAgain = 2 * time.Second

// over reports whether the attempt has failed, and the next one is due.
func (r *renewal) over() bool {
	select {
	case <-r.done:
		return !r.again.IsZero() && !time.Now().Before(r.again)
	default:
		return false
	}
}

// once calls renew, unless it was called for this version or a later one: then it waits until that call has returned.
// renew reports whether it need not be called again.
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
