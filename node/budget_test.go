package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

// budgeted waits until namespaces can have budgets, and nodes can tell each other of pressure.
func (b *bubble) budgeted() {
	b.Helper()
	for i := range b.nodes {
		b.until("the storage version of budgets", func() bool { return b.table(i).Version() >= proto.VersionDeletion })
	}
}

// namespaces creates some.
func (b *bubble) namespaces(c *ebb.Client, names ...string) {
	b.Helper()
	for _, name := range names {
		if _, err := c.SetNamespace(context.Background(), ebb.Namespace{Name: name, Decay: ebb.DecayNone}); err != nil {
			b.Fatal(err)
		}
	}
}

// add adds to a key, or says why not, without trying for long.
func (b *bubble) add(c *ebb.Client, namespace, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.Increment(ctx, namespace, ebb.Increment{Key: key, Bin: "b", Amount: 1})
}

// usage is what a namespace is said to hold by a node.
func (b *bubble) usage(c *ebb.Client, name string) ebb.NamespaceUsage {
	b.Helper()
	all, missing, err := c.NamespaceUsage(context.Background(), name)
	if err != nil || len(all) != 1 || len(missing) != 0 {
		b.Fatalf("usage of %s: %v, without %v: %v", name, all, missing, err)
	}
	return all[0]
}

// When memory is short, the namespace that takes most is refused, and the other is not, also after a restart.
func TestGreedyNamespace(t *testing.T) {
	inBubble(t, 1, 4, func(b *bubble) {
		var used atomic.Int64
		b.config[0].MemoryLimit = 100_000
		b.config[0] = node.WithMemoryUsed(b.config[0], used.Load)
		b.openAll()
		c := b.client()
		b.namespaces(c, "greedy", "modest")
		for i := range 300 {
			if err := b.add(c, "greedy", fmt.Sprint("k", i)); err != nil {
				b.Fatal(err)
			}
		}
		if err := b.add(c, "modest", "k"); err != nil {
			b.Fatal(err)
		}
		for _, restart := range []bool{false, true} {
			if restart {
				b.crash(0)
				b.openAll()
			}
			for _, step := range []struct {
				used           int64
				greedy, modest error
			}{
				{50_000, nil, nil},
				{80_000, proto.ErrBudgetExceeded, nil},
				{95_000, proto.ErrOutOfMemory, proto.ErrOutOfMemory},
				{80_000, proto.ErrBudgetExceeded, nil},
				{60_000, nil, nil},
			} {
				used.Store(step.used)
				time.Sleep(time.Second)
				if err := b.add(c, "greedy", "more"); !errors.Is(err, step.greedy) {
					b.Errorf("restarted %v, %d used: greedy: %v, want %v", restart, step.used, err, step.greedy)
				}
				if err := b.add(c, "modest", "more"); !errors.Is(err, step.modest) {
					b.Errorf("restarted %v, %d used: modest: %v, want %v", restart, step.used, err, step.modest)
				}
			}
		}
		if u := b.usage(c, "greedy"); u.Keys != 301 || u.Share < 0.3 || u.Node != "ebb-0" {
			b.Errorf("usage %+v", u)
		}
	})
}

// A leader keeps a namespace to its share also where another voter is short of memory.
func TestPressedFollower(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		var used [3]atomic.Int64
		for i := range b.config {
			b.config[i].MemoryLimit = 100_000
			b.config[i] = node.WithMemoryUsed(b.config[i], used[i].Load)
			used[i].Store(60_000)
		}
		b.openAll()
		b.budgeted()
		c := b.client()
		b.namespaces(c, "greedy", "modest")
		for i := range 300 {
			if err := b.add(c, "greedy", fmt.Sprint("k", i)); err != nil {
				b.Fatal(err)
			}
		}
		for i := range 8 {
			if err := b.add(c, "modest", fmt.Sprint("k", i)); err != nil {
				b.Fatal(err)
			}
		}
		used[1].Store(80_000)
		time.Sleep(10 * time.Second)
		for i := range 8 {
			if err := b.add(c, "greedy", fmt.Sprint("more", i)); !errors.Is(err, proto.ErrBudgetExceeded) {
				b.Errorf("greedy: %v", err)
			}
			if err := b.add(c, "modest", fmt.Sprint("more", i)); err != nil {
				b.Errorf("modest: %v", err)
			}
		}
		used[1].Store(60_000)
		time.Sleep(10 * time.Second)
		if err := b.add(c, "greedy", "more"); err != nil {
			b.Errorf("greedy, with memory again: %v", err)
		}
	})
}

