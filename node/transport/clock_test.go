package transport

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
)

// inertStream is a grpc.ServerStream that does nothing.
type inertStream struct{}

func (inertStream) SetHeader(metadata.MD) error  { return nil }
func (inertStream) SendHeader(metadata.MD) error { return nil }
func (inertStream) SetTrailer(metadata.MD)       {}
func (inertStream) Context() context.Context     { return context.Background() }
func (inertStream) SendMsg(any) error            { return nil }
func (inertStream) RecvMsg(any) error            { return nil }

func TestOffsetsFollowTheClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		skew := map[string]*atomic.Int64{"a": {}, "b": {}, "c": {}}
		w := newWorld(t, func(c *Config) {
			s := skew[c.Node]
			c.Now = func() time.Time { return time.Now().Add(time.Duration(s.Load())) }
		}, "a", "b", "c")
		w.rafts(1)
		w.elect(1, w.names...)
		a := w.nodes["a"]
		g := a.group(1)
		for _, to := range []string{"b", "c"} {
			_ = heartbeat(g, Address(to, 99)) // a talks to both, whoever leads
		}
		near := func(node string, want time.Duration) func() bool {
			return func() bool {
				got, ok := a.Offsets(time.Time{})[node]
				return ok && (got-want).Abs() < 10*time.Millisecond
			}
		}
		within(t, 2*time.Second, "b is in time", near("b", 0))
		skew["b"].Store(int64(time.Hour))
		skew["c"].Store(-int64(10 * 365 * 24 * time.Hour))
		within(t, 5*time.Second, "b is ahead", near("b", time.Hour))
		within(t, 5*time.Second, "c is behind", near("c", -10*365*24*time.Hour))
		for _, p := range a.Peers() {
			if want := a.Offsets(time.Time{})[p.Node]; p.Offset != want || p.RTT <= 0 || p.RTT > 10*time.Millisecond {
				t.Errorf("%s is %s ahead by a round trip of %s in its status, and %s", p.Node, p.Offset, p.RTT, want)
			}
		}

		// A jump of our own clock shows at once: a leader that stamps with it
		// must not have to wait for the next sample.
		skew["a"].Store(int64(24 * time.Hour))
		if !near("b", time.Hour-24*time.Hour)() {
			t.Errorf("b is %s ahead of a clock that has jumped by a day", a.Offsets(time.Time{})["b"])
		}
		now := time.Now().Add(1)
		if known := a.Offsets(now); len(known) > 0 {
			t.Errorf("%v by samples that are still to be asked for", known)
		}
		within(t, 2*time.Second, "b was asked again", func() bool { _, ok := a.Offsets(now)["b"]; return ok })
		// A node that has no memory left says so with its clock. A node that is gone is not asked.
		w.nodes["b"].SetFull(true)
		within(t, 5*time.Second, "b is full", func() bool { return slices.Equal(a.Full(), []string{"b"}) })
		w.net.isolate("b", true, "a", "c")
		time.Sleep(clockFresh + time.Second)
		if _, ok := a.Offsets(time.Time{})["b"]; ok {
			t.Error("an offset that nobody has confirmed for ten seconds is still given")
		}
		if full := a.Full(); len(full) > 0 {
			t.Errorf("%v full, though nobody heard of it for ten seconds", full)
		}
		if _, ok := a.Offsets(time.Time{})["c"]; !ok {
			t.Error("c's offset is gone")
		}
	})
}

func TestBestSampleWins(t *testing.T) {
	var c clock
	wall := time.UnixMicro(1_000_000_000)
	at := func(now, rtt, held time.Duration, wall int64) {
		c.sample(now, &pong{sent: now - rtt - held, held: held, wall: wall})
	}
	at(time.Second, 10*time.Millisecond, time.Hour, 1_000_000_000)
	at(2*time.Second, 500*time.Millisecond, 0, 1_000_700_000) // delayed on one way
	ahead, rtt, ok := c.offset(2*time.Second, wall, anytime)
	if !ok || rtt != 10*time.Millisecond || ahead != time.Second+5*time.Millisecond {
		t.Errorf("%s ahead by a round trip of %s", ahead, rtt)
	}
	if _, rtt, ok := c.offset(2*time.Second, wall, 1400*time.Millisecond); !ok || rtt != 500*time.Millisecond {
		t.Errorf("of what was asked since then: %s, %v", rtt, ok)
	}
	if _, _, ok := c.offset(2*time.Second, wall, 1600*time.Millisecond); ok {
		t.Error("a sample that came since then was asked for before")
	}
	if _, _, ok := c.offset(2*time.Second, wall, 1500*time.Millisecond); !ok {
		t.Error("a sample is older than the moment at which it was asked for")
	}
	if _, _, ok := c.offset(2*time.Second+clockFresh, wall, anytime); !ok {
		t.Error("a sample is old before its time")
	}
	c.sample(time.Second, &pong{sent: 2 * time.Second}) // from the future: a lie
	for now := 3 * time.Second; now < 6*time.Second; now += time.Second {
		at(now, 20*time.Millisecond, 0, 5_000_000)
	}
	if ahead, rtt, _ := c.offset(5*time.Second, time.UnixMicro(0), anytime); rtt != 20*time.Millisecond || ahead <= 0 {
		t.Errorf("an old sample outlives three new ones: %s ahead, round trip %s", ahead, rtt)
	}
	if _, _, ok := c.offset(16*time.Second, wall, anytime); ok {
		t.Error("a sample is good for ever")
	}
}
