package client_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ebbdb/ebb/chaos/proc"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDialReturnsWithOneNode(t *testing.T) {
	w := newWorld(t, 3)
	w.nodes[0].kill()
	w.nodes[2].kill()
	c := w.connect()
	table, err := c.Table(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if table.GetShards() != testShards || len(table.GetNodes()) != 3 {
		t.Errorf("table of %d shards and %d nodes", table.GetShards(), len(table.GetNodes()))
	}
}

func TestDialListsEveryCause(t *testing.T) {
	w := newWorld(t, 2)
	w.nodes[0].kill()
	start := time.Now()
	_, err := ebb.DialOptions(context.Background(), []string{"ebb-0", "nowhere:1"}, ebb.WithDialer(w.dial))
	if err == nil {
		t.Fatal("dialled nobody")
	}
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("a refused connection was reported after %s", took)
	}
	for _, want := range []string{"ebb-0:7070", "connection refused", "nowhere:1", "no machine has the name", "EBB-1001"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if !errors.Is(err, ebb.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v is not UNREACHABLE for ECONNREFUSED", err)
	}
	var e *ebb.Error
	if !errors.As(err, &e) || e.Op != "dial" || e.Hint == "" {
		t.Errorf("no *Error with a hint: %#v", err)
	}
}

func TestDialOutlivesNoContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := ebb.DialOptions(ctx, []string{"silent"}, ebb.WithDialer(silent))
		if err == nil || time.Since(start) > time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not a deadline", err)
		}
	})
}

func TestRefusedPortAnswersFast(t *testing.T) {
	addrs, err := proc.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := ebb.Dial(context.Background(), addrs[0]); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
}

