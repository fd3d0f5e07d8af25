package client_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// slowQueries has every query take so long. It counts the tries.
func slowQueries(takes time.Duration, tries *atomic.Int32) ebb.Option {
	return slowCalls(ebbv1grpc.Ebb_Query_FullMethodName, takes, tries)
}

// slowCalls has every call of a method take so long. It counts the tries.
func slowCalls(slow string, takes time.Duration, tries *atomic.Int32) ebb.Option {
	return ebb.WithGRPC(grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if method != slow {
			return call(ctx, method, req, reply, conn, opts...)
		}
		tries.Add(1)
		select {
		case <-time.After(takes):
			return call(ctx, method, req, reply, conn, opts...)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}))
}

// A query that takes longer than one try may take is answered within the caller's deadline: a later try may take
// longer.
func TestLongQueryIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		var tries atomic.Int32
		c := w.connect(slowQueries(2*ebb.AttemptTimeoutDefault+time.Second, &tries))
		ns := w.plain()
		written(t, c, ns, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Query(ctx, "total(a)", ebb.InNamespace(ns)); err != nil || tries.Load() != 3 {
			t.Fatalf("%d tries: %v", tries.Load(), err)
		}
		tries.Store(0)
		if _, err := c.Query(ctx, "total(a)", ebb.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
	})
}

// So is a question about bits, and a query that stores is tried once, for as long as its caller waits.
func TestLongQuestionsAndStores(t *testing.T) {
	const takes = 2*ebb.AttemptTimeoutDefault + time.Second
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		ns := w.plain()
		var tries atomic.Int32
		c := w.connect(slowCalls(ebbv1grpc.Ebb_Ask_FullMethodName, takes, &tries))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.SetBits(ctx, ns, "a", 1, 2); err != nil {
			t.Fatal(err)
		}
		n, err := c.Bitmap(ns, ebb.Bits("a")).Count(ctx)
		if err != nil || n.Count != 2 || tries.Load() != 3 {
			t.Errorf("%v ids after %d tries: %v", n, tries.Load(), err)
		}
		tries.Store(0)
		c = w.connect(slowQueries(takes, &tries))
		if _, err := c.Query(ctx, "store b = a", ebb.InNamespace(ns)); err != nil || tries.Load() != 1 {
			t.Errorf("stored after %d tries: %v", tries.Load(), err)
		}
	})
}
