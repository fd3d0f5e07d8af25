package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/rpc"
	"github.com/ebbdb/ebb/shard"
)

// Config configures a node. The zero value is a working one-node cluster on loopback with the default data directory.
type Config struct {
	// Name is this node's name in the cluster, "ebb-0" by default. Founders are named "<prefix>-<ordinal>".
	Name string
	// DataDir holds everything that survives a restart; DefaultDataDir() by default.
	DataDir string

	// GRPC, HTTP, Gossip and Admin are the addresses to listen on. By default these are loopback's ports 7070, 7080,
	// 7071 and 7081. "-" turns HTTP or Admin off; in a cluster of one it also turns Gossip off.
	GRPC, HTTP, Gossip, Admin string
	// AdvertiseGRPC, AdvertiseHTTP and AdvertiseGossip are the addresses that other nodes and clients get instead of
	// the listen addresses. Without them, an unspecified listen address (such as 0.0.0.0) is replaced by one address of
	// the machine.
	AdvertiseGRPC, AdvertiseHTTP, AdvertiseGossip string
	// HTTPHosts are further host names that the HTTP and admin listeners accept in the header Host. On loopback they
	// accept only the names of loopback, the host of AdvertiseHTTP, and HTTPHosts. On addresses that other machines
	// reach they accept every name, unless HTTPHosts is set.
	HTTPHosts []string

	// Join lists gossip addresses of other nodes. One address that answers is enough.
	Join []string
	// BootstrapExpect is how many nodes found the cluster, by default 1: the nodes with ordinals 0 to
	// BootstrapExpect-1. A node with Join and a higher ordinal joins an existing cluster. So does a node with Join and
	// without BootstrapExpect.
	BootstrapExpect int
	// Shards is the number of shards, fixed when the cluster is founded; 64 by default.
	Shards uint32
	// Replication is how many replicas a shard has: by default 3, or
	// BootstrapExpect if smaller.
	Replication uint32

	// Zone is the node's zone, if known: the replicas of a shard are kept in different zones.
	Zone string
	// ReplaceAfter is how long a node must be dead before its replicas are replaced on other nodes; 5 minutes by
	// default.
	ReplaceAfter time.Duration

	// MoveRate limits how many bytes of snapshots per second this node sends, to all replicas together, whether they
	// move, return or were lost. The default is DefaultMoveRate; a negative value is no limit. The limit does not apply
	// to a voter without which its group cannot commit.
	MoveRate int64

	// ShardLimits bound what a shard remembers; shard.DefaultLimits() by default. They change the results of commands:
	// all nodes of a cluster must have the same limits, from its first entry on.
	ShardLimits shard.Limits
	// ControlLimits bound what the control group remembers; cluster.DefaultControlLimits() by default. All nodes of a
	// cluster must have the same limits, from its first entry on.
	ControlLimits cluster.ControlLimits
	// Limits bound what this node does at once; see the type.
	Limits Limits
	// SnapshotBytes is the least size of a group's log, in bytes, at which a snapshot of the group is taken; 4 MiB by
	// default.
	SnapshotBytes int64
	// LogSegmentBytes is the size of the log's files, in bytes; an entry that is larger gets a larger file. As many
	// bytes of the end of the log are kept in memory. The default is 32 MiB.
	LogSegmentBytes int64

	// DiskReserve is how many bytes of disk a node reserves for when the disk is full, but at most an eighth of the
	// free space; 64 MiB by default.
	DiskReserve int64

	// ScrubEvery is the interval at which a node reads the snapshots and the log on its disk again, first that long
	// after its start. The default is DefaultScrubEvery; a negative value turns it off.
	ScrubEvery time.Duration

	// UnionBytes is how many bytes of memory cached unions of period bitmaps may take; they answer windows. The default
	// is 512 MiB; a negative value turns the cache off.
	UnionBytes int

	// MemoryLimit is how many bytes of memory this process may take. From nine tenths of it on, the node refuses
	// commands that would make its shards larger. 0 is no limit.
	MemoryLimit int64
	// GiveBack returns memory that the process does not use to the system. It is called when a namespace has been
	// purged; nil: not called.
	GiveBack func()

	// TLS secures the connections; none is secured by default.
	TLS TLS
	// GossipKeys is the file with the gossip keys, see cluster.ParseGossipKeys. Without keys, gossip is not encrypted.
	// Either all nodes of a cluster have keys, or none has.
	GossipKeys string
	// RootTokens may do everything. They also prove to this node that a caller is another node of the cluster, since
	// all nodes have them. Callers need a token as soon as RootTokens is not empty, or a token was made with `ebb token
	// create`.
	RootTokens []string
	// ClusterSecrets replace TLS certificates where there is no TLS: they prove to other nodes that this is a node, and
	// to this node that a caller is another node. Clients cannot use them. The first secret makes this node's own
	// proofs; all are accepted. To replace a secret, first add the new one as a further secret on all nodes.
	ClusterSecrets []string
	// Audit gets a line for each request that changes the cluster, its namespaces or its tokens, that deletes or
	// restores, or that was denied; Logger gets them when nil.
	Audit *slog.Logger

	// Clock, Network and FS are the machine's own by default.
	Clock   Clock
	Network Network
	FS      fs.FS
	// Fail holds this node's failpoints; none fire when nil.
	Fail *fail.Points
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
	// Registry gets this node's metrics, and is what /metrics shows; a new one when nil.
	Registry *prometheus.Registry
	// Traces makes spans of the requests that this node gets and sends; none when nil.
	Traces trace.TracerProvider
	// Version is the version of this program, for status and gossip.
	Version string
	// Storage is the range of storage versions that this node can run with; by default this build's. Tests simulate
	// other builds with it.
	Storage proto.Versions
	// Fatal is called once, with the error after which the node cannot continue: its disk failed or hangs, a group
	// cannot be repaired, or the cluster refuses the node. It must end the process, or in a test the node (Kill, from
	// another goroutine). By default the process exits with status 3.
	Fatal func(error)

	// joins is set for a node without data that joins an existing cluster and founds none.
	joins bool
	// used returns how many bytes this process takes; memoryUsed by default.
	used func() int64
}