func TestIncrementIsReadBack(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	err := c.Increment(ctx, ns,
		ebb.Increment{Key: "clicks/abc", Bin: "US", Amount: 3},
		ebb.One("clicks/abc", "GB"),
		ebb.One("clicks/def", "US"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := c.Top(ctx, ns, "clicks/abc", 10)
	if err != nil {
		t.Fatal(err)
	}
	if top.Z != 4 || len(top.Bins) != 2 || top.Bins[0].Name != "US" || top.Bins[0].Count != 3 {
		t.Errorf("%+v", top)
	}
	if p := top.Bins[0].P; p.Value != 0.75 || !(p.Low < 0.75 && 0.75 < p.High) || p.Confidence != 0.95 || p.AsOf.IsZero() {
		t.Errorf("%+v", p)
	}
	if !top.Coverage.Complete() || top.Coverage.ShardsTotal != 1 {
		t.Errorf("%+v", top.Coverage)
	}
}

func TestTypedQuestions(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	for i, key := range []string{"a", "b", "c", "d"} {
		if err := c.Increment(ctx, ns, ebb.Increment{Key: key, Bin: "x", Amount: float64(i + 1)}, ebb.One(key, "y")); err != nil {
			t.Fatal(err)
		}
	}
	count, err := c.Count(ctx, ns, "d")
	if err != nil || count.Value != 5 || count.Low != 5 || count.Confidence != 1 || !count.Found {
		t.Errorf("count %+v, %v", count, err)
	}
	p, err := c.Probability(ctx, ns, "d", "x", ebb.Confidence(0.5))
	if err != nil || p.Value != 0.8 || p.Confidence != 0.5 {
		t.Errorf("probability %+v, %v", p, err)
	}
	h, err := c.Entropy(ctx, ns, "a")
	if err != nil || h.Value != 1 || h.Low > 1 || h.High < 1 {
		t.Errorf("entropy %+v, %v", h, err)
	}
	keys, err := c.CountKeys(ctx, ns)
	if err != nil || keys.Value != 4 || keys.Coverage.ShardsTotal != testShards {
		t.Errorf("keys %+v, %v", keys, err)
	}
	merged, err := c.Merged(ctx, ns, []string{"a", "b", "c", "d"}, 0)
	if err != nil || merged.Z != 14 || len(merged.Bins) != 2 || merged.Bins[0].Count != 10 {
		t.Errorf("merged %+v, %v", merged, err)
	}
	none, err := c.Top(ctx, ns, "nothing", 3)
	if err != nil || none.Found || len(none.Bins) != 0 {
		t.Errorf("none %+v, %v", none, err)
	}
	late := time.Now().Add(time.Hour)
	asOf, err := c.Distribution(ctx, ns, "d", ebb.AsOf(late))
	if err != nil || asOf.AsOf.Sub(late).Abs() > time.Millisecond {
		t.Errorf("as of %+v, %v", asOf.AsOf, err)
	}
	for _, opt := range []ebb.AskOption{ebb.Linearizable(), ebb.Any(), ebb.AllowPartial()} {
		if d, err := c.Distribution(ctx, ns, "d", opt); err != nil || d.Z != 5 {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

func TestBadQuestionsNameTheLimit(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ctx := context.Background()
	tests := []struct {
		ask  func() error
		is   error
		says string
	}{
		{func() error { _, err := c.Top(ctx, "", "k", 0); return err }, ebb.ErrBadCount, "1 to 100000"},
		{func() error { _, err := c.Top(ctx, "", "k", -1); return err }, ebb.ErrBadCount, "1 to 100000"},
		{func() error { _, err := c.Top(ctx, "", "k", 1_000_000); return err }, ebb.ErrBadCount, "1000000"},
		{func() error { _, err := c.Top(ctx, "", "", 1); return err }, ebb.ErrBadKey, "empty"},
		{func() error { _, err := c.Top(ctx, "", strings.Repeat("k", 513), 1); return err }, ebb.ErrBadKey, "512"},
		{func() error { _, err := c.Top(ctx, "no such", "k", 1); return err }, ebb.ErrBadNamespace, "no such"},
		{func() error { _, err := c.Top(ctx, "unknown", "k", 1); return err }, ebb.ErrNamespaceNotFound, "unknown"},
		{func() error { return c.Increment(ctx, "", ebb.One("", "b")) }, ebb.ErrBadKey, "empty"},
		{func() error { return c.Increment(ctx, "", ebb.One("k", "")) }, ebb.ErrBadBin, "empty"},
		{func() error { return c.Increment(ctx, "", ebb.One("k", strings.Repeat("b", 257))) }, ebb.ErrBadBin, "256"},
		{func() error { return c.Increment(ctx, "", ebb.Increment{Key: "k", Bin: "b", Amount: -1}) }, ebb.ErrNegativeAmount, "negative"},
		{func() error {
			return c.Increment(ctx, "", ebb.Increment{Key: "k", Bin: "b", Amount: 1, Time: time.Now().Add(time.Hour)})
		}, ebb.ErrBadTime, ""},
		{func() error {
			return c.Increment(ctx, "", ebb.Increment{Key: "k", Bin: "b", Amount: 1, Time: time.Unix(-1, 0)})
		}, ebb.ErrBadTime, "1970"},
		{func() error { return c.Increment(ctx, "unknown", ebb.One("k", "b")) }, ebb.ErrNamespaceNotFound, "unknown"},
		{func() error {
			_, err := c.SetNamespace(ctx, ebb.Namespace{Name: "n", HalfLife: time.Millisecond})
			return err
		}, ebb.ErrBadHalfLife, "1 s"},
		{func() error { _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "default"}); return err }, ebb.ErrNamespaceExists, "default"},
	}
	for _, test := range tests {
		err := test.ask()
		var e *ebb.Error
		if !errors.Is(err, test.is) || !errors.As(err, &e) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: it should be %v and say %q", err, test.is, test.says)
		}
	}
}

func TestNamespaces(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	made, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "clicks", HalfLife: 10 * time.Minute, Clock: ebb.ClockEvent})
	if err != nil || made.HalfLife != 10*time.Minute || made.Decay != ebb.DecayHalfLife || made.Version == 0 {
		t.Fatalf("%+v, %v", made, err)
	}
	set, err := c.SetNamespace(ctx, ebb.Namespace{Name: "clicks", BinsMax: 7})
	if err != nil || set.BinsMax != 7 || set.HalfLife != 10*time.Minute {
		t.Fatalf("%+v, %v", set, err)
	}
	all, err := c.Namespaces(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	status, err := c.Status(ctx)
	if err != nil || status.GetClusterId() != "world" {
		t.Fatalf("%+v, %v", status, err)
	}
}

func TestFollowsLeaders(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	want := 0.0
	for round := range 6 {
		node := w.nodes[round%3].name
		w.handOver(node)
		for id := uint32(1); id <= testShards; id++ {
			key := keysOf(ns, id, 1)[0]
			if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
				t.Fatalf("round %d, shard %d: %v", round, id, err)
			}
			if d, err := c.Top(ctx, ns, key, 1); err != nil || d.Z != want+1 {
				t.Fatalf("round %d, shard %d: %v %v", round, id, d.Z, err)
			}
		}
		want++
	}
}

