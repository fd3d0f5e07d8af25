package node

import (
	"math"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// appendEntriesMax is how many entries one append carries at most; the link
	// cuts it further by bytes. Raft also batches applies by it, and buffers
	// as many proposals.
	appendEntriesMax = 64
	// commitTimeout is how soon followers of an idle group learn its last commit. The default of 50 ms sends 13 empty
	// appends a second to each.
	commitTimeout = time.Second
	// never disables what Raft would schedule by count or time: the node schedules that by bytes.
	never = 100 * 365 * 24 * time.Hour
)

// controlTimeout is how long a heartbeat or a vote may take. With many groups on a busy machine, it may be late and
// still be useful.
func controlTimeout(election time.Duration) time.Duration { return max(time.Second, election/2) }

// coalesce is how long a heartbeat waits for heartbeats of other groups to the same node: fewer frames cost an idle
// node less. There and back that is a twentieth of the time after which a heartbeat is missed.
func coalesce(election time.Duration) time.Duration { return election / 40 }

// raftConfig returns the settings of a group's Raft. RestoreCommittedLogs stays false: it loses the configuration on
// restart and hangs above some 8,192 committed entries. NotifyCh stays nil: Raft blocks on it when no goroutine reads;
// events.go observes.
func raftConfig(replica uint64, timeout time.Duration, logger hclog.Logger) *raft.Config {
	return &raft.Config{
		ProtocolVersion:    raft.ProtocolVersionMax,
		LocalID:            serverID(replica),
		HeartbeatTimeout:   timeout,
		ElectionTimeout:    timeout,
		LeaderLeaseTimeout: timeout / 2,
		CommitTimeout:      commitTimeout,
		MaxAppendEntries:   appendEntriesMax,
		BatchApplyCh:       true,
		ShutdownOnRemove:   false,
		TrailingLogs:       0, // set before each snapshot, by bytes
		SnapshotInterval:   never,
		SnapshotThreshold:  math.MaxUint64,
		NoLegacyTelemetry:  true,
		Logger:             logger,
	}
}

// serverID returns a replica's name in its group's configuration: its id in decimal.
func serverID(replica uint64) raft.ServerID {
	return raft.ServerID(strconv.FormatUint(replica, 10))
}
