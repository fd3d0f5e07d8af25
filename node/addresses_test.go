package node

import "testing"

// Gossip gives only the port of a name: others see for themselves where the node is now. The control group's records
// keep the name, and clients get it.
func TestNamesAndGossip(t *testing.T) {
	for _, c := range []struct {
		record, told string
		heard        string // by others, of a node at 10.1.2.3
	}{
		{"ebb-0.ebb.shop.svc:7070", ":7070", "10.1.2.3:7070"},
		{"10.1.2.3:7070", "10.1.2.3:7070", "10.1.2.3:7070"},
		{"192.0.2.1:443", "192.0.2.1:443", "192.0.2.1:443"},
		{"[2001:db8::1]:7070", "[2001:db8::1]:7070", "[2001:db8::1]:7070"},
		{"", "", ""},
	} {
		if got := unnamed(c.record); got != c.told {
			t.Errorf("%q is told as %q, want %q", c.record, got, c.told)
		}
		if !reaches(c.record, c.heard) {
			t.Errorf("%q does not stand for %q", c.record, c.heard)
		}
		if c.record != "" && reaches(c.record, "10.9.9.9:9999") {
			t.Errorf("%q stands for another address", c.record)
		}
	}
}
