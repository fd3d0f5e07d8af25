package tracing

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"strings"

	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	collectorService = "opentelemetry.proto.collector.trace.v1.TraceService"
	// collectorRetries is gRPC's configuration of a service: which failures the specification of OTLP says to retry,
	// and how. The deadline of an export bounds all its attempts.
	collectorRetries = `{"methodConfig": [{"name": [{"service": "` + collectorService + `"}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "10s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"]}}]}`
)

// Collector is a client of an OpenTelemetry collector: OTLP over gRPC. It makes the one call of that protocol itself:
// the generated client of go.opentelemetry.io/proto/otlp/collector would link grpc-gateway.
type Collector struct {
	conn   *grpc.ClientConn
	header metadata.MD
}

// NewCollector returns a client of the collector at endpoint, a URL with the scheme http or https and a host. It
// connects when there are spans. Requests have the headers of OTEL_EXPORTER_OTLP_HEADERS, or of
// OTEL_EXPORTER_OTLP_TRACES_HEADERS if that is set: pairs NAME=VALUE with commas between, the values encoded as in a
// URL. The error names the variable that cannot be read. The caller closes the client.
func NewCollector(endpoint *url.URL, userAgent string) (*Collector, error) {
	header, err := collectorHeader()
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if endpoint.Scheme == "https" {
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient(endpoint.Host, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(collectorRetries), grpc.WithUserAgent(userAgent))
	if err != nil {
		return nil, err
	}
	return &Collector{conn: conn, header: header}, nil
}

// collectorHeader reads the headers from the environment. The error does not name a value, which may be a password.
func collectorHeader() (metadata.MD, error) {
	header := metadata.MD{}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"} {
		list := os.Getenv(name)
		if list == "" {
			continue
		}
		for i, pair := range strings.Split(list, ",") {
			key, value, found := strings.Cut(pair, "=")
			text, err := url.PathUnescape(strings.TrimSpace(value))
			if !found || err != nil || strings.TrimSpace(key) == "" {
				return nil, fmt.Errorf("%s: pair %d is not NAME=VALUE; write the value as in a URL", name, i+1)
			}
			header.Append(strings.TrimSpace(key), text)
		}
		return header, nil
	}
	return header, nil
}

// Send sends spans. TracesData is on the wire what the collector's ExportTraceServiceRequest is. What the collector
// answers about spans that it rejected is not read.
func (c *Collector) Send(ctx context.Context, batch []*spans.ResourceSpans) error {
	ctx = metadata.NewOutgoingContext(ctx, c.header)
	err := c.conn.Invoke(ctx, "/"+collectorService+"/Export", &spans.TracesData{ResourceSpans: batch}, &emptypb.Empty{})
	if err != nil {
		return fmt.Errorf("export spans to %s: %w", c.conn.Target(), err)
	}
	return nil
}

// Close closes the connection.
func (c *Collector) Close() error { return c.conn.Close() }
