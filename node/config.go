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

// Config says what a node is. The zero value is a working
// one-node cluster on loopback with the default data directory.
type Config struct {
	// Name is this node's name in the cluster, "ebb-0" by default. Founders are named "<prefix>-<ordinal>".
	Name string
	// DataDir holds everything that survives a restart; DefaultDataDir() by default.
	DataDir string

	// GRPC, HTTP, Gossip and Admin are the addresses to listen on. By default
	// these are loopback's ports 7070, 7080, 7071 and 7081; "-" turns HTTP or
	// Admin off, and gossip in a cluster of one.
	GRPC, HTTP, Gossip, Admin string
	// AdvertiseGRPC, AdvertiseHTTP and AdvertiseGossip are the addresses that other nodes and clients get instead of
	// those listened on. Without them, an address that stands for all of the machine's is given as one of those.
	AdvertiseGRPC, AdvertiseHTTP, AdvertiseGossip string
	// HTTPHosts are further names by which the HTTP and admin listeners may be asked: what the header Host has. On
	// loopback these listeners answer to the names of loopback, to the host of AdvertiseHTTP and to HTTPHosts alone. On
	// addresses that other machines reach they answer to every name, unless HTTPHosts has some.
	HTTPHosts []string

	// Join names gossip addresses of other nodes. One that answers is enough.
	Join []string
	// BootstrapExpect is how many nodes the cluster is born with, by default 1: those of ordinals 0 to
	// BootstrapExpect-1. A node with Join and a higher ordinal joins the cluster that is there. So does a node with
	// Join and without BootstrapExpect.
	BootstrapExpect int
	// Shards is P, fixed when the cluster is born; 64 by default.
	Shards uint32
	// Replication is how many replicas a shard has: by default 3, or
	// BootstrapExpect if smaller.
	Replication uint32

	// Zone is where the node stands, if that is known: a shard's replicas are kept in different zones.
	Zone string
	// ReplaceAfter is how long a node is dead before its replicas are made anew on others; 5 minutes by default.
	ReplaceAfter time.Duration

	// MoveRate is how many bytes of snapshots this node sends in a second, to all replicas that move, come back or were
	// lost, together: DefaultMoveRate by default, any number below 0. A voter without which its group can commit
	// nothing does not wait for it.
	MoveRate int64

	// ShardLimits bound what a shard remembers; shard.DefaultLimits() by default. They decide results: all nodes of a
	// cluster must have the same ones, from its first entry on.
	ShardLimits shard.Limits
	// ControlLimits bound what the control group remembers; cluster.DefaultControlLimits() by default. All nodes of a
	// cluster must have the same ones, from its first entry on.
	ControlLimits cluster.ControlLimits
	// Limits bound what this node does at once; see there.
	Limits Limits
	// SnapshotBytes is how long the log of a group may grow, at least, before a snapshot is taken of it; 4 MiB by
	// default.
	SnapshotBytes int64
	// LogSegmentBytes is how large the files of the log are, but for entries that are larger, and how much of its end
	// is kept in memory, too; 32 MiB by default.
	LogSegmentBytes int64

	// DiskReserve is how many bytes a node holds back of its disk for when that is full, but at most an eighth of what
	// is free; 64 MiB by default.
	DiskReserve int64

	// ScrubEvery is how long after its start, and after each time, a node reads the snapshots and the log on its disk
	// again: DefaultScrubEvery by default, never below 0.
	ScrubEvery time.Duration

	// UnionBytes is how much memory unions of bitmaps of periods may take, which answer windows: 512 MiB by default,
	// none below 0.
	UnionBytes int

	// MemoryLimit is how many bytes this process may take: from nine tenths of it on the node refuses what would make
	// its shards larger. 0 is no limit.
	MemoryLimit int64
	// GiveBack gives memory that the process does not use back to the system. It is called when a namespace has been
	// purged; nothing is when nil.
	GiveBack func()

	// TLS is how connections are secured; not at all by default.
	TLS TLS
	// GossipKeys names the file with the keys of gossip, see cluster.ParseGossipKeys; without, gossip is in the clear.
	// All nodes of a cluster have some, or none has.
	GossipKeys string
	// RootTokens may do everything, and prove to this node that a caller is another node of the cluster, which has them
	// too. Callers need a token as soon as there is one, or one was made with `ebb token create`.
	RootTokens []string
	// ClusterSecrets prove to other nodes, where there is no TLS, that this one is a node, and to this one that a
	// caller is another node. They let no client in. The first is what this node's own proofs are by, and all are
	// accepted: to replace a secret, all nodes first get the new one as a further one.
	ClusterSecrets []string
	// Audit takes a line for each act that changes the cluster, its namespaces and its tokens, deletes or restores, and
	// for what was denied; Logger does when nil.
	Audit *slog.Logger

	// Clock, Network and FS are the machine's own by default.
	Clock   Clock
	Network Network
	FS      fs.FS
	// Fail holds this node's failpoints; none fire when nil.
	Fail *fail.Points
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
	// Registry takes this node's metrics and is what /metrics shows; a new one when nil.
	Registry *prometheus.Registry
	// Traces makes spans of what this node is asked and asks of others; none when nil.
	Traces trace.TracerProvider
	// Version is the version of this program, for status and gossip.
	Version string
	// Storage are the storage versions that this node can run with: this build's when zero. Tests play other builds
	// with it.
	Storage proto.Versions
	// Fatal gets the error for which the node cannot continue: its disk failed or hangs, a group is stuck beyond
	// repair, or the cluster refuses it. It must end the process, or in a test the node (Kill, from another goroutine).
	// It is called once. By default the process exits with status 3.
	Fatal func(error)

	// joins says that a node without data joins a cluster that is there, and founds none.
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
	// DefaultUnionBytes is what Config.UnionBytes is when it is 0.
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

// exitFatal is the status with which a process ends that cannot go on.
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

// nodeName takes a name apart: what its siblings share, and its number.
var nodeName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)-([0-9]{1,4})$`)

// check refuses what cannot work, with the name of the setting.
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

// checkJoining refuses what cannot work for a node that joins.
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

// checkAddresses refuses addresses and a place that others could do nothing with.
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

// founders are the names of the nodes that the cluster is born with.
func (c *Config) founders() []string {
	prefix := nodeName.FindStringSubmatch(c.Name)[1]
	names := make([]string, c.BootstrapExpect)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}
