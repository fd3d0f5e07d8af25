package swarm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// diskFamilies break disks. A node whose disk fails may end, and the others go on.
var diskFamilies = []Family{
	{
		Name: "slow-disk", What: "each sync of a node takes long, and for half of them each new file, too",
		Dose: "20 to 1,500 ms",
		draw: func(rng *rand.Rand, d *Dose) { d.Time = millis(rng, 20, 1500) },
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			if d.Pick/2%2 == 0 {
				w.c.SlowFiles(i, d.Time)
				return w.named(i) + ", and each new file"
			}
			w.c.SlowDisk(i, d.Time)
			return w.named(i)
		},
		mend: goodDisks,
	},
	{
		Name: "hung-disk", What: "the syncs of a node do not return",
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.excuse(i, proto.ErrDisk)
			release := make(chan struct{})
			w.releases = append(w.releases, release)
			w.c.Disk(i).HangSync(release)
			return w.named(i)
		},
		mend: goodDisks,
	},
	{
		Name: "sync-error", What: "the syncs of a node fail, and what they should have kept is lost if the power is",
		inject: func(w *world, d Dose) string {
			return w.failing(d, func(op fs.Op) bool { return op == fs.OpSync })
		},
		mend: goodDisks,
	},
	{
		Name: "write-error", What: "the writes of a node fail",
		inject: func(w *world, d Dose) string {
			return w.failing(d, func(op fs.Op) bool { return op == fs.OpWrite })
		},
		mend: goodDisks,
	},
	{
		Name: "full-disk", What: "no file of a node can grow",
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.excuse(i, proto.ErrDisk)
			w.c.Disk(i).SetCapacity(1)
			return w.named(i)
		},
		mend: goodDisks,
	},
	{
		Name: "full-disks", What: "the disks of all nodes have hardly any space left, at once: none may end", Dose: "up to 256 KiB",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = rng.Float64() },
		inject: func(w *world, d Dose) string {
			for i := range w.c.Nodes() {
				w.c.Disk(i).SetCapacity(w.c.Disk(i).Used() + int64(d.Part*(256<<10)))
			}
			return "all"
		},
		mend: goodDisks,
	},
	{
		Name: "flipped-bit", What: "a bit of a dead node's log or snapshot is inverted; where that is noticed the node comes back with an empty disk", Loses: true, Moves: true,
		inject: func(w *world, d Dose) string {
			i := w.some(d)
			w.excuse(i, proto.ErrCorrupt)
			w.compact(i)
			w.c.Kill(i)
			return w.named(i) + ": " + w.flip(i, d)
		},
		mend: func(*world) {},
	},
	{
		Name: "lost-disk", What: "a node dies and comes back with an empty disk", Loses: true, Moves: true,
		inject: func(w *world, d Dose) string {
			i := w.some(d)
			w.cutPower(i)
			w.wipe(i)
			return w.named(i)
		},
		mend: func(*world) {},
	},
}

// failing makes some calls of a node's disk fail.
func (w *world) failing(d Dose, which func(op fs.Op) bool) string {
	i := w.victim(d)
	w.excuse(i, proto.ErrDisk)
	w.c.Disk(i).Inject(func(op fs.Op, _ string) error {
		if which(op) {
			return syscall.EIO
		}
		return nil
	})
	return w.named(i)
}

func goodDisks(w *world) {
	for _, release := range w.releases {
		close(release)
	}
	w.releases = nil
	for i := range w.c.Nodes() {
		w.c.Disk(i).HangSync(nil)
		w.c.Disk(i).SetCapacity(0)
		w.c.SlowDisk(i, 0)
	}
}

// flip inverts a bit of what a dead node has stored, and says which.
func (w *world) flip(i int, d Dose) string {
	disk := w.c.Disk(i)
	files, err := stored(disk, "/data")
	if err != nil || len(files) == 0 {
		return w.nothing(fmt.Sprintf("nothing is stored: %v", err))
	}
	rng := rand.New(rand.NewPCG(d.Pick, 2))
	for range 100 {
		f := files[rng.IntN(len(files))]
		if f.Size == 0 {
			continue
		}
		at, bit := rng.Int64N(f.Size), uint(rng.IntN(8))
		if err := disk.FlipByte(f.Name, at, bit); err == nil {
			return fmt.Sprintf("bit %d of byte %d of %s", bit, at, f.Name)
		}
	}
	return w.nothing("nothing is stored")
}

// stored lists the logs and snapshots below a directory, with their paths.
func stored(disk *fs.Mem, dir string) (files []fs.Info, err error) {
	infos, err := disk.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range infos {
		f.Name = dir + "/" + f.Name
		if !f.Dir {
			if strings.Contains(f.Name, "/wal/") || strings.Contains(f.Name, "/snap/") {
				files = append(files, f)
			}
			continue
		}
		below, err := stored(disk, f.Name)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	return files, nil
}

// wipe gives a dead node an empty disk. Whatever it is told then of what it was is no fault of its own.
func (w *world) wipe(i int) {
	w.c.Wipe(i)
	w.wiped[i] = true
}

// corrupt reports whether a node could not start, or ended, since it noticed that its disk had changed.
func corrupt(err error) bool { return errors.Is(err, proto.ErrCorrupt) }
