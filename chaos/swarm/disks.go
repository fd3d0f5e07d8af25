package swarm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// diskFamilies break disks. A node whose disk fails may end; the others must continue.
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
		Name: "zeroed-log", Loses: true, Moves: true,
		What: "the end of a dead node's log is zeroed; that is noticed, and the node comes back with an empty disk",
		Dose: "up to 200 kB",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = rng.Float64() },
		inject: func(w *world, d Dose) string {
			i := w.some(d)
			w.excuse(i, proto.ErrCorrupt)
			applied := w.appliedAt(i)
			w.c.Kill(i)
			detail := w.zero(i, 1+int64(d.Part*zeroedMax))
			w.mustNotice(i, applied, detail)
			return w.named(i) + ": " + detail
		},
		mend: func(*world) {},
	},
	{
		Name: "misdirected-write", Loses: true, Moves: true,
		What: "a write of a node's log, of its log.end or of a snapshot lands elsewhere in that file or in another one, " +
			"and the node dies; where that is noticed it comes back with an empty disk",
		Dose: "of log, log-end or snapshot; dead after up to 1.5 s",
		draw: func(rng *rand.Rand, d *Dose) {
			d.Time = millis(rng, 0, 1500)
			oneOf("log", "log-end", "snapshot")(rng, d)
		},
		inject: func(w *world, d Dose) string {
			i := w.some(d)
			w.excuse(i, proto.ErrCorrupt)
			detail := w.misdirect(i, d)
			time.Sleep(d.Time)
			applied := w.appliedAt(i)
			w.c.Kill(i)
			w.mustNotice(i, applied, detail)
			return w.named(i) + ": " + detail
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

// failing makes the calls that which selects fail on a node's disk.
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

// flip inverts a bit of the log or the snapshots of a dead node, and says which.
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

// zeroedMax is the most bytes of a log that one fault zeroes.
const zeroedMax = 200_000

// segmentHead is the size of the header of a log file, in bytes. A file that is not larger has no batch.
const segmentHead = 32

// zero zeroes the last bytes of a dead node's log, except the headers of files, and says which bytes.
func (w *world) zero(i int, most int64) string {
	disk, left := w.c.Disk(i), most
	files, err := stored(disk, "/data/wal")
	if err != nil {
		return w.nothing(fmt.Sprintf("there is no log: %v", err))
	}
	slices.SortFunc(files, func(a, b fs.Info) int { return strings.Compare(b.Name, a.Name) })
	var words []string
	for _, f := range files {
		end := lastByte(disk, f)
		if end <= segmentHead || left <= 0 {
			continue
		}
		from := max(segmentHead, end-left)
		if err := disk.Zero(f.Name, from, end-from); err != nil {
			return w.nothing(err.Error())
		}
		left -= end - from
		words = append(words, fmt.Sprintf("bytes %d to %d of %s", from, end, f.Name))
	}
	if len(words) == 0 {
		return w.nothing("the log is empty")
	}
	return join(words) + " are zeroed"
}

// lastByte returns the offset after the last byte of a file that is not zero.
func lastByte(disk *fs.Mem, f fs.Info) int64 {
	file, err := disk.OpenFile(f.Name, os.O_RDONLY)
	if err != nil {
		return 0
	}
	defer file.Close()
	b := make([]byte, f.Size)
	n, _ := file.ReadAt(b, 0) // what was not read is zero
	return int64(len(bytes.TrimRight(b[:n], "\x00")))
}

// misdirect makes one of the next writes of a node land elsewhere, waits for it, and says where it landed.
func (w *world) misdirect(i int, d Dose) string {
	disk, rng := w.c.Disk(i), rand.New(rand.NewPCG(d.Pick, 4))
	part := map[string]string{"log": "/wal/", "log-end": "/log.end", "snapshot": "/snap/"}[d.Way]
	same, skip := rng.IntN(2) == 0, rng.IntN(5)
	landed := make(chan string, 1)
	var mu sync.Mutex // guards rng and skip
	disk.Misdirect(func(name string, off int64, n int) (to string, at int64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(name, part) || skip < 0 {
			return "", 0, false
		}
		if skip--; skip >= 0 {
			return "", 0, false
		}
		files, err := stored(disk, "/data")
		if err != nil {
			return "", 0, false
		}
		if end, err := disk.Stat("/data/log.end"); err == nil {
			end.Name = "/data/log.end"
			files = append(files, end)
		}
		files = slices.DeleteFunc(files, func(f fs.Info) bool { return f.Size == 0 || same != (f.Name == name) })
		if len(files) == 0 { // only this new file matches: take its next write
			skip = 0
			return "", 0, false
		}
		f := files[rng.IntN(len(files))]
		at = rng.Int64N(f.Size)
		landed <- fmt.Sprintf("%d bytes for byte %d of %s land at byte %d of %s", n, off, name, at, f.Name)
		return f.Name, at, true
	})
	defer disk.Misdirect(nil)
	if d.Way == "snapshot" {
		w.compact(i)
	}
	select {
	case detail := <-landed:
		return detail
	case <-time.After(strayMax):
		return w.nothing("nothing was written of " + d.Way)
	}
}

// strayMax is how long misdirect waits for a write.
const strayMax = 3 * time.Second

// mustNotice requires that the next start of a dead node refuses its log, if the log lacks entries that the node had
// applied.
func (w *world) mustNotice(i int, applied map[uint32]uint64, what string) {
	if misses := w.missesEntries(i, applied); misses != "" {
		w.damaged[i] = what + ": " + misses
	}
}

// stored lists the files of logs and snapshots below a directory, with their paths.
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

// wipe gives a dead node an empty disk. Errors that follow from the old disk no longer count against the node.
func (w *world) wipe(i int) {
	w.c.Wipe(i)
	w.wiped[i] = true
	delete(w.damaged, i)
}

// corrupt reports whether a node could not start, or ended, because it found its disk damaged.
func corrupt(err error) bool { return errors.Is(err, proto.ErrCorrupt) }
