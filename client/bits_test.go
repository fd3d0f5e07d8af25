package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// idsOf lists what a bitmap holds.
func idsOf(t *testing.T, c *ebb.Client, ns, key string) (ids []uint64) {
	t.Helper()
	for id, err := range c.Bitmap(ns, ebb.Bits(key)).IDs(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// A BitWriter makes each edit of an id exactly once and in the order of the calls, whatever happens to its commands. A
// flip that was applied twice would show.
func TestBitWriterUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect(ebb.WithAttemptTimeout(30*time.Millisecond), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		ns := w.plain()
		rng := rand.New(rand.NewPCG(1, 1))
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			switch rng.IntN(12) {
			case 0:
				return proto.ErrOverloaded.Errorf("busy"), false
			case 1:
				return nil, true
			}
			return nil, false
		})
		ctx := context.Background()
		bits := c.BitWriter(ebb.BitWriterOptions{
			Namespace: ns, MaxBatch: 64, MaxBuffered: 400, Linger: time.Millisecond,
			OnError: func(err error) { t.Error(err) },
		})
		draw := rand.New(rand.NewPCG(2, 2))
		want := map[string]map[uint64]bool{}
		added := 0
		for i := range 1500 {
			key := fmt.Sprintf("key-%d", draw.IntN(5))
			if want[key] == nil {
				want[key] = map[uint64]bool{}
			}
			ids := []uint64{draw.Uint64N(1000) << 12, draw.Uint64N(1000), draw.Uint64()}
			added += len(ids)
			var err error
			switch i % 3 {
			case 0:
				err = bits.Set(ctx, key, ids...)
			case 1:
				err = bits.Clear(ctx, key, ids...)
			default:
				err = bits.Flip(ctx, key, ids...)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if in := i%3 == 0 || i%3 == 2 && !want[key][id]; in {
					want[key][id] = true
				} else {
					delete(want[key], id)
				}
			}
			if i%400 == 100 {
				w.handOver("ebb-0")
			}
		}
		if err := bits.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if s := bits.Stats(); s.Added != int64(added) || s.Buffered != 0 || s.Changed == 0 {
			t.Errorf("%d ids were added: %+v", added, s)
		}
		w.setFault(nil)
		for key, ids := range want {
			if got := idsOf(t, c, ns, key); !slices.Equal(got, slices.Sorted(maps.Keys(ids))) {
				t.Errorf("%s has %d ids, not %d, or others", key, len(got), len(ids))
			}
		}
		if err := bits.Set(ctx, "key-0", 1); !errors.Is(err, ebb.ErrClosed) {
			t.Errorf("a closed writer says %v", err)
		}
	})
}

// SetBits and its like say what they changed, also of more ids than one command takes.
func TestBitsSayWhatTheyChanged(t *testing.T) {
	w := newWorld(t, 1)
	c, ns, ctx := w.connect(), w.plain(), context.Background()
	ids := make([]uint64, 200_000)
	for i := range ids {
		ids[i] = uint64(len(ids)-i) * 7
	}
	for _, step := range []struct {
		what string
		do   func() (int, error)
		want int
	}{
		{"set", func() (int, error) { return c.SetBits(ctx, ns, "k", ids...) }, 200_000},
		{"set again", func() (int, error) { return c.SetBits(ctx, ns, "k", ids[:10]...) }, 0},
		{"set a range", func() (int, error) { return c.SetBitRange(ctx, ns, "k", 0, 6) }, 7},
		{"flip", func() (int, error) { return c.FlipBits(ctx, ns, "k", 7, 8, 7) }, 2},
		{"clear", func() (int, error) { return c.ClearBits(ctx, ns, "k", 8, 9) }, 1},
		{"clear a range", func() (int, error) { return c.ClearBitRange(ctx, ns, "k", 0, 1<<27-1) }, 200_000 - 1 + 7},
		{"nothing", func() (int, error) { return c.SetBits(ctx, ns, "k") }, 0},
	} {
		if n, err := step.do(); err != nil || n != step.want {
			t.Fatalf("%s changed %d, not %d: %v", step.what, n, step.want, err)
		}
	}
	if got := idsOf(t, c, ns, "k"); len(got) != 0 {
		t.Errorf("%d ids are left", len(got))
	}
	if err := c.Increment(ctx, ns, ebb.One("clicks", "us")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetBits(ctx, ns, "clicks", 1); !errors.Is(err, ebb.ErrWrongKind) {
		t.Errorf("bits of a distribution: %v", err)
	}
	if _, err := c.SetBitRange(ctx, ns, "k", 5, 4); !errors.Is(err, ebb.ErrBadRequest) {
		t.Errorf("a range upside down: %v", err)
	}
}

// An expression over bitmaps of many shards is exact like one over bitmaps of one.
func TestBitmapsOfManyShards(t *testing.T) {
	w := newWorld(t, 3)
	c, ns, ctx := w.connect(), w.plain(), context.Background()
	bits := c.BitWriter(ebb.BitWriterOptions{Namespace: ns})
	var all []ebb.BitmapExpr
	times := map[uint64]int{}
	for i := range uint64(12) {
		key := fmt.Sprint("group/", i)
		all = append(all, ebb.Bits(key))
		for id := range uint64(30_000) {
			if id*id%(i+2) == 0 {
				if err := bits.Set(ctx, key, id*id*id); err != nil {
					t.Fatal(err)
				}
				times[id*id*id]++
			}
		}
	}
	if err := bits.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for least := 1; least <= 12; least += 5 {
		want := []uint64{}
		for id, n := range times {
			if n >= least && id < 1<<44 {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		often := c.Bitmap(ns, ebb.AtLeast(least, all...)).Between(0, 1<<44-1)
		if n, err := often.Count(ctx); err != nil || n.Count != uint64(len(want)) || n.Coverage.ShardsTotal < 2 || !n.Coverage.Complete() {
			t.Fatalf("%d are in %d or more: %+v, %v", len(want), least, n, err)
		}
		got := []uint64{}
		for id, err := range often.IDs(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, id)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d ids are in %d or more, not %d, or others", len(got), least, len(want))
		}
	}
	w.node("ebb-1").kill()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if n, err := c.Bitmap(ns, ebb.AllOf(all...), ebb.AllowPartial()).Count(short); err == nil {
		t.Errorf("without some of the bitmaps the answer is %d", n.Count)
	}
}
