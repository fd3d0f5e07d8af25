package tracing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	rpc "google.golang.org/grpc/codes"
)

// sent keeps what a provider sends.
type sent struct {
	batches [][]*spans.ResourceSpans
	err     error
}

func (s *sent) send(_ context.Context, batch []*spans.ResourceSpans) error {
	s.batches = append(s.batches, batch)
	return s.err
}

// all are the spans of all batches, by name.
func (s *sent) all() map[string]*spans.Span {
	out := map[string]*spans.Span{}
	for _, batch := range s.batches {
		for _, r := range batch {
			for _, scope := range r.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					out[span.GetName()] = span
				}
			}
		}
	}
	return out
}

// callers is the identity of a span in another process.
func callers(sampled bool) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, Remote: true,
		TraceFlags: trace.TraceFlags(0).WithSampled(sampled),
	})
}

// TestSpans: a span is sent with its parent, its attributes, its events and its status, by its process and its
// library.
func TestSpans(t *testing.T) {
	var to sent
	p := New(Options{Share: 0, Send: to.send, Resource: []attribute.KeyValue{attribute.String("service.name", "ebb")}})
	tracer := p.Tracer("library", trace.WithInstrumentationVersion("v1"))
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), callers(true))
	at := time.Unix(100, 0)
	ctx, above := tracer.Start(ctx, "above", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))
	again := above.TracerProvider().Tracer("library", trace.WithInstrumentationVersion("v1"))
	_, below := again.Start(ctx, "below", trace.WithAttributes(
		attribute.Int("n", 1), attribute.Bool("yes", true), attribute.Float64("f", 0.5), attribute.String("s", "a")))
	below.SetAttributes(attribute.Int("n", 2), attribute.StringSlice("list", []string{"a", "b"}))
	below.RecordError(errors.New("broken"))
	below.SetStatus(codes.Error, "it failed")
	below.AddLink(trace.Link{SpanContext: callers(false)})
	below.End()
	below.SetName("later") // too late
	below.End()
	above.SetStatus(codes.Ok, "no description")
	above.SetStatus(codes.Error, "outranked")
	above.End(trace.WithTimestamp(at.Add(time.Second)))
	if above.IsRecording() || !above.SpanContext().IsSampled() {
		t.Errorf("an ended span: %v", above.SpanContext())
	}
	if err := p.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(to.batches) != 1 || len(to.batches[0]) != 1 || len(to.batches[0][0].GetScopeSpans()) != 1 ||
		len(to.all()) != 2 {
		t.Fatalf("sent %v", to.batches)
	}
	r := to.batches[0][0]
	if kv := r.GetResource().GetAttributes(); len(kv) != 1 || kv[0].GetValue().GetStringValue() != "ebb" {
		t.Errorf("resource %v", kv)
	}
	if scope := r.GetScopeSpans()[0].GetScope(); scope.GetName() != "library" || scope.GetVersion() != "v1" {
		t.Errorf("scope %v", scope)
	}
	top, inner := to.all()["above"], to.all()["below"]
	if got := trace.SpanID(top.GetParentSpanId()); got != callers(true).SpanID() {
		t.Errorf("the parent of above is %v", got)
	}
	if got := trace.TraceID(top.GetTraceId()); got != callers(true).TraceID() {
		t.Errorf("above is of trace %v", got)
	}
	if took := top.GetEndTimeUnixNano() - top.GetStartTimeUnixNano(); took != 1e9 ||
		top.GetKind() != spans.Span_SPAN_KIND_SERVER || top.GetFlags() != 0x301 {
		t.Errorf("above is %v", top)
	}
	if top.GetStatus().GetCode() != spans.Status_STATUS_CODE_OK || top.GetStatus().GetMessage() != "" {
		t.Errorf("status of above %v", top.GetStatus())
	}
	if string(inner.GetParentSpanId()) != string(top.GetSpanId()) ||
		inner.GetKind() != spans.Span_SPAN_KIND_INTERNAL || inner.GetFlags() != 0x101 {
		t.Errorf("below is %v", inner)
	}
	if s := inner.GetStatus(); s.GetCode() != spans.Status_STATUS_CODE_ERROR || s.GetMessage() != "it failed" {
		t.Errorf("status of below %v", s)
	}
	want := `n=int_value:2 yes=bool_value:true f=double_value:0.5 s=string_value:"a" list=string_value:"[\"a\",\"b\"]"`
	if got := attributesText(inner.GetAttributes()); got != want {
		t.Errorf("attributes %s, want %s", got, want)
	}
	if e := inner.GetEvents(); len(e) != 1 || e[0].GetName() != "exception" || len(e[0].GetAttributes()) != 2 {
		t.Errorf("events %v", e)
	}
	if len(inner.GetLinks()) != 1 {
		t.Errorf("links %v", inner.GetLinks())
	}
}

