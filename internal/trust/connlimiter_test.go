package trust_test

import (
	"net"
	"testing"

	"github.com/ebbdb/ebb/internal/trust"
)

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// A host with IPv6 has more addresses than anybody could count: it counts as its subnet.
func TestHostOf(t *testing.T) {
	for from, want := range map[net.Addr]string{
		address("10.0.0.9:51234"):                      "10.0.0.9",
		address("[::ffff:10.0.0.9]:51234"):             "10.0.0.9",
		address("[2001:db8:1:2:3:4:5:6]:1"):            "2001:db8:1:2::/64",
		address("[2001:db8:1:2:ffff::1]:2"):            "2001:db8:1:2::/64",
		address("[2001:db8:1:3::1]:2"):                 "2001:db8:1:3::/64",
		address("[fe80::1%eth0]:2"):                    "fe80::/64",
		address("[::1]:7070"):                          "::1",
		address("ebb-0.ebb.svc:7070"):                  "ebb-0.ebb.svc",
		address("bufconn"):                             "bufconn",
		nil:                                            "",
		&net.TCPAddr{IP: net.IP{10, 0, 0, 9}, Port: 1}: "10.0.0.9",
	} {
		if got := trust.HostOf(from); got != want {
			t.Errorf("%v counts for %q, want %q", from, got, want)
		}
	}
}

func TestConnLimiter(t *testing.T) {
	c := trust.NewConnLimiter(3, 2)
	release, ok := c.Acquire("a")
	_, ok2 := c.Acquire("a")
	if _, ok3 := c.Acquire("a"); !ok || !ok2 || ok3 {
		t.Errorf("three of one host: %v, %v, %v", ok, ok2, ok3)
	}
	if _, ok := c.Acquire("b"); !ok {
		t.Error("another host is kept out")
	}
	if _, ok := c.Acquire("c"); ok {
		t.Error("a fourth is let in")
	}
	release()
	if _, ok := c.Acquire("c"); !ok {
		t.Error("the place of a released connection stays taken")
	}
}
