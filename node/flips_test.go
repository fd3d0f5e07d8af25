package node_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// damaged is what became of a node with a bit of a file inverted: it said so, or nothing of it was needed.
type damaged struct{ flips, refused int }

// A bit is inverted in each file of the data directory of a node that has a snapshot, a log behind it, an identity and
// a table: the node does not start and says which file is corrupt, or it serves all that was acknowledged.
// EBB_FLIPS=all tries 40 places of each file.
func TestFlippedBitsOfADataDirectory(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		const batch, rounds = 1200, 8
		ones := make([]ebb.Increment, batch)
		for i := range ones {
			ones[i] = ebb.One(strings.Repeat("k", proto.KeyLenMax), strings.Repeat("b", proto.BinLenMax))
		}
		for range rounds { // 7 MB, so that the log is cut behind a snapshot
			must(t, c.Increment(b.Context(), "plain", ones...))
		}
		time.Sleep(time.Minute)
		must(t, b.nodes[0].Close())
		b.nodes[0] = nil
		whole := b.disks[0]
		files := filesOf(t, whole, "/data")
		tries := 3
		if os.Getenv("EBB_FLIPS") == "all" {
			tries = 40
		}
		random := rand.New(rand.NewPCG(5, 7))
		found := map[string]*damaged{}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			kind := filepath.Base(name)
			if ext := filepath.Ext(name); ext == ".wal" || ext == ".snap" {
				kind = "*" + ext
			}
			if found[kind] == nil {
				found[kind] = &damaged{}
			}
			for range tries {
				image := whole.Crash(1)
				must(t, image.FlipByte(name, random.Int64N(files[name]), uint(random.IntN(8))))
				b.start(c, image, name, batch*rounds, found[kind])
			}
		}
		for _, kind := range []string{"node.json", "table.pb", "*.wal", "*.snap"} {
			if f := found[kind]; f == nil {
				t.Errorf("there is no %s among %v", kind, files)
			} else {
				t.Logf("%-10s %4d flips: %4d refused, %4d served all", kind, f.flips, f.refused, f.flips-f.refused)
			}
		}
		if f := found["node.json"]; f.refused != f.flips {
			t.Errorf("of %d flips of node.json %d were seen", f.flips, f.refused)
		}
		if f := found["*.snap"]; f.refused == 0 {
			t.Error("no flip of a snapshot was seen")
		}
	})
}

// start starts the node with a disk on which a file is damaged.
func (b *bubble) start(c *ebb.Client, image *fs.Mem, name string, want float64, found *damaged) {
	b.Helper()
	found.flips++
	b.config[0].FS, b.disks[0] = image, image
	b.fatals[0].Store(nil)
	n, err := node.Open(context.Background(), b.config[0])
	if err == nil {
		defer func() {
			n.Kill()
			time.Sleep(time.Minute) // until all of it has ended
		}()
		err = b.serves(n)
	}
	if err != nil {
		if !errors.Is(err, proto.ErrCorrupt) {
			b.Errorf("%s: %v, want CORRUPT", name, err)
		}
		found.refused++
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := c.Distribution(ctx, "plain", strings.Repeat("k", proto.KeyLenMax))
	if err != nil || d.Z != want {
		b.Errorf("%s is damaged, and the node says %v, %v, want %v", name, d.Z, err, want)
	}
}

// serves waits until a node does, and returns why it does not.
func (b *bubble) serves(n *node.Node) error {
	for range 600 {
		select {
		case <-n.Ready():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
		if err := b.said(0); err != nil {
			return err
		}
	}
	return errors.New("it does not serve, and says nothing")
}

// filesOf returns the files below a directory that have anything but zeros, with the length of what is before the
// zeros.
func filesOf(t *testing.T, disk *fs.Mem, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	infos, err := disk.ReadDir(dir)
	must(t, err)
	for _, info := range infos {
		name := filepath.Join(dir, info.Name)
		if info.Dir {
			maps.Copy(files, filesOf(t, disk, name))
			continue
		}
		raw, err := fs.ReadFile(disk, name)
		must(t, err)
		if used := len(bytes.TrimRight(raw, "\x00")); used > 40 { // not LOCK, nor a segment that is only prepared
			files[name] = int64(used)
		}
	}
	return files
}
