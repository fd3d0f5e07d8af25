package bench

import (
	"context"
	"io"
	"time"

	"github.com/ebbdb/ebb/client"
)

// Target is a cluster to be measured.
type Target struct {
	// Addrs are gRPC addresses of its nodes.
	Addrs []string
	// Options are those of the clients that measure it.
	Options []client.Option
	// CPU tells what all its nodes have used so far.
	CPU func(ctx context.Context) (time.Duration, error)
	// Profile, if not nil, writes a CPU profile of one node over a duration.
	Profile func(ctx context.Context, d time.Duration, w io.Writer) error
}

func (t Target) dial(ctx context.Context) (*client.Client, error) {
	return client.DialOptions(ctx, t.Addrs, t.Options...)
}
