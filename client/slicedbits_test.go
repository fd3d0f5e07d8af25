package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	ebb "github.com/ebbdb/ebb/client"
)

// Where bitmaps are placed by slice, writers and questions say the same as elsewhere, and other kinds are refused.
func TestBitsBySlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		c := w.connect()
		ctx := context.Background()
		ns, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice, Universe: new("all")})
		if err != nil || ns.BitmapPlacement != ebb.PlaceBySlice || *ns.Universe != "all" {
			t.Fatalf("namespace %+v, %v", ns, err)
		}
		var many []uint64
		for i := range uint64(70_000) { // more than fit one request
			many = append(many, i*17)
		}
		if n, err := c.SetBits(ctx, "people", "many", many...); err != nil || n != len(many) {
			t.Fatalf("set %d, %v", n, err)
		}
		if n, err := c.SetBitRange(ctx, "people", "all", 0, 1_999_999); err != nil || n != 2_000_000 {
			t.Fatalf("set %d, %v", n, err)
		}
		if got := idsOf(t, c, "people", "many"); !slices.Equal(got, many) {
			t.Fatalf("%d ids, want %d", len(got), len(many))
		}
		n, err := c.Bitmap("people", ebb.Bits("many").Not()).Count(ctx)
		if err != nil || n.Count != 2_000_000-70_000 || n.Coverage.ShardsAnswered != n.Coverage.ShardsTotal {
			t.Errorf("not: %+v, %v", n, err)
		}
		id, ok, err := c.Bitmap("people", ebb.Bits("many")).At(ctx, 40_000)
		if err != nil || !ok || id != 17*40_000 {
			t.Errorf("position 40,000: %d, %v, %v", id, ok, err)
		}

		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people"})
		for _, err := range []error{
			bits.Set(ctx, "few", 5, 1<<40, 5), bits.Flip(ctx, "few", 5, 6, 6, 7), bits.Clear(ctx, "few", 7, 8), bits.Clear(ctx, "few"), bits.Close(ctx),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := bits.Stats(); s.Added != 9 || s.Changed != 5 || s.Buffered != 0 {
			t.Errorf("stats %+v", s)
		}
		if err := bits.Set(ctx, "few", 1); !errors.Is(err, ebb.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if got := idsOf(t, c, "people", "few"); !slices.Equal(got, []uint64{1 << 40}) {
			t.Errorf("ids %v", got)
		}
		if err := c.Increment(ctx, "people", ebb.Increment{Key: "clicks", Bin: "US", Amount: 1}); !errors.Is(err, ebb.ErrWrongKind) {
			t.Errorf("another kind: %v", err)
		}
		if _, err := c.Bitmap("default", ebb.Bits("x").Not()).Count(ctx); !errors.Is(err, ebb.ErrBadRequest) {
			t.Errorf("a namespace without a universe: %v", err)
		}
		if n, err := c.Delete(ctx, "people", "few", "many"); err != nil || n != 2 {
			t.Errorf("deleted %d, %v", n, err)
		}
		if got := idsOf(t, c, "people", "many"); len(got) != 0 {
			t.Errorf("%d ids", len(got))
		}
	})
}
