package node

import (
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// untraced are methods that nodes and clients call all the time, without a request of a user.
var untraced = map[string]bool{
	ebbv1grpc.Ebb_Status_FullMethodName: true, ebbv1grpc.Ebb_Table_FullMethodName: true, ebbv1grpc.Ebb_Watch_FullMethodName: true,
	ebbv1grpc.Shards_NodeUsage_FullMethodName:  true,
	ebbv1grpc.Shards_NodeStatus_FullMethodName: true, ebbv1grpc.Shards_ReadIndex_FullMethodName: true,
}

// traced reports whether calls of a method are traced: calls that a user caused are, and Raft's streams are not.
func traced(method string) bool {
	ours := strings.HasPrefix(method, "/"+ebbv1grpc.Ebb_ServiceDesc.ServiceName+"/") || strings.HasPrefix(method, "/"+ebbv1grpc.Shards_ServiceDesc.ServiceName+"/")
	return ours && !untraced[method]
}

func (c *Config) traceOptions() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(c.Traces), otelgrpc.WithPropagators(propagation.TraceContext{}), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithFilter(func(i *stats.RPCTagInfo) bool { return traced(i.FullMethodName) }),
	}
}

// tracedServer returns the options that trace requests to this node; none if tracing is off.
func (c *Config) tracedServer() []grpc.ServerOption {
	if c.Traces == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(c.traceOptions()...))}
}

// tracedPeers returns the options that trace requests of this node to others; none if tracing is off.
func (c *Config) tracedPeers() []grpc.DialOption {
	if c.Traces == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(c.traceOptions()...))}
}
