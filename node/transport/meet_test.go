package transport

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNobodyIsHeardUnmet: while a node cannot write down that it meets another, or has not done so yet, neither what that one asks nor what it answers
// gets to the node's replicas; what waits is given up when it is due.
func TestNobodyIsHeardUnmet(t *testing.T) {
	for _, unable := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			var full, hangs atomic.Bool
			full.Store(true)
			w, asks := pair(t, func(c *Config) {
				if c.Node != unable {
					return
				}
				c.Meet = func(ctx context.Context, _ string) error {
					if hangs.Load() {
						<-ctx.Done()
						return ctx.Err()
					}
					if full.Load() {
						return errors.New("no space left")
					}
					return nil
				}
			})
			none := func(why string) {
				if err := vote(asks, "b/12"); err == nil {
					t.Errorf("%s at %s: b's vote was heard", why, unable)
				}
				if met := w.nodes[unable].Met(); len(met) > 0 {
					t.Errorf("%s at %s: it has met %v", why, unable, met)
				}
			}
			none("a full disk")
			hangs.Store(true)
			began := time.Now()
			none("a disk that hangs")
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a disk that hangs at %s: a vote was waited for %v", unable, took)
			}
			hangs.Store(false)
			full.Store(false)
			if err := vote(asks, "b/12"); err != nil {
				t.Errorf("nobody at %s is heard: %v", unable, err)
			}
			for name, other := range map[string]string{"a": "b", "b": "a"} {
				if met := w.nodes[name].Met(); !slices.Equal(met, []string{other}) {
					t.Errorf("%s has met %v, want %s", name, met, other)
				}
			}
		})
	}
}
