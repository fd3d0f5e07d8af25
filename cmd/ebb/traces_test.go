package main

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

// spanSink is a collector that keeps names of spans, by the node that made them.
type spanSink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex // guards spans
	spans map[string][]string
}

func (s *spanSink) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		node := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				node = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range r.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.spans[node] = append(s.spans[node], span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// What a node serves reaches the collector, at the latest when it stops.
func TestTracesReachTheCollector(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a real process")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sink := &spanSink{spans: map[string][]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, sink)
	go server.Serve(l) // until Stop
	t.Cleanup(server.Stop)
	f, err := proc.Start(ctx, proc.Options{
		Binary: binary(t), Dir: t.TempDir(), Nodes: 1, Args: []string{"--shards", "2"},
		Env: []string{"EBB_OTLP_ENDPOINT=http://" + l.Addr().String(), "EBB_TRACE_SHARE=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	c := dialFleet(ctx, t, f)
	if err := c.Increment(ctx, "default", client.Increment{Key: "k", Bin: "b", Amount: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Count(ctx, "default", "k"); err != nil {
		t.Fatal(err)
	}
	f.Interrupt(0)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	names := map[string]bool{}
	for _, name := range sink.spans["ebb-0"] {
		names[name] = true
	}
	for _, want := range []string{"ebb.v1.Ebb/Ask", "plan", "ask shards", "wait for apply"} {
		if !names[want] {
			t.Errorf("no span %q among %v", want, sink.spans)
		}
	}
}
