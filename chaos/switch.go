package chaos

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/ebbdb/ebb/node"
)

// Switch stands between the nodes of one process: each dials and listens
// through its own port of the switch, and a port can be unplugged. Clients that
// do not dial through the switch still reach every node.
type Switch struct {
	inner node.Network

	mu    sync.Mutex         // guards what follows; never held across a wait
	home  map[string]string  // listening address -> node
	cut   map[[2]string]bool // from, to
	conns map[*switched]struct{}
}

// NewSwitch returns a switch over a network, with every port plugged in.
func NewSwitch(inner node.Network) *Switch {
	return &Switch{inner: inner, home: map[string]string{}, cut: map[[2]string]bool{}, conns: map[*switched]struct{}{}}
}

// Port returns the network as the named node sees it.
func (s *Switch) Port(name string) node.Network { return &port{s, name} }

// Isolate cuts a node off from every other node: streams between them break,
// new ones are refused and packets vanish.
func (s *Switch) Isolate(name string) {
	s.mu.Lock()
	for _, other := range s.home {
		if other != name {
			s.cut[[2]string{name, other}] = true
			s.cut[[2]string{other, name}] = true
		}
	}
	var broken []*switched
	for c := range s.conns {
		if s.cut[[2]string{c.from, c.to}] {
			broken = append(broken, c)
		}
	}
	s.mu.Unlock()
	for _, c := range broken {
		_ = c.Close() // the stream is broken on purpose
	}
}

// Heal plugs every port in again.
func (s *Switch) Heal() {
	s.mu.Lock()
	s.cut = map[[2]string]bool{}
	s.mu.Unlock()
}

// route returns the node that listens at addr, and whether it is cut off from the node that asks.
func (s *Switch) route(from, addr string) (to string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to = s.home[addr]
	return to, s.cut[[2]string{from, to}]
}

func (s *Switch) own(addr net.Addr, name string) {
	s.mu.Lock()
	s.home[addr.String()] = name
	s.mu.Unlock()
}

type port struct {
	s    *Switch
	name string
}

func (p *port) Listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := p.s.inner.Listen(ctx, addr)
	if err == nil {
		p.s.own(l.Addr(), p.name)
	}
	return l, err
}

func (p *port) ListenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	c, err := p.s.inner.ListenPacket(ctx, addr)
	if err != nil {
		return nil, err
	}
	p.s.own(c.LocalAddr(), p.name)
	return &switchedPackets{c, p}, nil
}

func (p *port) Dial(ctx context.Context, addr string) (net.Conn, error) {
	to, cut := p.s.route(p.name, addr)
	if cut {
		return nil, fmt.Errorf("dial %s: %s is cut off from %s", addr, p.name, to)
	}
	c, err := p.s.inner.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	w := &switched{Conn: c, s: p.s, from: p.name, to: to}
	p.s.mu.Lock()
	cut = p.s.cut[[2]string{p.name, to}]
	if !cut {
		p.s.conns[w] = struct{}{}
	}
	p.s.mu.Unlock()
	if cut { // while we dialled
		c.Close()
		return nil, fmt.Errorf("dial %s: %s is cut off from %s", addr, p.name, to)
	}
	return w, nil
}

// switched is a stream that the switch can break.
type switched struct {
	net.Conn
	s        *Switch
	from, to string
}

func (c *switched) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

type switchedPackets struct {
	net.PacketConn
	p *port
}

func (c *switchedPackets) WriteTo(b []byte, to net.Addr) (int, error) {
	if _, cut := c.p.s.route(c.p.name, to.String()); cut {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}
