package client_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// sink acknowledges everything at once, so that what is measured is the client.
type sink struct {
	ebbv1grpc.UnimplementedShardsServer
	commands atomic.Int64
}

// sinkTable is a sink's other service.
type sinkTable struct {
	ebbv1grpc.UnimplementedEbbServer
	table *ebbv1.Table
}

func (s *sinkTable) Table(context.Context, *ebbv1.TableRequest) (*ebbv1.TableResponse, error) {
	return &ebbv1.TableResponse{Table: s.table}, nil
}

func (s *sink) Apply(_ context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	s.commands.Add(int64(len(req.Commands)))
	resp := &ebbv1.ApplyResponse{}
	for range req.Commands {
		resp.Results = append(resp.Results, &ebbv1.CommandResult{Session: 1, Applied: 1})
	}
	return resp, nil
}

func newSink(b *testing.B) *ebb.Client {
	table, err := cluster.InitialTable([]string{"ebb-0"}, 64, 1)
	if err != nil {
		b.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(8 << 20))
	ebbv1grpc.RegisterEbbServer(srv, &sinkTable{table: table.Wire()})
	ebbv1grpc.RegisterShardsServer(srv, &sink{})
	go func() { _ = srv.Serve(listener) }() // ends with Stop
	b.Cleanup(srv.Stop)
	c, err := ebb.DialOptions(context.Background(), []string{"ebb-0"},
		ebb.WithDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// BenchmarkWriterAdd is the cost of one Add with all that follows in the client
// and in the transport, on one core with -cpu 1.
func BenchmarkWriterAdd(b *testing.B) {
	ctx := context.Background()
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("clicks/%06d", i)
	}
	bins := []string{"US", "GB", "CA", "JP", "DE", "FR", "BR", "IN"}
	for _, bench := range []struct {
		name     string
		distinct int
		opts     ebb.WriterOptions
	}{
		{"distinct", len(keys), ebb.WriterOptions{}},
		{"distinct-plain", len(keys), ebb.WriterOptions{NoAggregate: true}},
		{"equal", 100, ebb.WriterOptions{}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			w := newSink(b).Writer(bench.opts)
			b.ReportAllocs()
			before := cpuTime(b)
			for i := 0; b.Loop(); i++ {
				if err := w.Add(ctx, keys[i*7919%bench.distinct], bins[i&7], 1); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.Close(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what this process has used of the processor, by user code and system.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIncrement is the latency of one synchronous increment.
func BenchmarkIncrement(b *testing.B) {
	c := newSink(b)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Increment(ctx, "default", ebb.One("clicks/abc", "US")); err != nil {
			b.Fatal(err)
		}
	}
}
