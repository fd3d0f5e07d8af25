package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// balanced checks the sum that WriterStats promises.
func balanced(t *testing.T, s ebb.WriterStats) {
	t.Helper()
	if sum := s.Merged + s.Applied + s.Duplicates + s.Refused + s.Lost + s.Unknown + s.Buffered; sum != s.Added {
		t.Errorf("the counts add up to %d: %+v", sum, s)
	}
}

func TestWriterCountsEverythingOnce(t *testing.T) {
	for _, noAggregate := range []bool{false, true} {
		w := newWorld(t, 3)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBatch: 50, MaxBuffered: 500, NoAggregate: noAggregate})
		want := map[string]float64{}
		var mu sync.Mutex
		var writing sync.WaitGroup
		for g := range 4 {
			writing.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 0))
				for range 2500 {
					key, amount := fmt.Sprintf("key-%d", rng.IntN(40)), float64(rng.IntN(5))
					if err := writer.Add(ctx, key, fmt.Sprint("bin-", rng.IntN(3)), amount); err != nil {
						t.Error(err)
					}
					mu.Lock()
					want[key] += amount
					mu.Unlock()
				}
			})
		}
		writing.Wait()
		if err := writer.Close(ctx); err != nil {
			t.Fatal(err)
		}
		for key, n := range want {
			if got := w.count(ns, key); got != n {
				t.Errorf("%s: %g, not %g", key, got, n)
			}
		}
		s := writer.Stats()
		balanced(t, s)
		if s.Added != 10_000 || s.Buffered != 0 || (s.Merged == 0) != noAggregate {
			t.Errorf("%+v", s)
		}
		if err := writer.Add(ctx, "k", "b", 1); !errors.Is(err, ebb.ErrClosed) {
			t.Errorf("Add after Close: %v", err)
		}
	}
}

// TestWriterUnderFaults is the main promise: whatever goes wrong between client
// and shards, an increment counts once.
func TestWriterUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 4
		if testing.Short() {
			rounds = 1
		}
		for seed := range uint64(rounds) {
			w := newWorld(t, 3)
			c := w.connect(ebb.WithAttemptTimeout(30*time.Millisecond), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
			ns := w.plain()
			rng := rand.New(rand.NewPCG(seed, 1))
			w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
				switch rng.IntN(12) {
				case 0:
					return proto.ErrOverloaded.Errorf("busy"), false
				case 1:
					return proto.ErrNoLeader.Errorf("nobody leads"), false
				case 2:
					return nil, true
				}
				return nil, false
			})
			ctx := context.Background()
			writer := c.Writer(ebb.WriterOptions{
				Namespace: ns, MaxBatch: 20, MaxBuffered: 400, Linger: time.Millisecond,
				OnError: func(err error) { t.Errorf("seed %d: %v", seed, err) },
			})
			want := map[string]float64{}
			for i := range 3000 {
				key := fmt.Sprintf("key-%d", rand.IntN(30))
				if err := writer.Add(ctx, key, "b", 1); err != nil {
					t.Fatal(err)
				}
				want[key]++
				switch i % 500 {
				case 100:
					w.handOver("ebb-0")
				case 200:
					w.node("ebb-1").kill()
					w.handOver("ebb-1")
				case 300:
					w.node("ebb-1").revive()
					w.handOver("ebb-2")
				}
			}
			if err := writer.Close(ctx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for key, n := range want {
				if got := w.count(ns, key); got != n {
					t.Errorf("seed %d: %s: %g, not %g", seed, key, got, n)
				}
			}
			balanced(t, writer.Stats())
		}
	})
}

func TestWriterFlushesOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, Linger: time.Minute})
		if err := writer.Add(context.Background(), "k", "b", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := w.count(ns, "k"); n != 0 {
			t.Errorf("%g before its time", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := w.count(ns, "k"); n != 1 {
			t.Errorf("%g after its time", n)
		}
		if err := writer.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestWriterFlushesOnSize(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	writer := c.Writer(ebb.WriterOptions{Namespace: ns, Linger: -1, MaxBatch: 10, NoAggregate: true})
	ctx := context.Background()
	for range 10 {
		if err := writer.Add(ctx, "k", "b", 1); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually(func() bool { return w.count(ns, "k") == 10 })
	if err := writer.Close(ctx); err != nil {
		t.Error(err)
	}
	if s := writer.Stats(); s.Commands != 1 {
		t.Errorf("%+v", s)
	}
}

func TestFullBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		thaw := w.nodes[0].freeze()
		defer thaw()
		ctx := context.Background()
		open := func(on ebb.OnFull) *ebb.Writer {
			writer := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBuffered: 5, Linger: -1, OnFull: on, NoAggregate: true})
			for range 5 {
				if err := writer.Add(ctx, fmt.Sprint("k", on), "b", 1); err != nil {
					t.Fatal(err)
				}
			}
			return writer
		}

		fail := open(ebb.Fail)
		if err := fail.Add(ctx, "k", "b", 1); !errors.Is(err, ebb.ErrBufferFull) || !errors.Is(err, ebb.ErrOverloaded) {
			t.Errorf("Fail: %v", err)
		}
		drop := open(ebb.Drop)
		if err := drop.Add(ctx, "k", "b", 1); err != nil {
			t.Errorf("Drop: %v", err)
		}
		if s := drop.Stats(); s.Dropped != 1 || s.Added != 5 {
			t.Errorf("Drop: %+v", s)
		}
		block := open(ebb.Block)
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := block.Add(short, "k", "b", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Block: %v", err)
		}
		blocked := make(chan error)
		go func() { blocked <- block.Add(ctx, "k", "b", 1) }()
		thaw()
		if err := <-blocked; err != nil {
			t.Errorf("Block: %v", err)
		}
		for _, writer := range []*ebb.Writer{fail, drop, block} {
			if err := writer.Close(ctx); err != nil {
				t.Error(err)
			}
			balanced(t, writer.Stats())
		}
		if n := w.count(ns, fmt.Sprint("k", ebb.Block)); n != 5 {
			t.Errorf("%g: a full buffer was not flushed", n)
		}
	})
}

func TestNonsenseOptions(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	for _, n := range []int{-1, 1 << 40} {
		one := w.connect(ebb.WithWindow(n))
		key := fmt.Sprint("w", n)
		if err := one.Increment(ctx, ns, ebb.One(key, "b")); err != nil || w.count(ns, key) != 1 {
			t.Errorf("with a window of %d: %v", n, err)
		}
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBatch: n, MaxBuffered: n, Window: n, Timeout: time.Minute})
		for range 3 {
			if err := writer.Add(ctx, fmt.Sprint("k", n), "b", 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := writer.Close(ctx); err != nil {
			t.Error(err)
		}
		if got := w.count(ns, fmt.Sprint("k", n)); got != 3 {
			t.Errorf("counted %g", got)
		}
	}
}

func TestRefusalsAreTold(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	future := time.Now().Add(time.Hour)
	var refused []ebb.Increment
	writer := c.Writer(ebb.WriterOptions{Namespace: ns, OnRefused: func(in ebb.Increment, err error) {
		if errors.Is(err, ebb.ErrBadTime) || errors.Is(err, ebb.ErrNegativeAmount) {
			refused = append(refused, in)
		}
	}})
	add := func(in ebb.Increment) {
		if err := writer.AddAt(ctx, in.Key, in.Bin, in.Amount, in.Time); err != nil {
			t.Fatal(err)
		}
	}
	bad := []ebb.Increment{
		{Key: "k", Bin: "late", Amount: 2, Time: future.Truncate(time.Microsecond)},
		{Key: "k", Bin: "less", Amount: -3},
	}
	add(ebb.One("k", "good"))
	add(bad[0])
	add(ebb.One("k", "good"))
	add(bad[1])
	if err := writer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if len(refused) != 2 || refused[0].Bin != "late" || !refused[0].Time.Equal(bad[0].Time) || refused[1] != bad[1] {
		t.Errorf("%+v", refused)
	}
	if n := w.count(ns, "k"); n != 2 {
		t.Errorf("the others count %g", n)
	}
	if s := writer.Stats(); s.Refused != 2 || s.Applied != 1 || s.Merged != 1 {
		t.Errorf("%+v", s)
	}
	if err := writer.Close(ctx); err != nil {
		t.Error(err)
	}

	silent := c.Writer(ebb.WriterOptions{Namespace: "unknown"})
	if err := silent.Add(ctx, "k", "b", 1); err != nil {
		t.Fatal(err)
	}
	var u *ebb.Undelivered
	if err := silent.Close(ctx); !errors.Is(err, ebb.ErrNamespaceNotFound) || !errors.As(err, &u) || u.Refused != 1 {
		t.Errorf("%v", err)
	}
}

func TestExpiredSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect(ebb.WithAttemptTimeout(30 * time.Millisecond))
		ns := w.plain()
		ctx := context.Background()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns})
		add := func() error {
			if err := writer.Add(ctx, "k", "b", 1); err != nil {
				t.Fatal(err)
			}
			return writer.Flush(ctx)
		}
		if err := add(); err != nil {
			t.Fatal(err)
		}
		w.expireSessions()
		if err := add(); err != nil {
			t.Fatalf("a command that was never sent goes on under a new session: %v", err)
		}
		if n := w.count(ns, "k"); n != 2 {
			t.Errorf("counted %g", n)
		}

		// The answer to the third is lost, and the session expires before its retry.
		lost := false
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			if lost || !isIncrements(cmd) {
				return nil, false
			}
			lost = true
			go w.expireSessions()
			return nil, true
		})
		err := add()
		if !errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
		var u *ebb.Undelivered
		if !errors.As(err, &u) || u.Unknown != 1 || u.Lost != 0 {
			t.Errorf("%+v", u)
		}
		if err := add(); err != nil {
			t.Errorf("what follows goes on: %v", err)
		}
		if n := w.count(ns, "k"); n != 4 {
			t.Errorf("counted %g", n)
		}
		if s := writer.Stats(); s.Unknown != 1 || s.Applied != 3 {
			t.Errorf("%+v", s)
		}
		if err := writer.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Each session has a secret of its own, which its commands and its end show. A command that moves to another
// session shows that one's.
func TestSessionsHaveSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		var secrets []uint64
		commands, closed := 0, 0
		w.setFault(func(_ string, sent *ebbv1.ShardCommand) (*proto.Error, bool) {
			var cmd ebbv1.Command
			if err := protobuf.Unmarshal(sent.GetCommand(), &cmd); err != nil {
				t.Error(err)
			}
			id := cmd.GetSession()
			switch {
			case cmd.GetOpenSession() != nil:
				secrets = append(secrets, cmd.GetOpenSession().GetSecret())
			case cmd.GetCloseSession() != nil:
				closed++
				if !slices.Contains(secrets, cmd.GetCloseSession().GetSecret()) {
					t.Errorf("a session is closed by the secret %x", cmd.GetCloseSession().GetSecret())
				}
			case id != nil:
				commands++
				if id.GetSecret() != secrets[len(secrets)-1] {
					t.Errorf("a command shows %x, and its session was opened with %x", id.GetSecret(), secrets[len(secrets)-1])
				}
			}
			return nil, false
		})
		for range 2 {
			writer := c.Writer(ebb.WriterOptions{Namespace: ns})
			for range 2 {
				if err := writer.Add(ctx, "k", "b", 1); err != nil {
					t.Fatal(err)
				}
				if err := writer.Flush(ctx); err != nil {
					t.Fatal(err)
				}
				w.expireSessions()
			}
			if err := writer.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if n := w.count(ns, "k"); n != 4 || commands < 4 || closed != 2 || len(secrets) != 4 {
			t.Errorf("counted %g by %d commands; %d sessions opened and %d closed", n, commands, len(secrets), closed)
		}
		if slices.Contains(secrets, 0) {
			t.Error("a session without a secret")
		}
		slices.Sort(secrets)
		if len(slices.Compact(secrets)) != 4 || secrets[3]>>48 == 0 { // by chance once in 2^62 runs
			t.Errorf("the secrets were not drawn from 64 bits: %x", secrets)
		}
	})
}

