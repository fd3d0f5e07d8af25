package node

import (
	"time"

	"github.com/ebbdb/ebb/proto"
)

// Limits bound what a node does at once, and say how often it does what it does by the clock. They decide no results,
// so that nodes of a cluster may differ in them. A zero stands for the default.
type Limits struct {
	// EntriesInFlight is how many entries of a shard may be on their way at once; 4, and 512 at most.
	EntriesInFlight int
	// EntryBytes is how many bytes of commands an entry takes before the next one begins; 64 KiB.
	EntryBytes int
	// QueueBytes bounds the commands that wait at one shard, unless it is a single one; 4 MiB.
	QueueBytes int
	// AppendEntries is how many entries one append to a follower carries; 64. Raft buffers as many proposals: below
	// twice EntriesInFlight a proposer would wait for Raft with its lock held, so it is never below that. Raft takes
	// 1,024 at most.
	AppendEntries int
	// TrailingBytes is how much of a log is kept behind a snapshot, so that a follower that was away for a moment needs
	// no snapshot; 1 MiB, and no more than a quarter of Config.SnapshotBytes.
	TrailingBytes int64
	// LogBytes bounds the log of all groups: above it the longest is cut first; 256 MiB.
	LogBytes int64
	// SnapshotsAtOnce is how many snapshots a node takes at a time; 2.
	SnapshotsAtOnce int
	// SnapshotEvery is how often the lengths of the logs are looked at; 1 s.
	SnapshotEvery time.Duration
	// SnapshotSyncBytes is after how many bytes of a snapshot a part of it is synced; 8 MiB.
	SnapshotSyncBytes int64
	// ChunkBytes is how much of a snapshot goes to another node at once; 256 KiB at most, which is the default.
	ChunkBytes int
	// LogBatchBytes is how many bytes one sync of the log makes durable, unless a single record is longer; 4 MiB.
	LogBatchBytes int
	// AuditEvery is how often a part of a shard is compared among its replicas; 1 min.
	AuditEvery time.Duration
}

// appendEntriesTop is what Raft takes.
const appendEntriesTop = 1024

// filled has the defaults where there are zeros.
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
	return l // the log, the snapshots and the transport have their own for the others
}

// positive puts a default in the place of 0, and of what makes no sense.
func positive[T int | int64 | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
