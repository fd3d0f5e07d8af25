package node_test

import (
	"context"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// What is done to bitmaps and asked of them is counted.
func TestBitmapMetrics(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := c.SetBits(ctx, "", "a", 1, 2, 3); err != nil {
			b.Fatal(err)
		}
		if _, err := c.ClearBits(ctx, "", "a", 3, 4); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Bitmap("", ebb.Bits("a")).Count(ctx); err != nil {
			b.Fatal(err)
		}
		for name, want := range map[string]float64{"ebb_node_bitmap_ids_changed_total": 4, "ebb_node_bitmap_pieces_total": 0} {
			if got := b.metric(0, name); got != want {
				b.Errorf("%s %v, want %v", name, got, want)
			}
		}
	})
}
