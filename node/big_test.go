package node_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// kept are namespaces as a backup has them: default, and others up to so many.
func kept(n int, change func(*ebbv1.Namespace)) []*ebbv1.Namespace {
	all := make([]*ebbv1.Namespace, n)
	for i := range all {
		ns := proto.DefaultNamespaceSettings()
		ns.Name, ns.Version, ns.HashSeed = fmt.Sprintf("of-the-backup-%05d", i), 3, math.MaxUint64-uint64(i)
		if i == 0 {
			ns.Name = proto.DefaultNamespace
		}
		change(ns)
		all[i] = ns
	}
	return all
}

func (b *bubble) restore(c *ebb.Client, namespaces []*ebbv1.Namespace) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.RestoreNamespaces(ctx, namespaces, 0)
}

// As many namespaces as a cluster can have do not fit into one entry of the control group's log. A restore brings all
// of them or none, and the control group keeps working.
func TestAllNamespacesAreRestored(t *testing.T) {
	long(t)
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		all := kept(proto.NamespacesMax, func(*ebbv1.Namespace) {})
		bad := append(all[:len(all)-1:len(all)-1], &ebbv1.Namespace{Name: "bad", Version: 1, HashSeed: 1})
		many := append(all[:len(all):len(all)], kept(1, func(ns *ebbv1.Namespace) { ns.Name = "one-more" })...)[1:]
		for what, x := range map[string][]*ebbv1.Namespace{"the last cannot be": bad, "one too many": many} {
			epoch := b.table(0).Epoch()
			if err := b.restore(c, x); !errors.Is(err, proto.ErrBadNamespace) && !errors.Is(err, proto.ErrBadHalfLife) {
				t.Errorf("%s: %v", what, err)
			}
			if got := b.table(0).Epoch(); got != epoch {
				t.Errorf("%s: epoch %d, and %d before", what, got, epoch)
			}
		}
		if err := b.restore(c, all[:100]); err != nil { // one that is broken off
			t.Fatal(err)
		}
		for range 2 {
			if err := b.restore(c, all); err != nil {
				t.Fatal(err)
			}
			for i := range b.nodes {
				b.until(fmt.Sprintf("node %d has them", i), func() bool { return len(b.table(i).Namespaces()) == len(all) })
			}
			for _, ns := range all {
				if got := b.table(0).Namespace(ns.GetName()); got.GetVersion() != ns.GetVersion()+1 || got.GetHashSeed() != ns.GetHashSeed() {
					t.Fatalf("%v is restored as %v", ns, got)
				}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := c.SetNamespace(ctx, ebb.Namespace{Name: "of-the-backup-09999", BinsMax: 7}); err != nil {
			t.Errorf("the control group does not go on: %v", err)
		}
	})
}

// The definitions of namespaces that are new to a shard are larger than the commands that name them. However many come
// at once, they fit into entries, and all count.
func TestManyNamespacesAtOnce(t *testing.T) {
	long(t)
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		all := kept(5_000, func(ns *ebbv1.Namespace) { ns.Universe = []byte(strings.Repeat("u", proto.KeyLenMax)) })
		if err := b.restore(b.client(), all); err != nil {
			t.Fatal(err)
		}
		for i := range b.nodes {
			b.until(fmt.Sprintf("node %d has the namespaces", i), func() bool { return len(b.table(i).Namespaces()) == len(all) })
		}
		req := new(ebbv1.ApplyRequest)
		for _, ns := range all {
			raw, err := pb.Marshal(&ebbv1.Command{Namespace: ns.GetName(), Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
				Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			req.Commands = append(req.Commands, &ebbv1.ShardCommand{Shard: 1, Command: raw})
		}
		peer, done := b.peer(0)
		defer done()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		resp, err := peer.Apply(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range resp.GetResults() {
			if e := proto.FromWire(r.GetError()); e != nil {
				t.Fatalf("command %d of %d: %v", i, len(all), e)
			}
		}
		b.equal(0, 1, 2)
	})
}

// Where syncs are slow, all namespaces of a backup are restored too: their entries are synced together, and a try that
// does not come to its end leaves less to the next.
func TestManyNamespacesOnSlowDisks(t *testing.T) {
	long(t)
	for _, sync := range []time.Duration{50 * time.Millisecond, 250 * time.Millisecond} {
		inBubble(t, 3, 3, func(b *bubble) {
			b.openAll()
			c := b.client()
			for i := range b.nodes {
				b.slow(i, sync)
			}
			all := kept(proto.NamespacesMax-1, func(*ebbv1.Namespace) {})
			if err := b.restore(c, all); err != nil {
				t.Errorf("syncs of %v: %v; there are %d of %d", sync, err, len(b.table(0).Namespaces()), len(all))
			}
			for i := range b.nodes {
				b.slow(i, 0)
			}
		})
	}
}
