package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/node/fail"
)

// FrameBytesMax bounds the body of every frame on every stream.
const FrameBytesMax = 512 << 10

// EntryBytesMax bounds the data of an entry: a longer one fits into no frame, alone as it may be, and would never reach
// a follower.
const EntryBytesMax = FrameBytesMax - requestHead - logOverhead

// Config says who this node is and how it reaches the others. Node and Dial
// must be set; everything else has a default.
type Config struct {
	// Node is this node's name, as it stands before the slash of a ServerAddress.
	Node string
	// ClusterID returns the cluster this node belongs to, or "" while that is not
	// known yet. Two nodes that both know refuse each other if they differ.
	ClusterID func() string
	// Dial connects to a node by its name.
	Dial func(ctx context.Context, node string) (net.Conn, error)
	// Now is this node's wall clock, for the clock samples. Deadlines and
	// round trips use Go's monotonic clock.
	Now func() time.Time
	// Fail has the failpoints transport.open (a session), transport.ask (a
	// request is about to leave) and transport.answer (Raft has processed a
	// request; its answer is lost if the point fails).
	Fail *fail.Points
	// RecordContact is called before the first message of a peer's replicas gets to ours. While it fails none does:
	// each message tries it again. It must return when ctx ends.
	RecordContact func(ctx context.Context, node string) error
	// Logger gets lines about sessions that come and go.
	Logger *slog.Logger
	// DialOptions are for every connection to a peer: credentials, above all.
	// Without any, connections are in the clear.
	DialOptions []grpc.DialOption

	// AppendStreams is how many streams to a peer carry log entries.
	AppendStreams int
	// Coalesce is how long a heartbeat, or its answer, waits for others.
	Coalesce time.Duration
	// ControlTimeout is the deadline of heartbeats, votes and TimeoutNow.
	ControlTimeout time.Duration
	// AppendTimeout is the deadline of AppendEntries with entries. It should not
	// be above the election timeout by much: a leadership transfer waits for it.
	AppendTimeout time.Duration
	// ReadIndexTimeout is how long a round of read barriers waits for one peer.
	ReadIndexTimeout time.Duration
	// ReadIndexHedge is how long a round of read barriers goes unanswered before
	// those that wait for its peer ask the other voters too. A barrier that joins
	// behind a round in time may wait for two of them.
	ReadIndexHedge time.Duration
	// ChunkTimeout is how long a snapshot stream may go without progress.
	ChunkTimeout time.Duration
	// SnapshotRate is how many bytes of snapshots go to all peers together in a second; 0 for any number.
	// Group.Prioritize exempts replicas from it.
	SnapshotRate int64
	// ChunkBytes is how much of a snapshot goes into a frame, 256 KiB at most.
	ChunkBytes int
	// InstallTimeout is how long a follower may take from a snapshot's last
	// byte to its answer.
	InstallTimeout time.Duration
	// DialTimeout bounds one attempt to open a session to a peer.
	DialTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause between two attempts.
	BackoffMin, BackoffMax time.Duration
	// PingInterval is the time between clock samples, and PingTimeout the silence
	// after which a session is taken for dead.
	PingInterval, PingTimeout time.Duration
	// InFlightBytesMax bounds what is queued for, or not yet answered by, one peer.
	InFlightBytesMax int
}

func (c *Config) check() error {
	switch {
	case c.Node == "" || strings.Contains(c.Node, "/"):
		return errors.New("transport: the node needs a name without a slash")
	case c.Dial == nil:
		return errors.New("transport: no Dial")
	case c.ChunkBytes < 1 || c.ChunkBytes > chunkBytes:
		return fmt.Errorf("transport: chunks of %d bytes; 1 to %d are possible", c.ChunkBytes, chunkBytes)
	case c.InFlightBytesMax < FrameBytesMax:
		return errors.New("transport: InFlightBytesMax is below one frame")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.ClusterID == nil {
		c.ClusterID = func() string { return "" }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.RecordContact == nil {
		c.RecordContact = func(context.Context, string) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	orInt(&c.AppendStreams, 2)
	orInt(&c.ChunkBytes, chunkBytes)
	orInt(&c.InFlightBytesMax, 16<<20)
	orTime(&c.Coalesce, 25*time.Millisecond)
	orTime(&c.ControlTimeout, time.Second)
	orTime(&c.AppendTimeout, 3*time.Second)
	orTime(&c.ReadIndexTimeout, time.Second)
	orTime(&c.ReadIndexHedge, 20*time.Millisecond)
	orTime(&c.ChunkTimeout, 10*time.Second)
	orTime(&c.InstallTimeout, 5*time.Minute)
	orTime(&c.DialTimeout, 2*time.Second)
	orTime(&c.BackoffMin, 50*time.Millisecond)
	orTime(&c.BackoffMax, time.Second)
	orTime(&c.PingInterval, time.Second)
	orTime(&c.PingTimeout, 3*time.Second)
	return c
}

func orInt(v *int, otherwise int) {
	if *v == 0 {
		*v = otherwise
	}
}

func orTime(v *time.Duration, otherwise time.Duration) {
	if *v == 0 {
		*v = otherwise
	}
}
