package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// standstill is a client's clock. It continues while the client's process is stopped, and no goroutine runs: it
// advances in one step.
type standstill struct{ ahead atomic.Int64 }

func (s *standstill) now() time.Time       { return time.Now().Add(time.Duration(s.ahead.Load())) }
func (s *standstill) stop(d time.Duration) { s.ahead.Add(int64(d)) }

// loseFirst makes the cluster apply the next of such commands, and not answer it.
func (w *world) loseFirst(which func(*ebbv1.ShardCommand) bool) {
	lost := false
	w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
		first := !lost && which(cmd)
		lost = lost || first
		return nil, first
	})
}

func isEdits(cmd *ebbv1.ShardCommand) bool {
	var c ebbv1.Command
	return unmarshal(cmd.GetCommand(), &c) == nil && c.GetBits() != nil
}

// A client that is stopped for longer than its commands may be tried delivers them when it continues: the one whose
// answer was on its way, and those behind it.
func TestStoppedClientDelivers(t *testing.T) {
	type sink struct {
		add   func(i int) error
		flush func(context.Context) error
		close func(context.Context) error
	}
	ctx := context.Background()
	const key = "k"
	for name, c := range map[string]struct {
		open  func(c *ebb.Client, ns string) (sink, error)
		first func(*ebbv1.ShardCommand) bool
	}{
		"Writer": {first: isIncrements, open: func(c *ebb.Client, ns string) (sink, error) {
			w := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBatch: 1, Window: 1})
			return sink{func(int) error { return w.Add(ctx, key, "b", 1) }, w.Flush, w.Close}, nil
		}},
		"Source": {first: isIncrements, open: func(c *ebb.Client, ns string) (sink, error) {
			s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns, MaxBatch: 1, Timeout: 30 * time.Second})
			if err != nil {
				return sink{}, err
			}
			return sink{func(i int) error { return s.Add(ctx, uint64(i+1), ebb.One(key, "b")) }, s.Flush, s.Close}, nil
		}},
		"BitWriter": {first: isEdits, open: func(c *ebb.Client, ns string) (sink, error) {
			w := c.BitWriter(ebb.BitWriterOptions{Namespace: ns, MaxBatch: 1})
			return sink{func(i int) error { return w.Flip(ctx, key, uint64(i)) }, w.Flush, w.Close}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				var clock standstill
				client := w.connect(ebb.WithClock(clock.now))
				ns := w.plain()
				s, err := c.open(client, ns)
				if err != nil {
					t.Fatal(err)
				}
				add := func(i int) {
					if err := s.add(i); err != nil {
						t.Fatal(err)
					}
				}
				add(0)
				if err := s.flush(ctx); err != nil {
					t.Fatal(err)
				}
				w.loseFirst(c.first)
				for i := 1; i < 5; i++ {
					add(i)
				}
				time.Sleep(time.Second)
				clock.stop(40 * time.Second)
				if err := s.flush(ctx); err != nil {
					t.Error(err)
				}
				add(5)
				if err := s.close(ctx); err != nil {
					t.Error(err)
				}
				have := w.count(ns, key)
				if name == "BitWriter" {
					have = float64(len(idsOf(t, client, ns, key)))
				}
				if have != 6 {
					t.Errorf("counted %g of 6", have)
				}
			})
		})
	}
}

// After a stop that outlasts the session, the outcome of the command that was not answered is unknown. The client sends
// the commands behind it under another session.
func TestStoppedBeyondTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var clock standstill
		c := w.connect(ebb.WithClock(clock.now))
		ns := w.plain()
		ctx := context.Background()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBatch: 1, Window: 1})
		add := func(n int) {
			for range n {
				if err := writer.Add(ctx, "k", "b", 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		add(1)
		if err := writer.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		w.loseFirst(isIncrements)
		add(4)
		time.Sleep(time.Second)
		w.expireSessions()
		clock.stop(2 * time.Hour)
		var u *ebb.Undelivered
		if err := writer.Flush(ctx); !errors.As(err, &u) || u.Unknown != 1 || u.Lost != 0 || !errors.Is(err, ebb.ErrSessionExpired) {
			t.Errorf("%v", err)
		}
		if s := writer.Stats(); s.Applied != 4 || s.Unknown != 1 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
		if n := w.count(ns, "k"); n != 5 { // the unknown one was applied
			t.Errorf("counted %g", n)
		}
		if err := writer.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// However often a client is stopped, its commands are given up when they have been tried for their time.
func TestStopsDoNotKeepParcelsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var clock standstill
		c := w.connect(ebb.WithClock(clock.now))
		ns := w.plain()
		for id := range w.shards {
			w.lead(id, "")
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stops := time.NewTicker(time.Second)
		go func() {
			for {
				select {
				case <-stops.C:
					clock.stop(40 * time.Second)
				case <-ctx.Done():
					return
				}
			}
		}()
		writer := c.Writer(ebb.WriterOptions{Namespace: ns, MaxBatch: 1, Window: 1})
		for range 20 {
			if err := writer.Add(ctx, "k", "b", 1); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		var u *ebb.Undelivered
		if err := writer.Flush(ctx); !errors.As(err, &u) || u.Lost != 20 || !errors.Is(err, ebb.ErrNoLeader) {
			t.Errorf("%v", err)
		}
		if ran := time.Since(start); ran < 10*time.Second || ran > 35*time.Second {
			t.Errorf("given up after the process has run for %s", ran)
		}
		if err := writer.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// The client waits for a node that does not answer, and for one that says when to retry. Neither is a pause of the
// process: the timeout counts that time.
func TestWaitingIsNoStop(t *testing.T) {
	for name, begin := range map[string]func(*world){
		"silence": func(w *world) { w.t.Cleanup(w.nodes[0].freeze()) },
		"retry later": func(w *world) {
			w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
				e := proto.ErrOverloaded.Errorf("busy")
				e.RetryAfterUS = 9_000_000
				return e, false
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				c := w.connect(ebb.WithAttemptTimeout(9 * time.Second))
				ns := w.plain()
				begin(w)
				ctx := context.Background()
				writer := c.Writer(ebb.WriterOptions{Namespace: ns, Timeout: 30 * time.Second, MaxBatch: 1, Window: 1})
				start := time.Now()
				for i := range 5 {
					if err := writer.Add(ctx, fmt.Sprint("k", i), "b", 1); err != nil {
						t.Fatal(err)
					}
				}
				var u *ebb.Undelivered
				if err := writer.Flush(ctx); !errors.As(err, &u) || u.Lost+u.Unknown != 5 {
					t.Errorf("%v", err)
				}
				if took := time.Since(start); took < 29*time.Second || took > 40*time.Second {
					t.Errorf("given up after %s", took)
				}
				if err := writer.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
