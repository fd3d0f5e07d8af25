package transport

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// A node is silent for as long as nothing has come from it, since one of its replicas asked one of ours; one that never
// did is not.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		b := w.nodes["b"]
		if silent := b.Silent(0); len(silent) > 0 {
			t.Errorf("%v are silent, and none has asked", silent)
		}
		if err := appendTo(g, "b/12", 10); err != nil { // whose stream carries no pings
			t.Fatal(err)
		}
		w.net.isolate("a", true, "b")
		within(t, time.Minute, "a is silent for 20s", func() bool {
			return slices.Equal(b.Silent(20*time.Second), []string{"a"})
		})
		silent := b.mono() - time.Duration(b.peer("a").lastRequest.Load())
		if silent > 21*time.Second {
			t.Errorf("a is said to be silent for 20s after %s", silent)
		}
		if got := b.Silent(silent); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%v are silent for exactly as long as a is", got)
		}
		if got := b.Silent(silent + 1); len(got) > 0 {
			t.Errorf("%v are silent for longer than they are", got)
		}
		if got := w.nodes["a"].Silent(0); len(got) > 0 {
			t.Errorf("%v are silent at a, whose replicas none has asked", got)
		}
	})
}

// What a node says of its memory and its disk its peers hear with its clock, and when it is over.
func TestWhatPeersSayOfThemselves(t *testing.T) {
	for name, c := range map[string]struct {
		say  func(*Mux, bool)
		hear func(*Mux) []string
	}{
		"full":      {(*Mux).SetFull, (*Mux).Full},
		"pressed":   {(*Mux).SetPressed, (*Mux).Pressed},
		"disk full": {(*Mux).SetDiskFull, (*Mux).DiskFull},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := pair(t, nil)
				if err := vote(g, "b/12"); err != nil {
					t.Fatal(err)
				}
				a, b := w.nodes["a"].Mux, w.nodes["b"].Mux
				for _, on := range []bool{true, false} {
					c.say(b, on)
					time.Sleep(2 * a.cfg.PingInterval)
					said := len(a.Full()) + len(a.Pressed()) + len(a.DiskFull())
					if heard := c.hear(a); slices.Contains(heard, "b") != on || said != len(heard) {
						t.Errorf("b says %v, a hears of %v, and of %d in all", on, heard, said)
					}
				}
			})
		})
	}
}

// A node is linked while there is a session to it on which it answers.
func TestLinked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		a := w.nodes["a"]
		linked := func(when string, b bool) {
			t.Helper()
			if a.Linked("b") != b || a.Linked("c") {
				t.Errorf("%s: linked to b %v, to c %v", when, a.Linked("b"), a.Linked("c"))
			}
		}
		linked("at first", false)
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		linked("with a session", true)
		time.Sleep(time.Minute)
		linked("a minute later", true)
		w.net.cut("b", "a", true)
		time.Sleep(3*a.cfg.PingInterval + time.Millisecond)
		linked("cut off", false)
	})
}

// logged is a log of a test.
type logged struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// The log tells of a session that is lost, once for each reason, and not of one that this node ends itself.
func TestSessionsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w := newWorld(t, func(c *Config) {
			if c.Node == "a" {
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}
		}, "a", "b")
		t.Cleanup(echo(w.nodes["b"].Group(1, "b/12")))
		g := w.nodes["a"].Group(1, "a/11")
		says := func(when string, opened, lost int) {
			t.Helper()
			synctest.Wait()
			if o, l := log.count(`"session opened"`), log.count(`"no session"`); o != opened || l != lost {
				t.Errorf("%s: %d lines of sessions opened and %d of none, want %d and %d", when, o, l, opened, lost)
			}
		}
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		says("a session", 1, 0)
		w.nodes["b"].stop()
		w.net.reset("b")
		time.Sleep(time.Minute)
		says("a minute without one", 1, 2) // it was lost, and no connection can be made
		w.start("b", nil)
		within(t, 10*time.Second, "a session again", func() bool { return w.nodes["a"].Peers()[0].Connected })
		says("a session again", 2, 2)
		w.nodes["a"].Close()
		says("the end", 2, 2)
	})
}

// A session counts as alive from when it opens, however long the node runs already.
func TestNewSessionIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		a := w.nodes["a"]
		time.Sleep(time.Minute)
		p := newPeer(a.Mux, "b")
		defer p.cancel()
		s, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		w.net.cut("b", "a", true)
		opened := time.Now()
		<-s.broken
		isCode(t, s.err, proto.ErrUnreachable)
		if d := time.Since(opened); d < a.cfg.PingTimeout || d > a.cfg.PingTimeout+2*a.cfg.PingInterval {
			t.Errorf("a session without a word is given up after %s: %v", d, s.err)
		}
		s.close()
	})
}
