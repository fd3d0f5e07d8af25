package trust_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
)

// A host of a certificate is an IP or a DNS name, perhaps with a wildcard in front.
func TestCheckHost(t *testing.T) {
	label := strings.Repeat("a", 63)
	for _, host := range []string{
		"10.0.0.1", "::1", "fd00::1", "localhost", "ebb-0", "ebb-0.example.org", "*.ebb-peers.ebb.svc", "my_node", "xn--bcher-kva.example", "7", "3com.example", label + ".org",
	} {
		if err := trust.CheckHost(host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, host := range []string{
		"", " ", "bad host", "ebb.example.org:7070", "10.0.0.1:7070", "[::1]", "10.0.0.300", "10.0.0.0/8", "fe80::1%eth0", "https://ebb", "*", "*.", "a.*.org", "e*.org", "**.org", "a..b", ".a", "a.",
		"-a", "a-", "b\u00fccher.example", "a\x00b", "a,b", label + "a.org", strings.Repeat("a.", 130) + "org", strings.Repeat(" ", 10_000),
	} {
		err := trust.CheckHost(host)
		if !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "neither a DNS name nor an IP address") || len(err.Error()) > 1500 {
			t.Errorf("%.80q: %v", host, err)
		}
	}
}