// Defaults.
const (
	DefaultGRPC   = "127.0.0.1:7070"
	DefaultHTTP   = "127.0.0.1:7080"
	DefaultGossip = "127.0.0.1:7071"
	DefaultAdmin  = "127.0.0.1:7081"
	// DefaultUnionBytes is Config.UnionBytes when it is 0, in bytes.
	DefaultUnionBytes = 512 << 20
	// DefaultReplaceAfter is Config.ReplaceAfter when it is 0.
	DefaultReplaceAfter = 5 * time.Minute
	// Off as an address turns a listener off.
	Off = "-"
)

// DefaultDataDir is $XDG_DATA_HOME/ebb, or ~/.local/share/ebb.
func DefaultDataDir() string {
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "ebb")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "ebb-data"
	}
	return filepath.Join(home, ".local", "share", "ebb")
}

// exitFatal is the exit status of a process that cannot continue.
const exitFatal = 3

func (c Config) withDefaults() Config {
	or(&c.Name, "ebb-0")
	or(&c.GRPC, DefaultGRPC)
	or(&c.HTTP, DefaultHTTP)
	or(&c.Gossip, DefaultGossip)
	or(&c.Admin, DefaultAdmin)
	or(&c.ReplaceAfter, DefaultReplaceAfter)
	ordinal, err := c.ordinal()
	c.joins = len(c.Join) > 0 && (c.BootstrapExpect == 0 || err == nil && c.BootstrapExpect > 0 && ordinal >= c.BootstrapExpect)
	or(&c.BootstrapExpect, 1)
	or(&c.Shards, proto.ShardsDefault)
	or(&c.Replication, uint32(min(3, c.BootstrapExpect)))
	or(&c.MoveRate, DefaultMoveRate)
	or(&c.ShardLimits, shard.DefaultLimits())
	or(&c.ControlLimits, cluster.DefaultControlLimits())
	c.Limits = c.Limits.filled()
	or(&c.SnapshotBytes, snapshotBytesMin)
	or(&c.ScrubEvery, DefaultScrubEvery)
	or(&c.UnionBytes, DefaultUnionBytes)
	or(&c.Version, "dev")
	or(&c.Storage, proto.StorageVersions())
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir()
	}
	if c.Clock == nil {
		c.Clock = SystemClock{}
	}
	if c.Network == nil {
		c.Network = OSNetwork{}
	}
	if c.used == nil {
		c.used = memoryUsed
	}
	if c.FS == nil {
		c.FS = fs.OS{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Audit == nil {
		c.Audit = c.Logger
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Fatal == nil {
		c.Fatal = func(error) { os.Exit(exitFatal) } // it is in the log
	}
	return c
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// zoneLenMax bounds the name of a zone.
const zoneLenMax = 64

// nodeName splits a founder's name into the prefix that all founders share, and its ordinal.
var nodeName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)-([0-9]{1,4})$`)

// check returns an error for a setting that cannot work, and names the setting.
func (c *Config) check() error {
	if c.joins {
		return c.checkJoining()
	}
	switch ordinal, err := c.ordinal(); {
	case err != nil:
		return err
	case c.BootstrapExpect < 1:
		return proto.ErrBadRequest.Errorf("bootstrap-expect %d: a cluster has at least one node", c.BootstrapExpect)
	case ordinal >= c.BootstrapExpect:
		return proto.ErrBadRequest.Errorf("node %s: a cluster of %d nodes has ordinals 0 to %d", c.Name, c.BootstrapExpect, c.BootstrapExpect-1).
			WithHint("raise bootstrap-expect, use another name, or name nodes of a running cluster with --join")
	case c.Shards > proto.ShardsMax:
		return proto.ErrBadRequest.Errorf("%d shards: the limit is %d", c.Shards, proto.ShardsMax)
	case int(c.Shards) < c.BootstrapExpect:
		return proto.ErrBadRequest.Errorf("%d shards for %d nodes: there must be at least one a node", c.Shards, c.BootstrapExpect)
	case int(c.Replication) > c.BootstrapExpect:
		return proto.ErrBadRequest.Errorf("replication %d on %d nodes: there must be a node for each replica", c.Replication, c.BootstrapExpect)
	case c.GRPC == Off:
		return proto.ErrBadRequest.Errorf("gRPC is off: a node needs it, for clients and for other nodes").
			WithHint("give an address of this machine with --grpc; only --http, --gossip and --admin can be off")
	case c.Gossip == Off && c.BootstrapExpect > 1:
		return proto.ErrBadRequest.Errorf("gossip is off: a cluster of %d nodes needs it", c.BootstrapExpect)
	}
	return c.checkAddresses()
}

// checkJoining is check for a node that joins.
func (c *Config) checkJoining() error {
	if err := cluster.CheckNodeName(c.Name); err != nil {
		return err
	}
	if c.GRPC == Off || c.Gossip == Off {
		return proto.ErrBadRequest.Errorf("gRPC or gossip is off: a node that joins others needs both").
			WithHint("give addresses of this machine with --grpc and --gossip; only --http and --admin can be off")
	}
	return c.checkAddresses()
}

// checkAddresses checks the settings that founding and joining nodes share: secrets, zone, TLS, addresses and host
// names.
func (c *Config) checkAddresses() error {
	if err := checkSecrets("root token", c.RootTokens); err != nil {
		return err
	}
	if err := checkSecrets("cluster secret", c.ClusterSecrets); err != nil {
		return err
	}
	if len(c.Zone) > zoneLenMax {
		return proto.ErrBadRequest.Errorf("zone of %d bytes: the limit is %d", len(c.Zone), zoneLenMax)
	}
	if err := c.TLS.check(); err != nil {
		return err
	}
	if err := checkAdvertised("advertise-grpc", c.AdvertiseGRPC); err != nil {
		return err
	}
	if err := checkAdvertised("advertise-http", c.AdvertiseHTTP); err != nil {
		return err
	}
	for _, name := range c.HTTPHosts {
		if err := rpc.CheckHost(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) ordinal() (int, error) {
	parts := nodeName.FindStringSubmatch(c.Name)
	if parts == nil {
		return 0, proto.ErrBadRequest.Errorf("node name %q is not <prefix>-<number>, like ebb-0", c.Name)
	}
	return strconv.Atoi(parts[2])
}

// founders returns the names of the nodes that found the cluster.
func (c *Config) founders() []string {
	prefix := nodeName.FindStringSubmatch(c.Name)[1]
	names := make([]string, c.BootstrapExpect)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}
