// Package caller distinguishes the requests of one connection from the requests of others.
package caller

import (
	"context"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/peer"
)

type key struct{}

// With returns a context of requests that come over HTTP from the address remote.
func With(ctx context.Context, remote string) context.Context {
	return context.WithValue(ctx, key{}, hashOf(remote))
}

// Of returns a hash of the address that a request came from, over gRPC or over an interface that used With. It is never
// 0, except for a request of the process itself.
func Of(ctx context.Context) uint64 {
	if h, ok := ctx.Value(key{}).(uint64); ok {
		return h
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return hashOf(p.Addr.String())
	}
	return 0
}

func hashOf(remote string) uint64 { return max(1, xxh3.HashString(remote)) }
