package node_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// A bitmap that takes too long to evaluate is refused before the log takes it: all replicas would evaluate it, and all
// that comes after would wait.
func TestStoreThatTakesLong(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := c.SetBits(ctx, "", "a", 1, 2, 3); err != nil {
			b.Fatal(err)
		}
		many := slices.Repeat([]ebb.BitmapExpr{ebb.BitRange(0, 1<<32-2)}, 1_000)
		if n, err := c.Bitmap("", ebb.AnyOf(append(many, ebb.Bits("a"))...)).Store(ctx, "b"); !errors.Is(err, proto.ErrQueryTooCostly) {
			b.Errorf("%d ids stored: %v", n, err)
		}
		if n, err := c.Bitmap("", ebb.AnyOf(append(many[:2], ebb.Bits("a"))...)).Store(ctx, "b"); err != nil || n != 1<<32-1 {
			b.Errorf("%d ids stored: %v", n, err)
		}
	})
}
