package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var canShrink = sync.OnceValue(canLimit)

// The limit of a node's memory, as a part of what it uses.
const limitLeast, limitMost = 0.4, 0.95

var memoryFaults = []Family{
	{
		Name: "memory-limit", What: fmt.Sprintf("a process may use %.0f to %.0f%% of the memory that it has, or as little as the kernel can take it down to: its cache goes, and if it wants more it is killed", 100*limitLeast, 100*limitMost),
		Can: func() error { return canShrink() }, holdMin: time.Second, holdMax: 8 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) { return w.shrink(ctx, w.killableVictim(ctx)) },
	},
}

// shrink restarts a node in a cgroup that counts its memory, and then limits that memory.
func (w *world) shrink(ctx context.Context, i int) (mend func() error, err error) {
	g, err := newMemoryGroup(w.f.Name(i))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	w.tell("%s is stopped in order, to start where its memory is counted", w.f.Name(i))
	w.f.Interrupt(i)
	if err := w.f.LaunchHeld(i); err != nil {
		return nil, err
	}
	if err := errors.Join(g.take(w.f.nodes[i].process().Pid), w.f.Resume(i)); err != nil {
		return nil, err
	}
	// if it does not get ready, the wait for all of them reports it
	w.until(ctx, readyMax, func(ctx context.Context) bool { return !w.f.Runs(i) || w.f.Ready(ctx, i) })
	w.pass(ctx, w.between(time.Second, 4*time.Second))
	used, err := g.usage()
	if err != nil {
		return nil, err
	}
	w.down[i] = true // the kernel may end it
	limit, err := g.shrink(int64(float64(used) * (limitLeast + (limitMost-limitLeast)*w.rng.Float64())))
	if err != nil {
		return nil, err
	}
	w.tell("%s may use %d KiB, and had %d KiB", w.f.Name(i), limit>>10, used>>10)
	w.until(ctx, hitMax, func(context.Context) bool { hits, err := g.hits(); return hits > 0 || err != nil })
	return func() error { return w.unlimit(i, g) }, nil
}

// unlimit lifts the memory limit of a node and removes its cgroup.
func (w *world) unlimit(i int, g *memoryGroup) error {
	hits, err := g.hits()
	ended := !w.f.Runs(i)
	if err := errors.Join(err, g.remove()); err != nil {
		return err
	}
	if hits == 0 {
		return fmt.Errorf("%w: the limit of %s was never in its way", errNothing, w.f.Name(i))
	}
	did := "goes on"
	if ended {
		did = "was killed"
	}
	w.tell("%s was refused memory %d times, and %s", w.f.Name(i), hits, did)
	return nil
}
