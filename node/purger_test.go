package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A deleted namespace answers nothing, and is as it was when it is undeleted. A purged one leaves the table, whichever
// nodes crash during the purge. A new namespace of its name begins with nothing.
func TestNamespacesAreDeletedWhileNodesCrash(t *testing.T) {
	for _, x := range []struct {
		name    string
		crashed func(b *bubble) []int
	}{
		{"one", func(b *bubble) []int { return []int{b.busiest()} }},
		{"all", func(*bubble) []int { return []int{0, 1, 2} }},
	} {
		t.Run(x.name, func(t *testing.T) {
			inBubble(t, 3, 4, func(b *bubble) {
				b.openAll()
				c := b.client()
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				b.plain(c)
				const keys = 10000
				for from := 0; from < keys; from += 1000 {
					var some []ebb.Increment
					for i := range 1000 {
						some = append(some, ebb.Increment{Key: fmt.Sprint("k", from+i), Bin: "x", Amount: 1})
					}
					if err := c.Increment(ctx, "plain", some...); err != nil {
						b.Fatal(err)
					}
				}
				b.until("the newest version", func() bool { return b.table(0).Version() >= 9 })
				d, err := c.DeleteNamespace(ctx, "plain", time.Hour)
				if err != nil || d.Purging || d.Purge.Sub(d.Deleted) != time.Hour {
					b.Fatalf("%+v, %v", d, err)
				}
				refused := func(when string) {
					b.Helper()
					brief, cancel := context.WithTimeout(ctx, 10*time.Second)
					defer cancel()
					if _, err := c.Distribution(brief, "plain", "k7"); !errors.Is(err, ebb.ErrNamespaceNotFound) {
						b.Errorf("%s a question is answered with %v", when, err)
					}
					if err := c.Increment(brief, "plain", ebb.Increment{Key: "k7", Bin: "x", Amount: 1}); !errors.Is(err, ebb.ErrNamespaceNotFound) {
						b.Errorf("%s a write is answered with %v", when, err)
					}
				}
				refused("in grace")
				time.Sleep(10 * time.Second)
				refused("after a while in grace")
				if _, err := c.UndeleteNamespace(ctx, "plain"); err != nil {
					b.Fatal(err)
				}
				if got := b.count(c, "k7", "x"); got != 1 {
					b.Errorf("undeleted it counts %v", got)
				}
				if d, err = c.DeleteNamespace(ctx, "plain", 5*time.Second); err != nil {
					b.Fatal(err)
				}
				time.Sleep(time.Until(d.Purge) + 1100*time.Millisecond)
				crashed := x.crashed(b)
				for _, i := range crashed {
					b.crash(i)
				}
				for _, i := range crashed {
					b.open(i)
				}
				for _, i := range crashed {
					b.ready(i)
				}
				b.until("the purge", func() bool { return b.table(0).Defined("plain") == nil && b.table(0).DroppedVersion() > 0 })
				for i := range b.nodes {
					b.until("its end on all nodes", func() bool { return b.table(i).Defined("plain") == nil })
				}
				refused("purged")
				b.plain(c)
				if got := b.count(c, "k7", "x"); got != 0 {
					b.Errorf("anew it counts %v", got)
				}
				b.write(c, "k7", "x", 3)
				if got := b.count(c, "k7", "x"); got != 3 {
					b.Errorf("anew it counts %v of 3", got)
				}
				b.until("no keys on any node", func() bool {
					status, err := c.Status(ctx)
					if err != nil {
						b.Fatal(err)
					}
					held := uint64(0)
					for _, n := range status.GetNodes() {
						for _, r := range n.GetReplicas() {
							held = max(held, r.GetKeys())
						}
					}
					return held == 1
				})
				if all, err := c.Namespaces(ctx); err != nil || !slices.ContainsFunc(all, func(n ebb.Namespace) bool { return n.Name == "plain" }) {
					b.Errorf("%v, %v", all, err)
				}
			})
		})
	}
}

