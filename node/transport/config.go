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

// EntryBytesMax bounds the data of an entry. A longer entry does not fit into a frame, so it would never reach a
// follower.
const EntryBytesMax = FrameBytesMax - requestHead - logOverhead

// Config describes this node and how it reaches the others. Node and Dial must be set; everything else has a default.
type Config struct {
	// Node is this node's name, the part of a ServerAddress before the slash.
	Node string
	// ClusterID returns this node's cluster, or "" while that is unknown. Two nodes with different known clusters
	// refuse each other.
	ClusterID func() string
	// Dial connects to a node by its name.
	Dial func(ctx context.Context, node string) (net.Conn, error)
	// Now is this node's wall clock, used in clock samples. Deadlines and round trips use Go's monotonic clock.
	Now func() time.Time
	// Fail has the failpoints transport.open (a session opens), transport.ask (before a request is sent) and
	// transport.answer (Raft has processed a request; if the point fails, the answer is lost).
	Fail *fail.Points
	// RecordContact is called before the first message of a peer's replicas is delivered. While it fails, no message is
	// delivered, and each message calls it again. It must return when ctx ends.
	RecordContact func(ctx context.Context, node string) error
	// Logger logs sessions that open and break.
	Logger *slog.Logger
	// DialOptions are used for every connection to a peer, above all for credentials. Without them connections are not
	// encrypted.
	DialOptions []grpc.DialOption

	// AppendStreams is how many streams to one peer carry log entries.
	AppendStreams int
	// Coalesce is how long a heartbeat, or its answer, waits for others to share a frame.
	Coalesce time.Duration
	// ControlTimeout is the deadline of heartbeats, votes and TimeoutNow.
	ControlTimeout time.Duration
	// AppendTimeout is the deadline of AppendEntries with entries. It should be at most slightly above the election
	// timeout: a leadership transfer waits for it.
	AppendTimeout time.Duration
	// ReadIndexTimeout is how long one round of read barriers waits for one peer.
	ReadIndexTimeout time.Duration
	// ReadIndexHedge is how long a round of read barriers may be unanswered before its barriers also ask the other
	// voters. A barrier that joins behind a round still in time may wait for two of them.
	ReadIndexHedge time.Duration
	// ChunkTimeout is how long a snapshot stream may make no progress.
	ChunkTimeout time.Duration
	// SnapshotRate limits the snapshot bytes per second to all peers together; 0 means no limit. Group.Prioritize
	// exempts replicas from it.
	SnapshotRate int64
	// ChunkBytes is the largest part of a snapshot in one frame, 256 KiB at most.
	ChunkBytes int
	// InstallTimeout is how long a follower may take to answer after the last byte of a snapshot.
	InstallTimeout time.Duration
	// DialTimeout bounds one attempt to open a session to a peer.
	DialTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause between two attempts.
	BackoffMin, BackoffMax time.Duration
	// PingInterval is the time between clock samples. After PingTimeout without a message a session counts as broken.
	PingInterval, PingTimeout time.Duration
	// InFlightBytesMax bounds the bytes of entries that are queued for one peer or not yet answered by it.
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