func TestDeadLeaderIsReplaced(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns := w.plain()
	key := keysOf(ns, w.ledBy("ebb-1"), 1)[0]
	if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
		t.Fatal(err)
	}
	w.node("ebb-1").kill()
	w.handOver("ebb-1")
	if err := c.Increment(ctx, ns, ebb.One(key, "b")); err != nil {
		t.Fatal(err)
	}
	if n := w.count(ns, key); n != 2 {
		t.Errorf("counted %g", n)
	}
	if d, err := c.Top(ctx, ns, key, 1); err != nil || d.Z != 2 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestLostAnswerCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect(ebb.WithAttemptTimeout(50 * time.Millisecond))
		ns := w.plain()
		lost := 0
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			if isIncrements(cmd) && lost < 3 {
				lost++
				return nil, true
			}
			return nil, false
		})
		if err := c.Increment(context.Background(), ns, ebb.One("k", "b")); err != nil {
			t.Fatal(err)
		}
		if n := w.count(ns, "k"); n != 1 || lost != 3 {
			t.Errorf("three lost answers: counted %g", n)
		}
	})
}

func TestUnknownOutcomeOnlyAfterGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect(ebb.WithAttemptTimeout(20 * time.Millisecond))
		ns := w.plain()
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) { return nil, isIncrements(cmd) })
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		defer cancel()
		err := c.Increment(ctx, ns, ebb.One("k", "b"))
		if !errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
		var e *ebb.Error
		if !errors.As(err, &e) || e.Key != "k" || e.Shard == 0 {
			t.Errorf("%+v", e)
		}
	})
}

func TestWhatNeverLandedIsNotUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		for id := range w.shards {
			w.lead(id, "")
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		err := c.Increment(ctx, ns, ebb.One("k", "b"))
		if err == nil || errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
	})
}

// isIncrements tells a batch of increments from what opens a session.
func isIncrements(cmd *ebbv1.ShardCommand) bool {
	var c ebbv1.Command
	if unmarshal(cmd.GetCommand(), &c) != nil {
		return false
	}
	return c.GetIncrements() != nil
}

func TestClosedClient(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errors.Is(err, ebb.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	ctx := context.Background()
	if err := c.Increment(ctx, "", ebb.One("k", "b")); !errors.Is(err, ebb.ErrClosed) {
		t.Errorf("Increment: %v", err)
	}
	if _, err := c.Top(ctx, "", "k", 1); !errors.Is(err, ebb.ErrClosed) {
		t.Errorf("Top: %v", err)
	}
	if err := c.Writer(ebb.WriterOptions{}).Add(ctx, "k", "b", 1); !errors.Is(err, ebb.ErrClosed) {
		t.Errorf("Add: %v", err)
	}
}
