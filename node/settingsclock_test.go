package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A change of settings under an event clock holds in every shard from the newest event that was acknowledged before it,
// whichever node learns of the change first and whenever its shards are compared with the table.
func TestSettingsHoldFromTheLastEvent(t *testing.T) {
	long(t)
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.net.SetUsual(sim.Link{Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond})
		const keys, rounds = 24, 60
		first := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
		for round := range rounds {
			name := fmt.Sprint("n", round)
			if _, err := c.CreateNamespace(ctx, ebb.Namespace{
				Name: name, Clock: ebb.ClockEvent, HalfLife: 24 * time.Hour, MaxJump: new(time.Duration),
			}); err != nil {
				b.Fatal(err)
			}
			for i := range b.nodes {
				b.until("the namespace", func() bool { return b.table(i).Namespace(name) != nil })
			}
			write := func(key string, at time.Time) {
				b.Helper()
				resp, err := b.nodes[round%3].Router().Increment(ctx, &ebbv1.IncrementRequest{
					Namespace: name, Increments: []*ebbv1.Increment{
						{Key: []byte(key), Bin: []byte("x"), TimeUs: at.UnixMicro()},
					},
				})
				if err != nil || resp.GetApplied() != 1 {
					b.Fatal(resp, err)
				}
			}
			for k := range keys {
				write(fmt.Sprint("k", k), first)
			}
			time.Sleep(time.Duration(round) * 1100 * time.Millisecond / rounds)
			write("o", first.Add(72*time.Hour))
			if _, err := c.SetNamespace(ctx, ebb.Namespace{Name: name, Decay: ebb.DecayNone}); err != nil {
				b.Fatal(err)
			}
			for k := range keys {
				d, err := c.Distribution(ctx, name, fmt.Sprint("k", k))
				if err != nil {
					b.Fatal(err)
				}
				if d.Z < 0.1249 || d.Z > 0.1251 {
					b.Errorf("round %d: k%d counts %v of 0.125", round, k, d.Z)
				}
			}
		}
	})
}

// An undelete under an event clock is carried to all shards at once: what asks for the clock before settings does not
// wait for itself.
func TestUndeleteUnderAnEventClock(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			inBubble(t, nodes, 4, func(b *bubble) {
				b.config[0].Join = b.config[0].Join[:1]
				b.openAll()
				c := b.client()
				ctx := context.Background()
				if _, err := c.CreateNamespace(ctx, ebb.Namespace{
					Name: "n", Clock: ebb.ClockEvent, HalfLife: time.Hour,
				}); err != nil {
					b.Fatal(err)
				}
				write := func(what string) {
					b.Helper()
					began := time.Now()
					for k := range 16 {
						resp, err := b.nodes[0].Router().Increment(ctx, &ebbv1.IncrementRequest{
							Namespace: "n", Increments: []*ebbv1.Increment{
								{Key: fmt.Append(nil, "k", k), Bin: []byte("x"), TimeUs: 9e14},
							},
						})
						if err != nil || resp.GetApplied() != 1 {
							b.Fatal(what, resp, err)
						}
					}
					if took := time.Since(began); took > time.Second {
						b.Errorf("%s: 16 writes take %v", what, took)
					}
				}
				time.Sleep(5 * time.Second)
				write("first")
				for range 3 {
					if _, err := c.DeleteNamespace(ctx, "n", time.Hour); err != nil {
						b.Fatal(err)
					}
					time.Sleep(3 * time.Second)
					if _, err := c.UndeleteNamespace(ctx, "n"); err != nil {
						b.Fatal(err)
					}
					write("undeleted")
				}
			})
		})
	}
}
