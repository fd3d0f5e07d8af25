package node_test

import (
	"context"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// The power of a node is cut while a bitmap is stored in place of itself again and again. A reader finds the one or the
// other, and never a mixture. The leader at that time sweeps what is left of all these. When the bitmaps are deleted,
// nothing is left of them in any shard.
func TestStoresAndSweepsWhileANodeCrashes(t *testing.T) {
	long(t)
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice}); err != nil {
			b.Fatal(err)
		}
		for key, n := range map[string]uint64{"few": 20, "many": 50} {
			for i := range n {
				if _, err := c.SetBits(ctx, "people", key, i<<16); err != nil {
					b.Fatal(err)
				}
			}
		}
		store := func(key string, want uint64) {
			for try := 0; ; try++ {
				attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
				n, err := c.Bitmap("people", ebb.Bits(key)).Store(attempt, "copy")
				cancel()
				if err == nil && n != want {
					b.Errorf("stored %d ids of %d", n, want)
				}
				if err == nil || try == 20 {
					if err != nil {
						b.Errorf("store: %v", err)
					}
					return
				}
			}
		}
		store("few", 20)
		stores, asks := make(chan int), make(chan int)
		working, stop := context.WithCancel(ctx)
		go func() {
			n := 0
			for ; working.Err() == nil; n++ {
				store("many", 50)
				store("few", 20)
			}
			stores <- n
		}()
		go func() {
			n := 0
			for ; working.Err() == nil; time.Sleep(50 * time.Millisecond) {
				attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
				got, err := c.Bitmap("people", ebb.Bits("copy")).Count(attempt)
				cancel()
				if err == nil && got.Count != 20 && got.Count != 50 {
					b.Errorf("%d ids: neither the one bitmap nor the other", got.Count)
				}
				if err == nil {
					n++
				}
			}
			asks <- n
		}()
		time.Sleep(2 * time.Second)
		first := b.busiest()
		b.crash(first)
		time.Sleep(5 * time.Second)
		b.open(first)
		b.ready(first)
		stop()
		if n, m := <-stores, <-asks; n == 0 || m == 0 {
			b.Errorf("%d times stored, %d times asked", n, m)
		}
		if n, err := c.Delete(ctx, "people", "few", "many", "copy"); n != 3 || err != nil {
			b.Errorf("deleted %d: %v", n, err)
		}
		left := 0.0
		for i := range b.nodes {
			left += b.metric(i, "ebb_node_bitmaps_to_sweep")
		}
		if left == 0 {
			b.Error("nothing is to be swept")
		}
		time.Sleep(4 * time.Minute)
		for i := range b.nodes {
			if n := b.metric(i, "ebb_node_bitmaps_to_sweep"); n != 0 {
				b.Errorf("node %d: %v bitmaps to sweep", i, n)
			}
			if n := b.metric(i, "ebb_node_keys"); n != 0 {
				b.Errorf("node %d: %v keys", i, n)
			}
		}
	})
}
