package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Two of three nodes lose the end of their logs, to zeros. Both see it and end, so that nothing is decided without what
// was acknowledged; with the logs that they had, they go on.
func TestLogsThatLostTheirEnds(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(5 * time.Second)
		want := stop()
		var whole [2]*fs.Mem
		for i := range whole {
			b.crash(i)
			whole[i] = b.disks[i]
		}
		for i := range whole {
			image := whole[i].Crash(2)
			zeroLast(t, image, 2000)
			b.refuses(i, image, "it was durable up to batch")
		}
		for i := range whole {
			b.disks[i] = whole[i].Crash(3)
			b.config[i].FS = b.disks[i]
			b.open(i)
		}
		for i := range b.nodes {
			b.ready(i)
		}
		b.verify(c, 8, want)
	})
}

// The log or the snapshots of another node are not taken for one's own, though node.json is.
func TestFilesOfAnotherNode(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range b.config {
			b.config[i].SnapshotBytes = 64 << 10
		}
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(20 * time.Second)
		want := stop()
		b.swell(c, 1<<20) // so that the logs are cut behind snapshots
		time.Sleep(time.Minute)
		for i := range 2 {
			b.crash(i)
		}
		own, other := b.disks[0], b.disks[1]
		for _, part := range []string{"wal", "snap"} {
			image := own.Crash(2)
			must(t, image.RemoveAll("/data/"+part))
			copyTree(t, image, other.Crash(2), "/data/"+part)
			if part == "wal" {
				b.refuses(0, image, "is not the one that was written here")
				continue
			}
			b.disks[0], b.config[0].FS = image, image
			b.open(0)
			b.ready(0)
			damaged := slices.ContainsFunc(b.nodes[0].Status().GetReplicas(), (*ebbv1.ReplicaStatus).GetQuarantined)
			if !damaged {
				b.Error("a replica with the snapshots of another node is not said to be damaged")
			}
			b.crash(0)
		}
		for i, disk := range []*fs.Mem{own, other} {
			b.disks[i] = disk.Crash(4)
			b.config[i].FS = b.disks[i]
			b.open(i)
		}
		for i := range b.nodes {
			b.ready(i)
		}
		b.verify(c, 8, want)
	})
}

// refuses starts node i with a disk, and wants it to end since it is corrupt.
func (b *bubble) refuses(i int, image *fs.Mem, words string) {
	b.Helper()
	b.config[i].FS, b.disks[i] = image, image
	b.fatals[i].Store(nil)
	n, err := node.Open(context.Background(), b.config[i])
	if err == nil {
		for range 300 {
			if err = b.said(i); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		n.Kill()
		time.Sleep(time.Minute) // until all of it has ended
	}
	if !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), words) {
		b.Errorf("node %d: %v, want CORRUPT and %q", i, err, words)
	}
	b.fatals[i].Store(nil)
}

// zeroLast writes zeros over the last bytes that the log of a disk holds.
func zeroLast(t *testing.T, disk *fs.Mem, bytes int64) {
	t.Helper()
	var last string
	var end int64
	for name, used := range filesOf(t, disk, "/data/wal") {
		if name > last {
			last, end = name, used
		}
	}
	f, err := disk.OpenFile(last, os.O_RDWR)
	must(t, err)
	_, err = f.WriteAt(make([]byte, bytes), end-bytes)
	must(t, errors.Join(err, f.Sync(), f.Close()))
}

// copyTree copies a directory from one disk to another.
func copyTree(t *testing.T, disk, from *fs.Mem, dir string) {
	t.Helper()
	must(t, disk.MkdirAll(dir))
	infos, err := from.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		name := filepath.Join(dir, info.Name)
		if info.Dir {
			copyTree(t, disk, from, name)
			continue
		}
		raw, err := fs.ReadFile(from, name)
		must(t, err)
		must(t, fs.WriteFile(disk, name, raw))
	}
}
