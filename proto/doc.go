// Package proto is the wire contract: error codes, limits, checks of requests, and the hash from key to shard. The
// messages are in ebbv1. The gRPC stubs are in ebbv1grpc, so that packages without network code do not link grpc.
package proto
