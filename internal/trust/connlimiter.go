package trust

import (
	"net"
	"net/netip"
	"sync"
)

// ConnLimiter limits how many connections are open at a time, in all and of one host: one that opens all that it can
// does not keep the others away.
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

// Acquire counts a connection of a host, and returns what releases it, to be called once; false if there is no room.
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

// subnetBits are those of an IPv6 address that its host cannot choose: whoever has one address there has all of them.
const subnetBits = 64

// HostOf is whom the address of a connection counts for, "" for none: the IPv4 address, or the /64 of IPv6; what is
// neither, as it is.
func HostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return HostAt(a.String())
}

// HostAt is HostOf of an address as text.
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
	subnet, _ := ip.Prefix(subnetBits) // there are as many bits
	return subnet.String()
}
