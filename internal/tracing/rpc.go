package tracing

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	rpc "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// scopeRPC is the name under which the spans of calls appear.
const scopeRPC = "github.com/ebbdb/ebb/internal/tracing"

// calls makes a span of each call over gRPC. Names and attributes are those of OpenTelemetry's conventions for calls.
type calls struct {
	tracer trace.Tracer
	kind   trace.SpanKind
	traced func(method string) bool
}

var _ stats.Handler = (*calls)(nil)

// NewServerHandler returns a handler for a gRPC server that makes a span of each call of a method for which traced
// returns true, such as "/ebb.v1.Ebb/Ask". The span is below the caller's, if the metadata name one (traceparent).
func NewServerHandler(p trace.TracerProvider, traced func(method string) bool) stats.Handler {
	return &calls{tracer: p.Tracer(scopeRPC), kind: trace.SpanKindServer, traced: traced}
}

// NewClientHandler returns a handler for the connections of a gRPC client that makes a span of each call of a method
// for which traced returns true. The metadata of all calls name the span that the call is below.
func NewClientHandler(p trace.TracerProvider, traced func(method string) bool) stats.Handler {
	return &calls{tracer: p.Tracer(scopeRPC), kind: trace.SpanKindClient, traced: traced}
}

// callKey is the key of a call's own span in its context: nil for a call that is not traced, since the context may
// inherit the span of another call.
type callKey struct{}

// TagRPC implements stats.Handler.
func (c *calls) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if c.kind == trace.SpanKindServer {
		in, _ := metadata.FromIncomingContext(ctx) // a copy
		ctx = propagation.TraceContext{}.Extract(ctx, carrier(in))
	}
	var own trace.Span
	if c.traced(info.FullMethodName) {
		name := strings.TrimPrefix(info.FullMethodName, "/")
		ctx, own = c.tracer.Start(ctx, name, trace.WithSpanKind(c.kind), trace.WithAttributes(
			attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", name)))
	}
	ctx = context.WithValue(ctx, callKey{}, own)
	if c.kind == trace.SpanKindClient {
		out, found := metadata.FromOutgoingContext(ctx) // a copy
		if !found {
			out = metadata.MD{}
		}
		propagation.TraceContext{}.Inject(ctx, carrier(out))
		ctx = metadata.NewOutgoingContext(ctx, out)
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (c *calls) HandleRPC(ctx context.Context, s stats.RPCStats) {
	own, _ := ctx.Value(callKey{}).(trace.Span)
	if own == nil || !own.IsRecording() {
		return
	}
	switch s := s.(type) {
	case *stats.InHeader:
		if !s.Client && s.LocalAddr != nil {
			own.SetAttributes(serverAt(s.LocalAddr)...)
		}
	case *stats.OutHeader:
		if s.Client && s.RemoteAddr != nil {
			own.SetAttributes(serverAt(s.RemoteAddr)...)
		}
	case *stats.End:
		code := rpc.OK
		if s.Error != nil {
			said := status.Convert(s.Error)
			if code = said.Code(); c.kind == trace.SpanKindClient || serverFailed(code) {
				own.SetStatus(codes.Error, said.Message())
			}
		}
		own.SetAttributes(attribute.String("rpc.response.status_code", codeName(code)))
		own.End()
	}
}

// TagConn implements stats.Handler.
func (*calls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*calls) HandleConn(context.Context, stats.ConnStats) {}

// serverAt are the attributes of a server's address.
func serverAt(at net.Addr) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(at.String())
	number, nerr := strconv.Atoi(port)
	if err != nil || nerr != nil {
		return []attribute.KeyValue{attribute.String("server.address", at.String())}
	}
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", number)}
}

// serverFailed reports whether a code says that the server failed, rather than that the request was refused.
func serverFailed(code rpc.Code) bool {
	return slices.Contains([]rpc.Code{
		rpc.Unknown, rpc.DeadlineExceeded, rpc.Unimplemented, rpc.Internal, rpc.Unavailable, rpc.DataLoss,
	}, code)
}

// codeName is a code as the conventions write it: DEADLINE_EXCEEDED.
func codeName(code rpc.Code) string {
	if code == rpc.OK {
		return "OK"
	}
	var b strings.Builder
	for i, r := range code.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	switch name := strings.ToUpper(b.String()); name {
	case "CANCELED":
		return "CANCELLED"
	default:
		return name
	}
}

// carrier is metadata that name a span.
type carrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }
