package node

import (
	"context"
	"sync"
	"sync/atomic"
)

// watermark is an index that only grows, and the callers that wait for it.
type watermark struct {
	at atomic.Uint64

	mu      sync.Mutex // guards waiting
	waiting map[chan struct{}]uint64
}

// Load returns the index reached.
func (w *watermark) Load() uint64 { return w.at.Load() }

// Raise raises the mark and wakes the callers that wait for it; a lower index does nothing. It has one caller at a
// time.
func (w *watermark) Raise(index uint64) {
	if index <= w.at.Load() {
		return
	}
	w.at.Store(index)
	w.mu.Lock()
	defer w.mu.Unlock()
	for ready, want := range w.waiting {
		if want <= index {
			delete(w.waiting, ready)
			close(ready)
		}
	}
}

// Wait returns nil when the mark has reached index, or ctx's error if ctx ends first.
func (w *watermark) Wait(ctx context.Context, index uint64) error {
	if w.at.Load() >= index {
		return nil
	}
	ready := w.enter(index)
	if ready == nil {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting, ready)
		return ctx.Err()
	}
}

// enter registers a waiter, or returns nil if the mark has been reached.
func (w *watermark) enter(index uint64) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.Load() >= index {
		return nil
	}
	if w.waiting == nil {
		w.waiting = make(map[chan struct{}]uint64)
	}
	ready := make(chan struct{})
	w.waiting[ready] = index
	return ready
}
