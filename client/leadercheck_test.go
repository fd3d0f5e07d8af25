package client_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// wiretap hears what a client asks of nodes, and may hold its writes back.
type wiretap struct {
	mu     sync.Mutex // guards all below
	writes []*tapped
	tables int
	slow   time.Duration // that each write takes, besides
}

// tapped is one request to write.
type tapped struct {
	node    string
	command []byte // the first
	took    time.Duration
	err     error
}

func (w *wiretap) intercept(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	write, writes := req.(*ebbv1.ApplyRequest)
	w.mu.Lock()
	if method == ebbv1grpc.Ebb_Table_FullMethodName {
		w.tables++
	}
	if !writes {
		w.mu.Unlock()
		return call(ctx, method, req, reply, conn, opts...)
	}
	slow := w.slow
	t := &tapped{command: write.GetCommands()[0].GetCommand()}
	t.node, _, _ = strings.Cut(strings.TrimPrefix(conn.Target(), "passthrough:///"), ":")
	w.writes = append(w.writes, t)
	w.mu.Unlock()
	start := time.Now()
	var err error
	select {
	case <-time.After(slow):
		err = call(ctx, method, req, reply, conn, opts...)
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.took, t.err = time.Since(start), err
	return err
}

func (w *wiretap) tap() ebb.Option { return ebb.WithGRPC(grpc.WithUnaryInterceptor(w.intercept)) }

// begin forgets what was heard; from now on each write takes that much longer.
func (w *wiretap) begin(slow time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes, w.tables, w.slow = nil, 0, slow
}

// asked returns the nodes that were asked to write something about a key, in turn.
func (w *wiretap) asked(key string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var nodes []string
	for _, t := range w.writes {
		if bytes.Contains(t.command, append([]byte{byte(len(key))}, key...)) { // with its length, as it is written
			nodes = append(nodes, t.node)
		}
	}
	return nodes
}

// nodesOf returns who has a replica of a shard.
func nodesOf(w *world, id uint32) []string {
	var nodes []string
	for _, r := range w.table.Load().Replicas(id) {
		nodes = append(nodes, r.GetNode())
	}
	return nodes
}

// written opens the session of a key's shard by counting it once.
func written(t *testing.T, c *ebb.Client, ns string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := c.Increment(t.Context(), ns, ebb.One(key, "b")); err != nil {
			t.Fatal(err)
		}
	}
}

// Nodes without a replica of a shard do not hear who leads it: the others of its group do, and are asked.
func TestReplicasSayWhoIsDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5)
		c := w.connect()
		ns := w.plain()
		var id uint32
		var leader string
		for s := uint32(1); s <= testShards; s++ { // of the three that come first in the table, only one is in the group, and is cut off
			first := slices.DeleteFunc(nodesOf(w, s), func(node string) bool { return node > "ebb-2" })
			if len(first) == 1 {
				id, leader = s, first[0]
			}
		}
		if id == 0 {
			t.Fatal("no shard is on one of the first three nodes only")
		}
		w.lead(id, leader)
		key := keysOf(ns, id, 1)[0]
		written(t, c, ns, key)
		thaw := w.node(leader).freeze()
		defer thaw()
		time.AfterFunc(600*time.Millisecond, func() { w.lead(id, "ebb-4") })
		start := time.Now()
		written(t, c, ns, key)
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("the write took %s", took)
		}
		thaw()
		time.Sleep(time.Second)
		if n := w.count(ns, key); n != 2 {
			t.Errorf("counted %g", n)
		}
	})
}

// Many writes that take long make few requests for the table: there is one check a node.
func TestSlowWritesAskForFewTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var tap wiretap
		c := w.connect(tap.tap())
		ns := w.plain()
		keys := keysOf(ns, w.ledBy("ebb-1"), 40)
		written(t, c, ns, keys...)
		const lasts = 30 * time.Second
		tap.begin(2 * time.Second)
		var writing sync.WaitGroup
		for i, key := range keys {
			writing.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				for start := time.Now(); time.Since(start) < lasts; {
					if err := c.Increment(context.Background(), ns, ebb.One(key, "b")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writing.Wait()
		tap.mu.Lock()
		defer tap.mu.Unlock()
		if len(tap.writes) < 100 {
			t.Errorf("%d requests only", len(tap.writes))
		}
		for _, r := range tap.writes {
			if r.node != "ebb-1" || r.err != nil {
				t.Fatalf("a write to %s ended after %s: %v", r.node, r.took, r.err)
			}
		}
		if limit := int(lasts.Seconds()) * 3 / 2; tap.tables > limit {
			t.Errorf("the table was asked for %d times in %s, and %d is enough", tap.tables, lasts, limit)
		}
	})
}

// The client sends a write to a node that it does not take for the leader, and the node passes it on. Once the client
// finds the leader, it still waits for that node.
func TestForwarderIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var tap wiretap
		c := w.connect(tap.tap())
		ns := w.plain()
		key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
		written(t, c, ns, key)
		tap.begin(2500 * time.Millisecond)
		failed := false
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			if failed {
				return nil, false
			}
			failed = true
			return proto.ErrUnknownOutcome.Errorf("leadership was lost"), false
		})
		written(t, c, ns, key)
		if asked := tap.asked(key); len(asked) != 2 || asked[0] != "ebb-1" || asked[1] == "ebb-1" {
			t.Errorf("asked %v", asked)
		}
		if n := w.count(ns, key); n != 2 {
			t.Errorf("counted %g", n)
		}
	})
}

// What has no identity would be done twice: it is waited for as long as a try lasts.
func TestWritesWithoutIdentityAreNotChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var tap wiretap
		c := w.connect(tap.tap())
		ns := w.plain()
		key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
		thaw := w.node("ebb-1").freeze()
		defer thaw()
		time.AfterFunc(100*time.Millisecond, func() { w.handOver("ebb-1") })
		written(t, c, ns, key)
		tap.mu.Lock()
		defer tap.mu.Unlock()
		cmd := &ebbv1.Command{}
		first := tap.writes[0]
		if err := protobuf.Unmarshal(first.command, cmd); err != nil || cmd.GetOpenSession() == nil {
			t.Fatalf("the first request does not open a session: %v, %v", cmd, err)
		}
		if first.node != "ebb-1" || first.took < ebb.AttemptTimeoutDefault {
			t.Errorf("the session that %s should open was waited for %s", first.node, first.took)
		}
	})
}

// A write that waits for its turn at a node that leads no more goes where another leads as soon as that is known.
func TestQueueOfTheDeposedGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		keys := keysOf(ns, w.ledBy("ebb-1"), 40)
		written(t, c, ns, keys...)
		thaw := w.node("ebb-1").freeze()
		defer thaw()
		time.AfterFunc(100*time.Millisecond, func() { w.handOver("ebb-1") })
		start := time.Now()
		var writing sync.WaitGroup
		for i, key := range keys {
			writing.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := c.Increment(context.Background(), ns, ebb.One(key, "b")); err != nil {
					t.Error(err)
				}
			})
		}
		writing.Wait()
		if took := time.Since(start); took > time.Second {
			t.Errorf("the last write took %s", took)
		}
	})
}

// A leader that did not know once what became of a write is not the first choice of others for a second, and is gone
// back to then.
func TestHealthyLeaderIsGoneBackTo(t *testing.T) {
	for place := range 3 {
		t.Run(fmt.Sprint("replica ", place), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { goesBack(t, place) })
		})
	}
}

func goesBack(t *testing.T, place int) {
	w := newWorld(t, 3)
	const id = 1
	leader := nodesOf(w, id)[place]
	w.lead(id, leader)
	var tap wiretap
	c := w.connect(tap.tap())
	ns := w.plain()
	keys := keysOf(ns, id, 40)
	written(t, c, ns, keys...)
	tap.begin(0)
	failed := false
	w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
		if failed {
			return nil, false
		}
		failed = true
		return proto.ErrUnknownOutcome.Errorf("the disk was slow"), false
	})
	start := time.Now()
	for i, key := range keys {
		since := time.Since(start)
		written(t, c, ns, key)
		asked := tap.asked(key)
		switch {
		case i == 0:
		case since < 900*time.Millisecond && asked[0] == leader:
			t.Errorf("asked first %s after it was lost", since)
		case since > 1200*time.Millisecond && (len(asked) != 1 || asked[0] != leader):
			t.Errorf("%s is asked still %s after %s was lost", asked, since, leader)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
