package rpc

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// BenchmarkAsk is one question for the 10 most probable of 260 bins, through
// gRPC, router and shard, with and without the network.
func BenchmarkAsk(b *testing.B) {
	s := newOneNode(b, namespaceOf(&ebbv1.Namespace{Name: "default"}))
	s.Registerer = prometheus.NewRegistry()
	req := &ebbv1.IncrementRequest{}
	for i := range 260 {
		req.Increments = append(req.Increments, increment("k", fmt.Sprintf("bin %d", i), float64(i), 0)...)
	}
	if _, err := s.Router.Increment(b.Context(), req); err != nil {
		b.Fatal(err)
	}
	q := topQuestion("k", 10)
	b.Run("direct", func(b *testing.B) {
		b.ReportAllocs()
		srv := &ebbServer{Services: &s}
		for b.Loop() {
			if _, err := srv.Ask(b.Context(), q); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bufconn", func(b *testing.B) { benchmarkAsk(b, ebbv1grpc.NewEbbClient(serve(b, s)), q) })
	b.Run("tcp", func(b *testing.B) { benchmarkAsk(b, ebbv1grpc.NewEbbClient(serveTCP(b, s)), q) })
	b.Run("http", func(b *testing.B) {
		b.ReportAllocs()
		h := NewHTTP(s)
		for b.Loop() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/ns/default/distribution/k?top=10", nil))
			if w.Code != 200 {
				b.Fatal(w.Body)
			}
		}
	})
}

// BenchmarkEmptyCall is what gRPC itself costs here.
func BenchmarkEmptyCall(b *testing.B) {
	c := ebbv1grpc.NewEbbClient(serveTCP(b, fixture().services()))
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.ListNamespaces(context.Background(), &ebbv1.ListNamespacesRequest{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchmarkAsk(b *testing.B, c ebbv1grpc.EbbClient, q *ebbv1.AskRequest) {
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Ask(context.Background(), q); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkInterceptor is what ours adds to a call.
func BenchmarkInterceptor(b *testing.B) {
	s := fixture().services()
	s.Registerer = prometheus.NewRegistry()
	i := unary(&s, newMetrics("grpc", s.Registerer))
	info := &grpc.UnaryServerInfo{FullMethod: "/ebb.v1.Ebb/Ask"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	for _, c := range []struct {
		name string
		ctx  func() (context.Context, context.CancelFunc)
	}{
		{"deadline", func() (context.Context, context.CancelFunc) { return context.WithTimeout(b.Context(), DefaultTimeout) }},
		{"none", func() (context.Context, context.CancelFunc) { return b.Context(), func() {} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx, cancel := c.ctx()
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := i(ctx, nil, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkJSON reads a batch of a thousand increments.
func BenchmarkJSON(b *testing.B) {
	req := &ebbv1.IncrementRequest{}
	for i := range 1000 {
		req.Increments = append(req.Increments, increment(fmt.Sprintf("key/%d", i%50), "bin", float64(i), 0)...)
	}
	doc, err := appendJSON(nil, req)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if err := parseJSON(new(charge), doc, &ebbv1.IncrementRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

func serveTCP(b *testing.B, s Services, opts ...grpc.ServerOption) *grpc.ClientConn {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := NewGRPC(s, opts...)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		srv.Stop()
		<-done
	})
	return conn
}
