package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// Link is the path from one host to another; the other direction has its own Link.
type Link struct {
	Cut    bool          // nothing arrives: streams stall, packets are lost
	Delay  time.Duration // of every segment of a stream, and of every packet
	Jitter time.Duration // the maximum of a random delay that is added
	Loss   float64       // chance that a packet is lost, or that a segment comes 200 ms late
	Dup    float64       // chance that a packet arrives twice
	Flip   float64       // chance that one bit of a packet is inverted
	Spoil  float64       // the same for gRPC segments between nodes: only these have checksums besides those of TCP
}

// UsualLink is a link in a data centre.
var UsualLink = Link{Delay: 200 * time.Microsecond, Jitter: 200 * time.Microsecond}

// Net is a network of hosts. Streams are reliable and ordered, like TCP. A cut link stalls them, and they continue when
// the link is healed. Only a crash resets them.
type Net struct {
	mu        sync.Mutex // guards what follows; never held across a wait
	rng       *rand.Rand
	links     map[[2]string]Link
	usual     Link
	listeners map[string]*listener
	packets   map[string]*packetConn
	streams   map[*stream]struct{}
	changed   chan struct{} // closed and replaced when any link changes
	port      int
	said      *xxh3.Hasher // hash of everything that was sent: time, sender, receiver and data
}

// NewNet returns a network whose random choices are drawn from seed. Its links have a delay of 0.2 ms plus up to 0.2 ms
// of jitter, until SetLink or SetUsual changes them.
func NewNet(seed uint64) *Net {
	return &Net{
		rng:       rand.New(rand.NewPCG(seed, 0x6e6574)),
		usual:     UsualLink,
		links:     map[[2]string]Link{},
		listeners: map[string]*listener{},
		packets:   map[string]*packetConn{},
		streams:   map[*stream]struct{}{},
		changed:   make(chan struct{}),
		port:      30000,
		said:      xxh3.New(),
	}
}

// Trace returns a hash of everything that was sent so far, in order, with the times. Two runs that took the same course
// have the same hash.
func (n *Net) Trace() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.said.Sum64()
}

// trace adds what is sent to the hash.
func (n *Net) trace(from, to string, data []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = n.said.Write(binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))) // never fails
	_, _ = n.said.WriteString(from)
	_, _ = n.said.WriteString(to)
	_, _ = n.said.Write(data)
}

// Host is one machine's view of the network. IP is its address.
type Host struct {
	net    *Net
	IP     string
	checks string // the port of other hosts; streams to this port have checksums
}

// Host returns the machine with the given IP address.
func (n *Net) Host(ip string) *Host { return &Host{net: n, IP: ip} }

// SetLink replaces the link from one IP to another.
func (n *Net) SetLink(from, to string, l Link) {
	n.mu.Lock()
	n.links[[2]string{from, to}] = l
	n.announce()
	n.mu.Unlock()
}

// Cut cuts both directions between two hosts.
func (n *Net) Cut(a, b string) {
	n.CutOneWay(a, b)
	n.CutOneWay(b, a)
}

// CutOneWay cuts one direction, and leaves the rest of the link as it is.
func (n *Net) CutOneWay(from, to string) {
	l := n.link(from, to)
	l.Cut = true
	n.SetLink(from, to, l)
}

// Heal removes all links that were set or cut, so that every link is the usual one again.
func (n *Net) Heal() {
	n.mu.Lock()
	n.links = map[[2]string]Link{}
	n.announce()
	n.mu.Unlock()
}

// SetUsual replaces the link between hosts for which no link was set.
func (n *Net) SetUsual(l Link) {
	n.mu.Lock()
	n.usual = l
	n.announce()
	n.mu.Unlock()
}

// Crash takes a host off the network, as the death of its process does: its listeners close and its streams are reset.
func (n *Net) Crash(ip string) {
	n.mu.Lock()
	var gone []*stream
	for s := range n.streams {
		if s.from == ip || s.to == ip {
			gone = append(gone, s)
		}
	}
	var closing []interface{ Close() error }
	for addr, l := range n.listeners {
		if hostOf(addr) == ip {
			closing = append(closing, l)
		}
	}
	for addr, p := range n.packets {
		if hostOf(addr) == ip {
			closing = append(closing, p)
		}
	}
	n.mu.Unlock()
	slices.SortFunc(gone, func(a, b *stream) int { return cmp.Compare(a.number, b.number) }) // not in map order
	for _, c := range closing {
		_ = c.Close() // a Close of this network never fails
	}
	for _, s := range gone {
		s.sever(errReset)
	}
}

var (
	errReset   = errors.New("connection reset by peer")
	errRefused = errors.New("connection refused")
)

// announce wakes everything that waits for a link. n.mu is held.
func (n *Net) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *Net) link(from, to string) Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(from, to)
}

func (n *Net) linkLocked(from, to string) Link {
	if from == to {
		return Link{}
	}
	if l, ok := n.links[[2]string{from, to}]; ok {
		return l
	}
	return n.usual
}

