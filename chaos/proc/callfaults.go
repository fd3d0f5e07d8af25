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

	"github.com/ebbdb/ebb/client"
)

var canStrace = sync.OnceValue(canTrace)

// errNothing says that a fault had no effect. Such a fault is not counted.
var errNothing = errors.New("nothing came of it")

const (
	// hitMax is how long a traced process may take until it makes the call that is to fail.
	hitMax = 30 * time.Second
	// syncsMost is the highest number of a thread's sync at which the process is killed.
	syncsMost = 24
)

// callFaults strike at single system calls, for all files or for one.
var callFaults = []Family{
	{
		Name: "kill-at-sync", What: fmt.Sprintf("a process is killed when one of its threads begins its 1st to %dth sync of a file", syncsMost), Can: func() error { return canStrace() },
		holdMin: 100 * time.Millisecond, holdMax: 4 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i, n := w.killableVictim(ctx), 1+w.rng.IntN(syncsMost)
			w.tell("%s is to be killed at sync %d of a thread", w.f.Name(i), n)
			t, err := w.trace(i, "-e", "trace="+syncCalls, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", syncCalls, n))
			if err != nil {
				return nil, err
			}
			w.down[i] = true
			ended := w.until(ctx, hitMax, func(context.Context) bool { return !w.f.Runs(i) })
			if err := t.stop(); err != nil {
				return nil, err
			}
			if !ended {
				return nil, fmt.Errorf("%w: no thread has made %d syncs in %v", errNothing, n, hitMax)
			}
			w.tell("%s was killed at a sync", w.f.Name(i))
			return nil, nil //nolint:nilnil // the caller starts it again
		},
	},
	{
		Name: "file-error", What: "the syncs of one file fail, those of all others work: its process must end, unless a snapshot was on its way there; then, on a disk of its own, what was not synced is lost",
		Can: func() error { return canStrace() }, holdMin: 100 * time.Millisecond, holdMax: 2 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) { return w.failFile(ctx, syncCalls, "EIO") },
	},
	{
		Name: "file-full", What: "no room is left for one file of a disk, and for all others there is: its process must end, unless a snapshot was on its way there",
		Can: func() error { return canStrace() }, holdMin: 100 * time.Millisecond, holdMax: 2 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			return w.failFile(ctx, writeCalls, "ENOSPC")
		},
	},
}

// The system calls by which a node syncs and writes files.
const (
	syncCalls  = "fsync,fdatasync"
	writeCalls = "write,pwrite64,writev,pwritev"
)

// trace attaches strace to a node's process.
func (w *world) trace(i int, args ...string) (*tracer, error) {
	p := w.f.nodes[i]
	t, err := trace(p.machine, p.process(), filepath.Join(w.t.Dir, "trace"), args...)
	if err != nil && !w.f.Runs(i) {
		err = fmt.Errorf("%w: %s ended before: %w", errNothing, p.name, err) // a breach, unless the trial ended it
	}
	return t, err
}

// oneFile is a file of a node for which calls fail.
type oneFile struct {
	path string // below the data directory
	born bool   // it is written when the node comes back with an empty disk
	// spared: the node may continue to run, because it requests the part of a snapshot again.
	spared bool
	// write makes the node write the file; nil if the node does so anyhow.
	write func(ctx context.Context, w *world) error
}

// files returns the files of a node for which calls may be made to fail.
func (w *world) files(i int) (all []oneFile, err error) {
	all = []oneFile{
		{path: "node.json.tmp", born: true},
		{path: "table.pb.tmp", write: func(ctx context.Context, w *world) error {
			_, err := w.admin.CreateNamespace(ctx, client.Namespace{Name: fmt.Sprintf("file-%d", w.now().Milliseconds()), Decay: client.DecayNone})
			return err
		}},
	}
	dir := w.f.DataDir(i)
	err = w.f.Machine(i).do(func() error {
		segments, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
		if err != nil {
			return err
		}
		if len(segments) > 0 {
			all = append(all, oneFile{path: filepath.Join("wal", filepath.Base(slices.MaxFunc(segments, writtenLater)))})
		}
		snapshots, err := filepath.Glob(filepath.Join(dir, "snap", "*", "*.snap"))
		if err != nil {
			return err
		}
		if len(snapshots) > 0 { // so other nodes have a snapshot of this group, too, and not all of its log
			group := filepath.Base(filepath.Dir(snapshots[w.rng.IntN(len(snapshots))]))
			all = append(all, oneFile{path: filepath.Join("snap", group, "arriving.part"), born: true, spared: true})
		}
		return nil
	})
	return all, err
}