// Copies of a deleted namespace, copies onto one, and imports into one say that it is deleted.
func TestCopiesAndImportsOfADeletedNamespace(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.plain(c)
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "here", HalfLife: time.Hour}); err != nil {
			b.Fatal(err)
		}
		b.budgeted()
		if _, err := c.DeleteNamespace(ctx, "plain", time.Hour); err != nil {
			b.Fatal(err)
		}
		for _, one := range []struct{ from, to, want string }{
			{"plain", "new", "was deleted at"},
			{"here", "plain", "namespace plain was deleted at "},
			{"never", "new", "does not exist"},
		} {
			_, err := c.CopyNamespace(ctx, one.from, one.to, ebb.CopyOptions{})
			if err == nil || !strings.Contains(err.Error(), one.want) {
				b.Errorf("%s to %s: %v, want %q", one.from, one.to, err, one.want)
			}
		}
		err := load.CheckNamespace(ctx, c, "plain")
		if e := proto.AsError(err); !e.Is(proto.ErrNamespaceNotFound) || !strings.Contains(e.Message, "was deleted at") ||
			e.Hint != "ebb namespace undelete plain" {
			b.Errorf("an import: %v, hint %q", err, e.Hint)
		}
		if err := load.CheckNamespace(ctx, c, "here"); err != nil {
			b.Errorf("an import into a live namespace: %v", err)
		}
		if err := load.CheckNamespace(ctx, c, "never"); err == nil || !strings.Contains(err.Error(), "does not exist") {
			b.Errorf("an import into a namespace that never was: %v", err)
		}
	})
}

// Without a grace time a namespace that was deleted with one is purged at once.
func TestNamespacesArePurgedAtOnce(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.plain(c)
		b.write(c, "k", "x", 1)
		b.until("the newest version", func() bool { return b.table(0).Version() >= 9 })
		if _, err := c.DeleteNamespace(ctx, "plain", time.Hour); err != nil {
			b.Fatal(err)
		}
		if _, deleted, err := c.AllNamespaces(ctx); err != nil || len(deleted) != 1 || deleted[0].Deletion == nil {
			b.Errorf("deleted are %v, %v", deleted, err)
		}
		began := time.Now()
		if d, err := c.DeleteNamespace(ctx, "plain", 0); err != nil || !d.Purging {
			b.Errorf("%+v, %v", d, err)
		}
		b.until("the purge", func() bool { return b.table(0).Defined("plain") == nil })
		if took := time.Since(began); took > 10*time.Second {
			b.Errorf("it took %v", took)
		}
		if _, err := c.UndeleteNamespace(ctx, "plain"); !errors.Is(err, ebb.ErrNamespaceNotFound) {
			b.Errorf("undeleting it then is answered with %v", err)
		}
	})
}

