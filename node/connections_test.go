package node

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// addressListener accepts connections from the addresses of a list.
type addressListener struct {
	net.Listener
	from []string
}

var errNoMore = errors.New("no more")

func (l *addressListener) Accept() (net.Conn, error) {
	if len(l.from) == 0 {
		return nil, errNoMore
	}
	c := &fromConn{from: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(l.from[0]))}
	l.from = l.from[1:]
	return c, nil
}

type fromConn struct {
	net.Conn
	from   net.Addr
	closed atomic.Bool
}

func (c *fromConn) RemoteAddr() net.Addr { return c.from }

func (c *fromConn) Close() error {
	c.closed.Store(true)
	return nil
}

// Strangers who open all the connections that there are keep nodes from nothing, and one with all the addresses of a
// network is one.
func TestStrangersTakeNoConnectionsOfNodes(t *testing.T) {
	inner := &addressListener{}
	l := limit(inner, func(host string) bool { return host == "10.0.0.1" })
	accept := func(from string, n int) (in []net.Conn) {
		for range n {
			inner.from = append(inner.from, from)
		}
		for {
			c, err := l.Accept()
			if err != nil {
				return in
			}
			in = append(in, c)
		}
	}
	var wide int
	for i := range 256 {
		wide += len(accept(netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)}), 1).String(), 40))
	}
	if wide != connectionsMax/2 {
		t.Errorf("one network of IPv6 has %d connections, want %d", wide, connectionsMax/2)
	}
	if n := len(accept("10.0.9.9:1", connectionsMax)); n != connectionsMax/2 {
		t.Errorf("one host has %d connections, want %d", n, connectionsMax/2)
	}
	if n := len(accept("10.0.9.8:1", 10)); n != 0 {
		t.Errorf("%d connections above the limit", n)
	}
	in := accept("10.0.0.1:7070", connectionsOfNodes+10)
	if len(in) != connectionsOfNodes {
		t.Fatalf("a node has %d connections while strangers have all the others, want %d", len(in), connectionsOfNodes)
	}
	for range 2 {
		if err := in[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if n := len(accept("10.0.0.1:7070", 10)); n != 1 {
		t.Errorf("%d connections take the place of one that was closed", n)
	}
}
