package main

import (
	"context"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ebbdb/ebb/internal/tracing"
)

// flushMax is how long the last spans have to reach their collector.
const flushMax = 2 * time.Second

// traceFlags are where spans go, and how many requests have any.
type traceFlags struct {
	endpoint string
	share    float64
}

// open returns what makes spans, nil without an endpoint, and what sends the last
// of them. It does not wait for the collector: what that does not take is lost.
func (t traceFlags) open(node string) (trace.TracerProvider, func(), error) {
	if t.share < 0 || t.share > 1 {
		return nil, nil, usagef("--trace-share %v: it is from 0 to 1", t.share)
	}
	if t.endpoint == "" {
		return nil, func() {}, nil
	}
	u, err := url.Parse(t.endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, usagef("--otlp-endpoint %q: write it as http://HOST:4317, or https://", t.endpoint)
	}
	to, err := tracing.NewCollector(u, "ebb/"+version)
	if err != nil {
		return nil, nil, usagef("traces to %s: %w", t.endpoint, err)
	}
	provider := tracing.New(tracing.Options{Share: t.share, Send: to.Send, Resource: []attribute.KeyValue{
		attribute.String("service.name", "ebb"), attribute.String("service.instance.id", node), attribute.String("service.version", version),
	}})
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushMax)
		defer cancel()
		_ = provider.Shutdown(ctx) // a collector that is away must not keep a node from stopping
		_ = to.Close()
	}, nil
}
