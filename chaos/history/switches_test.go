package history

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Histories that bits can have, and such that they cannot.
func TestCheckSwitches(t *testing.T) {
	for _, c := range []struct {
		name string
		play func(s *Switches)
		want porcupine.CheckResult
	}{
		{"nothing", func(*Switches) {}, porcupine.Ok},
		{"set, seen, cleared", func(s *Switches) {
			click1(s, Set, true)
			click1(s, Look, true)
			click1(s, Set, false)
			click1(s, Clear, true)
			click1(s, Look, false)
		}, porcupine.Ok},
		{"flips", func(s *Switches) {
			click1(s, Flip, true)
			click1(s, Flip, true)
			click1(s, Look, false)
		}, porcupine.Ok},
		{"set twice, and both say that they changed it", func(s *Switches) {
			click1(s, Set, true)
			click1(s, Set, true)
		}, porcupine.Illegal},
		{"two at once, and both say that they changed it", func(s *Switches) {
			a, b := s.Begin(1, "x", 7, Set), s.Begin(2, "x", 7, Set)
			a.Done(true)
			b.Done(true)
		}, porcupine.Illegal},
		{"two at once, one of which changed it", func(s *Switches) {
			a, b := s.Begin(1, "x", 7, Set), s.Begin(2, "x", 7, Set)
			a.Done(false)
			b.Done(true)
		}, porcupine.Ok},
		{"a read of the past", func(s *Switches) {
			click1(s, Set, true)
			click1(s, Look, false)
		}, porcupine.Illegal},
		{"a set without an answer comes late", func(s *Switches) {
			s.Begin(1, "x", 7, Set).Unknown()
			click1(s, Look, false)
			click1(s, Look, true)
		}, porcupine.Ok},
		{"or never", func(s *Switches) {
			s.Begin(1, "x", 7, Set).Unknown()
			click1(s, Look, false)
		}, porcupine.Ok},
		{"but not twice", func(s *Switches) {
			s.Begin(1, "x", 7, Flip).Unknown()
			click1(s, Look, true)
			click1(s, Look, false)
		}, porcupine.Illegal},
		{"a set that failed was not done", func(s *Switches) {
			s.Begin(1, "x", 7, Set)
			click1(s, Look, true)
		}, porcupine.Illegal},
		{"a read without an answer says nothing", func(s *Switches) {
			s.Begin(1, "x", 7, Look).Unknown()
			click1(s, Look, false)
		}, porcupine.Ok},
		{"bits are apart", func(s *Switches) {
			click1(s, Set, true)
			s.Begin(1, "x", 8, Look).Done(false)
		}, porcupine.Ok},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSwitches(func() time.Duration { return time.Second })
			c.play(s)
			if got, _ := s.Check(limit); got != c.want {
				t.Errorf("%v", got)
			}
			var said strings.Builder
			for _, e := range s.Explain(limit) {
				said.WriteString(e.Text + "\n")
			}
			if (said.Len() == 0) != (c.want == porcupine.Ok) || c.want == porcupine.Illegal && !strings.Contains(said.String(), "not placed: ") {
				t.Errorf("explained: %q", said.String())
			}
		})
	}
}

func click1(s *Switches, act BitOp, yes bool) { s.Begin(1, "x", 7, act).Done(yes) }