// state reports whether a link is cut, and returns a channel that closes when any link changes.
func (n *Net) state(from, to string) (cut bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.linkLocked(from, to).Cut, n.changed
}

// latency draws the delay of one segment or packet.
func (n *Net) latency(l Link) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := l.Delay
	if l.Jitter > 0 {
		d += time.Duration(n.rng.Int64N(int64(l.Jitter)))
	}
	return d
}

// flip inverts one random bit of b.
func (n *Net) flip(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(b) > 0 {
		b[n.rng.IntN(len(b))] ^= 1 << n.rng.IntN(8)
	}
}

func (n *Net) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Float64() < p
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// tcpAddr returns a real net.TCPAddr, because some callers look inside.
func tcpAddr(addr string) net.Addr {
	host, port, _ := net.SplitHostPort(addr)
	number, _ := strconv.Atoi(port)
	return &net.TCPAddr{IP: net.ParseIP(host), Port: number}
}

func (h *Host) complete(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = h.IP
	}
	if host != h.IP {
		return "", fmt.Errorf("listen %s: cannot assign requested address", addr)
	}
	if port == "0" {
		h.net.mu.Lock()
		h.net.port++
		port = strconv.Itoa(h.net.port)
		h.net.mu.Unlock()
	}
	return net.JoinHostPort(host, port), nil
}

// Listen opens a stream listener on "ip:port"; port 0 chooses a free port.
func (h *Host) Listen(_ context.Context, addr string) (net.Listener, error) {
	addr, err := h.complete(addr)
	if err != nil {
		return nil, err
	}
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("listen %s: address already in use", addr)
	}
	l := &listener{net: n, addr: addr, accept: make(chan net.Conn, 128), down: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

type listener struct {
	net    *Net
	addr   string
	accept chan net.Conn
	down   chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.down:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.addr)
		l.net.mu.Unlock()
		close(l.down)
		for { // connections that were not accepted are reset
			select {
			case c := <-l.accept:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return tcpAddr(l.addr) }

// Dial opens a stream. While the link is cut in either direction, Dial waits until ctx ends, as a SYN would.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	n, to := h.net, hostOf(addr)
	for {
		there, changed := n.state(h.IP, to)
		back, _ := n.state(to, h.IP)
		if !there && !back {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("dial %s: %w", addr, ctx.Err())
		}
	}
	if err := wait(ctx, n.latency(n.link(h.IP, to))+n.latency(n.link(to, h.IP))); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return h.connect(addr)
}

func (h *Host) connect(addr string) (net.Conn, error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr]
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", addr, errRefused)
	}
	n.port++
	local := tcpAddr(net.JoinHostPort(h.IP, strconv.Itoa(n.port)))
	remote := tcpAddr(addr)
	out, in := newStream(n, 2*n.port, h.IP, hostOf(addr)), newStream(n, 2*n.port+1, hostOf(addr), h.IP)
	_, port, _ := net.SplitHostPort(addr) // a listener has this address
	out.checked = port == h.checks
	in.checked = out.checked
	select {
	case l.accept <- &conn{read: out, write: in, local: remote, remote: local}:
	default:
		return nil, fmt.Errorf("dial %s: %w", addr, errRefused)
	}
	n.streams[out], n.streams[in] = struct{}{}, struct{}{}
	return &conn{read: in, write: out, local: local, remote: remote}, nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// conn is one end of a connection: two streams.
type conn struct {
	read, write   *stream
	local, remote net.Addr
	rd, wd        deadline
}

func (c *conn) Read(b []byte) (int, error) { return c.read.pull(b, &c.rd) }
func (c *conn) LocalAddr() net.Addr        { return c.local }
func (c *conn) RemoteAddr() net.Addr       { return c.remote }

// Write sends bytes. If it meets a reset, it ends the other direction too.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.write.push(b, &c.wd)
	if errors.Is(err, errReset) {
		c.read.sever(errReset)
	}
	return n, err
}

