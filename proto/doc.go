// Package proto is the wire contract: error codes, limits, checks of what
// arrives, and the hash from key to shard. The messages are in ebbv1, the gRPC
// stubs in ebbv1grpc, so that pure packages do not link grpc.
package proto
