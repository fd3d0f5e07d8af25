package node_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// history creates a namespace that lives by the times of its events, and waits until its clock is one of all shards.
func (b *bubble) history(ctx context.Context, c *ebb.Client) {
	b.Helper()
	b.until("the newest version", func() bool {
		for i := range b.nodes {
			if b.nodes[i] != nil && b.table(i).Version() < proto.VersionClocks {
				return false
			}
		}
		return true
	})
	if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "history", Clock: ebb.ClockEvent, HalfLife: 240 * time.Hour}); err != nil {
		b.Fatal(err)
	}
}

var in1990 = time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)

func happened(key string, at time.Time) ebb.Increment {
	return ebb.Increment{Key: key, Bin: "b", Amount: 1, Time: at}
}

// asOf asks about a key, and returns what it counts and of which time.
func (b *bubble) asOf(c *ebb.Client, key string, opts ...ebb.AskOption) (float64, time.Time) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := c.Distribution(ctx, "history", key, opts...)
	if err != nil {
		b.Fatalf("ask %s: %v", key, err)
	}
	return d.Z, d.AsOf.UTC()
}

// In one namespace there is one now: a key asked alone is answered of the same time as keys and merges, on all nodes, by
// leaders and followers, a second after the newest event was acknowledged. The client that wrote it need not wait.
func TestOneNowForANamespace(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		b.history(ctx, c)
		var keys []string
		for i := range 16 {
			keys = append(keys, fmt.Sprint("k", i))
			if err := c.Increment(ctx, "history", happened(keys[i], in1990)); err != nil {
				b.Fatal(err)
			}
		}
		newest := in1990.Add(240 * time.Hour)
		if err := c.Increment(ctx, "history", happened("newest", newest)); err != nil {
			b.Fatal(err)
		}
		same := func(c *ebb.Client, who string, opts ...ebb.AskOption) {
			b.Helper()
			for _, key := range keys {
				if z, at := b.asOf(c, key, opts...); math.Abs(z-0.5) > 1e-9 || !at.Equal(newest) {
					b.Errorf("%s: %s counts %v of %v", who, key, z, at)
				}
			}
			page, err := c.KeysPage(ctx, "history", ebb.KeysQuery{Pattern: "k*"}, opts...)
			if err != nil {
				b.Fatal(err)
			}
			for _, k := range page.Keys {
				if math.Abs(k.Total.Value-0.5) > 1e-9 || !page.AsOf.Equal(newest) {
					b.Errorf("%s: among keys %s counts %v of %v", who, k.Key, k.Total.Value, page.AsOf)
				}
			}
		}
		same(c, "who wrote") // at once
		time.Sleep(time.Second)
		for i := range b.nodes {
			other := b.clientAt(fmt.Sprintf("10.0.2.%d", i+1), b.host(i)+":7070")
			same(other, fmt.Sprint("a client of node ", i))
			same(other, fmt.Sprint("a client of node ", i, ", of any replica that is fresh"), ebb.Bounded(10*time.Second))
		}
		for i := range b.nodes {
			b.crash(i)
		}
		b.openAll()
		time.Sleep(time.Second)
		same(b.clientAt("10.0.3.1", b.host(1)+":7070"), "after a restart")
		for _, key := range keys { // none of them has had the newest event in its shard
			if err := c.Increment(ctx, "history", happened(key, newest.Add(29*24*time.Hour))); err != nil {
				b.Errorf("29 days after the namespace's now: %v", err)
			}
		}
	})
}

// One event of a wrong date does not move the clock; where it has, an operator sets it back. Neither clients that have
// seen the wrong time, nor nodes that were down, nor a restart bring it back.
func TestAClockIsSetBack(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		b.history(ctx, c)
		for i := range 16 {
			if err := c.Increment(ctx, "history", happened(fmt.Sprint("k", i), in1990)); err != nil {
				b.Fatal(err)
			}
		}
		wrong := happened("wrong", in1990.AddDate(9, 0, 0))
		if err := c.Increment(ctx, "history", wrong); !errors.Is(err, ebb.ErrTimeJump) {
			b.Fatalf("nine years ahead: %v", err)
		}
		if z, at := b.asOf(c, "k1"); math.Abs(z-1) > 1e-9 || !at.Equal(in1990) {
			b.Fatalf("the clock was moved: %v of %v", z, at)
		}
		clock, _ := c.EventClock("history")
		wrong.Confirmed = ebb.ClockConfirmed(clock.Epoch)
		late := b.clientAt("10.0.2.1", b.host(1)+":7070")
		if err := late.Increment(ctx, "history", wrong); err != nil {
			b.Fatal(err)
		}
		if z, at := b.asOf(late, "k1"); z != 0 || !at.Equal(wrong.Time) {
			b.Fatalf("with a wrong clock: %v of %v", z, at)
		}
		time.Sleep(time.Second)
		b.crash(2)
		time.Sleep(10 * time.Second) // its shards have other leaders
		set, err := c.SetNamespaceClock(ctx, "history", in1990)
		if err != nil || set.Shards != 8 || len(set.Waits) != 0 || set.Namespace.ClockEpoch <= clock.Epoch {
			b.Fatalf("%+v, %v", set, err)
		}
		check := func(c *ebb.Client, who string, opts ...ebb.AskOption) {
			b.Helper()
			for i := range 16 {
				if z, at := b.asOf(c, fmt.Sprint("k", i), opts...); math.Abs(z-1) > 1e-9 || !at.Equal(in1990) {
					b.Errorf("%s: k%d counts %v of %v", who, i, z, at)
				}
			}
			if z, _ := b.asOf(c, "wrong", opts...); z != 0 {
				b.Errorf("%s: the wrong event counts %v", who, z)
			}
		}
		check(c, "who set it")
		check(late, "who has seen the wrong time")
		b.open(2)
		b.ready(2)
		time.Sleep(3 * time.Second)
		check(b.clientAt("10.0.3.1", b.host(2)+":7070"), "a client of the node that was down", ebb.Bounded(10*time.Second))
		if err := late.Increment(ctx, "history", wrong); !errors.Is(err, ebb.ErrTimeJump) {
			b.Errorf("confirmed in the epoch before: %v", err)
		}
		for i := range b.nodes {
			b.crash(i)
		}
		b.openAll()
		time.Sleep(time.Second)
		check(late, "after a restart")
		if err := late.Increment(ctx, "history", happened("wrong", in1990)); err != nil {
			b.Error(err)
		}
		if z, _ := b.asOf(c, "wrong"); math.Abs(z-1) > 1e-9 {
			b.Errorf("sent again with the right date it counts %v", z)
		}
		for name, err := range map[string]error{
			"of the time of day": second(c.SetNamespaceClock(ctx, "default", in1990)),
			"ahead of all":       second(c.SetNamespaceClock(ctx, "history", time.Now().Add(time.Hour))),
			"none":               second(c.SetNamespaceClock(ctx, "nowhere", in1990)),
		} {
			if err == nil {
				b.Errorf("a clock %s is set", name)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }
