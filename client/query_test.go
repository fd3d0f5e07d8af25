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
	return ebb.WithGRPC(grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if method != ebbv1grpc.Ebb_Query_FullMethodName {
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

// A query that takes longer than one try may take is answered within the caller's deadline: a later try may take longer.
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
