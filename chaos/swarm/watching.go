package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// watcher watches a key that only it increments, also while nodes die, and checks the answers.
type watcher struct {
	w                    *world
	rng                  *rand.Rand
	key                  string
	sure, unknown, heard float64
}

const watchedKey = "watched"

func newWatcher(w *world) *watcher { return &watcher{w: w, rng: w.rng(7900), key: watchedKey} }

func (k *watcher) count(ctx context.Context, c *ebb.Client) error {
	n := float64(1 + k.rng.IntN(5))
	err := c.Increment(ctx, countsNamespace, ebb.Increment{Key: k.key, Bin: "b", Amount: n})
	o := outcomeOf(err)
	k.w.done(o)
	switch o {
	case acked:
		k.sure += n
	case unknown:
		k.unknown += n
	}
	return err
}

// work watches for a while, and counts after some of the answers.
func (k *watcher) work(c *ebb.Client) {
	if k.rng.IntN(2) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), millis(k.rng, 1000, 6000))
		defer cancel()
		_ = k.count(ctx, c) // count records the outcome
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), millis(k.rng, 1000, 5000))
	defer cancel()
	k.watch(ctx, c, 1+k.rng.IntN(4))
}

// watch follows the key for this many answers, or until ctx ends. The first answer must have all that was acknowledged
// before the watch began. No answer may have less than an earlier one. A write may be missing in an answer that was
// asked for before its acknowledgement.
func (k *watcher) watch(ctx context.Context, c *ebb.Client, times int) {
	floor := max(k.sure, k.heard)
	for e, err := range c.WatchTop(ctx, countsNamespace, k.key, 1, ebb.WatchOptions{Interval: millis(k.rng, 200, 1000), Every: true, Tolerance: -1}) {
		if err != nil {
			return // ctx has ended
		}
		if e.Err() != nil {
			k.w.read(false)
			continue
		}
		k.w.read(true)
		d := e.Distribution()
		k.w.hold("watch-fresh", d.Z >= floor && d.Z <= k.sure+k.unknown, "a watch says %v, and %v was acknowledged or told before, and at most %v sent", d.Z, floor, k.sure+k.unknown)
		floor = max(floor, d.Z)
		k.heard = max(k.heard, d.Z)
		if times--; times <= 0 {
			return
		}
		_ = k.count(ctx, c) // it records the outcome
	}
}

// watchMax is how long a watch may take, after all was mended, to report an acknowledged write.
const watchMax = 10 * time.Second

// settle checks that a watch reports a write that comes after the watch began.
func (k *watcher) settle(ctx context.Context, c *ebb.Client) {
	ctx, cancel := context.WithTimeout(ctx, watchMax)
	defer cancel()
	floor, told := max(k.sure, k.heard), 0.0
	var failed error
	for e, err := range c.WatchTop(ctx, countsNamespace, k.key, 1, ebb.WatchOptions{Interval: 200 * time.Millisecond, Tolerance: -1}) {
		if err != nil {
			failed = err
			break
		}
		if e.Err() != nil {
			failed = e.Err()
			continue
		}
		told = e.Distribution().Z
		k.w.hold("watch-fresh", told >= floor && told <= k.sure+k.unknown, "when all was mended a watch says %v, and %v was acknowledged before it began, and at most %v sent", told, floor, k.sure+k.unknown)
		if k.sure > floor && told >= k.sure {
			k.w.hold("watch-tells", true, "")
			return
		}
		if k.sure <= floor {
			if failed = k.count(ctx, c); failed != nil {
				break
			}
		}
	}
	k.w.hold("watch-tells", false, "a watch told of %v last, and %v was acknowledged (%s): %v", told, k.sure, fmt.Sprint("after ", watchMax), failed)
}
