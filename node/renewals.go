package node

import (
	"context"
	"sync"
)

// renewals sees to it that this node knows of the newest event of a namespace once for each change of its settings,
// before it brings that to its shards.
type renewals struct {
	mu   sync.Mutex // guards last
	last map[string]*renewal
}

// renewal is one for the settings of a version.
type renewal struct {
	version uint64
	done    chan struct{} // closed when the clock is known
}

// once calls renew, unless it was called for this version or a later one: then it waits until that has returned.
func (r *renewals) once(ctx context.Context, namespace string, version uint64, renew func()) {
	r.mu.Lock()
	was := r.last[namespace]
	if was != nil && was.version >= version {
		r.mu.Unlock()
		select {
		case <-was.done:
		case <-ctx.Done():
		}
		return
	}
	now := &renewal{version, make(chan struct{})}
	if r.last == nil {
		r.last = make(map[string]*renewal)
	}
	r.last[namespace] = now
	r.mu.Unlock()
	defer close(now.done)
	renew()
}
