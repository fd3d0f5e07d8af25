// Package transport carries the Raft groups of a node to the other nodes over a few gRPC streams.
package transport
