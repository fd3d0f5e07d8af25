package trust

import (
	"net"
	"net/netip"
	"sync"
)

// Crowd counts who is in at a time: so many in all, and so many of one host, so that one that takes all that it can does not keep the others away.
type Crowd struct {
	max, ofHost int

	mu     sync.Mutex // guards what follows
	in     int
	byHost map[string]int
}

// NewCrowd returns a Crowd that nobody is in.
func NewCrowd(max, ofHost int) *Crowd {
	return &Crowd{max: max, ofHost: ofHost, byHost: make(map[string]int)}
}

// Enter lets somebody of a host in, who calls leave once; false if there is no room.
func (c *Crowd) Enter(host string) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in >= c.max || c.byHost[host] >= c.ofHost {
		return nil, false
	}
	c.in++
	c.byHost[host]++
	return func() { c.leave(host) }, true
}

func (c *Crowd) leave(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in--
	if c.byHost[host]--; c.byHost[host] == 0 {
		delete(c.byHost, host)
	}
}

// subnetBits are those of an IPv6 address that its host cannot choose: whoever has one address there has all of them.
const subnetBits = 64

// HostOf is whom the address of a connection counts for, "" for none: the IPv4 address, or the /64 of IPv6; what is neither, as it is.
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
