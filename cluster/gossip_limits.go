package cluster

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// gossipStreamsMax and gossipStreamsOfHostMax bound the streams that others have open, in all and from one host. A
	// stream lasts 2 seconds for each direction at most.
	gossipStreamsMax       = 48
	gossipStreamsOfHostMax = 16
	// unknownStartsMax is how many starts may be known before those of nodes without a record in the control group
	// are refused.
	unknownStartsMax = 256
	// startsMax bounds living starts of one node that count, and evictedMax those of all nodes that made room for
	// others: memberlist keeps them as long as they live. evictRate and evictBurst bound how fast.
	startsMax  = 8
	evictedMax = 256
	evictRate  = rate.Limit(4)
	evictBurst = 16
	// newStartsRate and newStartsBurst bound how many starts that were not known are taken in, a second and at once:
	// memberlist keeps each for half a minute after its end.
	newStartsRate  = rate.Limit(32)
	newStartsBurst = 512
)

// streamSlots bounds streams that others open.
type streamSlots struct {
	mu     sync.Mutex // guards what follows
	all    int
	byHost map[netip.Prefix]int
}

func newStreamSlots() *streamSlots { return &streamSlots{byHost: make(map[netip.Prefix]int)} }

// enter takes a slot for a stream from an address; leave, which may be called again, gives it back. It is not ok if
// there is none.
func (s *streamSlots) enter(from net.Addr) (leave func(), ok bool) {
	host := hostPrefix(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= gossipStreamsMax || s.byHost[host] >= gossipStreamsOfHostMax {
		return nil, false
	}
	s.all++
	s.byHost[host]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.byHost[host]--; s.byHost[host] == 0 {
			delete(s.byHost, host)
		}
	}), true
}

// hostPrefix is what a stream counts for: an IPv4 address, or the 64 bits of an IPv6 one that its host cannot choose.
func hostPrefix(from net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits) // there are as many bits
	return prefix
}

// screenedConn is a stream of gossip whose first message is read, within the limits, before memberlist sees any of it.
// There is no second one. memberlist sets the deadline.
type screenedConn struct {
	net.Conn
	t     *gossipTransport
	leave func()

	read bool   // the message, or why there is none
	left []byte // of it, that memberlist has not read
	err  error
}

// screened wraps a stream. leave is called when it is closed, maybe more than once.
func (t *gossipTransport) screened(conn net.Conn, leave func()) net.Conn {
	return &screenedConn{Conn: conn, t: t, leave: leave}
}

// Read implements net.Conn.
func (c *screenedConn) Read(p []byte) (int, error) {
	if !c.read {
		c.read = true
		if c.left, c.err = screenStream(c.Conn.Read, c.t.keys()); c.err != nil {
			c.left = nil
			if why, refused := refusalOf(c.err); refused {
				c.t.refuse(why, c.Conn.RemoteAddr())
				c.err = errStreamRefused(c.err)
			}
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// Close implements net.Conn.
func (c *screenedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// refusals counts gossip that was refused, and says so once a minute for each reason.
type refusals struct {
	log    *slog.Logger
	counts map[GossipRefusal]*atomic.Uint64

	mu   sync.Mutex // guards said
	said map[GossipRefusal]time.Time
}

func newRefusals(log *slog.Logger) *refusals {
	r := &refusals{log: log, counts: make(map[GossipRefusal]*atomic.Uint64), said: make(map[GossipRefusal]time.Time)}
	for _, why := range GossipRefusals {
		r.counts[why] = new(atomic.Uint64)
	}
	return r
}

func (r *refusals) count(why GossipRefusal) uint64 {
	if n, ok := r.counts[why]; ok {
		return n.Load()
	}
	return 0
}

// note counts a refusal. from is nil where it is not known.
func (r *refusals) note(why GossipRefusal, from net.Addr) {
	n, ok := r.counts[why]
	if !ok {
		return
	}
	n.Add(1)
	now := time.Now()
	r.mu.Lock()
	last, said := r.said[why]
	due := !said || now.Sub(last) >= warnEvery
	if due {
		r.said[why] = now
	}
	r.mu.Unlock()
	if due {
		r.log.Warn("dropping gossip: "+string(why), "from", from, "dropped", n.Load())
	}
}

// admits reports whether there is room for a start of a node that memberlist hears of. Those that are known, and this
// one's own, always have it. memberlist calls it under its own locks.
func (g *Gossip) admits(name string) bool {
	node, start, ok := parseMemberName(name)
	if !ok {
		return false // it would stay where nothing here counts it
	}
	known := func(node string) bool { return node == g.cfg.Node || g.diskOf(node) != "" }
	own := uint64(0)
	if node == g.cfg.Node {
		own = g.cfg.Boot
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if node == g.cfg.Node && start == g.cfg.Boot || g.known.living(node, start) {
		return true
	}
	if g.known.starts(node) >= startsMax {
		// Starts that were made up must not keep a restarted node out.
		return known(node) && g.known.evicted() < evictedMax && g.evictions.Allow() &&
			g.known.evict(node, g.cfg.Proven, own)
	}
	if known(node) {
		return true // startsMax bounds them, and a flood of unknown nodes must not keep a restarted node out
	}
	if g.known.all() >= unknownStartsMax {
		if g.known.forget(known); g.known.all() >= unknownStartsMax {
			return false
		}
	}
	return g.arrivals.Allow()
}
