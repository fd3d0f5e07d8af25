package swarm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// Knob is a limit that a seed draws: with those of production a run is too short to reach their edges.
type Knob struct {
	Name string
	What string // what it limits, and in which unit
	// Values are what seeds draw, the tightest first. The last is that of production.
	Values []int64

	turn func(cfg *node.Config, v int64) // nil: it is not of nodes
}

// Names of knobs that clients and checks look up.
const (
	knobSessionWindow = "session-window"
	knobSessionExpiry = "session-expiry"
	knobKeyWindow     = "key-window"
	knobClientWindow  = "client-window"
	knobNewFile       = "new-file"
)

// Knobs are all of them. All nodes of a run have the same values from the first entry of every log on: those of shards
// decide results, and so replicas must agree on them.
var Knobs = []Knob{
	{
		knobSessionWindow, "commands of a session that a shard remembers",
		[]int64{8, 13, 64, 1024},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionWindow = uint64(v) },
	},
	{
		knobSessionExpiry, "ms that a session may be idle",
		[]int64{3_000, 8_000, 20_000, 3_600_000},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionExpiry = ticks(v) },
	},
	{
		"session-results", "bytes of results that say more than a count, a session",
		[]int64{20, 100, 4 << 10, 64 << 10},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionResultBytes = int(v) },
	},
	{
		knobKeyWindow, "ms for which an idempotency key is remembered",
		[]int64{3_000, 8_000, 20_000, 600_000},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.IdempotencyWindow = ticks(v) },
	},
	{
		"snapshot", "bytes of a log before a snapshot is taken",
		[]int64{8 << 10, 32 << 10, 128 << 10, 4 << 20},
		func(cfg *node.Config, v int64) { cfg.SnapshotBytes = v },
	},
	{
		knobClientWindow, "commands of a client in one shard at once, no more than a session remembers",
		[]int64{1, 8, ebb.WindowDefault},
		nil,
	},
	{
		"sources", "ordered sources that a shard remembers",
		[]int64{2, 64, 4096},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.Sources = int(v) },
	},
	{
		"key-results", "bytes of results that say more than a count, of all idempotency keys of a shard",
		[]int64{64 << 10, 16 << 20},
		func(cfg *node.Config, v int64) { cfg.ShardLimits.IdempotencyResultBytes = int(v) },
	},
	{
		"entries-in-flight", "entries of a shard on their way at once",
		[]int64{1, 2, 4},
		func(cfg *node.Config, v int64) { cfg.Limits.EntriesInFlight = int(v) },
	},
	{
		"entry", "bytes of commands after which an entry ends",
		[]int64{1, 300, 64 << 10},
		func(cfg *node.Config, v int64) { cfg.Limits.EntryBytes = int(v) },
	},
	{
		"queue", "bytes of commands that wait at a shard, but for a single one",
		[]int64{500, 8 << 10, 4 << 20},
		func(cfg *node.Config, v int64) { cfg.Limits.QueueBytes = int(v) },
	},
	{
		"append", "entries of one append to a follower",
		[]int64{8, 16, 64},
		func(cfg *node.Config, v int64) { cfg.Limits.AppendEntries = int(v) },
	},
	{
		"trailing", "bytes of a log that stay behind a snapshot",
		[]int64{1, 4 << 10, 1 << 20},
		func(cfg *node.Config, v int64) { cfg.Limits.TrailingBytes = v },
	},
	{
		"snapshot-period", "ms between two looks at the lengths of logs",
		[]int64{100, 300, 1000},
		func(cfg *node.Config, v int64) { cfg.Limits.SnapshotEvery = time.Duration(v) * time.Millisecond },
	},
	{
		"snapshot-sync", "bytes of a snapshot between two syncs",
		[]int64{1 << 10, 64 << 10, 8 << 20},
		func(cfg *node.Config, v int64) { cfg.Limits.SnapshotSyncBytes = v },
	},
	{
		"chunk", "bytes of a snapshot that go to another node at once",
		[]int64{100, 4 << 10, 256 << 10},
		func(cfg *node.Config, v int64) { cfg.Limits.ChunkBytes = int(v) },
	},
	{
		"log-batch", "bytes of the log that one sync makes durable",
		[]int64{1, 2 << 10, 4 << 20},
		func(cfg *node.Config, v int64) { cfg.Limits.LogBatchBytes = int(v) },
	},
	{
		"audit-period", "ms between two audits of a shard",
		[]int64{10_000, 20_000, 60_000},
		func(cfg *node.Config, v int64) { cfg.Limits.AuditEvery = time.Duration(v) * time.Millisecond },
	},
	{knobNewFile, "ms that a disk takes to make a file", []int64{200, 30, 0}, nil},
	{
		"log", "bytes of the log of a node, above which the longest of a group is cut",
		[]int64{64 << 10, 1 << 20, 256 << 20},
		func(cfg *node.Config, v int64) { cfg.Limits.LogBytes = v },
	},
	{
		"snapshots-at-once", "snapshots that a node takes at a time",
		[]int64{1, 2},
		func(cfg *node.Config, v int64) { cfg.Limits.SnapshotsAtOnce = int(v) },
	},
	{
		"move-rate", "bytes of snapshots that a node sends in a second",
		[]int64{128 << 10, 1 << 20, node.DefaultMoveRate},
		func(cfg *node.Config, v int64) { cfg.MoveRate = v },
	},
	{
		"unions", "bytes of unions that a node keeps to answer windows",
		[]int64{1, 64 << 10, node.DefaultUnionBytes},
		func(cfg *node.Config, v int64) { cfg.UnionBytes = int(v) },
	},
	{
		"scrub-period", "ms after which a node reads its log and its snapshots again",
		[]int64{2_000, 10_000, 86_400_000},
		func(cfg *node.Config, v int64) { cfg.ScrubEvery = time.Duration(v) * time.Millisecond },
	},
}

