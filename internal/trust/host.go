package trust

import (
	"net"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// The limits of DNS for the length of a name, and for a label between two dots.
const (
	hostLenMax  = 253
	labelLenMax = 63
)

// CheckHost refuses a host that no certificate can name. A host is an IP or a DNS name, whose first label may be *.
func CheckHost(host string) error {
	if net.ParseIP(host) != nil {
		return nil
	}
	refused := proto.ErrBadRequest.Errorf("%.300q: it is neither a DNS name nor an IP address", host).
		WithHint("write it as db.example.org, *.example.org, 10.0.0.1 or fd00::1, without a port")
	name := strings.TrimPrefix(host, "*.")
	if len(host) > hostLenMax {
		return refused
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !isLabel(label) {
			return refused
		}
	}
	if last := labels[len(labels)-1]; len(labels) > 1 && strings.Trim(last, "0123456789") == "" {
		return refused // no DNS name ends in a number, as 10.0.0.300 does
	}
	return nil
}

// isLabel reports whether a text can be a label of a DNS name. Like Go's own check it takes underscores, which are in
// use.
func isLabel(s string) bool {
	if s == "" || len(s) > labelLenMax || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}