// Close ends both directions. The other end learns this when the link delivers it.
func (c *conn) Close() error {
	c.write.finish()
	c.read.shut()
	c.write.net.forget(c.write)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	c.rd.set(t)
	c.wd.set(t)
	return nil
}
func (c *conn) SetReadDeadline(t time.Time) error  { c.rd.set(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { c.wd.set(t); return nil }

// deadline is a time that can change while a goroutine waits for it.
type deadline struct {
	mu      sync.Mutex
	at      time.Time
	changed chan struct{}
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	d.at = t
	if d.changed != nil {
		close(d.changed)
	}
	d.changed = make(chan struct{})
	d.mu.Unlock()
}

func (d *deadline) get() (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.at, d.changed
}

// streamWindow is how many unread bytes a stream may hold before a writer waits.
const streamWindow = 1 << 20

type segment struct {
	at   time.Time
	data []byte
}

// stream is one direction of a connection.
type stream struct {
	net      *Net
	number   int // in the order of connections
	from, to string
	checked  bool // what is sent has checksums of its own, so that a bit of it may be inverted

	mu     sync.Mutex // guards what follows; never held across a wait
	queue  []segment
	bytes  int
	end    bool // no more will be written; what is queued is still delivered
	deaf   bool // no more will be read: a write gets a reset, unless the link back is cut
	err    error
	signal chan struct{} // closed and replaced at every change
}

func newStream(n *Net, number int, from, to string) *stream {
	return &stream{net: n, number: number, from: from, to: to, signal: make(chan struct{})}
}

// notify wakes the reader and the writer. s.mu is held.
func (s *stream) notify() {
	close(s.signal)
	s.signal = make(chan struct{})
}

func (s *stream) finish() {
	s.mu.Lock()
	s.end = true
	s.notify()
	s.mu.Unlock()
}

// shut ends reading, and drops what is queued.
func (s *stream) shut() {
	s.mu.Lock()
	s.deaf = true
	s.queue, s.bytes = nil, 0
	s.notify()
	s.mu.Unlock()
}

func (s *stream) sever(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.queue, s.bytes = nil, 0
	s.notify()
	s.mu.Unlock()
	s.net.forget(s)
}

func (n *Net) forget(s *stream) {
	n.mu.Lock()
	delete(n.streams, s)
	n.mu.Unlock()
}

func (s *stream) push(b []byte, d *deadline) (int, error) {
	s.net.trace(s.from, s.to, b)
	l := s.net.link(s.from, s.to)
	delay := s.net.latency(l)
	if s.net.chance(l.Loss) {
		delay += 200 * time.Millisecond // retransmitted
	}
	data := append([]byte(nil), b...)
	if s.checked && s.net.chance(l.Spoil) {
		s.net.flip(data)
	}
	for {
		at, moved := d.get()
		cut, _ := s.net.state(s.to, s.from)
		s.mu.Lock()
		switch {
		case s.err != nil:
			s.mu.Unlock()
			return 0, s.err
		case s.deaf && cut:
			s.mu.Unlock()
			return len(b), nil // the writer cannot know that the bytes are lost
		case s.deaf:
			s.mu.Unlock()
			return 0, errReset
		case s.end:
			s.mu.Unlock()
			return 0, net.ErrClosed
		case s.bytes < streamWindow:
			s.enqueue(data, delay)
			s.mu.Unlock()
			return len(b), nil
		}
		signal := s.signal
		s.mu.Unlock()
		if err := waitAny(at, time.Time{}, signal, moved, nil); err != nil {
			return 0, err
		}
	}
}

// enqueue appends a segment, which never arrives before the segment sent before it. s.mu is held.
func (s *stream) enqueue(b []byte, delay time.Duration) {
	at := time.Now().Add(delay)
	if k := len(s.queue); k > 0 && s.queue[k-1].at.After(at) {
		at = s.queue[k-1].at
	}
	s.queue = append(s.queue, segment{at, b})
	s.bytes += len(b)
	s.notify()
}

func (s *stream) pull(b []byte, d *deadline) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		at, moved := d.get()
		cut, linkChanged := s.net.state(s.from, s.to)
		n, next, signal, err := s.take(b, cut)
		if n > 0 || err != nil {
			return n, err
		}
		if err := waitAny(at, next, signal, moved, linkChanged); err != nil {
			return 0, err
		}
	}
}

// take copies the bytes that have arrived. If there are none, it returns when the next segment arrives.
func (s *stream) take(b []byte, cut bool) (n int, next time.Time, signal <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, time.Time{}, nil, s.err
	}
	if s.deaf {
		return 0, time.Time{}, nil, net.ErrClosed
	}
	now := time.Now()
	for !cut && len(s.queue) > 0 && n < len(b) && !s.queue[0].at.After(now) {
		k := copy(b[n:], s.queue[0].data)
		n += k
		if s.queue[0].data = s.queue[0].data[k:]; len(s.queue[0].data) == 0 {
			s.queue = s.queue[1:]
		}
	}
	if n > 0 {
		s.bytes -= n
		s.notify()
		return n, time.Time{}, nil, nil
	}
	if s.end && len(s.queue) == 0 && !cut {
		return 0, time.Time{}, nil, io.EOF
	}
	if !cut && len(s.queue) > 0 {
		next = s.queue[0].at
	}
	return 0, next, s.signal, nil
}

// waitAny waits for one of the signals or for the time next. It returns os.ErrDeadlineExceeded after the deadline.
func waitAny(deadline, next time.Time, a, b, c <-chan struct{}) error {
	var timer, wake <-chan time.Time
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		defer t.Stop()
		timer = t.C
	}
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		wake = t.C
	}
	select {
	case <-timer:
		return os.ErrDeadlineExceeded
	case <-wake:
	case <-a:
	case <-b:
	case <-c:
	}
	return nil
}
