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

// TestContactIsRecordedFirst: until a node has recorded the contact with another durably, no request or answer of that
// one reaches its replicas. What waits for that ends at its deadline.
func TestContactIsRecordedFirst(t *testing.T) {
	for _, unable := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			var full, hangs atomic.Bool
			full.Store(true)
			w, asks := pair(t, func(c *Config) {
				if c.Node != unable {
					return
				}
				c.RecordContact = func(ctx context.Context, _ string) error {
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
				if contacted := w.nodes[unable].Contacted(); len(contacted) > 0 {
					t.Errorf("%s at %s: it has contacted %v", why, unable, contacted)
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
				t.Errorf("%s takes no message: %v", unable, err)
			}
			for name, other := range map[string]string{"a": "b", "b": "a"} {
				if contacted := w.nodes[name].Contacted(); !slices.Equal(contacted, []string{other}) {
					t.Errorf("%s has contacted %v, want %s", name, contacted, other)
				}
			}
		})
	}
}