// From the moment at which a node knows that a namespace is deleted it answers nothing of it, also for shards that have
// not heard of it. Undeleted, each leader answers at once.
func TestNodesAnswerNothingOfDeletedNamespaces(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.plain(c)
		keys := make(map[uint32]string) // by shard
		for i := 0; len(keys) < 4; i++ {
			key := fmt.Sprint("k", i)
			if shard := b.table(0).ShardOf("plain", []byte(key)); keys[shard] == "" {
				keys[shard] = key
				b.write(c, key, "x", 1)
			}
		}
		b.until("the newest version", func() bool { return b.table(0).Version() >= 9 })
		// ask asks the same twice in one request: the first may bring a change to the shard, and the second knows
		// nothing of it.
		ask := func(i int, shard uint32, how ebbv1.Consistency) []*ebbv1.ShardAnswer {
			b.Helper()
			q := &ebbv1.ShardQuestion{
				Shard: shard, Question: &ebbv1.Question{Namespace: "plain", Ask: &ebbv1.Question_Distribution{
					Distribution: &ebbv1.DistributionQuestion{
						Keys: [][]byte{[]byte(keys[shard])}, Select: &ebbv1.DistributionQuestion_All{All: true},
					},
				}},
			}
			resp, err := b.nodes[i].AskShards(ctx, &ebbv1.ShardAskRequest{
				Consistency: how, Questions: []*ebbv1.ShardQuestion{q, q},
			})
			if err != nil {
				b.Fatal(err)
			}
			return resp.GetAnswers()
		}
		if _, err := c.DeleteNamespace(ctx, "plain", time.Hour); err != nil {
			b.Fatal(err)
		}
		for i := range b.nodes {
			for b.table(i).Deleted("plain") == nil {
				time.Sleep(time.Millisecond)
			}
			for shard := range keys {
				for _, a := range ask(i, shard, ebbv1.Consistency_CONSISTENCY_ANY) {
					if a.GetError().GetCode() != ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
						b.Errorf("node %d answers %v for shard %d", i, a, shard)
					}
				}
			}
		}
		time.Sleep(5 * time.Second)
		if _, err := c.UndeleteNamespace(ctx, "plain"); err != nil {
			b.Fatal(err)
		}
		for i := range b.nodes {
			for b.table(i).Namespace("plain") == nil {
				time.Sleep(time.Millisecond)
			}
			for shard := range keys {
				for _, a := range ask(i, shard, ebbv1.Consistency_CONSISTENCY_LINEARIZABLE) {
					code := a.GetError().GetCode()
					if code != ebbv1.Code_CODE_NOT_LEADER && len(a.GetAnswer().GetDistribution().GetBins()) != 1 {
						b.Errorf("undeleted, node %d answers %v for shard %d", i, a, shard)
					}
				}
			}
		}
	})
}

// controlLeader is the node that leads the control group.
func (b *bubble) controlLeader() int {
	b.Helper()
	leader := -1
	b.until("a leader of the control group", func() bool {
		leader = slices.IndexFunc(b.nodes, func(n *node.Node) bool {
			return slices.ContainsFunc(n.Status().GetReplicas(), func(r *ebbv1.ReplicaStatus) bool {
				return r.GetShard() == 0 && r.GetRole() == "leader"
			})
		})
		return leader >= 0
	})
	return leader
}

// The grace time is kept by the median of the clocks. A control leader whose clock is an hour wrong neither takes it
// away nor ends it early.
func TestWrongClocksEndNoGraceTime(t *testing.T) {
	for _, x := range []struct {
		name                string
		deleting, afterward time.Duration // by which the clock of the control leader is wrong
	}{
		{"behind when it is deleted", -2 * time.Hour, 0},
		{"ahead in the grace time", 0, 2 * time.Hour},
	} {
		t.Run(x.name, func(t *testing.T) {
			inBubble(t, 3, 3, func(b *bubble) {
				b.openAll()
				c := b.client()
				ctx := context.Background()
				b.plain(c)
				b.write(c, "k", "x", 1)
				b.until("the newest version", func() bool { return b.table(0).Version() >= 9 })
				leader := b.controlLeader()
				wrong := func(by time.Duration) {
					b.skews[leader].Store(int64(by))
					time.Sleep(time.Second) // the others notice
				}
				wrong(x.deleting)
				if _, err := c.DeleteNamespace(ctx, "plain", time.Hour); err != nil {
					b.Fatal(err)
				}
				wrong(x.afterward)
				time.Sleep(10 * time.Second)
				wrong(0)
				if d := b.table(leader).Deleted("plain").GetDeletion(); d == nil || d.GetPurging() {
					b.Fatalf("after some seconds of an hour of grace: %v", d)
				}
				if _, err := c.UndeleteNamespace(ctx, "plain"); err != nil {
					b.Fatal(err)
				}
				if got := b.count(c, "k", "x"); got != 1 {
					b.Errorf("undeleted it counts %v", got)
				}
			})
		})
	}
}
