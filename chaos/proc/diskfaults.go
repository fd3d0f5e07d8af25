package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// failedMax is how long a process may take to end when its disk has failed.
const failedMax = 30 * time.Second

var diskFaults = []Family{
	{
		Name: "power-one", What: "a machine loses power: its process ends, and what was not synced is lost", Can: canLose, disk: true, holdMin: 100 * time.Millisecond, holdMax: 4 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) { return w.powerLoss(w.killableVictim(ctx)) },
	},
	{
		Name: "power-all", What: "all machines lose power at once", Can: canLose, disk: true, holdMax: 500 * time.Millisecond,
		strike: func(_ context.Context, w *world) (func() error, error) { return w.powerLoss(w.killable()...) },
	},
	{
		Name: "disk-error", What: "a disk fails all reads, writes and syncs, and its process must end; then the disk is as after a loss of power", Can: canLose, disk: true,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i := w.killableVictim(ctx)
			w.tell("the disk of %s fails", w.f.Name(i))
			w.down[i] = true
			if err := w.f.Machine(i).cutPower(); err != nil {
				return nil, err
			}
			ended := w.until(ctx, failedMax, func(context.Context) bool { return !w.f.Runs(i) })
			w.hold("fail-stop", ended, "%s goes on %v after its disk failed", w.f.Name(i), failedMax)
			w.f.Kill(i)
			return w.f.Machine(i).remount, nil
		},
	},
	{
		Name: "full-disk", What: "no space is left on a disk: its process may not end", Can: canLose, disk: true, holdMin: 500 * time.Millisecond, holdMax: 6 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) { return w.fill(w.killableVictim(ctx)) },
	},
	{
		Name: "full-disks", What: "no space is left on any disk: no process may end", Can: canLose, disk: true, holdMin: 500 * time.Millisecond, holdMax: 20 * time.Second,
		strike: func(_ context.Context, w *world) (func() error, error) { return w.fill(w.killable()...) },
	},
	{
		Name: "slow-disk", What: "writes to a disk wait, for 50 to 400 ms of every half second", Can: canLose, disk: true, holdMin: time.Second, holdMax: 8 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			return w.slow(w.victim(ctx), w.between(50*time.Millisecond, 400*time.Millisecond)), nil
		},
	},
	{
		Name: "hung-disk", What: "writes to a disk wait for 3 to 30 s: after 20 a process may end", Can: canLose, disk: true, holdMin: 3 * time.Second, holdMax: 30 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i := w.killableVictim(ctx)
			w.tell("the disk of %s hangs", w.f.Name(i))
			w.down[i] = true
			return w.f.Machine(i).thaw, w.f.Machine(i).freeze()
		},
	},
	{
		Name: "flipped-bit", What: "a bit of a killed node's log or snapshot is inverted: it must end and say EBB-4002, or serve and lack nothing; then it comes back with an empty disk", Can: can,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i := w.killableVictim(ctx)
			w.kill(i)
			what, err := w.flip(i)
			if err != nil {
				return nil, err
			}
			w.tell("inverted at %s: %s", w.f.Name(i), what)
			before := w.f.logSize(i)
			w.start(i)
			w.until(ctx, readyMax, func(ctx context.Context) bool { return !w.f.Runs(i) || w.f.Ready(ctx, i) })
			if w.f.Runs(i) && w.hold("damage-seen", w.f.Ready(ctx, i), "%s neither ends nor is ready, with %s inverted; the end of its log:\n%s", w.f.Name(i), what, w.f.LogTail(i)) {
				w.pass(ctx, w.between(time.Second, 4*time.Second)) // it serves: other files replace the damage, or it is detected later
			}
			if w.f.Runs(i) {
				w.kill(i) // no other node may have damage at the same time
			} else {
				said := w.f.logFrom(i, before)
				w.hold("damage-seen", strings.Contains(said, corruptCode), "%s has ended and does not say %s, with %s inverted; the end of its log:\n%s", w.f.Name(i), corruptCode, what, w.f.LogTail(i))
			}
			w.tell("%s loses all that it has stored", w.f.Name(i))
			return nil, w.anew(ctx, i)
		},
	},
	{
		Name: "lost-disk", What: "a node is killed, and comes back with an empty disk", Can: can,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i := w.killableVictim(ctx)
			w.kill(i)
			w.tell("%s loses all that it has stored", w.f.Name(i))
			return nil, w.anew(ctx, i)
		},
	},
}