func attributesText(all []*common.KeyValue) (text string) {
	for i, kv := range all {
		if i > 0 {
			text += " "
		}
		text += kv.GetKey() + "="
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_IntValue:
			text += fmt.Sprintf("int_value:%d", v.IntValue)
		case *common.AnyValue_BoolValue:
			text += fmt.Sprintf("bool_value:%v", v.BoolValue)
		case *common.AnyValue_DoubleValue:
			text += fmt.Sprintf("double_value:%v", v.DoubleValue)
		case *common.AnyValue_StringValue:
			text += fmt.Sprintf("string_value:%q", v.StringValue)
		}
	}
	return text
}

// TestSampling: a caller's decision holds, and without one the share of requests is traced. What is not sampled has
// an identity and records nothing.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		share   float64
		parent  trace.SpanContext
		low, up int // of 1,000 spans
	}{
		{0, trace.SpanContext{}, 0, 0},
		{1, trace.SpanContext{}, 1000, 1000},
		{0.25, trace.SpanContext{}, 180, 320}, // five standard deviations
		{0, callers(true), 1000, 1000},
		{1, callers(false), 0, 0},
	} {
		var to sent
		p := New(Options{Share: c.share, Send: to.send})
		ctx := trace.ContextWithSpanContext(t.Context(), c.parent)
		sampled := 0
		for range 1000 {
			_, s := p.Tracer("test").Start(ctx, "one")
			if !s.SpanContext().IsValid() || s.IsRecording() != s.SpanContext().IsSampled() {
				t.Fatalf("%+v: span %v", c, s.SpanContext())
			}
			if c.parent.IsValid() && s.SpanContext().TraceID() != c.parent.TraceID() {
				t.Fatalf("%+v: span %v has left its trace", c, s.SpanContext())
			}
			if s.IsRecording() {
				sampled++
			}
		}
		if sampled < c.low || sampled > c.up {
			t.Errorf("share %v below %v: %d of 1000 sampled, want %d to %d", c.share, c.parent.IsSampled(), sampled, c.low, c.up)
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var p Provider
	p.below = 1 << 62 // half
	if !p.samples(trace.TraceID{8: 0x7f}) || p.samples(trace.TraceID{8: 0x80}) {
		t.Error("the decision about a trace is not the one that other processes make")
	}
}

// TestLimits: a span keeps a bounded number of attributes, events and links, and says how many it dropped.
func TestLimits(t *testing.T) {
	var to sent
	p := New(Options{Share: 1, Send: to.send})
	_, s := p.Tracer("test").Start(t.Context(), "large")
	for i := range partsMax + 3 {
		s.SetAttributes(attribute.Int(fmt.Sprint(i), i))
		s.AddEvent("event")
		s.AddLink(trace.Link{})
	}
	s.End()
	if err := p.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := to.all()["large"]
	if len(w.GetAttributes()) != partsMax || len(w.GetEvents()) != partsMax || len(w.GetLinks()) != partsMax ||
		w.GetDroppedAttributesCount() != 3 || w.GetDroppedEventsCount() != 3 || w.GetDroppedLinksCount() != 3 {
		t.Errorf("%d attributes, %d events, %d links", len(w.GetAttributes()), len(w.GetEvents()), len(w.GetLinks()))
	}
}

// TestBatches: spans are sent together, a full batch at once and others after the delay. Also where they are lost,
// nothing waits for them.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := sent{err: errors.New("away")}
		p := New(Options{Share: 1, Send: to.send})
		begun := time.Now()
		for range batchMax + 1 {
			_, s := p.Tracer("test").Start(t.Context(), "one")
			s.End()
		}
		synctest.Wait()
		if len(to.batches) != 1 || time.Since(begun) != 0 {
			t.Errorf("%d batches after %v: a full one is sent at once", len(to.batches), time.Since(begun))
		}
		time.Sleep(batchDelay)
		synctest.Wait()
		if len(to.batches) != 2 || len(to.batches[1][0].GetScopeSpans()[0].GetSpans()) != 1 {
			t.Errorf("%d batches after the delay", len(to.batches))
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCollectorThatHangs: spans are dropped while the collector hangs, and a shutdown waits for it no longer than it
// may.
func TestCollectorThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Share: 1, Send: func(ctx context.Context, _ []*spans.ResourceSpans) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		begun := time.Now()
		for range batchMax + queueMax + 10 {
			_, s := p.Tracer("test").Start(t.Context(), "one")
			s.End()
			synctest.Wait()
		}
		if took := time.Since(begun); took != 0 || len(p.queue) != queueMax {
			t.Errorf("spans waited for the collector: %v, %d in the queue", took, len(p.queue))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 2*time.Second {
			t.Errorf("shut down after %v: %v", time.Since(begun), err)
		}
	})
}

// TestCodeName: codes are written as the conventions do.
func TestCodeName(t *testing.T) {
	for code, want := range map[rpc.Code]string{
		rpc.OK: "OK", rpc.Canceled: "CANCELLED", rpc.DeadlineExceeded: "DEADLINE_EXCEEDED", rpc.NotFound: "NOT_FOUND",
	} {
		if got := codeName(code); got != want {
			t.Errorf("code %d is %q, not %q", code, got, want)
		}
	}
}
