package tracing

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
)

// partsMax is how many attributes, events and links of each a span keeps: the default of the OpenTelemetry SDK.
const partsMax = 128

// span is a span that is recorded.
type span struct {
	embedded.Span
	tracer   *tracer
	identity trace.SpanContext

	mu   sync.Mutex // guards what follows
	over bool       // it has ended, and wire is not changed any more
	wire *spans.Span
}

var _ trace.Span = (*span)(nil)

func newSpan(t *tracer, identity, parent trace.SpanContext, name string, c *trace.SpanConfig) *span {
	traceID, id, above := identity.TraceID(), identity.SpanID(), parent.SpanID()
	s := &span{tracer: t, identity: identity, wire: &spans.Span{
		TraceId: traceID[:], SpanId: id[:], TraceState: identity.TraceState().String(), Name: name,
		Flags: flags(identity.TraceFlags(), parent.IsRemote()), Kind: kindOf(c.SpanKind()),
		StartTimeUnixNano: nanoseconds(c.Timestamp()),
	}}
	if above.IsValid() {
		s.wire.ParentSpanId = above[:]
	}
	s.SetAttributes(c.Attributes()...)
	for _, link := range c.Links() {
		s.AddLink(link)
	}
	return s
}

// kindOf is a kind as it is sent.
func kindOf(k trace.SpanKind) spans.Span_SpanKind {
	switch k {
	case trace.SpanKindServer:
		return spans.Span_SPAN_KIND_SERVER
	case trace.SpanKindClient:
		return spans.Span_SPAN_KIND_CLIENT
	case trace.SpanKindProducer:
		return spans.Span_SPAN_KIND_PRODUCER
	case trace.SpanKindConsumer:
		return spans.Span_SPAN_KIND_CONSUMER
	}
	return spans.Span_SPAN_KIND_INTERNAL
}

// flags are those of a trace, and whether the parent is in another process.
func flags(of trace.TraceFlags, remote bool) uint32 {
	f := uint32(of) | uint32(spans.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if remote {
		f |= uint32(spans.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return f
}

// nanoseconds is a time as it is sent, or that of now for the zero time.
func nanoseconds(at time.Time) uint64 {
	if at.IsZero() {
		at = time.Now()
	}
	return uint64(max(at.UnixNano(), 0))
}

// change changes what will be sent, unless the span has ended.
func (s *span) change(f func(*spans.Span)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		f(s.wire)
	}
}

// End implements trace.Span. A second call does nothing.
func (s *span) End(opts ...trace.SpanEndOption) {
	c := trace.NewSpanEndConfig(opts...)
	s.change(func(w *spans.Span) {
		w.EndTimeUnixNano = nanoseconds(c.Timestamp())
		s.over = true
		s.tracer.provider.enqueue(ended{s.tracer.scope, w})
	})
}

// AddEvent implements trace.Span.
func (s *span) AddEvent(name string, opts ...trace.EventOption) {
	c := trace.NewEventConfig(opts...)
	s.change(func(w *spans.Span) {
		if len(w.Events) == partsMax {
			w.DroppedEventsCount++
			return
		}
		w.Events = append(w.Events, &spans.Span_Event{
			Name: name, TimeUnixNano: nanoseconds(c.Timestamp()), Attributes: keyValues(c.Attributes()),
		})
	})
}

// AddLink implements trace.Span.
func (s *span) AddLink(link trace.Link) {
	traceID, id := link.SpanContext.TraceID(), link.SpanContext.SpanID()
	s.change(func(w *spans.Span) {
		if len(w.Links) == partsMax {
			w.DroppedLinksCount++
			return
		}
		w.Links = append(w.Links, &spans.Span_Link{
			TraceId: traceID[:], SpanId: id[:], TraceState: link.SpanContext.TraceState().String(),
			Attributes: keyValues(link.Attributes), Flags: flags(link.SpanContext.TraceFlags(), link.SpanContext.IsRemote()),
		})
	})
}

// IsRecording implements trace.Span.
func (s *span) IsRecording() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over
}

// RecordError implements trace.Span: the error is an event, and does not change the status.
func (s *span) RecordError(err error, opts ...trace.EventOption) {
	if err == nil {
		return
	}
	s.AddEvent("exception", append(opts, trace.WithAttributes(
		attribute.String("exception.type", fmt.Sprintf("%T", err)), attribute.String("exception.message", err.Error()),
	))...)
}

// SpanContext implements trace.Span.
func (s *span) SpanContext() trace.SpanContext { return s.identity }

// SetStatus implements trace.Span: Ok outranks Error, which outranks Unset, and only errors have a description.
func (s *span) SetStatus(code codes.Code, description string) {
	s.change(func(w *spans.Span) {
		switch has := w.GetStatus().GetCode(); {
		case code == codes.Ok:
			w.Status = &spans.Status{Code: spans.Status_STATUS_CODE_OK}
		case code == codes.Error && has != spans.Status_STATUS_CODE_OK:
			w.Status = &spans.Status{Code: spans.Status_STATUS_CODE_ERROR, Message: description}
		}
	})
}

// SetName implements trace.Span.
func (s *span) SetName(name string) { s.change(func(w *spans.Span) { w.Name = name }) }

// SetAttributes implements trace.Span: of several attributes of one key the last stays.
func (s *span) SetAttributes(attributes ...attribute.KeyValue) {
	s.change(func(w *spans.Span) {
		for _, kv := range keyValues(attributes) {
			at := slices.IndexFunc(w.Attributes, func(have *common.KeyValue) bool { return have.GetKey() == kv.GetKey() })
			switch {
			case at >= 0:
				w.Attributes[at] = kv
			case len(w.Attributes) == partsMax:
				w.DroppedAttributesCount++
			default:
				w.Attributes = append(w.Attributes, kv)
			}
		}
	})
}

// TracerProvider implements trace.Span.
func (s *span) TracerProvider() trace.TracerProvider { return s.tracer.provider }

// keyValues are attributes as they are sent: bools, integers, floats and strings, and others as text.
func keyValues(attributes []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(attributes))
	for _, kv := range attributes {
		v := &common.AnyValue{}
		switch kv.Value.Type() {
		case attribute.BOOL:
			v.Value = &common.AnyValue_BoolValue{BoolValue: kv.Value.AsBool()}
		case attribute.INT64:
			v.Value = &common.AnyValue_IntValue{IntValue: kv.Value.AsInt64()}
		case attribute.FLOAT64:
			v.Value = &common.AnyValue_DoubleValue{DoubleValue: kv.Value.AsFloat64()}
		case attribute.STRING:
			v.Value = &common.AnyValue_StringValue{StringValue: kv.Value.AsString()}
		default:
			v.Value = &common.AnyValue_StringValue{StringValue: kv.Value.String()}
		}
		out = append(out, &common.KeyValue{Key: string(kv.Key), Value: v})
	}
	return out
}
