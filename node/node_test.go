package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// world is a cluster of real nodes on loopback, in temporary directories.
type world struct {
	t       *testing.T
	configs []node.Config
	nodes   []*node.Node
}

func testLogger(t *testing.T) *slog.Logger {
	level := slog.LevelError
	if os.Getenv("EBB_TEST_LOG") != "" {
		level = slog.LevelInfo
	}
	if os.Getenv("EBB_TEST_LOG") == "debug" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// newWorld opens n nodes with so many shards and waits until they serve.
func newWorld(t *testing.T, n int, shards uint32) *world {
	return newWorldWith(t, n, shards, func(*node.Config) {})
}

// newWorldWith is newWorld with further settings of each node.
func newWorldWith(t *testing.T, n int, shards uint32, set func(*node.Config)) *world {
	w := &world{t: t}
	for i := range n {
		w.configs = append(w.configs, node.Config{
			Name: fmt.Sprintf("ebb-%d", i), DataDir: t.TempDir(),
			GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Gossip: "127.0.0.1:0",
			BootstrapExpect: n, Shards: shards, Logger: testLogger(t),
			Fatal: func(err error) { t.Errorf("node %d: fatal: %v", i, err) },
		})
		set(&w.configs[i])
		w.nodes = append(w.nodes, nil)
		w.open(i)
	}
	t.Cleanup(w.close)
	for i := range n {
		w.ready(i)
	}
	return w
}

func (w *world) open(i int) {
	w.t.Helper()
	for j, other := range w.nodes {
		if j != i && other != nil && len(w.configs[i].Join) == 0 {
			w.configs[i].Join = []string{other.Addresses().Gossip}
		}
	}
	n, err := node.Open(context.Background(), w.configs[i])
	if err != nil {
		w.t.Fatalf("open node %d: %v", i, err)
	}
	w.nodes[i] = n
}

func (w *world) ready(i int) {
	w.t.Helper()
	select {
	case <-w.nodes[i].Ready():
	case <-time.After(2 * time.Minute):
		s := w.nodes[i].Status()
		w.t.Fatalf("node %d is not ready: %s %s", i, s.Phase, s.Detail)
	}
}

func (w *world) close() {
	for i, n := range w.nodes {
		if n == nil {
			continue
		}
		if err := n.Close(); err != nil {
			w.t.Errorf("close node %d: %v", i, err)
		}
	}
}

func (w *world) ebb(i int) ebbv1grpc.EbbClient {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.nodes[i].Addresses().GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return node.OSNetwork{}.Dial(ctx, a) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return ebbv1grpc.NewEbbClient(conn)
}

func increments(key string, bins ...string) *ebbv1.IncrementRequest {
	req := &ebbv1.IncrementRequest{}
	for _, b := range bins {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte(key), Bin: []byte(b)})
	}
	return req
}

func question(keys ...string) *ebbv1.AskRequest {
	req := &ebbv1.AskRequest{}
	for _, k := range keys {
		req.Questions = append(req.Questions, &ebbv1.Question{Ask: &ebbv1.Question_Distribution{
			Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(k)}, Select: &ebbv1.DistributionQuestion_All{All: true}},
		}})
	}
	return req
}

func TestOneNode(t *testing.T) {
	ctx := context.Background()
	start := time.Now()
	w := newWorld(t, 1, 8)
	t.Logf("ready after %v", time.Since(start))
	c := w.ebb(0)
	if _, err := c.Increment(ctx, increments("link", "de", "de", "fr")); err != nil {
		t.Fatal(err)
	}
	ask := func(c ebbv1grpc.EbbClient) float64 {
		resp, err := c.Ask(ctx, question("link"))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Answers[0].GetDistribution().GetZ()
	}
	if z := ask(c); z < 2.9 || z > 3 {
		t.Fatalf("z = %v, want 3", z)
	}
	if err := w.nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	w.open(0)
	w.ready(0)
	t.Logf("ready again after %v", time.Since(start))
	if z := ask(w.ebb(0)); z < 2.9 || z > 3 {
		t.Fatalf("after a restart z = %v, want 3", z)
	}
}

// increment writes at a node, under one idempotency key until the outcome is
// known: while groups are young their leaders may change.
func (w *world) increment(i int, key string, bins ...string) {
	w.t.Helper()
	req, c := increments(key, bins...), w.ebb(i)
	req.IdempotencyKey = &ebbv1.IdempotencyKey{IssuedAtUs: time.Now().UnixMicro(), Hi: rand.Uint64(), Lo: rand.Uint64()}
	for start := time.Now(); ; {
		_, err := c.Increment(context.Background(), req)
		if err == nil {
			return
		}
		if !errors.Is(ebbv1grpc.FromStatus(err), proto.ErrUnknownOutcome) || time.Since(start) > time.Minute {
			w.t.Fatal(err)
		}
	}
}

func (w *world) z(i int, key string) float64 {
	w.t.Helper()
	resp, err := w.ebb(i).Ask(context.Background(), question(key))
	if err != nil {
		w.t.Fatalf("ask node %d: %v", i, err)
	}
	if e := resp.Answers[0].GetError(); e != nil {
		w.t.Fatalf("ask node %d: %v", i, e)
	}
	return resp.Answers[0].GetDistribution().GetZ()
}

func TestThreeNodes(t *testing.T) {
	start := time.Now()
	w := newWorld(t, 3, 16)
	t.Logf("ready after %v", time.Since(start))
	for i := range 60 {
		w.increment(i%3, fmt.Sprintf("k%d", i%20), "a", "b")
	}
	for i := range 3 {
		for k := range 20 {
			if z := w.z(i, fmt.Sprintf("k%d", k)); z < 5.9 || z > 6 {
				t.Fatalf("node %d: z of k%d = %v, want 6", i, k, z)
			}
		}
	}
}
