package sim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
)

// room makes the disk of a node full but for so many bytes.
func room(c *Cluster, i int, bytes int64) {
	c.Disk(i).SetCapacity(c.Disk(i).Used() + bytes)
}

// The disks of all nodes fill at once. Writes are refused, reads and deletes are not, no node ends, each of them starts
// again, and writes go on when there is space.
func TestAllDisksFull(t *testing.T) {
	small := func(_ int, cfg *node.Config) {
		cfg.LogSegmentBytes, cfg.DiskReserve, cfg.SnapshotBytes = 64<<10, 2<<20, 32<<10
	}
	inBubble(t, Options{Configure: small}, func(t *testing.T, c *Cluster) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ebb := dial(t, c, client.WithAttemptTimeout(time.Second))
		defer ebb.Close()
		for i := range c.Nodes() {
			room(c, i, 4<<20)
		}
		key := func(i int) string { return fmt.Sprintf("key-%d", i) }
		acked := 0
		write := func() error {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			err := ebb.Increment(short, "default", client.One(key(acked), fmt.Sprintf("bin-%0200d", acked)))
			if err == nil {
				acked++
			}
			return err
		}
		until(t, "a refusal", func() bool {
			err := write()
			if err != nil && !errors.Is(err, client.ErrDiskFull) {
				t.Fatalf("after %d writes: %v", acked, err)
			}
			return err != nil
		})
		t.Logf("%d writes until the disks are full", acked)
		read := func(when string) {
			t.Helper()
			for _, i := range []int{0, acked / 2, acked - 1} {
				d, err := ebb.Distribution(ctx, "default", key(i))
				if err != nil || d.Z < 0.9 {
					t.Errorf("%s: key %d counts %v: %v", when, i, d, err)
				}
			}
		}
		for i := range 60 { // a minute of writes that are refused, with some that are not
			_ = write()
			if i%20 == 0 {
				read("while the disks are full")
			}
			time.Sleep(time.Second)
		}
		if dead := c.Collapses(); len(dead) > 0 {
			t.Fatalf("a node ended: %v", dead[0])
		}
		for i := range c.Nodes() {
			room(c, i, 0)
		}
		for i := range c.Nodes() {
			c.Kill(i)
			if err := c.Restart(ctx, i); err != nil {
				t.Fatal(err)
			}
			if err := c.Ready(ctx); err != nil {
				t.Fatal(err)
			}
		}
		read("after restarts")
		for i := range acked - 1 {
			if n, err := ebb.Delete(ctx, "default", key(i)); err != nil || n != 1 {
				t.Fatalf("delete key %d: %d, %v", i, n, err)
			}
		}
		for i := range c.Nodes() {
			c.Disk(i).SetCapacity(0)
		}
		start := time.Now()
		until(t, "a write", func() bool { return write() == nil })
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the first write with space again took %v", took)
		}
		if dead := c.Collapses(); len(dead) > 0 {
			t.Fatalf("a node ended: %v", dead[0])
		}
	})
}
