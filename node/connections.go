package node

import (
	"net"
	"sync"

	"github.com/ebbdb/ebb/internal/trust"
)

const (
	// connectionsMax is how many connections a listener may have open at a time. Half of that is the limit for one
	// host, so that one host cannot take all connections.
	connectionsMax = 10_000
	// connectionsOfNodes is how many more connections are reserved for hosts of nodes, when other hosts have taken the
	// rest.
	connectionsOfNodes = 1_000
)

// limited is a listener that closes a connection above its limits as soon as it has accepted it.
type limited struct {
	net.Listener
	ofNode     func(host string) bool
	all, nodes *trust.ConnLimiter
}

func limit(l net.Listener, ofNode func(host string) bool) net.Listener {
	return &limited{
		Listener: l, ofNode: ofNode,
		all: trust.NewConnLimiter(connectionsMax, connectionsMax/2), nodes: trust.NewConnLimiter(connectionsOfNodes, connectionsOfNodes),
	}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := trust.HostOf(conn.RemoteAddr())
		leave, ok := l.all.Acquire(host)
		if !ok && l.ofNode(host) {
			leave, ok = l.nodes.Acquire(host)
		}
		if ok {
			return &admitted{Conn: conn, leave: leave}, nil
		}
		_ = conn.Close() // nothing was sent
	}
}

// admitted is an accepted connection that frees its place in the limits when it is closed.
type admitted struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (c *admitted) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}
