package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestFollowsAddresses(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
	if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
		t.Fatal(err)
	}
	w.node("ebb-1").kill()
	w.move("ebb-1", "elsewhere")
	w.node("ebb-1").revive()
	if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
		t.Fatal(err)
	}
	if n := w.count(ns, key); n != 2 {
		t.Errorf("counted %g", n)
	}
}

// TestThroughOneDoor: the table's addresses may mean nothing where the client
// is; what it dialled does.
func TestThroughOneDoor(t *testing.T) {
	w := newWorld(t, 3)
	ns := w.plain()
	door := func(ctx context.Context, addr string) (net.Conn, error) {
		if addr != "localhost:1234" {
			return nil, &net.DNSError{Err: "no such host", Name: addr, IsNotFound: true}
		}
		return w.dial(ctx, "ebb-2:7070")
	}
	c, err := ebb.DialOptions(context.Background(), []string{"localhost:1234"}, ebb.WithDialer(door))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	for i := range 20 {
		if err := c.Increment(ctx, ns, ebb.One(fmt.Sprint("k", i), "b")); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Count(ctx, ns, fmt.Sprint("k", i)); err != nil || n.Value != 1 {
			t.Fatalf("%g, %v", n.Value, err)
		}
	}
}

func TestBatchesOfQuestions(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	var increments []ebb.Increment
	var questions []*ebbv1.Question
	for i := range 100 {
		key := fmt.Sprint("k", i)
		increments = append(increments, ebb.Increment{Key: key, Bin: "b", Amount: float64(i)})
		questions = append(questions, &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Distribution{
			Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 1}},
		}})
	}
	questions[50].Namespace = "unknown"
	questions[60].GetDistribution().Keys = nil
	if err := c.Increment(ctx, ns, increments...); err != nil {
		t.Fatal(err)
	}
	w.node("ebb-0").kill()
	w.handOver("ebb-0")
	later := time.Now().Add(time.Hour)
	answers, err := c.Ask(ctx, questions, ebb.AsOf(later), ebb.Confidence(0.9))
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		d := a.GetDistribution()
		switch i {
		case 50:
			if a.GetError().GetCode() != ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
				t.Errorf("%v", a)
			}
		case 60:
			if a.GetError().GetCode() != ebbv1.Code_CODE_BAD_COUNT {
				t.Errorf("%v", a)
			}
		default:
			if d.GetZ() != float64(i) || d.GetAsOfUs() != later.UnixMicro() || d.GetConfidence() != 0.9 {
				t.Errorf("question %d: %v", i, a)
			}
		}
	}
	if questions[0].GetDistribution().GetAsOfUs() != 0 {
		t.Error("Ask has changed a question of its caller")
	}
}

// TestLargeAnswers: answers that do not fit one message come in several.
func TestLargeAnswers(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	writer := c.Writer(ebb.WriterOptions{Namespace: ns})
	const bins, keys = 5000, 6
	for k := range keys {
		for b := range bins {
			if err := writer.Add(ctx, fmt.Sprint("k", k), fmt.Sprintf("%s-%d", strings.Repeat("x", 240), b), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	var questions []*ebbv1.Question
	for k := range keys {
		questions = append(questions, &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Distribution{
			Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{fmt.Append(nil, "k", k)}, Select: &ebbv1.DistributionQuestion_All{All: true}},
		}})
	}
	answers, err := c.Ask(ctx, questions)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if len(a.GetDistribution().GetBins()) != bins {
			t.Errorf("question %d: %d bins, %v", i, len(a.GetDistribution().GetBins()), a.GetError())
		}
	}
}

func TestQuestionsWaitForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		if err := c.Increment(ctx, ns, ebb.One("k", "b")); err != nil {
			t.Fatal(err)
		}
		id := proto.ShardOf(ns, []byte("k"), testShards)
		w.lead(id, "")
		go func() {
			time.Sleep(4 * time.Second)
			w.lead(id, w.table.Load().Replicas(id)[1].Node)
		}()
		start := time.Now()
		d, err := c.Top(ctx, ns, "k", 1)
		if err != nil || d.Z != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if took := time.Since(start); took < 4*time.Second || took > 8*time.Second {
			t.Errorf("took %s", took)
		}

		w.lead(id, "")
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := c.Top(short, ns, "k", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		// Without a deadline of its own a question gets the client's.
		start = time.Now()
		if _, err := c.Top(ctx, ns, "k", 1); err == nil || time.Since(start) > ebb.TimeoutDefault+time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestHungNodeIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
		thaw := w.node("ebb-1").freeze()
		defer thaw()
		go func() {
			time.Sleep(2 * time.Second)
			w.handOver("ebb-1")
		}()
		start := time.Now()
		if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("writes resumed after %s", took)
		}
		if n := w.count(ns, key); n != 1 {
			t.Errorf("counted %g", n)
		}
	})
}

// A node that leads no more and does not answer is waited for until the others say who leads, not until the try times
// out; and the write counts once.
func TestDeposedNodeIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
		if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
			t.Fatal(err)
		}
		thaw := w.node("ebb-1").freeze()
		defer thaw()
		time.AfterFunc(time.Second, func() { w.handOver("ebb-1") })
		start := time.Now()
		if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
			t.Error(err)
		}
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

