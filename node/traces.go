package node

import (
	"strings"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/internal/tracing"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// untraced are methods that nodes and clients call all the time by themselves.
var untraced = map[string]bool{
	ebbv1grpc.Ebb_Status_FullMethodName: true, ebbv1grpc.Ebb_Table_FullMethodName: true, ebbv1grpc.Ebb_Watch_FullMethodName: true,
	ebbv1grpc.Shards_NodeUsage_FullMethodName:  true,
	ebbv1grpc.Shards_NodeStatus_FullMethodName: true, ebbv1grpc.Shards_ReadIndex_FullMethodName: true,
}

// traced reports whether calls of a method are put into traces: those that a user
// caused, and none of Raft's streams.
func traced(method string) bool {
	ours := strings.HasPrefix(method, "/"+ebbv1grpc.Ebb_ServiceDesc.ServiceName+"/") || strings.HasPrefix(method, "/"+ebbv1grpc.Shards_ServiceDesc.ServiceName+"/")
	return ours && !untraced[method]
}

// tracedServer puts what is asked of this node into traces, if there are any.
func (c *Config) tracedServer() []grpc.ServerOption {
	if c.Traces == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(tracing.NewServerHandler(c.Traces, traced))}
}

// tracedPeers puts what this node asks of others into traces, if there are any.
func (c *Config) tracedPeers() []grpc.DialOption {
	if c.Traces == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(tracing.NewClientHandler(c.Traces, traced))}
}
