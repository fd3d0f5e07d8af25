package node

import (
	"net"
	"net/netip"
	"testing"
)

// at is a listener at an address.
type at struct {
	net.Listener
	address net.Addr
}

func (l at) Addr() net.Addr { return l.address }

// simulated is an address of a network that is not the machine's.
type simulated string

func (simulated) Network() string  { return "simulated" }
func (s simulated) String() string { return string(s) }

// A listener on loopback always has a list of names; one that other machines reach has one where names are given.
func TestHostsOfListeners(t *testing.T) {
	tcp := func(address string) net.Listener {
		return at{address: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
	}
	const loopback = "localhost, 127.0.0.1, ::1"
	for _, c := range []struct {
		name       string
		listener   net.Listener
		advertised string
		given      []string
		want       string // "" for every name
	}{
		{"default", tcp(DefaultHTTP), "", nil, loopback},
		{"IPv6", tcp("[::1]:7080"), "", nil, loopback},
		{"mapped", tcp("[::ffff:127.0.0.1]:7080"), "", nil, loopback},
		{"another of loopback", tcp("127.0.0.9:7080"), "", nil, loopback + ", 127.0.0.9"},
		{"behind a proxy", tcp(DefaultHTTP), "ebb.example:443", nil, loopback + ", ebb.example"},
		{"named", tcp(DefaultHTTP), "", []string{"a.example", "B.example:80"}, loopback + ", a.example, b.example"},
		{"both", tcp(DefaultHTTP), "ebb.example:443", []string{"a.example"}, loopback + ", a.example, ebb.example"},
		{"all addresses", tcp("0.0.0.0:7080"), "", nil, ""},
		{"all addresses, advertised", tcp("[::]:7080"), "ebb.example:7080", nil, ""},
		{"one address", tcp("10.0.0.7:7080"), "", nil, ""},
		{"all addresses, named", tcp("0.0.0.0:7080"), "10.0.0.7:7080", []string{"a.example"}, loopback + ", a.example, 10.0.0.7"},
		{"a simulated network", at{address: simulated("ebb-0:7080")}, "", nil, ""},
		{"off", nil, "", nil, ""},
	} {
		cfg := Config{AdvertiseHTTP: c.advertised, HTTPHosts: c.given}
		got := ""
		if h := cfg.hosts(c.listener); h != nil {
			got = h.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