// ticks is a number of ms in shard time.
func ticks(ms int64) sketch.Tick { return sketch.Tick(ms * 1000) }

const (
	// knobsPart is how many seeds have other limits than those of production.
	knobsPart = 0.7
	// knobTurned is how many of the knobs of such a seed are drawn at all, and knobFirst how many of these have the first
	// value.
	knobTurned, knobFirst = 0.7, 0.5
)

// drawKnobs draws the limits of a seed by name; nil for those of production. A knob that is not named has that of
// production.
func drawKnobs(seed uint64) map[string]int64 {
	rng := rand.New(rand.NewPCG(seed, 0x6b6e6f6273))
	if rng.Float64() >= knobsPart {
		return nil
	}
	values := map[string]int64{}
	for _, k := range Knobs {
		turned, first, at := rng.Float64() < knobTurned, rng.Float64() < knobFirst, rng.IntN(len(k.Values))
		switch {
		case !turned:
			continue
		case first:
			at = 0
		}
		if v := k.Values[at]; v != k.production() {
			values[k.Name] = v
		}
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

func (k *Knob) production() int64 { return k.Values[len(k.Values)-1] }

// of is the value of a plan.
func (k *Knob) of(p *Plan) int64 {
	if v, turned := p.Knobs[k.Name]; turned {
		return v
	}
	return k.production()
}

// knob is the value of a knob by its name.
func (p *Plan) knob(name string) int64 {
	for i := range Knobs {
		if Knobs[i].Name == name {
			return Knobs[i].of(p)
		}
	}
	panic("no knob is called " + name)
}

// knobTime is the value of a knob that is a time.
func (p *Plan) knobTime(name string) time.Duration {
	return time.Duration(p.knob(name)) * time.Millisecond
}

// window is how many commands clients may have in one shard at once.
func (p *Plan) window() int { return int(min(p.knob(knobClientWindow), p.knob(knobSessionWindow))) }

// turn gives a node the limits of the plan.
func (p *Plan) turn(cfg *node.Config) {
	cfg.ShardLimits = shard.DefaultLimits()
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned && k.turn != nil {
			k.turn(cfg, v)
		}
	}
}

// shardLimits are those of the shards of all nodes.
func (p *Plan) shardLimits() shard.Limits {
	var cfg node.Config
	p.turn(&cfg)
	return cfg.ShardLimits
}

// knobWords names the knobs that are turned, in the order of the table.
func (p *Plan) knobWords() string {
	var words []string
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned {
			words = append(words, fmt.Sprintf("%s %d", k.Name, v))
		}
	}
	if len(words) == 0 {
		return "limits of production"
	}
	return strings.Join(words, ", ")
}

// KnobCount is how many seeds had the tightest value of a knob, how many that of production, and how many one between.
type KnobCount struct {
	First      int `json:"tightest"`
	Between    int `json:"between"`
	Production int `json:"production"`
}

// add counts the value of a plan.
func (c KnobCount) add(k *Knob, p *Plan) KnobCount {
	switch k.of(p) {
	case k.Values[0]:
		c.First++
	case k.production():
		c.Production++
	default:
		c.Between++
	}
	return c
}
