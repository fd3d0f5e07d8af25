package transport

import (
	"runtime"
	"sync"
	"time"
)

// outbox queues messages for a stream and sends them in frames. put never blocks; one goroutine sends.
type outbox struct {
	coalesce time.Duration // how long a lazy message waits for others
	wake     chan struct{} // holds a token when the sender must look again

	mu     sync.Mutex // guards what follows
	queue  []*message
	bytes  int  // in queue
	urgent bool // something in queue must not wait
	closed bool
}

func newOutbox(coalesce time.Duration) *outbox {
	return &outbox{coalesce: coalesce, wake: make(chan struct{}, 1)}
}

// put queues a message. A lazy message waits for others, or for one that is not lazy. put returns false, and frees the
// data, when the stream has ended.
func (o *outbox) put(m *message, lazy bool) bool {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		freeData(m.data)
		m.data = nil
		return false
	}
	o.queue = append(o.queue, m)
	o.bytes += len(*m.data)
	news := len(o.queue) == 1 || !lazy && !o.urgent
	o.urgent = o.urgent || !lazy
	o.mu.Unlock()
	if news {
		o.signal()
	}
	return true
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// drop removes a message that was not sent yet.
func (o *outbox) drop(m *message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.data != nil {
		o.bytes -= len(*m.data)
		freeData(m.data)
		m.data = nil
	}
}

// size returns how many bytes are queued.
func (o *outbox) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// close drops queued messages and refuses later ones.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, m := range o.queue {
		if m.data != nil {
			freeData(m.data)
			m.data = nil
		}
	}
	o.queue, o.bytes = nil, 0
}

// run sends until done is closed or send fails.
func (o *outbox) run(done <-chan struct{}, send func(*frame) error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if !o.await(done, timer) {
			return nil
		}
		runtime.Gosched() // goroutines that are about to queue a message share the frame
		for more := true; more; {
			var f *frame
			if f, more = o.take(); f == nil {
				break
			}
			if err := send(f); err != nil {
				return err
			}
		}
	}
}

// await returns true when a frame is due, and false when done is closed.
func (o *outbox) await(done <-chan struct{}, timer *time.Timer) bool {
	select {
	case <-o.wake:
	case <-done:
		return false
	}
	if o.due() {
		return true
	}
	timer.Reset(o.coalesce)
	for {
		select {
		case <-timer.C:
			return true
		case <-o.wake:
			if o.due() {
				timer.Stop()
				return true
			}
		case <-done:
			return false
		}
	}
}

// due reports whether the frame should be sent without further waiting.
func (o *outbox) due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.urgent || o.coalesce == 0 || o.bytes >= FrameBytesMax/2
}

// take builds a frame from the queue; nil if the queue is empty. more says that some messages did not fit.
func (o *outbox) take() (f *frame, more bool) {
	var first [64]*[]byte
	datas := first[:0]
	size := 0
	o.mu.Lock()
	n := 0
	for _, m := range o.queue {
		if m.data != nil {
			if size > 0 && size+len(*m.data) > FrameBytesMax {
				break
			}
			size += len(*m.data)
			datas = append(datas, m.data)
			m.data = nil
		}
		n++
	}
	rest := copy(o.queue, o.queue[n:])
	clear(o.queue[rest:])
	o.queue = o.queue[:rest]
	o.bytes -= size
	more = rest > 0
	o.urgent = o.urgent && more
	o.mu.Unlock()
	if size == 0 {
		return nil, more
	}
	f = newFrame(size)
	at := 0
	for _, d := range datas {
		at += copy(f.body[at:], *d)
		freeData(d)
	}
	return f, more
}
