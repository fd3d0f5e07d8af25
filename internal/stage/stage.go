// Package stage puts the stages of a request into its trace, if it has one.
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
	Node   = attribute.Key("ebb.node")   // the node that is asked
	Shards = attribute.Key("ebb.shards") // how many parts or commands the stage is about
)

// Begin starts a span below the one in ctx, by whatever made that one, and returns what ends it. Where nothing is
// recorded there is nothing to do.
func Begin(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func()) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func() {}
	}
	ctx, span := parent.TracerProvider().Tracer(Scope).Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, func() { span.End() }
}
