package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// openGate holds back the commands of one client that open a source in other shards than the first.
type openGate struct {
	reached chan struct{} // closed when the first is held back
	passes  chan struct{} // closed by the test
	once    sync.Once
}

func newOpenGate() *openGate {
	return &openGate{reached: make(chan struct{}), passes: make(chan struct{})}
}

func (g *openGate) option() ebb.Option {
	return ebb.WithGRPC(grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		if write, is := req.(*ebbv1.ApplyRequest); is {
			for _, cmd := range write.GetCommands() {
				c := &ebbv1.Command{}
				if protobuf.Unmarshal(cmd.GetCommand(), c) == nil && c.GetOpenSource() != nil && cmd.GetShard() > 1 {
					g.once.Do(func() { close(g.reached) })
					<-g.passes
				}
			}
		}
		return call(ctx, method, req, reply, conn, opts...)
	}))
}

// everyShard has one key of each shard.
func everyShard(ns string) (keys []string) {
	for id := uint32(1); id <= testShards; id++ {
		keys = append(keys, keysOf(ns, id, 1)[0])
	}
	return keys
}

// addAll adds the rows from one offset to another, one row of each key for each round, and flushes them.
func addAll(s *ebb.Source, keys []string, from, to uint64) error {
	ctx := context.Background()
	for offset := from; offset <= to; offset++ {
		if err := s.Add(ctx, offset, ebb.One(keys[offset%uint64(len(keys))], "b")); err != nil {
			return err
		}
	}
	return s.Flush(ctx)
}

func (w *world) sum(ns string, keys []string) (n float64) {
	for _, key := range keys {
		n += w.count(ns, key)
	}
	return n
}

// A writer that began to open a source before the present holder, and opens most shards after it, does not get the
// source: the holder continues, and each row counts once.
func TestLateOpenerDoesNotTakeASourceAway(t *testing.T) {
	w := newWorld(t, 1)
	ns := w.plain()
	ctx, keys := context.Background(), everyShard(ns)
	gate := newOpenGate()
	slow, fast := w.connect(gate.option()), w.connect()
	lost := make(chan error, 1)
	go func() {
		_, err := slow.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
		lost <- err
	}()
	<-gate.reached
	holder, err := fast.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := addAll(holder, keys, 1, 80); err != nil {
		t.Fatal(err)
	}
	close(gate.passes)
	if err := <-lost; !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("the late opener: %v", err)
	}
	if err := addAll(holder, keys, 81, 160); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if err := holder.Close(ctx); err != nil {
		t.Error(err)
	}
	if n := w.sum(ns, keys); n != 160 {
		t.Errorf("counted %g", n)
	}
	again, err := fast.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := addAll(again, keys, 1, 160); err != nil || again.Stats().Skipped != 160 {
		t.Errorf("a second import: %v, %+v", err, again.Stats())
	}
	if err := again.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A writer that stood still while it opened a source, and wakes when another has imported all and an operator has
// dropped the source, counts nothing.
func TestOpenerThatWakesAfterADropIsFenced(t *testing.T) {
	w := newWorld(t, 1)
	ns := w.plain()
	ctx, keys := context.Background(), everyShard(ns)
	gate := newOpenGate()
	slow, fast := w.connect(gate.option()), w.connect()
	lost := make(chan error, 1)
	go func() {
		_, err := slow.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
		lost <- err
	}()
	<-gate.reached
	holder, err := fast.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(addAll(holder, keys, 1, 80), holder.Close(ctx), fast.DropSource(ctx, ns, "f")); err != nil {
		t.Fatal(err)
	}
	close(gate.passes)
	if err := <-lost; !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("the opener that woke: %v", err)
	}
	if n := w.sum(ns, keys); n != 80 {
		t.Errorf("counted %g", n)
	}
}

