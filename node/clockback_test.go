package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto"
)

// A wrong date costs the key that it was written to, and no other: where the event clock is set back at once, all
// others are as they were, in each shard. Setting the clock writes to all shards, and removes nothing.
func TestTheClockIsSetBackAtOnce(t *testing.T) {
	for _, ahead := range []time.Duration{12 * time.Hour, 20 * time.Hour, 20 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			inBubble(t, 3, 8, func(b *bubble) {
				b.openAll()
				c := b.client()
				first := time.Now().Add(-90 * 24 * time.Hour).Truncate(time.Microsecond)
				for name, slow := range map[string]time.Duration{"one": 0, "two": 3 * time.Hour} {
					b.setBackAtOnce(c, ebb.Namespace{
						Name: name, Clock: ebb.ClockEvent, HalfLife: time.Hour, SlowHalfLife: &slow,
					}, first, ahead)
				}
			})
		})
	}
}

// setBackAtOnce makes a namespace with keys of several kinds, writes one event that is ahead, and sets the clock back.
func (b *bubble) setBackAtOnce(c *ebb.Client, ns ebb.Namespace, first time.Time, ahead time.Duration) {
	b.Helper()
	ctx := context.Background()
	if _, err := c.CreateNamespace(ctx, ns); err != nil {
		b.Fatal(err)
	}
	count := func(key string, kind ebb.Kind, at time.Time) {
		b.Helper()
		in := ebb.Increment{Key: key, Bin: "x", Amount: 100, Kind: kind, Time: at}
		if kind == ebb.KindQuantile {
			in.Bin, in.Value = "", 7
		}
		if err := c.Increment(ctx, ns.Name, in); err != nil {
			b.Fatal(err)
		}
	}
	held := func() (all []string) {
		b.Helper()
		for key, err := range c.Keys(ctx, ns.Name, ebb.KeysQuery{}) {
			if err != nil {
				b.Fatal(err)
			}
			if key.Key != "wrong" {
				all = append(all, fmt.Sprintf("%+v", key))
			}
		}
		return all
	}
	const keys = 12
	kinds := map[string]ebb.Kind{
		"distribution": ebb.KindDistribution, "distinct": ebb.KindDistinct, "topk": ebb.KindTopK,
		"quantile": ebb.KindQuantile,
	}
	for name, kind := range kinds {
		for i := range keys {
			count(fmt.Sprint(name, i), kind, first)
		}
	}
	if _, err := c.Expire(ctx, ns.Name, 9*time.Hour, "distribution1", "topk1"); err != nil {
		b.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // all nodes have heard of the clock
	before := held()
	if len(before) != keys*len(kinds) {
		b.Fatalf("%d keys", len(before))
	}
	count("wrong", ebb.KindDistribution, first.Add(ahead))
	if clock, err := c.SetEventClock(ctx, ns.Name, first); err != nil || !clock.Now.Equal(first) {
		b.Fatal(clock, err)
	}
	after := held()
	if len(after) != len(before) {
		b.Errorf("%v ahead, namespace %s: %d of %d keys are left", ahead, ns.Name, len(after), len(before))
		return
	}
	for i := range after {
		if after[i] != before[i] {
			b.Errorf("%v ahead, namespace %s: a key is\n%s\nand was\n%s", ahead, ns.Name, after[i], before[i])
		}
	}
	// Shards that had not heard of the wrong date do not hear of it with the setting: nothing can have faded by it
	// there.
	for i := range keys {
		key := fmt.Sprint("missing", i)
		d, err := c.Distribution(ctx, ns.Name, key)
		if err != nil {
			b.Fatal(err)
		}
		heard := proto.ShardOf(ns.Name, []byte(key), 8) == proto.ShardOf(ns.Name, []byte("wrong"), 8)
		if d.Lost <= 0 || d.Lost > 1 && !heard {
			b.Errorf("%v ahead, namespace %s: %s may have held %v", ahead, ns.Name, key, d.Lost)
		}
	}
}

// A row of an import that is dated a little ahead of the machine is refused, and counts once when the same import runs
// again later. It is not said to be one that is not judged again.
func TestARowOfTheFutureIsImportedLater(t *testing.T) {
	for name, clock := range map[string]ebb.Clock{"event clock": ebb.ClockEvent, "wall clock": ebb.ClockWall} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, 4, func(b *bubble) {
				b.openAll()
				c := b.client()
				if _, err := c.CreateNamespace(b.Context(), ebb.Namespace{Name: "n", Clock: clock}); err != nil {
					b.Fatal(err)
				}
				ahead := time.Now().Add(25 * time.Second).Truncate(time.Second).UTC()
				text := fmt.Sprintf("k\tb\tt\nk\tx\t%s\nk\tx\t%s\nk\tx\t%s\n",
					ahead.Add(-time.Hour).Format(time.RFC3339),
					ahead.Format(time.RFC3339), ahead.Add(-time.Minute).Format(time.RFC3339))
				run := func() (p load.Progress, refused string) {
					b.Helper()
					r, err := load.NewReader(strings.NewReader(text), "rows.tsv",
						load.Options{Key: "k", Bin: "b", Time: "t"})
					if err != nil {
						b.Fatal(err)
					}
					im := load.Importer{
						Client: c, Namespace: "n", Source: "rows", Recheck: true,
						OnRefused: func(r load.Refused) { refused += r.Error() + "\n" },
					}
					if p, err = im.Run(b.Context(), r); err != nil {
						b.Fatal(err)
					}
					return p, refused
				}
				for try, applied := range []uint64{2, 0} {
					p, refused := run()
					if p.Applied != applied || p.Refused != 1 || !p.Future.Equal(ahead) {
						b.Fatalf("run %d: %+v", try, p)
					}
					if !strings.HasPrefix(refused, "line 3: ") ||
						!strings.Contains(refused, "ahead of the shard's clock") {
						b.Errorf("run %d: %s", try, refused)
					}
				}
				time.Sleep(27 * time.Second)
				for try, applied := range []uint64{1, 0} {
					if p, refused := run(); p.Applied != applied || p.Refused != 0 || !p.Future.IsZero() ||
						refused != "" {
						b.Fatalf("run %d later: %+v, %s", try, p, refused)
					}
				}
			})
		})
	}
}