// A writer and a source that are at work while the cluster comes to the newer storage version lose nothing, and
// count nothing twice.
func TestWritersAcrossTheUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.behave(0)
		c := w.connect(ebb.WithAttemptTimeout(30 * time.Millisecond))
		ns := w.plain()
		ctx := context.Background()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, Linger: time.Millisecond})
		source, err := c.Source(ctx, "file", ebb.SourceOptions{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		answers := 0
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			answers++
			return nil, answers%3 == 0 // every third is lost, and its command comes again
		})
		const rounds = 30
		for i := range uint64(rounds) {
			if i == rounds/2 {
				w.behave(shard.BehaviourNamespaces)
			}
			key := fmt.Sprint("k", i%5)
			added := errors.Join(writer.Add(ctx, key, "b", 1), source.Add(ctx, i+1, ebb.One(key, "row")))
			if err := errors.Join(added, writer.Flush(ctx), source.Flush(ctx)); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		if err := errors.Join(writer.Close(ctx), source.Close(ctx)); err != nil {
			t.Error(err)
		}
		sum := 0.0
		for i := range 5 {
			sum += w.count(ns, fmt.Sprint("k", i))
		}
		if sum != 2*rounds {
			t.Errorf("counted %g, want %d", sum, 2*rounds)
		}
		w.setFault(nil)
		again, err := c.Source(ctx, "file", ebb.SourceOptions{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		if again.Resume().Newest != rounds {
			t.Errorf("the source continues behind %d", again.Resume().Newest)
		}
		if err := again.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseSaysWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		for id := range w.shards {
			w.lead(id, "")
		}
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, NoAggregate: true})
		for i := range 7 {
			if err := writer.Add(context.Background(), fmt.Sprint("k", i), "b", 1); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := writer.Close(ctx)
		if took := time.Since(start); took > time.Second {
			t.Errorf("Close outlived its context by %s", took)
		}
		var u *ebb.Undelivered
		if !errors.As(err, &u) || u.Lost != 7 || u.Unknown != 0 {
			t.Errorf("%v", err)
		}
		s := writer.Stats()
		balanced(t, s)
		if s.Lost != 7 || s.Buffered != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestCloseWhileANodeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns})
		ctx := context.Background()
		if err := writer.Add(ctx, "k", "b", 1); err != nil {
			t.Fatal(err)
		}
		if err := writer.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		thaw := w.nodes[0].freeze()
		defer thaw()
		if err := writer.Add(ctx, "k", "b", 1); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := writer.Close(short)
		if took := time.Since(start); took > time.Second {
			t.Errorf("Close outlived its context by %s", took)
		}
		if !errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
		balanced(t, writer.Stats())
	})
}

func TestClientCloseEndsWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		for id := range w.shards {
			w.lead(id, "")
		}
		var told atomic.Int64
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, OnError: func(error) { told.Add(1) }})
		for i := range 20 {
			if err := writer.Add(context.Background(), fmt.Sprint("k", i), "b", 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s := writer.Stats()
		balanced(t, s)
		if s.Buffered != 0 || s.Lost+s.Unknown != 20 || told.Load() == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestGiveUpAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		for id := range w.shards {
			w.lead(id, "")
		}
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, Timeout: 20 * time.Second})
		ctx := context.Background()
		if err := writer.Add(ctx, "k", "b", 1); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := writer.Flush(ctx)
		if took := time.Since(start); took < 19*time.Second || took > 25*time.Second {
			t.Errorf("gave up after %s", took)
		}
		if !errors.Is(err, ebb.ErrNoLeader) || errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("%v", err)
		}
		if err := writer.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestSourceResumes(t *testing.T) {
	w := newWorld(t, 3)
	ns := w.plain()
	ctx := context.Background()
	rows := make([]ebb.Increment, 500)
	want := map[string]float64{}
	for i := range rows {
		rows[i] = ebb.One(fmt.Sprintf("key-%d", i%37), "b")
		want[rows[i].Key]++
	}
	rows[123].Amount = -1 // refused
	want[rows[123].Key]--
	opts := ebb.SourceOptions{Namespace: ns, MaxBatch: 7, OnRefused: func(offset uint64, in ebb.Increment, err error) {
		if offset != 124 || in.Amount != -1 || !errors.Is(err, ebb.ErrNegativeAmount) {
			t.Errorf("refused at %d: %+v, %v", offset, in, err)
		}
	}}
	run := func(upto int, close bool) ebb.SourceStats {
		c := w.connect()
		defer c.Close()
		s, err := c.Source(ctx, "file/1", opts)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < upto; i++ {
			if err := s.Add(ctx, uint64(i+1), rows[i]); err != nil {
				t.Fatal(err)
			}
		}
		if close {
			if err := s.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		return s.Stats()
	}
	run(200, false) // interrupted: whatever is buffered is lost
	run(350, true)
	run(500, true)
	if last := run(500, true); last.Added != 0 {
		t.Errorf("a finished import wrote again: %+v", last)
	}
	opts.Recheck = true
	if last := run(500, true); last.Rechecked != 500 || last.Skipped != 0 || last.Applied != 0 || last.Duplicates != 499 || last.Refused != 1 {
		t.Errorf("a finished import that rechecks: %+v", last)
	}
	for key, n := range want {
		if got := w.count(ns, key); got != n {
			t.Errorf("%s: %g, not %g", key, got, n)
		}
	}
}

func TestSourceUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		ns := w.plain()
		c := w.connect(ebb.WithAttemptTimeout(20*time.Millisecond), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}))
		rng := rand.New(rand.NewPCG(7, 7))
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			switch rng.IntN(8) {
			case 0:
				return proto.ErrOverloaded.Errorf("busy"), false
			case 1:
				return nil, true
			}
			return nil, false
		})
		ctx := context.Background()
		s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns, MaxBatch: 10, MaxBuffered: 100})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{}
		for i := range 800 {
			key := fmt.Sprint("k", i%20)
			want[key]++
			if err := s.Add(ctx, uint64(i+1), ebb.One(key, "b")); err != nil {
				t.Fatal(err)
			}
			if i == 400 {
				w.handOver("ebb-0")
			}
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		for key, n := range want {
			if got := w.count(ns, key); got != n {
				t.Errorf("%s: %g, not %g", key, got, n)
			}
		}
		balanced(t, s.Stats().WriterStats)
	})
}

