package bench

import (
	"context"
	"io"
	"time"
)

// Target is a cluster to be measured.
type Target struct {
	// Addrs are gRPC addresses of its nodes.
	Addrs []string
	// CPU tells what all its nodes have used so far.
	CPU func(ctx context.Context) (time.Duration, error)
	// Profile, if not nil, writes a CPU profile of one node over a duration.
	Profile func(ctx context.Context, d time.Duration, w io.Writer) error
}