// Of several writers that start at the same time, one imports all rows, and the others are fenced.
func TestOneOfSimultaneousWritersGoesOn(t *testing.T) {
	w := newWorld(t, 3)
	ns := w.plain()
	ctx, keys := context.Background(), everyShard(ns)
	var clients []*ebb.Client
	for range 3 {
		clients = append(clients, w.connect())
	}
	const rounds, rows = 30, 64
	for round := range rounds {
		name := fmt.Sprint("f", round)
		outcomes := make([]error, len(clients))
		var running sync.WaitGroup
		for i, c := range clients {
			running.Go(func() {
				s, err := c.Source(ctx, name, ebb.SourceOptions{Namespace: ns, MaxBatch: 4})
				if err != nil {
					outcomes[i] = err
					return
				}
				err = addAll(s, keys, 1, rows)
				if closed := s.Close(ctx); err == nil {
					err = closed
				}
				if st := s.Stats(); err != nil && st.Applied == 0 && s.Resume().Newest == 0 {
					_ = s.Discard(ctx)
				}
				outcomes[i] = err
			})
		}
		running.Wait()
		went := 0
		for _, err := range outcomes {
			switch {
			case err == nil:
				went++
			case !errors.Is(err, ebb.ErrSourceFenced):
				t.Fatalf("round %d: %v", round, err)
			}
		}
		// two may both go through, the one after the other
		if n := w.sum(ns, keys); went == 0 || n != float64((round+1)*rows) {
			t.Fatalf("round %d: %d writers went on, and %g is counted of %d", round, went, n, (round+1)*rows)
		}
	}
}

// A source is discarded by its holder only: one that another writer has opened since stays, and so do its rows.
func TestDiscardIsOfTheHolder(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx, keys := context.Background(), everyShard(ns)
	open := func() *ebb.Source {
		t.Helper()
		s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	known := func() (shards int) {
		for s, err := range c.Sources(ctx, ns) {
			if err != nil {
				t.Fatal(err)
			}
			shards += s.Shards
		}
		return shards
	}
	first := open()
	holder := open()
	if err := addAll(holder, keys, 1, 80); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := first.Discard(ctx); !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("a discard by another: %v", err)
	}
	if err := errors.Join(addAll(holder, keys, 81, 160), holder.Close(ctx)); err != nil {
		t.Error(err)
	}
	third := open()
	if r := third.Resume(); r.Newest != 160 {
		t.Errorf("resumed at %+v", r)
	}
	if err := errors.Join(third.Close(ctx), third.Discard(ctx)); err != nil {
		t.Error(err)
	}
	if n := known(); n != testShards {
		t.Errorf("%d shards know what has counted rows", n)
	}
	if err := c.DropSource(ctx, ns, "f"); err != nil {
		t.Fatal(err)
	}
	unused := open()
	if err := errors.Join(unused.Close(ctx), unused.Discard(ctx)); err != nil {
		t.Error(err)
	}
	if n := known(); n != 0 {
		t.Errorf("%d shards know what was discarded", n)
	}
	if n := w.sum(ns, keys); n != 160 {
		t.Errorf("counted %g", n)
	}
}

// In a cluster of before, a discard changes nothing.
func TestDiscardInAnOlderCluster(t *testing.T) {
	w := newWorld(t, 1)
	w.behave(5)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := s.Discard(ctx); !errors.Is(err, proto.ErrBadRequest) {
		t.Errorf("%v", err)
	}
}

// A drop ends an import that runs, in every shard, and the next import counts all rows again.
func TestDropEndsAnImport(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx, keys := context.Background(), everyShard(ns)
	s, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := addAll(s, keys, 1, 80); err != nil {
		t.Fatal(err)
	}
	if err := c.DropSource(ctx, ns, "f"); err != nil {
		t.Fatal(err)
	}
	if err := addAll(s, keys, 81, 160); !errors.Is(err, ebb.ErrSourceFenced) {
		t.Errorf("an import whose source was dropped: %v", err)
	}
	_ = s.Close(ctx) // says so again
	if n := w.sum(ns, keys); n != 80 {
		t.Errorf("counted %g behind a drop", n)
	}
	again, err := c.Source(ctx, "f", ebb.SourceOptions{Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(addAll(again, keys, 1, 160), again.Close(ctx)); err != nil {
		t.Error(err)
	}
	if n := w.sum(ns, keys); n != 80+160 {
		t.Errorf("counted %g", n)
	}
}
