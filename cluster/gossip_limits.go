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
	// gossipStreamsMax and gossipStreamsOfHostMax bound the streams that other nodes have open, in total and per host.
	// A stream lasts at most 2 seconds in each direction.
	gossipStreamsMax       = 48
	gossipStreamsOfHostMax = 16
	// unknownStartsMax bounds how many starts may be known. Above it, starts of nodes without a record in the control
	// group are refused.
	unknownStartsMax = 256
	// startsMax bounds the living starts that count for one node. evictedMax bounds the evicted starts of all nodes,
	// since memberlist keeps them as long as they live. evictRate and evictBurst bound how fast starts are evicted.
	startsMax  = 8
	evictedMax = 256
	evictRate  = rate.Limit(4)
	evictBurst = 16
	// newStartsRate and newStartsBurst bound how many new starts are accepted per second and at once: memberlist keeps
	// each for half a minute after its end.
	newStartsRate  = rate.Limit(32)
	newStartsBurst = 512
)

// streamSlots bounds the streams that other nodes open.
type streamSlots struct {
	mu     sync.Mutex // guards what follows
	all    int
	byHost map[netip.Prefix]int
}

func newStreamSlots() *streamSlots { return &streamSlots{byHost: make(map[netip.Prefix]int)} }

// enter takes a slot for a stream from an address; ok is false if there is none. leave frees the slot, and may be
// called again.
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

// hostPrefix is the prefix under which a stream is counted: a whole IPv4 address, or the 64 bits of an IPv6 address
// that a host cannot choose.
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

// screenedConn is a stream of gossip. It reads the first message within the limits before memberlist sees any of it. A
// stream has no second message. memberlist sets the deadline.
type screenedConn struct {
	net.Conn
	t     *gossipTransport
	leave func()

	read bool   // the message was read, or failed
	left []byte // the part of the message that memberlist has not read
	err  error
}

// screened wraps a stream. leave is called when the stream is closed, possibly more than once.
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

// refusals counts refused gossip, and logs it at most once a minute for each reason.
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

// note counts a refusal. from is nil if the sender is not known.
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

// admits reports whether memberlist may accept a start of a node. Known living starts and this node's own start are
// always accepted. memberlist calls it under its own locks.
func (g *Gossip) admits(name string) bool {
	node, start, ok := parseMemberName(name)
	if !ok {
		return false // memberlist would keep it, and knownMembers would not count it
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
		// Forged starts must not keep a restarted node out.
		return known(node) && g.known.evicted() < evictedMax && g.evictions.Allow() &&
			g.known.evict(node, g.cfg.Proven, own)
	}
	if known(node) {
		return true // startsMax bounds its starts, and a flood of unknown nodes must not keep a restarted node out
	}
	if g.known.all() >= unknownStartsMax {
		if g.known.forget(known); g.known.all() >= unknownStartsMax {
			return false
		}
	}
	return g.arrivals.Allow()
}
