package node

import (
	"context"
	"net"
	"time"
)

// Clock tells the time of day. Leaders stamp log entries by it; nothing else
// that is replicated depends on it.
type Clock interface {
	Now() time.Time
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now returns the machine's time of day.
func (SystemClock) Now() time.Time { return time.Now() }

// Network is how a node listens and dials. Addresses are "host:port"; a node
// that listens on port 0 learns its port from the listener.
type Network interface {
	// Listen accepts streams (TCP) at addr.
	Listen(ctx context.Context, addr string) (net.Listener, error)
	// ListenPacket receives datagrams (UDP) at addr.
	ListenPacket(ctx context.Context, addr string) (net.PacketConn, error)
	// Dial opens a stream to addr.
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// OSNetwork is the machine's own network.
type OSNetwork struct{}

// Listen accepts TCP connections at addr.
func (OSNetwork) Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// ListenPacket receives UDP datagrams at addr.
func (OSNetwork) ListenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	var lc net.ListenConfig
	return lc.ListenPacket(ctx, "udp", addr)
}

// Dial opens a TCP connection to addr.
func (OSNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}
