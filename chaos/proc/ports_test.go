package proc

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// Ports are asked for, once each, below those that the kernel gives away.
func TestFreeAddresses(t *testing.T) {
	end := ofMachine().end
	given := map[netip.AddrPort]bool{}
	for _, n := range []int{0, 1, 12} {
		addrs, err := FreeAddresses(n)
		if err != nil || len(addrs) != n {
			t.Fatalf("%d of %d addresses: %v", len(addrs), n, err)
		}
		for _, addr := range addrs {
			a := netip.MustParseAddrPort(addr)
			if !a.Addr().IsLoopback() || int(a.Port()) < portMin || int(a.Port()) >= end {
				t.Errorf("%s is not a loopback address with a port from %d to %d", a, portMin, end-1)
			}
			if given[a] {
				t.Errorf("%s was given twice", a)
			}
			given[a] = true
		}
	}
}

func TestEphemeralStart(t *testing.T) {
	for said, want := range map[string]int{
		"32768\t60999\n": 32768,
		"49152 65535":    49152,
		"15000\t61000\n": 15000,
		"10256 65535":    10256, // one block
		"10255 65535":    ephemeralMin,
		"1024\t65535\n":  ephemeralMin, // nothing below it is better than anything else
		"":               ephemeralMin,
		"32768":          ephemeralMin,
		"low high":       ephemeralMin,
	} {
		if got := ephemeralStart(said); got != want {
			t.Errorf("%q: %d, not %d", said, got, want)
		}
	}
}

// fresh is what another process that begins at the same place would have.
func fresh(t *testing.T, start int) *ports {
	t.Helper()
	m := ofMachine()
	p := &ports{first: m.first, end: m.end, start: start}
	t.Cleanup(func() {
		for _, l := range p.claims {
			l.Close()
		}
	})
	return p
}

func taken(t *testing.T, p *ports, n int) []string {
	t.Helper()
	addrs, err := p.take(n)
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

// Two processes that begin at the same block, the last, never share a port. The second continues where the range
// begins.
func TestClaimsKeepProcessesApart(t *testing.T) {
	last := (ofMachine().end-portMin)/blockPorts - 1
	a, b := fresh(t, last), fresh(t, last)
	given := map[string]bool{}
	for range 2 * blockPorts / 16 {
		for _, addr := range append(taken(t, a, 16), taken(t, b, 16)...) {
			if given[addr] {
				t.Fatalf("%s was given to both", addr)
			}
			given[addr] = true
		}
	}
}

// A port in use for streams or for packets alone is not free.
func TestPortsInUseArePassedOver(t *testing.T) {
	p := fresh(t, 0)
	addrs := taken(t, p, 2)
	p.next = int(netip.MustParseAddrPort(addrs[0]).Port())
	stream, err := net.Listen("tcp", addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packet, err := net.ListenPacket("udp", addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	defer packet.Close()
	for _, addr := range taken(t, p, 2) {
		if slices.Contains(addrs, addr) {
			t.Errorf("%s is in use", addr)
		}
	}
}

// A range of one block: another has it, and that one uses it up.
func TestNoPortIsLeft(t *testing.T) {
	owner := fresh(t, 0)
	taken(t, owner, 1)
	first, end := owner.blockEnd-blockPorts, owner.blockEnd
	p := &ports{first: first, end: end}
	if addrs, err := p.take(1); err == nil {
		t.Errorf("got %s in a block of another's", addrs)
	}
	owner.first, owner.end = first, end
	if addrs, err := owner.take(blockPorts); err == nil {
		t.Errorf("got %d more ports in a block of %d", len(addrs), blockPorts)
	}
}
