package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A node that takes longer than it mostly does is not waited for: others that have its shards are asked too, and say
// what it would have said.
func TestSlowNodeIsNotWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name string
		mood mood          // of ebb-1, once it is known how long it takes
		here mood          // of the node that is asked, which has all shards
		took time.Duration // by the question
		won  uint64
	}{
		{name: "as fast as ever", mood: mood{slow: 10 * time.Millisecond}, took: 10 * time.Millisecond},
		{name: "slow", mood: mood{slow: time.Second}, took: 13 * time.Millisecond, won: 1},
		{name: "slow, and the other slower", mood: mood{slow: 100 * time.Millisecond}, here: mood{slow: time.Second}, took: time.Second},
		{name: "fails late", mood: mood{slow: 20 * time.Millisecond, refuses: errors.New("broken")}, here: mood{slow: 50 * time.Millisecond}, took: 63 * time.Millisecond, won: 1},
		{name: "the other fails", mood: mood{slow: 40 * time.Millisecond}, here: mood{behind: true}, took: 40 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeCluster(t, 16)
				keys := e.fill()
				e.with(func() { e.mood["ebb-1"] = mood{slow: 10 * time.Millisecond} })
				asked := e.coordinator("ebb-0")
				ask := func() (*ebbv1.Answer, time.Duration) {
					start := time.Now()
					resp, err := asked.Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys...)}})
					if err != nil {
						t.Fatal(err)
					}
					return resp.Answers[0], time.Since(start)
				}
				for range int(2 * hedgesSaved / hedgeShare) { // until as much is saved up as can be
					ask()
				}
				if sent, _ := asked.Hedges(); sent != 0 {
					t.Fatalf("%d calls were made twice while all was well", sent)
				}
				e.with(func() { e.mood["ebb-1"], e.mood["ebb-0"] = c.mood, c.here })
				e.takeCalls()
				answer, took := ask()
				if got := countOf(answer, "all"); answer.GetError() != nil || got != 16 {
					t.Errorf("counted %v, %v; calls %q", got, answer.GetError(), e.takeCalls())
				}
				if took.Round(time.Millisecond) != c.took {
					t.Errorf("took %v", took)
				}
				if _, won := asked.Hedges(); won != c.won {
					t.Errorf("the second answer was the first %d times", won)
				}
				synctest.Wait()
			})
		})
	}
}

// What only leaders answer in full is not asked of others, however long a leader takes.
func TestLeadersAreWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  func(ctx context.Context, asked *Coordinator, table *Table) bool
	}{
		{"settings", func(ctx context.Context, asked *Coordinator, table *Table) bool {
			_, all := asked.askClock(ctx, table, "default", new(ebbv1.AskRequest), 1)
			return all
		}},
		{"export", func(ctx context.Context, asked *Coordinator, _ *Table) bool {
			req := &ebbv1.AskRequest{}
			for i := range 16 {
				req.Questions = append(req.Questions, &ebbv1.Question{
					Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: fmt.Append(nil, "k", i)}},
				})
			}
			resp, err := asked.Ask(ctx, req)
			return err == nil && resp.GetAnswers()[0].GetError() == nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeCluster(t, 16)
				keys := e.fill()
				asked := e.coordinator("ebb-0")
				for range int(2 * hedgesSaved / hedgeShare) { // until as much is saved up as can be
					req := &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys...)}}
					if _, err := asked.Ask(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				}
				e.with(func() { e.mood["ebb-1"] = mood{slow: time.Second} })
				start := time.Now()
				ok := c.ask(t.Context(), asked, e.table)
				if sent, _ := asked.Hedges(); !ok || sent != 0 || time.Since(start) < time.Second {
					t.Errorf("%d calls were made twice, and all took %v (%v)", sent, time.Since(start), ok)
				}
			})
		})
	}
}

// Few calls are made twice, however slow a node has become. None is in a cluster where no other node has the shard.
func TestHedgesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		keys := e.fill()
		asked := e.coordinator("ebb-0")
		const calls = 2000
		for i := range calls {
			slow := 5 * time.Millisecond
			if i%3 == 0 {
				slow = 50 * time.Millisecond
			}
			if i > 100 {
				slow += time.Duration(i) * time.Millisecond / 2 // it becomes slower and slower
			}
			e.with(func() { e.mood["ebb-1"] = mood{slow: slow} })
			if _, err := asked.Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys...)}}); err != nil {
				t.Fatal(err)
			}
		}
		if sent, _ := asked.Hedges(); sent == 0 || float64(sent) > 2*calls*hedgeShare+hedgesSaved { // it calls two nodes a question
			t.Errorf("%d of %d calls were made twice", sent, 2*calls)
		}
	})
}

// Where the second call goes: to the node itself where it has the shard, to the next replica where it has not.
func TestElsewhere(t *testing.T) {
	e := newFakeClusterOf(t, 5, 32)
	c := e.coordinator("ebb-0")
	call := askCall{node: "ebb-1", req: &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, NowUs: 7}}
	for number := uint32(1); number <= 32; number++ {
		if _, holds := e.table.ReplicaOn("ebb-1", number); holds {
			call.req.Questions = append(call.req.Questions, &ebbv1.ShardQuestion{Shard: number})
		}
	}
	seen := make([]int, len(call.req.Questions))
	for _, other := range c.elsewhere(e.table, &call) {
		if !other.req.Follow || other.req.NowUs != 7 {
			t.Errorf("asks %v", other.req)
		}
		for j, q := range other.req.Questions {
			seen[other.position(j)]++
			_, holds := e.table.ReplicaOn(other.node, q.Shard)
			_, here := e.table.ReplicaOn("ebb-0", q.Shard)
			if !holds || other.node == "ebb-1" || here && other.node != "ebb-0" || q != call.req.Questions[other.position(j)] {
				t.Errorf("shard %d is asked of %s", q.Shard, other.node)
			}
		}
	}
	if slices.Min(seen) != 1 || slices.Max(seen) != 1 {
		t.Errorf("asked so often: %v", seen)
	}
	call.req.Consistency = ebbv1.Consistency_CONSISTENCY_ANY
	if others := c.elsewhere(e.table, &call); others[0].req.Follow {
		t.Error("any replica may answer, and is told to follow")
	}
	alone := newFakeClusterOf(t, 1, 4)
	only := askCall{node: "ebb-0", req: &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 1}}}}
	if others := alone.coordinator("ebb-0").elsewhere(alone.table, &only); others != nil {
		t.Errorf("another than the only replica: %s", strings.TrimSpace(fmt.Sprint(others)))
	}
}