// A leader that loses its office says that the outcome is unknown, and the others still take it for the leader: it is
// not asked again at once.
func TestWhoDidNotKnowIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var mu sync.Mutex // guards asked
		var asked []string
		c := w.connect(ebb.WithGRPC(grpc.WithUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if _, write := req.(*ebbv1.ApplyRequest); write {
				mu.Lock()
				asked = append(asked, conn.Target())
				mu.Unlock()
			}
			return call(ctx, method, req, reply, conn, opts...)
		})))
		ns := w.plain()
		ctx := context.Background()
		id := w.ledBy("ebb-1")
		w.lead(id, "ebb-2")
		key := keysOf(ns, id, 1)[0]
		for range 2 { // the second time the client knows who leads
			if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		asked = nil
		mu.Unlock()
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			return proto.ErrUnknownOutcome.Errorf("leadership was lost"), false
		})
		time.AfterFunc(500*time.Millisecond, func() { w.setFault(nil) })
		if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := 1; i < len(asked); i++ {
			if asked[i] == asked[i-1] {
				t.Fatalf("asked twice in a row: %v", asked)
			}
		}
		if len(asked) < 3 {
			t.Errorf("asked %v", asked)
		}
		if n := w.count(ns, key); n != 3 {
			t.Errorf("counted %g", n)
		}
	})
}

func TestConcurrentIncrementsUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect(ebb.WithAttemptTimeout(30*time.Millisecond), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		ns := w.plain()
		rng := rand.New(rand.NewPCG(3, 3))
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) { return nil, rng.IntN(12) == 0 })
		var calls sync.WaitGroup
		for g := range 8 {
			calls.Go(func() {
				for range 25 {
					if err := c.Increment(context.Background(), ns, ebb.One(fmt.Sprint("k", g), "b"), ebb.One("all", "b")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		calls.Wait()
		if got := w.count(ns, "all"); got != 200 {
			t.Errorf("counted %g of 200", got)
		}
	})
}

func TestCancelledIncrement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		if err := c.Increment(ctx, ns, ebb.One("k", "b")); err != nil {
			t.Fatal(err)
		}
		thaw := w.nodes[0].freeze()
		cancelled, cancel := context.WithCancel(ctx)
		time.AfterFunc(20*time.Millisecond, cancel)
		err := c.Increment(cancelled, ns, ebb.One("k", "b"))
		if !errors.Is(err, ebb.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		thaw()
		if err := c.Increment(ctx, ns, ebb.One("k", "b")); err != nil {
			t.Error(err)
		}
	})
}

func TestMetrics(t *testing.T) {
	w := newWorld(t, 1)
	registry := prometheus.NewRegistry()
	c := w.connect(ebb.WithRegisterer(registry))
	ns := w.plain()
	if err := c.Increment(context.Background(), ns, ebb.One("k", "b"), ebb.One("k", "c")); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP ebb_client_increments_applied_total Increments acknowledged.
# TYPE ebb_client_increments_applied_total counter
ebb_client_increments_applied_total 2
# HELP ebb_client_sessions_opened_total Producer sessions asked for.
# TYPE ebb_client_sessions_opened_total counter
ebb_client_sessions_opened_total 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"ebb_client_increments_applied_total", "ebb_client_sessions_opened_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 0 {
		t.Errorf("%d metrics after Close, %v", n, err)
	}
}

func TestOneClusterOnly(t *testing.T) {
	w := newWorld(t, 2)
	c := w.connect()
	wire := protobuf.CloneOf(w.table.Load().Wire())
	wire.ClusterId = "another"
	w.adopt(wire)
	if _, err := c.Table(context.Background()); !errors.Is(err, ebb.ErrWrongCluster) {
		t.Errorf("%v", err)
	}
}

// A shard without a leader delays the questions about others by a moment, not
// until its own are given up.
func TestLeaderlessShardDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		ctx, cancel := context.WithCancel(t.Context())
		well, ill := keysOf(ns, 1, 1)[0], keysOf(ns, 2, 1)[0]
		if err := c.Increment(ctx, ns, ebb.One(well, "b"), ebb.One(ill, "b")); err != nil {
			t.Fatal(err)
		}
		w.lead(2, "")
		var asking sync.WaitGroup
		for range 10 {
			asking.Go(func() { // each gives up before the client learns that there is no leader
				for ctx.Err() == nil {
					short, done := context.WithTimeout(ctx, 400*time.Millisecond)
					_, _ = c.Top(short, ns, ill, 1)
					done()
				}
			})
			time.Sleep(39 * time.Millisecond)
		}
		slow := 0
		for range 1000 {
			start := time.Now()
			if d, err := c.Top(ctx, ns, well, 1); err != nil || d.Z != 1 {
				t.Errorf("%+v, %v", d, err)
			}
			switch took := time.Since(start); {
			case took > 300*time.Millisecond:
				t.Fatalf("an answer took %s", took)
			case took > 10*time.Millisecond:
				slow++
			}
			time.Sleep(10 * time.Millisecond)
		}
		if slow > 10 {
			t.Errorf("%d of 1000 answers are slow", slow)
		}
		cancel()
		asking.Wait()
	})
}

// tracer counts the questions that travel without their caller's trace.
type tracer struct{ lost atomic.Int32 }

type traceKey struct{}

func (tr *tracer) intercept(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if _, ask := req.(*ebbv1.AskRequest); ask && ctx.Value(traceKey{}) == nil {
		tr.lost.Add(1)
	}
	return call(ctx, method, req, reply, conn, opts...)
}

// What a caller of gRPC adds sees each question with its caller's context.
func TestTracedQuestions(t *testing.T) {
	w := newWorld(t, 1)
	tr := &tracer{}
	c := w.connect(ebb.WithGRPC(grpc.WithUnaryInterceptor(tr.intercept)))
	ns := w.plain()
	ctx := context.WithValue(t.Context(), traceKey{}, "trace")
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range 20 {
				if _, err := c.Count(ctx, ns, "k"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	asking.Wait()
	if n := tr.lost.Load(); n > 0 {
		t.Errorf("%d requests have lost their trace", n)
	}
}
