package node

import (
	"sync"
	"sync/atomic"
)

// hang says whether this node's disk hangs: then it leads nothing, whatever its
// Raft groups believe, which may hang themselves.
type hang struct {
	on atomic.Bool

	mu sync.Mutex    // guards ch, and changes of on
	ch chan struct{} // closed while on
}

func newHang() *hang { return &hang{ch: make(chan struct{})} }

// set notes that the disk hangs, or no longer does.
func (h *hang) set(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case on && !h.on.Load():
		close(h.ch)
	case !on && h.on.Load():
		h.ch = make(chan struct{})
	}
	h.on.Store(on)
}

// now reports whether the disk hangs.
func (h *hang) now() bool { return h.on.Load() }

// begun is closed when the disk begins to hang.
func (h *hang) begun() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ch
}
