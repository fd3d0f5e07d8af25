package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushMax is how long the last spans may take to reach their collector.
const flushMax = 2 * time.Second

// tracing is where spans are sent, and which share of requests has spans.
type tracing struct {
	endpoint string
	share    float64
}

// open returns a provider of spans, nil without an endpoint, and a function that sends the last spans. open does not
// wait for the collector. Spans that the collector does not take are lost.
func (t tracing) open(ctx context.Context, node string) (trace.TracerProvider, func(), error) {
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
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.endpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("traces to %s: %w", t.endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.share))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "ebb"), attribute.String("service.instance.id", node), attribute.String("service.version", version),
		)),
	)
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushMax)
		defer cancel()
		_ = provider.Shutdown(ctx) // a collector that does not answer must not keep a node from stopping
	}, nil
}
