package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// Whoever asks whether a namespace exists gets a table that is as new as the control leader's was then: questions that
// are on their way do not count. Many at once share few questions.
func TestFreshTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leader, here atomic.Uint64
		var asked atomic.Int32
		f := &freshTable{
			ask: func(context.Context) (uint64, error) {
				asked.Add(1)
				epoch := leader.Load()
				time.Sleep(30 * time.Millisecond) // on its way
				return epoch, nil
			},
			await: func(ctx context.Context, epoch uint64) error {
				return await(ctx, time.Millisecond, func() bool { return here.Load() >= epoch })
			},
		}
		leader.Store(1)
		here.Store(1)
		if err := f.confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		// This node hears of each change 40 ms later.
		change := func() {
			epoch := leader.Add(1)
			time.AfterFunc(40*time.Millisecond, func() { here.Store(epoch) })
		}
		var wg sync.WaitGroup
		for range 100 {
			change()
			wg.Go(func() {
				needs := leader.Load()
				if err := f.confirm(t.Context()); err != nil || here.Load() < needs {
					t.Errorf("a table of %d that has to be of %d: %v", here.Load(), needs, err)
				}
			})
			time.Sleep(7 * time.Millisecond)
		}
		wg.Wait()
		if n := asked.Load(); n > 20 {
			t.Errorf("%d questions in 0.7 s", n)
		}

		f.ask = func(context.Context) (uint64, error) { return 0, errors.New("no leader") }
		if err := f.confirm(t.Context()); !errors.Is(err, proto.ErrNoLeader) {
			t.Errorf("without the control group: %v", err)
		}
		f.ask = func(context.Context) (uint64, error) { return leader.Load() + 1, nil }
		if err := f.confirm(t.Context()); !errors.Is(err, proto.ErrNoLeader) {
			t.Errorf("with a table that does not come: %v", err)
		}
	})
}

// For each change of settings the clock is asked for once. A caller that comes during that waits.
func TestRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r renewals
		var asked, known atomic.Int32
		var fails atomic.Bool
		renew := func() bool {
			asked.Add(1)
			time.Sleep(time.Second)
			known.Add(1)
			return !fails.Load()
		}
		for version := uint64(1); version <= 3; version++ {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					r.once(t.Context(), "n", version, renew)
					if known.Load() != int32(version) {
						t.Errorf("returns at version %d, with what was known at %d", version, known.Load())
					}
				})
			}
			wg.Wait()
		}
		r.once(t.Context(), "n", 2, renew)
		if asked.Load() != 3 {
			t.Errorf("asked %d times for 3 versions", asked.Load())
		}
		go r.once(t.Context(), "n", 4, renew)
		synctest.Wait()
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r.once(late, "n", 4, renew) // does not wait longer than its caller
		if known.Load() != 3 {
			t.Error("waits for longer than its caller")
		}
		time.Sleep(2 * time.Second)

		// One that failed is tried again after some time, and no one waits until then.
		fails.Store(true)
		r.once(t.Context(), "n", 5, renew)
		r.once(t.Context(), "n", 5, renew)
		if asked.Load() != 5 {
			t.Errorf("asked %d times, after one failure at once", asked.Load())
		}
		time.Sleep(renewAgain)
		fails.Store(false)
		r.once(t.Context(), "n", 5, renew)
		r.once(t.Context(), "n", 5, renew)
		if asked.Load() != 6 {
			t.Errorf("asked %d times, after one failure some time ago", asked.Load())
		}
	})
}
