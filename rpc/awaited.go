package rpc

import (
	"sync"
	"time"
)

// awaited is the list of gRPC streams whose first message is awaited, the oldest first. All have the same time limit,
// receiveTimeout, so one timer serves them. Nearly all messages come at once, and a timer and a context for each stream
// would be a large part of the cost of a small request. Streams that gRPC ends without a handler stay until their time
// is over. The zero value is ready.
type awaited struct {
	mu          sync.Mutex // guards what follows, and since, listed, before and after of receipts
	first, last *receipt
	timer       *time.Timer
	armed       bool // the timer will fire; not later than the oldest is due
}

// add begins to wait for the first message of a stream.
func (w *awaited) add(r *receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.since, r.listed, r.before = time.Now(), true, w.last
	if w.last == nil {
		w.first = r
	} else {
		w.last.after = r
	}
	w.last = r
	if !w.armed {
		w.arm(receiveTimeout)
	}
}

// arm is called with mu held.
func (w *awaited) arm(d time.Duration) {
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.expire)
	} else {
		w.timer.Reset(d)
	}
}

// remove notes that the message has arrived, or will not come. It may be called again.
func (w *awaited) remove(r *receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.listed {
		w.unlink(r)
	}
}

// unlink is called with mu held.
func (w *awaited) unlink(r *receipt) {
	if r.before == nil {
		w.first = r.after
	} else {
		r.before.after = r.after
	}
	if r.after == nil {
		w.last = r.before
	} else {
		r.after.before = r.before
	}
	r.listed, r.before, r.after = false, nil, nil
}

// expire ends the streams whose message has taken too long.
func (w *awaited) expire() {
	late := w.due()
	for _, r := range late {
		r.ended() // of all, before the first is answered
	}
	for _, r := range late {
		r.expire()
	}
}

// due removes and returns the streams whose time is over, and sets the timer for the next.
func (w *awaited) due() (late []*receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = false
	now := time.Now()
	for r := w.first; r != nil; r = w.first {
		if left := receiveTimeout - now.Sub(r.since); left > 0 {
			w.arm(left)
			break
		}
		w.unlink(r)
		late = append(late, r)
	}
	return late
}