// A budget counts the whole cluster, replicas once, whoever leads its shards. It outlives nodes, and what is deleted
// makes room.
func TestBudgetOfCluster(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			inBubble(t, nodes, 8, func(b *bubble) {
				b.openAll()
				b.budgeted()
				c := b.client()
				b.namespaces(c, "limited", "free")
				set := func(ns ebb.Namespace) {
					if _, err := c.SetNamespace(context.Background(), ns); err != nil {
						b.Fatal(err)
					}
				}
				set(ebb.Namespace{Name: "limited", MaxKeys: new(uint64(60))})
				fill := func() (added int) {
					for i := range 200 {
						switch err := b.add(c, "limited", fmt.Sprint("k", i)); {
						case err == nil:
							added++
						case !errors.Is(err, proto.ErrBudgetExceeded):
							b.Fatal(err)
						}
						if err := b.add(c, "free", fmt.Sprint("k", i)); err != nil {
							b.Fatal(err)
						}
						time.Sleep(200 * time.Millisecond)
					}
					return added
				}
				// Each of the nodes may let in what the others do within a look and a round of questions.
				added := uint64(fill())
				limited, free := b.usage(c, "limited"), b.usage(c, "free")
				if limited.Keys != added || added < 60 || added > 72 || limited.MaxKeys != 60 {
					b.Errorf("limited holds %+v, of %d added", limited, added)
				}
				if free.Keys != 200 || free.MaxKeys != 0 {
					b.Errorf("free holds %+v", free)
				}
				for i := range b.nodes {
					b.crash(i)
				}
				b.openAll()
				time.Sleep(5 * time.Second)
				if err := b.add(c, "limited", "after"); !errors.Is(err, proto.ErrBudgetExceeded) {
					b.Errorf("after a restart of all: %v", err)
				}
				var keys []string
				for i := range 30 {
					keys = append(keys, fmt.Sprint("k", i))
				}
				if _, err := c.Delete(context.Background(), "limited", keys...); err != nil {
					b.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if err := b.add(c, "limited", "after"); err != nil {
					b.Errorf("after some were deleted: %v", err)
				}
				held := b.usage(c, "limited").Bytes
				set(ebb.Namespace{Name: "limited", MaxKeys: new(uint64(0)), MaxBytes: new(held)})
				time.Sleep(2 * time.Second)
				if err := b.add(c, "limited", "bytes"); !errors.Is(err, proto.ErrBudgetExceeded) {
					b.Errorf("with a budget of the bytes that it holds: %v", err)
				}
				set(ebb.Namespace{Name: "limited", MaxBytes: new(uint64(0))})
				time.Sleep(time.Second)
				if err := b.add(c, "limited", "bytes"); err != nil {
					b.Errorf("without a budget: %v", err)
				}
			})
		})
	}
}

// The answer names a node that does not answer, and has what the others know.
func TestUsageWithoutANode(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.namespaces(c, "a")
		for i := range 50 {
			if err := b.add(c, "a", fmt.Sprint("k", i)); err != nil {
				b.Fatal(err)
			}
		}
		if u := b.usage(c, "a"); u.Keys != 50 || u.Bytes < 50*80 {
			b.Errorf("usage %+v", u)
		}
		b.crash(2)
		time.Sleep(20 * time.Second)
		all, missing, err := b.clientAt("10.0.1.2", b.host(0)+":7070").NamespaceUsage(context.Background(), "")
		if err != nil || fmt.Sprint(missing) != "[ebb-2]" || len(all) != 2 || all[0].Name != "a" || all[0].Keys != 50 {
			b.Errorf("usage %+v, without %v: %v", all, missing, err)
		}
	})
}
