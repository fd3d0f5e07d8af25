package rpc

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ebbdb/ebb/internal/stage"
)

// traced begins the span of a request over HTTP, below the caller's if it names one
// (traceparent), and returns what ends it.
func (s *Services) traced(ctx context.Context, r *http.Request, name string) (context.Context, func(error)) {
	if s.Traces == nil {
		return ctx, func(error) {}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	ctx, span := s.Traces.Tracer(stage.Scope).Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
