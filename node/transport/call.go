package transport

import (
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// call is one request under way and its answer.
type call struct {
	message
	id    uint64
	reply []byte        // the answer's payload, set before done
	err   error         // why there is no answer, set before done
	done  chan struct{} // gets a token when reply or err is set
	timer *time.Timer   // the caller's deadline
}

// newCall takes a call from the pool and starts its deadline. The pool belongs
// to the Mux because channels and timers may not leave a synctest bubble.
func (m *Mux) newCall(timeout time.Duration) *call {
	c, ok := m.calls.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1), timer: time.NewTimer(timeout)}
	} else {
		c.timer.Reset(timeout)
	}
	c.id = m.ids.Add(1)
	return c
}

// freeCall returns a call to the pool. No other goroutine may hold it.
func (m *Mux) freeCall(c *call) {
	c.timer.Stop()
	c.err = nil
	if cap(c.reply) <= pooledBytesMax {
		m.calls.Put(c)
	}
}

// link is one outgoing stream: its queue, and the calls that wait for answers.
type link struct {
	stream grpc.ClientStream
	out    *outbox

	mu      sync.Mutex // guards what follows
	pending map[uint64]*call
	err     error // why the stream is gone
}

func newLink(stream grpc.ClientStream, coalesce time.Duration) *link {
	return &link{stream: stream, out: newOutbox(coalesce), pending: map[uint64]*call{}}
}

// send queues a call's message. After that the call ends with a token in done, unless forget removes it first.
func (l *link) send(c *call, lazy bool) error {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		freeData(c.data)
		c.data = nil
		return l.err
	}
	l.pending[c.id] = c
	l.mu.Unlock()
	l.out.put(&c.message, lazy)
	return nil
}

// forget gives up on a call; it returns false if the answer is arriving at this moment.
func (l *link) forget(c *call) bool {
	l.mu.Lock()
	_, waits := l.pending[c.id]
	delete(l.pending, c.id)
	l.mu.Unlock()
	if waits {
		l.out.drop(&c.message)
	}
	return waits
}

// answered passes an answer to its call. An answer that is too late finds no call and is dropped.
func (l *link) answered(payload []byte) error {
	id, n := binary.Uvarint(payload)
	if n <= 0 {
		return errMalformed
	}
	l.mu.Lock()
	c := l.pending[id]
	delete(l.pending, id)
	l.mu.Unlock()
	if c != nil {
		c.reply = append(c.reply[:0], payload...)
		c.done <- struct{}{}
	}
	return nil
}

// fail ends all calls with err, and refuses later ones.
func (l *link) fail(err error) {
	l.mu.Lock()
	l.err = err
	pending := l.pending
	l.pending = map[uint64]*call{}
	l.mu.Unlock()
	l.out.close()
	for _, c := range pending {
		c.err = err
		c.done <- struct{}{}
	}
}
