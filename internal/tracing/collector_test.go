package tracing

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// flakySink is a collector that refuses some calls, and then keeps what it gets.
type flakySink struct {
	collectorpb.UnimplementedTraceServiceServer
	refuse int
	with   codes.Code
	calls  int
	header metadata.MD
	got    *collectorpb.ExportTraceServiceRequest
}

func (s *flakySink) Export(
	ctx context.Context, req *collectorpb.ExportTraceServiceRequest,
) (*collectorpb.ExportTraceServiceResponse, error) {
	if s.calls++; s.calls <= s.refuse {
		return nil, status.Error(s.with, "not now")
	}
	s.header, _ = metadata.FromIncomingContext(ctx)
	s.got = req
	rejected := &collectorpb.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "one is too old"}
	return &collectorpb.ExportTraceServiceResponse{PartialSuccess: rejected}, nil
}

// upload sends a span to a sink.
func upload(t *testing.T, sink *flakySink) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, sink)
	go server.Serve(l) // until Stop
	t.Cleanup(server.Stop)
	c, err := NewCollector(&url.URL{Scheme: "http", Host: l.Addr().String()}, "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	scope := &spans.ScopeSpans{Spans: []*spans.Span{{Name: "one"}}}
	err = c.Send(ctx, []*spans.ResourceSpans{{SchemaUrl: "s", ScopeSpans: []*spans.ScopeSpans{scope}}})
	if cerr := c.Close(); cerr != nil {
		t.Error(cerr)
	}
	return err
}

// TestCollectorGetsSpans: what is sent is what the generated service reads, with the headers of the environment.
func TestCollectorGetsSpans(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-ignored=1")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Basic%20YTpi, x-team = a")
	var sink flakySink
	if err := upload(t, &sink); err != nil {
		t.Fatal(err)
	}
	resource := sink.got.GetResourceSpans()
	if len(resource) != 1 || resource[0].GetSchemaUrl() != "s" ||
		resource[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "one" {
		t.Errorf("got %v", sink.got)
	}
	for name, want := range map[string][]string{"authorization": {"Basic YTpi"}, "x-team": {"a"}, "x-ignored": nil} {
		if got := sink.header.Get(name); !slices.Equal(got, want) {
			t.Errorf("header %s is %q, not %q", name, got, want)
		}
	}
}

// TestCollectorRetries: a failure that may pass is retried, and one that may not is returned.
func TestCollectorRetries(t *testing.T) {
	sink := flakySink{refuse: 1, with: codes.Unavailable}
	if err := upload(t, &sink); err != nil || sink.calls != 2 || sink.got == nil {
		t.Errorf("%d calls: %v", sink.calls, err)
	}
	sink = flakySink{refuse: 1, with: codes.PermissionDenied}
	if err := upload(t, &sink); status.Code(err) != codes.PermissionDenied || sink.calls != 1 {
		t.Errorf("%d calls: %v", sink.calls, err)
	}
}

// TestCollectorHeader: headers that cannot be read are refused without their values.
func TestCollectorHeader(t *testing.T) {
	for _, list := range []string{"a", "a=1,secret", "=secret", "a=%zz"} {
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", list)
		if _, err := collectorHeader(); err == nil || strings.Contains(err.Error(), "secret") ||
			!strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_HEADERS: pair") {
			t.Errorf("%q: %v", list, err)
		}
	}
}
