// Package stage adds the stages of a request to its trace, if it has one.
package stage

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name under which ebb's own spans appear.
const Scope = "github.com/ebbdb/ebb"

// Attributes of spans.
const (
	Node   = attribute.Key("ebb.node")   // the node that gets the request
	Shards = attribute.Key("ebb.shards") // how many parts or commands the stage is about
)

// Begin starts a child of the span in ctx, with the same provider. It returns the function that ends the span. If
// nothing is recorded, it does nothing.
func Begin(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func()) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func() {}
	}
	ctx, span := parent.TracerProvider().Tracer(Scope).Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, func() { span.End() }
}
