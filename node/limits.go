package node

import (
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
)

// Limits bound what a node does at a time, and set the intervals of its periodic tasks. They do not change results, so
// nodes of a cluster may have different ones. Zero stands for the default, which is the value after the last semicolon.
type Limits struct {
	// EntriesInFlight is how many entries of a shard may be in flight; 4, and 512 at most.
	EntriesInFlight int
	// EntryBytes is how many bytes of commands an entry takes before the next one begins; 64 KiB.
	EntryBytes int
	// QueueBytes bounds the bytes of commands that wait at one shard; a single command may be larger; 4 MiB.
	QueueBytes int
	// AppendEntries is how many entries one append to a follower carries; 64. Raft buffers as many proposals: below
	// twice EntriesInFlight a proposer would wait for Raft with its lock held, so it is never below that. Raft takes
	// 1,024 at most.
	AppendEntries int
	// TrailingBytes is how many bytes of a log are kept behind a snapshot, so that a follower that was away for a
	// moment needs no snapshot; 1 MiB. It is at most a quarter of Config.SnapshotBytes.
	TrailingBytes int64
	// LogBytes bounds the bytes of the log of all groups: above it the longest log is cut first; 256 MiB.
	LogBytes int64
	// SnapshotsAtOnce is how many snapshots a node takes at a time; 2.
	SnapshotsAtOnce int
	// SnapshotEvery is how often the sizes of the logs are checked; 1 s.
	SnapshotEvery time.Duration
	// SnapshotSyncBytes is how many bytes of a snapshot are written between two syncs; 8 MiB.
	SnapshotSyncBytes int64
	// ChunkBytes is how many bytes of a snapshot go to another node at a time; 256 KiB, which is also the most.
	ChunkBytes int
	// LogBatchBytes is how many bytes one sync of the log makes durable, unless a single record is longer; 4 MiB.
	LogBatchBytes int
	// AuditEvery is how often a part of a shard is compared among its replicas; 1 min.
	AuditEvery time.Duration
	// AuditsAtOnce is how many checksums for audits a node computes at a time; 2. A replica whose checksum is not
	// computed is not compared.
	AuditsAtOnce int
	// NodeBytes bounds the bytes of commands that wait at all shards of this node; 128 MiB.
	NodeBytes int64
	// CommitEvery is how soon followers of an idle group learn its last commit; 1 s.
	CommitEvery time.Duration
	// LogEndEvery is how often the file with the end of the log is synced; 1 s.
	LogEndEvery time.Duration
	// SnapshotFiles is how many older files a snapshot takes chunks from; 15, which is also the most.
	SnapshotFiles int
	// UnknownNames is how many names of missing namespaces a node remembers, each for a second; 1,000.
	UnknownNames int

	// PlanEvery is how often the control leader computes the placement of shards; 500 ms. MovesAtOnce is how many
	// shards of the cluster may have a move under way; 4.
	PlanEvery   time.Duration
	MovesAtOnce int
	// ReconcileEvery is how often a node compares its replicas with the table; 250 ms.
	ReconcileEvery time.Duration
	// BalanceEvery is how often a node hands over a shard that another node should lead; 250 ms. BalanceAfter is how
	// long after its start a node hands over none; 10 s.
	BalanceEvery, BalanceAfter time.Duration
	// RegisterEvery is how often the control leader compares its node records with what nodes report; 1 s.
	RegisterEvery time.Duration
	// RaiseEvery is how often the control leader looks for a newer storage version, and for namespaces to purge; 1 s.
	RaiseEvery time.Duration
	// UsageEvery is how often a node asks the others how much namespaces with a budget hold there; 1 s.
	UsageEvery time.Duration
	// ForgetEvery is how often a node looks for nodes that the cluster no longer has; 10 s.
	ForgetEvery time.Duration
	// SweepEvery is how often a node looks for parts of bitmaps to sweep; 5 s. SweepAtOnce is how many bitmaps one
	// sweep takes from a shard; 1,000.
	SweepEvery  time.Duration
	SweepAtOnce int
	// PurgeEvery is how often a node looks for deleted namespaces; 1 s.
	PurgeEvery time.Duration

	// GossipExchangeEvery is how often gossip exchanges all that it knows with one other node; 15 s. GossipRejoinEvery
	// is how often gossip tries to rejoin nodes that it does not know as alive; 10 s.
	GossipExchangeEvery, GossipRejoinEvery time.Duration
	// Ask bounds how this node asks others.
	Ask cluster.Limits
}

// appendEntriesTop is the most entries that Raft accepts in one append.
const appendEntriesTop = 1024

// filled returns the limits with defaults in place of zeros, and within the range that Raft accepts.
func (l Limits) filled() Limits {
	positive(&l.EntriesInFlight, 4)
	l.EntriesInFlight = min(l.EntriesInFlight, appendEntriesTop/2)
	positive(&l.EntryBytes, proto.EntryBytesSoft)
	positive(&l.QueueBytes, 4<<20)
	positive(&l.AppendEntries, appendEntriesMax)
	l.AppendEntries = min(max(l.AppendEntries, 2*l.EntriesInFlight), appendEntriesTop)
	positive(&l.TrailingBytes, trailingBytes)
	positive(&l.LogBytes, logBytesMax)
	positive(&l.SnapshotsAtOnce, snapshotsAtOnce)
	positive(&l.SnapshotEvery, snapshotEvery)
	positive(&l.AuditEvery, auditEvery)
	positive(&l.AuditsAtOnce, auditsAtOnce)
	positive(&l.NodeBytes, nodeBytesMax)
	positive(&l.CommitEvery, commitTimeout)
	positive(&l.UnknownNames, unknownMax)
	positive(&l.PlanEvery, planEvery)
	positive(&l.MovesAtOnce, movesAtOnce)
	positive(&l.ReconcileEvery, reconcileEvery)
	positive(&l.BalanceEvery, balanceEvery)
	positive(&l.BalanceAfter, balanceAfter)
	positive(&l.RegisterEvery, registerEvery)
	positive(&l.RaiseEvery, raiseEvery)
	positive(&l.UsageEvery, usageEvery)
	positive(&l.ForgetEvery, forgetEvery)
	positive(&l.SweepEvery, sweepEvery)
	positive(&l.SweepAtOnce, sweepAtOnce)
	positive(&l.PurgeEvery, purgeEvery)
	return l // the log, the snapshots, gossip and the transport have their own for the others
}

// positive replaces a value that is not positive by a default.
func positive[T int | int64 | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
