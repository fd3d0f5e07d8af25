package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// wrongClock is the bubble's clock with an error.
type wrongClock struct{ by time.Duration }

func (c *wrongClock) Now() time.Time { return time.Now().Add(c.by) }

// keeping runs f with a timekeeper that samples peers whose clocks differ from
// true time, which ours may do too.
func keeping(t *testing.T, f func(own *wrongClock, peers map[string]time.Duration, k *timekeeper)) {
	synctest.Test(t, func(*testing.T) {
		own, peers := new(wrongClock), map[string]time.Duration{}
		k := newTimekeeper(own, func(time.Time) map[string]time.Duration {
			offsets := map[string]time.Duration{}
			for name, by := range peers {
				offsets[name] = by - own.by
			}
			return offsets
		})
		f(own, peers, k)
	})
}

// settle lets the timekeeper take samples for a while.
func (k *timekeeper) settle() {
	for range 10 {
		time.Sleep(clockSample)
		k.sample()
	}
}

func TestStampGuard(t *testing.T) {
	const h, ms = time.Hour, time.Millisecond
	for _, c := range []struct {
		name   string
		own    time.Duration
		peers  map[string]time.Duration
		voters []string
		refuse bool
	}{
		{"all agree", 0, map[string]time.Duration{"b": 0, "c": 0}, []string{"a", "b", "c"}, false},
		{"a little ahead", 499 * ms, map[string]time.Duration{"b": 0, "c": 0}, []string{"a", "b", "c"}, false},
		{"too far ahead", 501 * ms, map[string]time.Duration{"b": 0, "c": 0}, []string{"a", "b", "c"}, true},
		{"ten years ahead", 10 * 365 * 24 * h, map[string]time.Duration{"b": 0, "c": 0}, []string{"a", "b", "c"}, true},
		{"behind", -h, map[string]time.Duration{"b": 0, "c": 0}, []string{"a", "b", "c"}, false},
		{"one peer behind", 0, map[string]time.Duration{"b": -h, "c": 0}, []string{"a", "b", "c"}, false},
		{"both peers behind", 0, map[string]time.Duration{"b": -h, "c": -h}, []string{"a", "b", "c"}, true},
		{"one peer known, behind", 0, map[string]time.Duration{"b": -h}, []string{"a", "b", "c"}, true},
		{"one peer known, ahead", 0, map[string]time.Duration{"b": h}, []string{"a", "b", "c"}, false},
		{"no peer known", 0, nil, []string{"a", "b", "c"}, true},
		{"alone", 10 * h, nil, []string{"a"}, false},
		{"strangers do not count", h, map[string]time.Duration{"x": h, "y": h, "b": 0, "c": 0}, []string{"a", "b", "c"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			keeping(t, func(own *wrongClock, peers map[string]time.Duration, k *timekeeper) {
				own.by = c.own
				for name, by := range c.peers {
					peers[name] = by
				}
				k.settle()
				now, err := k.stamp("a", c.voters)
				if refused := err != nil; refused != c.refuse || refused && !errors.Is(err, proto.ErrClockSkew) {
					t.Errorf("stamp: %v, want refusal: %v", err, c.refuse)
				}
				if err == nil && now != own.Now().UnixMicro() {
					t.Errorf("stamp %d, want our clock's %d", now, own.Now().UnixMicro())
				}
			})
		})
	}
}

// A jump of our own clock is noticed before any sample of a peer could show it,
// and forgiven when the peers' clocks turn out to have jumped as well.
func TestJumpIsSeenAtOnce(t *testing.T) {
	voters := []string{"a", "b", "c"}
	keeping(t, func(own *wrongClock, peers map[string]time.Duration, k *timekeeper) {
		peers["b"], peers["c"] = 0, 0
		k.settle()
		own.by = time.Hour
		if _, err := k.stamp("a", voters); !errors.Is(err, proto.ErrClockSkew) {
			t.Errorf("right after the jump: %v, want CLOCK_SKEW", err)
		}
		k.sample()
		if _, err := k.stamp("a", voters); !errors.Is(err, proto.ErrClockSkew) {
			t.Errorf("with samples from before the jump: %v, want CLOCK_SKEW", err)
		}
		peers["b"], peers["c"] = time.Hour, time.Hour
		k.settle()
		if _, err := k.stamp("a", voters); err != nil {
			t.Errorf("after all have jumped: %v", err)
		}
	})
}

// A sample taken just before our clock jumped is not believed after it.
func TestOldSamplesAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := new(wrongClock)
		stale := map[string]time.Duration{"b": 0, "c": 0} // as measured before the jump
		k := newTimekeeper(own, func(time.Time) map[string]time.Duration { return stale })
		k.settle()
		own.by = 10 * 365 * 24 * time.Hour
		for range 2 {
			time.Sleep(clockSample)
			k.sample()
			if _, err := k.stamp("a", []string{"a", "b", "c"}); err == nil {
				t.Fatal("a stamp ten years ahead was given out")
			}
		}
	})
}

// When a machine stands still, its monotonic clock does too. Its wall clock is set right when the machine runs again.
// By what was heard of peers' clocks before, no time has passed. Until they are heard again, there is no time of day by
// which a bounded read could be proved.
func TestNoTimeAfterAStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stood = time.Minute
		own, world, heard := new(wrongClock), time.Duration(0), time.Now() // world is how far the others are ahead of the bubble, as last heard
		k := newTimekeeper(own, func(since time.Time) map[string]time.Duration {
			if heard.Before(since) {
				return nil
			}
			return map[string]time.Duration{"b": world - own.by, "c": world - own.by}
		})
		check := func(when string, want bool) {
			t.Helper()
			now, ok := k.median("a", []string{"a", "b", "c"})
			if off := time.Duration(now-time.Now().Add(own.by).UnixMicro()) * time.Microsecond; ok != want || ok && off.Abs() > clockJump {
				t.Errorf("%s: %v, by %v off the time; want %v", when, ok, off, want)
			}
		}
		k.settle()
		check("before", true)
		own.by = stood
		check("right after it", false)
		for range 20 {
			time.Sleep(clockSample)
			k.sample()
			check("while no peer is heard", false)
		}
		heard, world = time.Now(), stood
		k.settle()
		check("when peers are heard again", true)
	})
}

// A bounded read takes the stamp of the last entry for the leader's time, which
// may be ahead by stampAheadMax and no more.
func TestStaleness(t *testing.T) {
	const now = 1_700_000_000_000_000
	for _, c := range []struct {
		name  string
		ahead time.Duration // of the stamp
		age   time.Duration
		ok    bool
	}{
		{"stamped just now", 0, stampAheadMax, true},
		{"two seconds ago", -2 * time.Second, 2*time.Second + stampAheadMax, true},
		{"no entry yet", -now * time.Microsecond, now*time.Microsecond + stampAheadMax, true},
		{"by a leader as far ahead as it may be", stampAheadMax, 0, true},
		{"by one further ahead", stampAheadMax + time.Microsecond, -time.Microsecond, false},
		{"by clocks that were an hour fast", time.Hour, stampAheadMax - time.Hour, false},
	} {
		age, ok := staleness(now, now+c.ahead.Microseconds())
		if age != c.age || ok != c.ok {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, age, ok, c.age, c.ok)
		}
	}
}
