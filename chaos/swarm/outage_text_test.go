package swarm

import (
	"testing"
	"time"
)

// The text says how soon majorities served again after one leader or several were cut off. It names no time if none
// was.
func TestOutageText(t *testing.T) {
	for _, c := range []struct {
		took []time.Duration
		want string
	}{
		{nil, "no leader cut off"},
		{[]time.Duration{time.Second}, "1 leader cut off, a majority acknowledged again within 1s"},
		{[]time.Duration{2 * time.Second, time.Second}, "2 leaders cut off, a majority acknowledged again within 1s at the median, 2s at p99, 2s at most"},
	} {
		var o Outage
		o.add(c.took...)
		if got := o.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
