package node

import (
	"sync"
	"sync/atomic"
)

// diskStall records whether this node's disk is stalled: a sync has waited for too long. Then the node leads nothing,
// whatever its Raft groups believe: they may be stalled themselves.
type diskStall struct {
	on atomic.Bool

	mu sync.Mutex    // guards ch, and changes of on
	ch chan struct{} // closed while on
}

func newDiskStall() *diskStall { return &diskStall{ch: make(chan struct{})} }

// set records that the disk stalls, or no longer does.
func (d *diskStall) set(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case on && !d.on.Load():
		close(d.ch)
	case !on && d.on.Load():
		d.ch = make(chan struct{})
	}
	d.on.Store(on)
}

// active reports whether the disk is stalled.
func (d *diskStall) active() bool { return d.on.Load() }

// begun returns a channel that is closed when the disk begins to stall.
func (d *diskStall) begun() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}
