package trust

import (
	"net"
	"net/netip"
	"sync"
)

// ConnLimiter limits how many connections are open at a time, in all and from one host. So a host that opens as many as
// it can does not keep others away.
type ConnLimiter struct {
	max, ofHost int

	mu     sync.Mutex // guards what follows
	open   int
	byHost map[string]int
}

// NewConnLimiter returns a ConnLimiter without connections.
func NewConnLimiter(max, ofHost int) *ConnLimiter {
	return &ConnLimiter{max: max, ofHost: ofHost, byHost: make(map[string]int)}
}

// Acquire counts a connection of a host. release ends it and is called once; ok is false if there is no room.
func (c *ConnLimiter) Acquire(host string) (release func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.max || c.byHost[host] >= c.ofHost {
		return nil, false
	}
	c.open++
	c.byHost[host]++
	return func() { c.release(host) }, true
}

func (c *ConnLimiter) release(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.byHost[host]--; c.byHost[host] == 0 {
		delete(c.byHost, host)
	}
}

// subnetBits is how many bits of an IPv6 address its host cannot choose: a host with one address in a /64 can use all
// of them.
const subnetBits = 64

// HostOf returns the host for which a connection counts: an IPv4 address, or the /64 of an IPv6 address. It is "" if
// there is no address, and any other address as it is.
func HostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return HostAt(a.String())
}

// HostAt is HostOf for an address as text.
func HostAt(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return address
		}
		return host
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() || ip.IsLoopback() {
		return ip.String()
	}
	subnet, _ := ip.Prefix(subnetBits) // cannot fail: an IPv6 address has more bits
	return subnet.String()
}