// writtenLater compares files by the time of their last write. Names are not enough: the newest segment of a log may
// not be in use yet.
func writtenLater(a, b string) int {
	var at [2]time.Time
	for i, name := range []string{a, b} {
		if info, err := os.Stat(name); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at[0].Compare(at[1])
}

// failFile makes calls for one file of a node fail, and checks what the node does then.
func (w *world) failFile(ctx context.Context, calls, errno string) (mend func() error, err error) {
	i := w.killableVictim(ctx)
	files, err := w.files(i)
	if err != nil {
		return nil, err
	}
	file := files[w.rng.IntN(len(files))]
	dir, err := filepath.EvalSymlinks(w.f.DataDir(i))
	if err == nil {
		dir, err = filepath.Abs(dir) // the kernel knows open files by such names
	}
	if err != nil {
		return nil, err
	}
	w.tell("%s of %s: %s by %s", strings.TrimSuffix(file.path, ".tmp"), w.f.Name(i), errno, calls)
	if file.born {
		w.down[i] = true
		w.f.Kill(i)
		if err := errors.Join(w.f.Wipe(i), w.f.LaunchHeld(i)); err != nil {
			return nil, err
		}
	}
	t, err := w.trace(i, "-P", filepath.Join(dir, file.path), "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:error=%s", calls, errno))
	if err != nil {
		return nil, err
	}
	w.down[i] = true
	hit, err := w.awaitHit(ctx, i, t, file)
	if hit && !file.spared && err == nil {
		ended := w.until(ctx, failedMax, func(context.Context) bool { return !w.f.Runs(i) })
		w.hold("fail-stop", ended, "%s goes on %v after %s of %s gave %s; the end of its log:\n%s", w.f.Name(i), failedMax, calls, file.path, errno, w.f.LogTail(i))
	}
	if err := errors.Join(err, t.stop()); err != nil {
		return nil, err
	}
	if !hit {
		if err := w.afterFile(ctx, i, file); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s was not written in %v", errNothing, file.path, hitMax)
	}
	did := "has ended"
	if w.f.Runs(i) {
		did = "goes on"
	}
	w.tell("%s has met it, and %s", w.f.Name(i), did)
	return func() error { return w.afterFile(ctx, i, file) }, nil
}

// awaitHit lets a traced node write a file, and reports whether a call has failed.
func (w *world) awaitHit(ctx context.Context, i int, t *tracer, file oneFile) (hit bool, err error) {
	if file.born {
		if err := w.f.Resume(i); err != nil {
			return false, err
		}
	}
	asked := time.Time{}
	w.until(ctx, hitMax, func(ctx context.Context) bool {
		if hit = t.hit(); hit {
			return true
		}
		if file.write != nil && time.Since(asked) > time.Second { // a majority may have to find a leader first
			asked = time.Now()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_ = file.write(ctx, w) // whether the file is written is seen above
		}
		return !w.f.Runs(i)
	})
	return t.hit(), nil
}

// afterFile brings a node back whose file could not be written. If the node has ended and its disk can lose data, what
// it has not synced is lost.
func (w *world) afterFile(ctx context.Context, i int, file oneFile) error {
	if !w.f.Runs(i) && w.testbed != nil && w.testbed.disks {
		m := w.f.Machine(i)
		if err := errors.Join(m.cutPower(), m.remount()); err != nil {
			return err
		}
	}
	if !file.born {
		return nil // the caller starts it
	}
	if !w.f.Runs(i) {
		w.start(i)
	}
	w.whole(ctx, w.names(w.members)...)
	return nil
}
