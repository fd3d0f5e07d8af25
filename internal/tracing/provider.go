// Package tracing makes spans of requests and sends them to an OpenTelemetry collector. It implements of the
// OpenTelemetry SDK and of its instrumentation of gRPC what ebb uses: the sampling of requests, spans with
// attributes, and batches that are dropped when the collector does not take them.
package tracing

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	resources "go.opentelemetry.io/proto/otlp/resource/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
)

// The limits are the defaults of the OpenTelemetry SDK.
const (
	queueMax    = 2048             // spans that wait; further ones are dropped
	batchMax    = 512              // spans of one request to the collector
	batchDelay  = 5 * time.Second  // how long a span waits for others
	sendTimeout = 30 * time.Second // of one request to the collector
)

// Options are what a Provider is made of.
type Options struct {
	Resource []attribute.KeyValue // of the process, such as its name
	Share    float64              // of the requests that are traced where the caller has not decided, from 0 to 1
	// Send sends a batch. One goroutine calls it. The spans of a batch that it returns an error for are lost.
	Send func(context.Context, []*spans.ResourceSpans) error
}

// Provider makes spans and sends those that are sampled: all below a caller's span that is sampled, none below one
// that is not, and the given share of requests without a caller's span. No span waits for the collector.
type Provider struct {
	embedded.TracerProvider
	resource *resources.Resource
	below    uint64 // a trace is sampled if 63 bits of its id are below this
	send     func(context.Context, []*spans.ResourceSpans) error

	queue    chan ended
	ctx      context.Context // of requests to the collector
	giveUp   context.CancelFunc
	stop     chan struct{}
	stopOnce sync.Once
	stopped  chan struct{}
}

var _ trace.TracerProvider = (*Provider)(nil)

// New returns a provider, which the caller shuts down.
func New(o Options) *Provider {
	p := &Provider{
		resource: &resources.Resource{Attributes: keyValues(o.Resource)}, send: o.Send,
		below: uint64(min(max(o.Share, 0), 1) * (1 << 63)),
		queue: make(chan ended, queueMax), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	p.ctx, p.giveUp = context.WithCancel(context.Background())
	go p.run()
	return p
}

// Tracer implements trace.TracerProvider. Of the options it knows the version.
func (p *Provider) Tracer(scope string, opts ...trace.TracerOption) trace.Tracer {
	c := trace.NewTracerConfig(opts...)
	return &tracer{provider: p, scope: instrumentation{scope, c.InstrumentationVersion()}}
}

// Shutdown sends the spans that have ended, as far as the collector takes them before ctx ends. Spans that end later
// are lost.
func (p *Provider) Shutdown(ctx context.Context) error {
	p.stopOnce.Do(func() { close(p.stop) })
	defer p.giveUp()
	select {
	case <-p.stopped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// samples decides whether a trace is sampled. All processes decide alike about one trace.
func (p *Provider) samples(id trace.TraceID) bool {
	return binary.BigEndian.Uint64(id[8:])>>1 < p.below
}

// instrumentation is who made a span: the name of a library and its version.
type instrumentation struct{ name, version string }

// tracer makes the spans of one library.
type tracer struct {
	embedded.Tracer
	provider *Provider
	scope    instrumentation
}

// Start implements trace.Tracer. A span that is not sampled has an identity, for the calls below it, and records
// nothing.
func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(opts...)
	parent := trace.SpanContextFromContext(ctx)
	if c.NewRoot() || !parent.IsValid() {
		parent = trace.SpanContext{}
	}
	of := trace.SpanContextConfig{
		TraceID: parent.TraceID(), TraceFlags: parent.TraceFlags(), TraceState: parent.TraceState(),
	}
	binary.BigEndian.PutUint64(of.SpanID[:], rand.Uint64N(1<<64-1)+1) // 0 is no identity
	if !parent.IsValid() {
		binary.BigEndian.PutUint64(of.TraceID[:8], rand.Uint64N(1<<64-1)+1)
		binary.BigEndian.PutUint64(of.TraceID[8:], rand.Uint64())
		of.TraceFlags = of.TraceFlags.WithSampled(t.provider.samples(of.TraceID))
	}
	identity := trace.NewSpanContext(of)
	if !identity.IsSampled() {
		ctx = trace.ContextWithSpanContext(ctx, identity)
		return ctx, trace.SpanFromContext(ctx)
	}
	s := newSpan(t, identity, parent, name, &c)
	return trace.ContextWithSpan(ctx, s), s
}
