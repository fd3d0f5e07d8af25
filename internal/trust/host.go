package trust

import (
	"net"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// What DNS allows of a name, in all and between two dots.
const (
	hostLenMax  = 253
	labelLenMax = 63
)

// CheckHost refuses what no certificate can hold for. A host is an IP or the name of one in DNS, whose first label may
// be a *.
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
		return refused // 10.0.0.300: no name ends in a number
	}
	return nil
}

// isLabel reports whether a text can stand between two dots of a name. Go's own check takes underscores, too, which are
// in use.
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
