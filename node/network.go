package node

import (
	"context"
	"net"
	"time"
)

// Clock returns the time of day. Leaders stamp log entries by it; nothing else that is replicated depends on it.
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
type OSNetwork struct {
	// Resolver looks up names; the machine's own when nil.
	Resolver *net.Resolver
}

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
func (n OSNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Resolver: n.Resolver}
	return d.DialContext(ctx, "tcp", addr)
}

// LookupHost returns the addresses that a name stands for.
func (n OSNetwork) LookupHost(ctx context.Context, host string) ([]string, error) {
	return n.Resolver.LookupHost(ctx, host)
}

// ResolverAt returns a resolver that asks one DNS server, at "host:port", instead of the machine's own servers.
func ResolverAt(server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, server)
	}}
}

// resolver returns how a network looks up names; nil if the machine looks them up.
func resolver(n Network) func(ctx context.Context, host string) ([]string, error) {
	if names, ok := n.(interface {
		LookupHost(ctx context.Context, host string) ([]string, error)
	}); ok {
		return names.LookupHost
	}
	return nil
}
