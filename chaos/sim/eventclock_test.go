package sim

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// dialNode is a client of one node alone.
func dialNode(t *testing.T, c *Cluster, i int) *ebb.Client {
	t.Helper()
	client, err := ebb.DialOptions(t.Context(), c.Addrs()[i:i+1], ebb.WithDialer(c.Dialer("10.0.1.2")))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A namespace has one event clock: a key that had its last event long ago is as old as that, whichever node is asked,
// and whether it is asked alone or with others. A wrong date is refused in every shard. An operator sets the clock
// back: late clients, restarts of all nodes and nodes that were away change nothing about it.
func TestOneEventClock(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cluster) {
		ctx, admin := t.Context(), dial(t, c)
		defer admin.Close()
		if _, err := admin.CreateNamespace(ctx, ebb.Namespace{Name: "n", Clock: ebb.ClockEvent, HalfLife: 240 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		began := time.Now().Add(-3000 * time.Hour)
		at := func(hours float64) time.Time { return began.Add(time.Duration(hours * float64(time.Hour))) }
		// after is what an event of the beginning counts for at an hour.
		after := func(hours float64) float64 { return math.Exp2(-hours / 240) }
		count := func(key string, hours float64) error {
			in := ebb.One(key, "b")
			in.Time = at(hours)
			return admin.Increment(ctx, "n", in)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range 20 {
			must(count(fmt.Sprint("old", i), 0))
		}
		must(count("new", 48)) // in one shard of all
		shards := c.Node(0).Table().Shards()
		behind := 1 // a key in a shard that has seen nothing of that
		for proto.ShardOf("n", fmt.Append(nil, "old", behind), shards) == proto.ShardOf("n", []byte("new"), shards) {
			behind++
		}
		far := fmt.Sprint("old", behind)
		time.Sleep(1100 * time.Millisecond)

		// sees asks a client for a key alone, and says how many hours after the beginning the answer is of.
		sees := func(client *ebb.Client, key string) (z, hours float64) {
			t.Helper()
			d, err := client.Distribution(ctx, "n", key)
			must(err)
			return d.Z, math.Round(d.AsOf.Sub(began).Hours()*1e6) / 1e6
		}
		agrees := func(client *ebb.Client, hours, z float64, when string) {
			t.Helper()
			for i := range 20 {
				got, as := sees(client, fmt.Sprint("old", i))
				if as != hours || math.Abs(got-z) > 1e-6 {
					t.Fatalf("%s: key old%d is %v as of hour %v, want %v as of hour %v", when, i, got, as, z, hours)
				}
			}
			all, err := client.MergedMatching(ctx, "n", "old*", 0)
			must(err)
			if math.Abs(all.Z-20*z) > 1e-5 {
				t.Fatalf("%s: together they are %v, want %v", when, all.Z, 20*z)
			}
		}
		for i := range c.Nodes() {
			client := dialNode(t, c, i)
			agrees(client, 48, after(48), "asked of "+c.Name(i))
			must(client.Close())
		}

		// 40 days ahead is a wrong date, also for a shard that has had no event for long, and for one that has had
		// none.
		for _, key := range []string{"new", "old3", "another", "yet another"} {
			if err := count(key, 48+24*40); !errors.Is(err, ebb.ErrTimeJump) {
				t.Fatalf("key %s: %v", key, err)
			}
		}
		must(count(far, 48+24*29)) // 29 days ahead of the namespace, and 31 of the events of its shard

		// The clock is set back while a node is away. What had a later event begins anew.
		late := dialNode(t, c, 0)
		defer late.Close()
		if _, as := sees(late, far); as != 48+24*29 {
			t.Fatalf("as of hour %v", as)
		}
		c.Kill(2)
		clock, err := admin.SetEventClock(ctx, "n", at(24))
		must(err)
		if !clock.Now.Equal(at(24).Truncate(time.Microsecond)) || !clock.Oldest.Equal(clock.Now) {
			t.Fatalf("set to %v, %v", clock.Now, clock.Oldest)
		}
		if z, as := sees(late, far); z != 0 || as != 24 {
			t.Errorf("a key that a later time was written to: %v as of hour %v", z, as)
		}
		if z, as := sees(late, "old0"); math.Abs(z-after(24)) > 1e-6 || as != 24 {
			t.Errorf("a client that has seen a later time: %v as of hour %v", z, as)
		}
		must(c.Restart(ctx, 2))
		must(c.Ready(ctx))
		for i := range c.Nodes() {
			c.PowerLoss(i)
		}
		for i := range c.Nodes() {
			must(c.Restart(ctx, i))
		}
		must(c.Ready(ctx))
		must(count(far, 24))
		for i := range c.Nodes() {
			client := dialNode(t, c, i)
			for key, want := range map[string]float64{far: 1, "old0": after(24), "old19": after(24), "new": 0} {
				if z, as := sees(client, key); math.Abs(z-want) > 1e-6 || as != 24 {
					t.Errorf(
						"after power cuts %s says that key %s is %v as of hour %v, want %v",
						c.Name(i),
						key,
						z,
						as,
						want,
					)
				}
			}
			must(client.Close())
		}
		// Events age again.
		must(count(far, 48))
		time.Sleep(1100 * time.Millisecond)
		if z, as := sees(admin, "old0"); math.Abs(z-after(48)) > 1e-6 || as != 48 {
			t.Errorf("a day later: %v as of hour %v", z, as)
		}
	})
}

// Other settings of a namespace with an event clock hold from its now on, in every shard: what is counted does not
// change with them, and fades by the new ones from then on.
func TestSettingsOfAnEventClockHoldFromNowOn(t *testing.T) {
	const day = 24 * time.Hour
	long := ebb.Namespace{Decay: ebb.DecayHalfLife, HalfLife: 1000 * day}
	short := ebb.Namespace{Decay: ebb.DecayHalfLife, HalfLife: 10 * day}
	none := ebb.Namespace{Decay: ebb.DecayNone}
	linear := ebb.Namespace{Decay: ebb.DecayLinear, HalfLife: 100 * day}
	for _, change := range []struct {
		what     string
		from, to ebb.Namespace
	}{
		{"a shorter half-life", long, short},
		{"a longer half-life", short, long},
		{"no decay", short, none},
		{"a half-life", none, short},
		{"linear decay", long, linear},
		{"a half-life for linear decay", linear, short},
	} {
		t.Run(change.what, func(t *testing.T) {
			inBubble(t, Options{Shards: 8}, func(t *testing.T, c *Cluster) {
				ctx, admin := t.Context(), dial(t, c)
				defer admin.Close()
				change.from.Name, change.from.Clock, change.from.MaxJump = "n", ebb.ClockEvent, new(100*365*day)
				if _, err := admin.CreateNamespace(ctx, change.from); err != nil {
					t.Fatal(err)
				}
				began := time.Now().Add(-300 * day)
				count := func(key string, days int) {
					t.Helper()
					in := ebb.Increment{Key: key, Bin: "b", Amount: 100, Time: began.Add(time.Duration(days) * day)}
					if err := admin.Increment(ctx, "n", in); err != nil {
						t.Fatal(err)
					}
				}
				all := func() (z []float64) {
					t.Helper()
					for i := range 20 {
						d, err := admin.Distribution(ctx, "n", fmt.Sprint("old", i))
						if err != nil {
							t.Fatal(err)
						}
						z = append(z, d.Z)
					}
					return z
				}
				for i := range 20 {
					count(fmt.Sprint("old", i), 0)
				}
				count("tick", 60)
				time.Sleep(2 * time.Second)
				before := all()
				change.to.Name = "n"
				if _, err := admin.SetNamespace(ctx, change.to); err != nil {
					t.Fatal(err)
				}
				time.Sleep(6 * time.Second)
				for i, z := range all() {
					if math.Abs(z-before[i]) > 1e-9*before[i] {
						t.Errorf("key %d counts %v, and %v before", i, z, before[i])
					}
				}
			})
		})
	}
}

// A new half-life holds in every shard from the time that the event clock had come to, though an event right before the
// change moved the clock in one shard, and one right after it moves it on, each at another node.
func TestSettingsHoldWhenTheirChangeEnds(t *testing.T) {
	inBubble(t, Options{Shards: 8}, func(t *testing.T, c *Cluster) {
		ctx := t.Context()
		at := make([]*ebb.Client, 3)
		for i := range at {
			at[i] = dialNode(t, c, i)
			defer at[i].Close()
		}
		ns := ebb.Namespace{Name: "n", Clock: ebb.ClockEvent, HalfLife: 100 * time.Hour, MaxJump: new(time.Duration(0))}
		if _, err := at[0].CreateNamespace(ctx, ns); err != nil {
			t.Fatal(err)
		}
		began := time.Now().Add(-3000 * time.Hour)
		count := func(node int, key string, hours int) {
			t.Helper()
			in := ebb.Increment{Key: key, Bin: "b", Amount: 1, Time: began.Add(time.Duration(hours) * time.Hour)}
			if err := at[node].Increment(ctx, "n", in); err != nil {
				t.Fatal(err)
			}
		}
		const keys = 16
		for i := range keys {
			count(i%3, fmt.Sprint("k", i), 0)
		}
		for change := range 4 {
			hours := 100 * (change + 1)
			count(change%3, "last", hours)
			change := ebb.Namespace{Name: "n", HalfLife: time.Duration(10+hours) * time.Hour}
			if _, err := at[(change.HalfLife/time.Hour)%3].SetNamespace(ctx, change); err != nil {
				t.Fatal(err)
			}
		}
		count(0, "last", 450)
		time.Sleep(1100 * time.Millisecond) // all nodes have heard of it
		want := math.Exp2(-100./100 - 100./110 - 100./210 - 100./310 - 50./410)
		for i := range keys {
			d, err := at[i%3].Distribution(ctx, "n", fmt.Sprint("k", i))
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(d.Z-want) > 1e-9 {
				t.Errorf("k%d counts %v, want %v", i, d.Z, want)
			}
		}
	})
}

// Under linear decay a shard does not follow the clock of others where there is no max_jump: events that are in time
// for their shard lose nothing.
func TestLinearDecayWithoutMaxJump(t *testing.T) {
	inBubble(t, Options{Shards: 8}, func(t *testing.T, c *Cluster) {
		ctx, admin := t.Context(), dial(t, c)
		defer admin.Close()
		ns := ebb.Namespace{
			Name: "n", Clock: ebb.ClockEvent, Decay: ebb.DecayLinear, HalfLife: 100 * time.Hour, MaxJump: new(time.Duration(0)),
		}
		if _, err := admin.CreateNamespace(ctx, ns); err != nil {
			t.Fatal(err)
		}
		began := time.Now().Add(-3000 * time.Hour)
		shards, keys := map[uint32]bool{}, []string(nil) // a key of each shard
		for i := 0; len(keys) < 8; i++ {
			key := fmt.Sprint("k", i)
			if shard := proto.ShardOf("n", []byte(key), 8); !shards[shard] {
				shards[shard], keys = true, append(keys, key)
			}
		}
		for _, key := range keys { // one after the other, as an import with several requests on their way may send them
			for hour := range 10 {
				in := ebb.Increment{Key: key, Bin: "b", Amount: 100, Time: began.Add(time.Duration(hour) * time.Hour)}
				if err := admin.Increment(ctx, "n", in); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1100 * time.Millisecond) // nodes have heard of its clock
		}
		for _, key := range keys {
			d, err := admin.Distribution(ctx, "n", key)
			if err != nil {
				t.Fatal(err)
			}
			if want := 1000 - math.Ln2/100*9; math.Abs(d.Z-want) > 1e-3 || d.Lost > 2e-3 {
				t.Errorf("%s counts %v with %v lost, want %v", key, d.Z, d.Lost, want)
			}
		}
	})
}
