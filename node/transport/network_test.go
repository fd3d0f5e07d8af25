package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// network is TCP for a synctest bubble: connections between named hosts with a
// delay and one-way cuts. Bytes sent into a cut wait for its end, as in a
// kernel's buffer; a dial into a cut waits too.
type network struct {
	delay time.Duration

	mu        sync.Mutex // guards what follows
	listeners map[string]*listener
	cuts      map[[2]string]bool
	changed   chan struct{} // closed, and replaced, when cuts change
	conns     map[*conn]bool
	dials     int
}

func newNetwork() *network {
	return &network{
		delay: 200 * time.Microsecond, listeners: map[string]*listener{}, cuts: map[[2]string]bool{},
		changed: make(chan struct{}), conns: map[*conn]bool{},
	}
}

// cut stops, or lets through again, what from sends to to.
func (n *network) cut(from, to string, on bool) {
	n.mu.Lock()
	n.cuts[[2]string{from, to}] = on
	close(n.changed)
	n.changed = make(chan struct{})
	var halves []*half
	for c := range n.conns {
		if c.local == from && c.remote == to {
			halves = append(halves, c.out)
		}
	}
	n.mu.Unlock()
	for _, h := range halves {
		h.setCut(on)
	}
}

// isolate cuts a host off from others, both ways.
func (n *network) isolate(host string, on bool, others ...string) {
	for _, o := range others {
		n.cut(host, o, on)
		n.cut(o, host, on)
	}
}

// reset closes all connections of a host, as its death would.
func (n *network) reset(host string) {
	n.mu.Lock()
	var conns []*conn
	for c := range n.conns {
		if c.local == host || c.remote == host {
			conns = append(conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (n *network) listen(host string) net.Listener {
	l := &listener{net: n, host: host, accept: make(chan net.Conn), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[host] = l
	return l
}

// dialer returns a Config.Dial for a host.
func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) { return n.dial(ctx, from, to) }
}

func (n *network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	for {
		n.mu.Lock()
		n.dials++
		l, changed := n.listeners[to], n.changed
		blocked := n.cuts[[2]string{from, to}] || n.cuts[[2]string{to, from}]
		n.mu.Unlock()
		if blocked {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if l == nil {
			return nil, errors.New("connection refused")
		}
		there, back := newHalf(n.delay), newHalf(n.delay)
		a := &conn{net: n, local: from, remote: to, in: back, out: there}
		b := &conn{net: n, local: to, remote: from, in: there, out: back}
		n.mu.Lock()
		n.conns[a], n.conns[b] = true, true
		n.mu.Unlock()
		select {
		case l.accept <- b:
			return a, nil
		case <-l.done:
			return nil, errors.New("connection refused")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

type listener struct {
	net    *network
	host   string
	accept chan net.Conn
	done   chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		if l.net.listeners[l.host] == l {
			delete(l.net.listeners, l.host)
		}
		l.net.mu.Unlock()
		close(l.done)
	})
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.host) }

type address string

func (a address) Network() string { return "test" }
func (a address) String() string  { return string(a) }

// half is one direction of a connection.
type half struct {
	delay time.Duration
	mu    sync.Mutex // guards what follows
	cond  *sync.Cond
	buf   []byte // arrived
	held  []byte // sent into a cut
	way   int    // bytes on their way
	last  time.Time
	cut   bool
	eof   bool // sender has closed
	shut  bool // receiver has closed
	until time.Time
}

// halfMax is how much a half takes before a writer waits.
const halfMax = 1 << 20

func newHalf(delay time.Duration) *half {
	h := &half{delay: delay}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (h *half) setCut(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = on
	if !on && len(h.held) > 0 {
		b := h.held
		h.held = nil
		h.deliver(b)
	}
}

func (h *half) write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.eof && !h.shut && h.way+len(h.buf)+len(h.held) > halfMax {
		h.cond.Wait()
	}
	if h.eof || h.shut {
		return 0, io.ErrClosedPipe
	}
	b = append([]byte(nil), b...)
	if h.cut {
		h.held = append(h.held, b...)
	} else {
		h.deliver(b)
	}
	return len(b), nil
}

func (h *half) deliver(b []byte) {
	at := time.Now().Add(h.delay)
	if !at.After(h.last) {
		at = h.last.Add(1)
	}
	h.last = at
	h.way += len(b)
	time.AfterFunc(time.Until(at), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.way -= len(b)
		h.buf = append(h.buf, b...)
		h.cond.Broadcast()
	})
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.shut:
			return 0, net.ErrClosed
		case !h.until.IsZero() && !time.Now().Before(h.until):
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[n:]
			h.cond.Broadcast()
			return n, nil
		case h.eof && h.way == 0 && !h.cut:
			return 0, io.EOF
		}
		h.cond.Wait()
	}
}

func (h *half) close(sender bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sender {
		h.eof = true
	} else {
		h.shut = true
	}
	h.cond.Broadcast()
	if sender {
		time.AfterFunc(2*h.delay, h.cond.Broadcast)
	}
}

type conn struct {
	net           *network
	local, remote string
	in, out       *half
	once          sync.Once
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *conn) Close() error {
	c.once.Do(func() {
		c.net.mu.Lock()
		delete(c.net.conns, c)
		c.net.mu.Unlock()
		c.in.close(false)
		c.out.close(true)
	})
	return nil
}

func (c *conn) LocalAddr() net.Addr              { return address(c.local) }
func (c *conn) RemoteAddr() net.Addr             { return address(c.remote) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.until = t
	c.in.cond.Broadcast()
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), c.in.cond.Broadcast)
	}
	return nil
}
