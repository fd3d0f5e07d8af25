package swarm

import (
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
)

// Knobs has all knobs. All nodes of a run have the same values from the first entry of every log. Limits of shards
// affect results, so replicas must agree on them.
var Knobs = []Knob{
	{
		Name: knobSessionWindow, What: "commands of a session that a shard remembers",
		Values: []int64{8, 13, 64, 1024},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionWindow = uint64(v) },
	},
	{
		Name: knobSessionExpiry, What: "ms that a session may be idle",
		Values: []int64{3_000, 8_000, 20_000, 3_600_000},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionExpiry = ticks(v) },
	},
	{
		Name: "session-results", What: "bytes of results that say more than a count, a session",
		Values: []int64{20, 100, 4 << 10, 64 << 10},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.SessionResultBytes = int(v) },
	},
	{
		Name: knobKeyWindow, What: "ms for which an idempotency key is remembered",
		Values: []int64{3_000, 8_000, 20_000, 600_000},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.IdempotencyWindow = ticks(v) },
	},
	{
		Name: "snapshot", What: "bytes of a log before a snapshot is taken",
		Values: []int64{8 << 10, 32 << 10, 128 << 10, 4 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.SnapshotBytes = v },
	},
	{
		Name: knobClientWindow, What: "commands of a client in one shard at once, no more than a session remembers",
		Values: []int64{1, 8, ebb.WindowDefault},
	},
	{
		Name: "sources", What: "ordered sources that a shard remembers",
		Values: []int64{2, 64, 4096},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.Sources = int(v) },
	},
	{
		Name: "key-results", What: "bytes of results that say more than a count, of all idempotency keys of a shard",
		Values: []int64{64 << 10, 16 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.ShardLimits.IdempotencyResultBytes = int(v) },
	},
	{
		Name: "entries-in-flight", What: "entries of a shard on their way at once",
		Values: []int64{1, 2, 4},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.EntriesInFlight = int(v) },
	},
	{
		Name: "entry", What: "bytes of commands after which an entry ends",
		Values: []int64{1, 300, 64 << 10},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.EntryBytes = int(v) },
	},
	{
		Name: "queue", What: "bytes of commands that wait at a shard, but for a single one",
		Values: []int64{500, 8 << 10, 4 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.QueueBytes = int(v) },
	},
	{
		Name: "append", What: "entries of one append to a follower",
		Values: []int64{8, 16, 64},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.AppendEntries = int(v) },
	},
	{
		Name: "trailing", What: "bytes of a log that stay behind a snapshot",
		Values: []int64{1, 4 << 10, 1 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.TrailingBytes = v },
	},
	{
		Name: "snapshot-period", What: "ms between two looks at the lengths of logs",
		Values: []int64{100, 300, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SnapshotEvery = time.Duration(v) * time.Millisecond },
	},
	{
		Name: "snapshot-sync", What: "bytes of a snapshot between two syncs",
		Values: []int64{1 << 10, 64 << 10, 8 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SnapshotSyncBytes = v },
	},
	{
		Name: "chunk", What: "bytes of a snapshot that go to another node at once",
		Values: []int64{100, 4 << 10, 256 << 10},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.ChunkBytes = int(v) },
	},
	{
		Name: "log-batch", What: "bytes of the log that one sync makes durable",
		Values: []int64{1, 2 << 10, 4 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.LogBatchBytes = int(v) },
	},
	{
		Name: "audit-period", What: "ms between two audits of a shard",
		Values: []int64{10_000, 20_000, 60_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.AuditEvery = time.Duration(v) * time.Millisecond },
	},
	{Name: knobNewFile, What: "ms that a disk takes to make a file", Values: []int64{200, 30, 0}},
	{
		Name: "log", What: "bytes of the log of a node, above which the longest of a group is cut",
		Values: []int64{64 << 10, 1 << 20, 256 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.LogBytes = v },
	},
	{
		Name: "snapshots-at-once", What: "snapshots that a node takes at a time",
		Values: []int64{1, 2},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SnapshotsAtOnce = int(v) },
	},
	{
		Name: "move-rate", What: "bytes of snapshots that a node sends in a second",
		Values: []int64{128 << 10, 1 << 20, node.DefaultMoveRate},
		turn:   func(cfg *node.Config, v int64) { cfg.MoveRate = v },
	},
	{
		Name: "unions", What: "bytes of unions that a node keeps to answer windows",
		Values: []int64{1, 64 << 10, node.DefaultUnionBytes},
		turn:   func(cfg *node.Config, v int64) { cfg.UnionBytes = int(v) },
	},
	{
		Name: "scrub-period", What: "ms after which a node reads its log and its snapshots again",
		Values: []int64{2_000, 10_000, 86_400_000},
		turn:   func(cfg *node.Config, v int64) { cfg.ScrubEvery = time.Duration(v) * time.Millisecond },
	},
	{
		Name: knobSessions, What: "sessions that a shard remembers; they expire soon then",
		Values: []int64{24, 64, 65_536}, with: knobSessionExpiry,
		turn: func(cfg *node.Config, v int64) { cfg.ShardLimits.Sessions = int(v) },
	},
	{
		Name: knobKeys, What: "idempotency keys that a shard remembers; they are forgotten soon then",
		Values: []int64{8, 64, 65_536}, with: knobKeyWindow,
		turn: func(cfg *node.Config, v int64) { cfg.ShardLimits.IdempotencyKeys = int(v) },
	},
	{
		Name: knobHalfLives, What: "changes of the half-life and of the clock of a namespace",
		Values: []int64{2, 8, 256},
		turn: func(cfg *node.Config, v int64) {
			cfg.ShardLimits.HalfLifeChanges, cfg.ControlLimits.HalfLifeChanges = int(v), uint32(v)
		},
	},
	{
		Name: "client-changes", What: "changes of clients that the control group remembers",
		Values: []int64{16, 4096},
		turn:   func(cfg *node.Config, v int64) { cfg.ControlLimits.ClientChanges = int(v) },
	},
	{
		Name: "node-queue", What: "bytes of commands that wait at all shards of a node",
		Values: []int64{1_000, 16 << 10, 128 << 20},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.NodeBytes = v },
	},
	{
		Name: "commit-period", What: "ms after which followers of an idle group learn its last commit",
		Values: []int64{50, 250, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.CommitEvery = knobMillis(v) },
	},
	{
		Name: "log-end-period", What: "ms between two syncs of the file that has the end of the log",
		Values: []int64{20, 200, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.LogEndEvery = knobMillis(v) },
	},
	{
		Name: "snapshot-files", What: "older files that a snapshot takes chunks from",
		Values: []int64{1, 3, 15},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SnapshotFiles = int(v) },
	},
	{
		Name: "audits-at-once", What: "checksums for audits that a node computes at a time",
		Values: []int64{1, 2},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.AuditsAtOnce = int(v) },
	},
	{
		Name: "unknown-names", What: "names of namespaces that do not exist and that a node remembers",
		Values: []int64{1, 4, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.UnknownNames = int(v) },
	},
	{
		Name: "plan-period", What: "ms between two plans of where shards belong",
		Values: []int64{50, 200, 500},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.PlanEvery = knobMillis(v) },
	},
	{
		Name: "moves-at-once", What: "shards of the cluster with a move under way",
		Values: []int64{1, 4},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.MovesAtOnce = int(v) },
	},
	{
		Name: "host-period", What: "ms between two comparisons of a node's replicas with the table",
		Values: []int64{20, 100, 250},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.ReconcileEvery = knobMillis(v) },
	},
	{
		Name: "balance-period", What: "ms between two shards that a node hands over to the node that should lead them",
		Values: []int64{20, 100, 250},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.BalanceEvery = knobMillis(v) },
	},
	{
		Name: "balance-after", What: "ms after its start for which a node hands no shard over",
		Values: []int64{500, 3_000, 10_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.BalanceAfter = knobMillis(v) },
	},
	{
		Name: "register-period", What: "ms between two comparisons of the records of nodes with what nodes say",
		Values: []int64{50, 200, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.RegisterEvery = knobMillis(v) },
	},
	{
		Name: "raise-period", What: "ms between two looks at storage versions, and at namespaces to purge",
		Values: []int64{50, 200, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.RaiseEvery = knobMillis(v) },
	},
	{
		Name: "forget-period", What: "ms between two looks for nodes that the cluster no longer has",
		Values: []int64{100, 1000, 10_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.ForgetEvery = knobMillis(v) },
	},
	{
		Name: "sweep-period", What: "ms between two looks for parts of bitmaps to sweep",
		Values: []int64{100, 1000, 5000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SweepEvery = knobMillis(v) },
	},
	{
		Name: "sweep", What: "bitmaps that one sweep takes from a shard",
		Values: []int64{1, 3, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.SweepAtOnce = int(v) },
	},
	{
		Name: "purge-period", What: "ms between two looks for deleted namespaces",
		Values: []int64{50, 200, 1000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.PurgeEvery = knobMillis(v) },
	},
	{
		Name: "gossip-exchange", What: "ms between two exchanges of all that gossip knows",
		Values: []int64{500, 3_000, 15_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.GossipExchangeEvery = knobMillis(v) },
	},
	{
		Name: "gossip-rejoin", What: "ms after which gossip joins again nodes that are missing",
		Values: []int64{1000, 3_000, 10_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.GossipRejoinEvery = knobMillis(v) },
	},
	{
		Name: "recent-names", What: "strings of dictionaries in each half of a node's memory",
		Values: []int64{1, 10, 16_384},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.Ask.RecentNames = int(v) },
	},
	{
		Name: "page-ids", What: "ids that a round of a page asks all shards for, 64 of each at least",
		Values: []int64{1, 1000, 200_000},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.Ask.PageIDs = uint32(v) },
	},
	{
		Name: "position-ids", What: "ids that the search for a position lists in the end",
		Values: []int64{1, 100, 1024},
		turn:   func(cfg *node.Config, v int64) { cfg.Limits.Ask.PositionIDs = uint32(v) },
	},
	{
		Name: "list-keys", What: "keys of a list that a client asks for at once",
		Values: []int64{3, 40, 1000},
		sdk:    func(l *ebb.Limits, v int64) { l.KeysPage = int(v) },
	},
	{
		Name: "list-ids", What: "ids of a bitmap that a client asks for at once",
		Values: []int64{3, 100, 50_000},
		sdk:    func(l *ebb.Limits, v int64) { l.IDsPage = int(v) },
	},
	{
		Name: "requests", What: "requests with commands of a client on their way to a node at once",
		Values: []int64{1, 2, 8},
		sdk:    func(l *ebb.Limits, v int64) { l.Requests = int(v) },
	},
	{
		Name: "request-ops", What: "increments of one request of a client, but for a single command",
		Values: []int64{1, 100, 10_000},
		sdk:    func(l *ebb.Limits, v int64) { l.RequestOps = int(v) },
	},
	{
		Name: "request-bytes", What: "bytes of one request of a client, but for a single command",
		Values: []int64{1, 300, 983_040},
		sdk:    func(l *ebb.Limits, v int64) { l.RequestBytes = int(v) },
	},
	{
		Name: "questions", What: "questions of several callers of a client in one request",
		Values: []int64{1, 4, 256},
		sdk:    func(l *ebb.Limits, v int64) { l.Questions = int(v) },
	},
	{
		Name: "table-age", What: "ms after which a client asks for a newer table of shards",
		Values: []int64{100, 2_000, 30_000},
		sdk:    func(l *ebb.Limits, v int64) { l.TableAge = knobMillis(v) },
	},
	{
		Name: knobTry, What: "ms of one try of a client at one node",
		Values: []int64{300, 1_000, 3_000},
	},
	{
		Name: knobPause, What: "ms that a client waits at most between two tries",
		Values: []int64{5, 100, 500},
	},
}

func knobMillis(v int64) time.Duration { return time.Duration(v) * time.Millisecond }
