package bench

import (
	"context"
	"io"
	"time"

	"github.com/ebbdb/ebb/client"
)

// Target is the cluster that is measured.
type Target struct {
	// Addrs are gRPC addresses of its nodes.
	Addrs []string
	// Options are the options of the clients that measure the cluster.
	Options []client.Option
	// CPU returns how much CPU time all nodes have used so far.
	CPU func(ctx context.Context) (time.Duration, error)
	// Profile, if not nil, writes a CPU profile of one node over a duration.
	Profile func(ctx context.Context, d time.Duration, w io.Writer) error
}

func (t Target) dial(ctx context.Context) (*client.Client, error) {
	return client.DialOptions(ctx, t.Addrs, t.Options...)
}
