package stage_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ebbdb/ebb/internal/stage"
)

// A stage is a span below its request's, with the same trace.
func TestBegin(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test").Start(t.Context(), "request")
	inner, end := stage.Begin(ctx, "outer", stage.Node.String("ebb-1"))
	_, endInner := stage.Begin(inner, "inner")
	endInner()
	end()
	root.End()
	got := spans.GetSpans()
	if len(got) != 3 || got[0].Name != "inner" || got[1].Name != "outer" {
		t.Fatalf("%d spans: %v", len(got), got)
	}
	if got[0].Parent.SpanID() != got[1].SpanContext.SpanID() || got[1].Parent.SpanID() != got[2].SpanContext.SpanID() || got[0].SpanContext.TraceID() != root.SpanContext().TraceID() {
		t.Errorf("spans do not lie one in the other: %v", got)
	}
	if a := got[1].Attributes; len(a) != 1 || a[0] != stage.Node.String("ebb-1") {
		t.Errorf("attributes: %v", a)
	}
}

// A request that is not traced costs no span, and nothing is allocated.
func TestBeginWithoutTrace(t *testing.T) {
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		c, end := stage.Begin(ctx, "outer")
		if c != ctx {
			t.Error("another context")
		}
		end()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
