package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// An audit finds a replica that loses an entry, as broken memory or a difference between two machines might cause it.
// The replica takes the leader's state, with the writes that came in between. The same holds for a replica that led
// when it happened. What was acknowledged stays counted, and a restart does not bring the wrong state back.
func TestReplicaThatDiffersIsRepaired(t *testing.T) {
	for _, leads := range []bool{false, true} {
		if testing.Short() && !leads {
			continue // a leader becomes a follower first
		}
		name := "a follower"
		if leads {
			name = "the leader"
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				c, err := Start(ctx, Options{Shards: 3, Seed: 1, Logger: testLogger()})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { c.Stop(); time.Sleep(Linger) }()
				const ns, key = "counts", "link"
				shard := proto.ShardOf(ns, []byte(key), 3)
				doors := make([]*Door, c.Nodes())
				for i := range doors {
					if doors[i], err = c.Door("10.0.1.1", i); err != nil {
						t.Fatal(err)
					}
					defer doors[i].Close()
				}
				if err := doors[0].Create(ctx, &ebbv1.Namespace{Name: ns, Decay: ebbv1.Decay_DECAY_NONE}); err != nil {
					t.Fatal(err)
				}
				command, err := protobuf.Marshal(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
					Increments: []*ebbv1.Increment{{Key: []byte(key), Bin: []byte("b")}},
				}}})
				if err != nil {
					t.Fatal(err)
				}
				acked, sent := 0.0, 0.0
				write := func(times int) {
					for range times {
						for ctx.Err() == nil {
							sent++
							if _, err := doors[c.Leader(shard)].Apply(ctx, shard, command); err == nil {
								break
							}
							time.Sleep(100 * time.Millisecond)
						}
						acked++
					}
				}
				write(3)
				broken := c.Leader(shard)
				if !leads {
					broken = (broken + 1) % c.Nodes()
				}
				c.Fail(broken).Arm("mutant.lose-entry", 1, fail.Error(errors.New("lost")))
				write(3)
				if err := c.Agree(ctx); err == nil {
					t.Fatal("no replica differs: there is nothing to find")
				}
				for i := 0; c.Agree(ctx) != nil; i++ {
					write(1) // it does not wait for silence
					if time.Sleep(10 * time.Second); i == 180 {
						t.Fatalf("half an hour later: %v", c.Agree(ctx))
					}
				}
				check := func() {
					t.Helper()
					for i, d := range doors {
						got, err := d.Sum(ctx, ns, key, &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: true})
						if err != nil || got < acked || got > sent {
							t.Errorf("%s counts %v, of %v sent and %v acknowledged, %v", c.Name(i), got, sent, acked, err)
						}
					}
				}
				check()
				c.Kill(broken)
				if err := errors.Join(c.Restart(ctx, broken), c.Ready(ctx), c.Agree(ctx)); err != nil {
					t.Errorf("after a restart: %v", err)
				}
				check()
			})
		})
	}
}