// fill leaves no space on the disks of some nodes.
func (w *world) fill(nodes ...int) (mend func() error, err error) {
	for _, i := range nodes {
		w.tell("the disk of %s is full", w.f.Name(i))
		err = errors.Join(err, w.f.Machine(i).fill())
	}
	return func() (err error) {
		for _, i := range nodes {
			err = errors.Join(err, w.f.Machine(i).empty())
		}
		return err
	}, err
}

// corruptCode is the error code of a node that refuses damaged files.
const corruptCode = "EBB-4002"

// anew empties the disk of a node that does not run, starts the node, and waits until it has all its replicas again.
func (w *world) anew(ctx context.Context, i int) error {
	if err := w.f.Wipe(i); err != nil {
		return err
	}
	w.start(i)
	w.whole(ctx, w.names(w.members)...)
	return nil
}

// flip inverts one bit in a log segment or a snapshot of a node that does not run, and returns a description of the
// bit.
func (w *world) flip(i int) (what string, err error) {
	dir := w.f.DataDir(i)
	err = w.f.Machine(i).do(func() error {
		var names []string
		for _, pattern := range []string{"wal/*.wal", "snap/*/*.snap"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return err
			}
			names = append(names, found...)
		}
		w.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			raw, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			var used []int // most of a log segment is zeros, which mean nothing yet
			for at, b := range raw {
				if b != 0 {
					used = append(used, at)
				}
			}
			if len(used) == 0 {
				continue
			}
			at, bit := used[w.rng.IntN(len(used))], w.rng.IntN(8)
			what = fmt.Sprintf("bit %d of byte %d of %s", bit, at, strings.TrimPrefix(name, dir+string(filepath.Separator)))
			return writeAt(name, []byte{raw[at] ^ 1<<bit}, int64(at))
		}
		return fmt.Errorf("%s holds nothing to invert in %d files", dir, len(names))
	})
	return what, err
}

// writeAt writes a few bytes in the middle of a file.
func writeAt(name string, bytes []byte, at int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes, at)
	return errors.Join(err, f.Close())
}

// powerLoss cuts the power of disks, and then ends their processes. What the kernel had not written to disk yet is
// lost; what was synced stays.
func (w *world) powerLoss(nodes ...int) (mend func() error, err error) {
	for _, i := range nodes {
		w.down[i] = true
		w.tell("%s loses power", w.f.Name(i))
	}
	each := func(f func(i int) error) error {
		failed := make([]error, len(nodes))
		var wg sync.WaitGroup
		for n, i := range nodes {
			wg.Go(func() { failed[n] = f(i) })
		}
		wg.Wait()
		return errors.Join(failed...)
	}
	err = each(func(i int) error {
		err := w.f.Machine(i).cutPower()
		w.f.Kill(i)
		return err
	})
	return func() error { return each(func(i int) error { return w.f.Machine(i).remount() }) }, err
}

// slow makes the disk writes of a node wait for a part of each half second, until mend.
func (w *world) slow(i int, part time.Duration) (mend func() error) {
	const period = 500 * time.Millisecond
	w.tell("the disk of %s does nothing for %v of every %v", w.f.Name(i), part.Round(time.Millisecond), period)
	m := w.f.Machine(i)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for failed == nil {
			failed = m.freeze()
			over := wait(ctx, part)
			failed = errors.Join(failed, m.thaw())
			if over || wait(ctx, period-part) {
				return
			}
		}
	})
	return func() error {
		cancel()
		wg.Wait()
		return failed
	}
}

func (w *world) names(nodes []int) (names []string) {
	for _, i := range nodes {
		names = append(names, w.f.Name(i))
	}
	slices.Sort(names)
	return names
}
