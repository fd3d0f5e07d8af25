package bench

import (
	"bufio"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuantiles(t *testing.T) {
	var l Latencies
	if q := l.Quantiles(); q != (Quantiles{}) {
		t.Errorf("of nothing: %+v", q)
	}
	for i := 1000; i >= 1; i-- {
		l.Add(time.Duration(i) * time.Millisecond)
	}
	want := Quantiles{N: 1000, P50: 501 * time.Millisecond, P90: 901 * time.Millisecond, P99: 991 * time.Millisecond, P999: time.Second, Max: time.Second}
	if q := l.Quantiles(); q != want {
		t.Errorf("got %+v, want %+v", q, want)
	}
}

// The load continues at its rate however slow the answers are.
func TestPaceIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		start := time.Now()
		pace(100, 2*time.Second, nil, func(time.Time) {
			sent.Add(1)
			time.Sleep(10 * time.Second)
		})
		if n, took := sent.Load(), time.Since(start); n != 200 || took > 12*time.Second+time.Millisecond {
			t.Errorf("%d sent in %v, want 200 in 12 s", n, took)
		}
	})
}

// Two workers with one seed draw the same pairs; with another seed, others.
func TestPairsFollowTheSeed(t *testing.T) {
	draw := func(seed uint64) (out string) {
		p := newPairs(seed, 1000, 10)
		for range 20 {
			key, bin := p.next()
			out += key + " " + bin + ","
		}
		return out
	}
	first, again, other := draw(1), draw(1), draw(2)
	if first != again || first == other {
		t.Error("pairs do not follow the seed")
	}
}

func TestReply(t *testing.T) {
	if err := reply(bufio.NewReader(strings.NewReader("$3\r\n1.5\r\n"))); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "-ERR no\r\n", "$x\r\n", "$3\r\n1"} {
		if reply(bufio.NewReader(strings.NewReader(bad))) == nil {
			t.Errorf("%q was taken for a reply", bad)
		}
	}
}

// The rival counts what it was sent.
func TestRedis(t *testing.T) {
	perSecond, err := Redis(t.Context(), t.TempDir(), 1, 100, 10, 200*time.Millisecond)
	if errors.Is(err, ErrNoRedis) {
		t.Skip(err)
	}
	if err != nil || perSecond <= 0 {
		t.Errorf("%v increments a second, %v", perSecond, err)
	}
}
