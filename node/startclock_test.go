package node_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// Shards that are silent after a start hold up a question for four seconds at most. One that takes answers of any age
// does not wait for them.
func TestSilentShardsHoldUpNoMore(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		ctx := context.Background()
		c := b.client()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "n", Clock: ebb.ClockEvent}); err != nil {
			b.Fatal(err)
		}
		if err := c.Increment(ctx, "n", ebb.Increment{Key: "k", Bin: "x", Amount: 1, Time: time.Now()}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(10 * time.Second) // all replicas have it
		b.crash(0)
		b.open(0)
		b.ready(0)
		b.crash(1)
		b.crash(2)
		fresh := b.clientAt("10.0.2.1", b.host(0)+":7070")
		time.Sleep(5 * time.Second)
		for _, c := range []struct {
			what  string
			most  time.Duration
			fresh ebb.AskOption
		}{{"any", time.Second, ebb.Any()}, {"an hour", 4500 * time.Millisecond, ebb.Bounded(time.Hour)}} {
			start := time.Now()
			d, err := fresh.Distribution(ctx, "n", "k", c.fresh)
			if took := time.Since(start); err != nil || math.Abs(d.Z-1) > 1e-9 || took > c.most {
				b.Errorf("%s: %v after %v: %v", c.what, d.Z, took, err)
			}
		}
	})
}

// After a start of all nodes, a question about one key is answered at the newest event of its namespace, whichever
// shard has that, from the first answer on. Writes are judged by it too: a row that is not far ahead of it is taken.
func TestTheClockIsKnownAfterAStart(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		inBubble(t, nodes, 16, func(b *bubble) {
			b.openAll()
			c := b.client()
			ctx := context.Background()
			const keys, rounds, day = 32, 4, 24 * time.Hour
			beginning := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
			last := beginning
			if _, err := c.CreateNamespace(ctx, ebb.Namespace{
				Name: "n", Clock: ebb.ClockEvent, HalfLife: 30 * day, MaxJump: new(100 * day),
			}); err != nil {
				b.Fatal(err)
			}
			add := func(c *ebb.Client, key string, at time.Time) {
				b.Helper()
				if err := c.Increment(ctx, "n", ebb.Increment{Key: key, Bin: "x", Amount: 1, Time: at}); err != nil {
					b.Errorf("%s: %v", key, err)
				}
			}
			for k := range keys {
				add(c, fmt.Sprint("k", k), beginning)
			}
			last = beginning.Add(60 * day)
			add(c, "newest", last)
			for round := range rounds {
				for i := range b.nodes {
					b.crash(i)
				}
				for i := range b.nodes {
					b.open(i)
				}
				fresh := func(k int) *ebb.Client {
					return b.clientAt(fmt.Sprintf("10.0.%d.%d", 2+round, 1+k), b.host(k%nodes)+":7070")
				}
				want := math.Exp2(-last.Sub(beginning).Hours() / (30 * day).Hours())
				for k := range keys {
					d, err := fresh(k).Distribution(ctx, "n", fmt.Sprint("k", k))
					if err != nil {
						b.Fatalf("round %d: k%d: %v", round, k, err)
					}
					if math.Abs(d.Z-want) > 1e-9 || !d.AsOf.Equal(last) {
						b.Errorf("round %d: k%d counts %v of %v, as of %v of %v", round, k, d.Z, want, d.AsOf, last)
					}
				}
				for i := range b.nodes {
					b.crash(i)
				}
				for i := range b.nodes {
					b.open(i)
				}
				last = last.Add(60 * day)
				add(fresh(100), fmt.Sprint("new", round), last)
			}
		})
	}
}