func TestSourceIsFenced(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	first, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Add(ctx, 1, ebb.One("k", "b")); err != nil {
		t.Fatal(err)
	}
	if err := first.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	second, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if r := second.Resume(); r.Newest != 1 || r.Offset != 0 || slices.Max(r.Shards) != 1 {
		t.Errorf("%+v", r)
	}
	if err := first.Add(ctx, 2, ebb.One("k", "b")); err != nil {
		t.Fatal(err)
	}
	if err := first.Flush(ctx); !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("%v", err)
	}
	if err := first.Add(ctx, 3, ebb.One("other", "b")); !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("a fenced source takes no more: %v", err)
	}
	if err := second.Add(ctx, 1, ebb.One("k", "b")); err != nil {
		t.Fatal(err)
	}
	if err := second.Add(ctx, 1, ebb.One("k", "b")); !errors.Is(err, ebb.ErrBadRequest) {
		t.Errorf("an offset came twice: %v", err)
	}
	if err := second.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if n := w.count(ns, "k"); n != 1 {
		t.Errorf("counted %g", n)
	}
	if s := second.Stats(); s.Skipped != 1 || s.Added != 0 {
		t.Errorf("%+v", s)
	}
	if err := first.Close(ctx); err != nil && !errors.Is(err, ebb.ErrSourceFenced) {
		t.Error(err)
	}
	if err := c.DropSource(ctx, ns, "f"); err != nil {
		t.Fatal(err)
	}
	third, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil || third.Resume().Newest != 0 {
		t.Errorf("%+v, %v", third.Resume(), err)
	}
	if err := third.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A drop forgets the source but not its epochs. So the former holder is fenced, and its offsets are not those of the
// next import.
func TestSourceIsFencedAfterADrop(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	old, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DropSource(ctx, ns, "f"); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Add(ctx, 1000, ebb.One("k", "b")); err != nil {
		t.Fatal(err)
	}
	if err := old.Flush(ctx); !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("the holder from before the drop: %v", err)
	}
	if err := fresh.Add(ctx, 1, ebb.One("k", "b")); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if n := w.count(ns, "k"); n != 1 {
		t.Errorf("counted %g", n)
	}
	if err := old.Close(ctx); err != nil && !errors.Is(err, ebb.ErrSourceFenced) {
		t.Error(err)
	}
}

// TestSourceStopsAtALoss: when a command is given up, nothing behind it in its
// shard may be written, or the next import would skip what was lost.
func TestSourceStopsAtALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ns := w.plain()
		ctx := context.Background()
		s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns, MaxBatch: 1, Timeout: 60 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		refusing := true
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			if refusing {
				return proto.ErrOverloaded.Errorf("busy"), false
			}
			return nil, false
		})
		for i := range 5 {
			if err := s.Add(ctx, uint64(i+1), ebb.One("k", "b")); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Flush(ctx); !errors.Is(err, ebb.ErrOverloaded) {
			t.Errorf("%v", err)
		}
		w.mu.Lock()
		refusing = false
		w.mu.Unlock()
		if err := s.Add(ctx, 6, ebb.One("k", "b")); err == nil {
			t.Error("a broken source goes on")
		}
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if n := w.count(ns, "k"); n != 0 {
			t.Errorf("counted %g behind a loss", n)
		}
		again, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if err := again.Add(ctx, uint64(i+1), ebb.One("k", "b")); err != nil {
				t.Fatal(err)
			}
		}
		if err := again.Close(ctx); err != nil {
			t.Error(err)
		}
		if n := w.count(ns, "k"); n != 6 {
			t.Errorf("counted %g", n)
		}
	})
}
