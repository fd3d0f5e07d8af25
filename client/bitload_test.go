package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	ebb "github.com/ebbdb/ebb/client"
)

// How far a load has come is remembered in both placements, by its name, until it is forgotten; it changes no bitmap,
// and whoever takes it over fences the one before.
func TestBitLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorld(t, 4).connect()
		ctx := context.Background()
		for _, place := range []ebb.BitmapPlacement{ebb.PlaceByKey, ebb.PlaceBySlice} {
			ns := place.String()[len("BITMAP_PLACEMENT_"):]
			if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: ns, BitmapPlacement: place}); err != nil {
				t.Fatal(err)
			}
			open := func(name string, done uint64) *ebb.BitLoad {
				t.Helper()
				l, err := c.BitLoad(ctx, ns, "a", name)
				if err != nil || l.Done() != done {
					t.Fatalf("%s: %v, %v, want %d", ns, l, err, done)
				}
				return l
			}
			first := open(ns, 0)
			if _, err := c.SetBits(ctx, ns, "a", 5, 7, 1<<40); err != nil {
				t.Fatal(err)
			}
			if err := first.Reached(ctx, 3, 1<<40); err != nil {
				t.Fatal(err)
			}
			second := open(ns, 3)
			if err := first.Reached(ctx, 4, 5); !errors.Is(err, ebb.ErrSourceFenced) {
				t.Errorf("%s: the first goes on: %v", ns, err)
			}
			open(ns+" other", 0)
			if err := second.Reached(ctx, 9, 5); err != nil {
				t.Fatal(err)
			}
			if got := idsOf(t, c, ns, "a"); !slices.Equal(got, []uint64{5, 7, 1 << 40}) {
				t.Errorf("%s: ids %v", ns, got)
			}
			if err := open(ns, 9).Forget(ctx); err != nil {
				t.Fatal(err)
			}
			open(ns, 0)
		}
	})
}
