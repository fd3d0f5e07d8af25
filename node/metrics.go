package node

import (
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// proposeMetrics counts what all proposers of a node do.
type proposeMetrics struct {
	entries, commands, bytes, overloads atomic.Uint64
	expired                             atomic.Uint64 // commands for which no caller waited any more

	waiting  atomic.Int64 // bytes of commands in all queues
	inFlight atomic.Int64 // bytes of entries whose outcome is not known yet
}

// unapplied returns about how many bytes of commands were admitted and are not applied yet.
func (m *proposeMetrics) unapplied() int64 { return m.waiting.Load() + m.inFlight.Load() }

func (m *proposeMetrics) sent(bytes, commands int) {
	m.entries.Add(1)
	m.commands.Add(uint64(commands))
	m.bytes.Add(uint64(bytes))
}

// applyMetrics counts what all state machines of a node do.
type applyMetrics struct {
	entries, commands, bytes atomic.Uint64
	ids                      atomic.Uint64 // put into bitmaps, taken out, or stored
	took                     durations
}

func (m *applyMetrics) applied(took time.Duration, bytes int, results []*ebbv1.CommandResult) {
	m.took.note(took)
	m.entries.Add(1)
	m.commands.Add(uint64(len(results)))
	m.bytes.Add(uint64(bytes))
	changed := uint64(0)
	for _, r := range results {
		changed += r.GetChanged()
	}
	if changed > 0 {
		m.ids.Add(changed)
	}
}

// readMetrics counts what all barriers and readers of a node do.
type readMetrics struct {
	rounds, questions, views atomic.Uint64
	pieces                   atomic.Uint64 // of questions about bitmaps
}

func (m *readMetrics) round() { m.rounds.Add(1) }

// snapshotMetrics counts the snapshots of a node.
type snapshotMetrics struct {
	snapshots, bytes, nanos atomic.Uint64
	came, held              atomic.Uint64 // bytes of chunks from other nodes: those received, and those already here

	files snap.Counts
}

func (m *snapshotMetrics) taken(took time.Duration, bytes int64) {
	m.snapshots.Add(1)
	m.bytes.Add(uint64(bytes))
	m.nanos.Add(uint64(took))
}

// moveMetrics counts what this node does to groups' memberships.
type moveMetrics struct {
	begun, settled, steps, failed atomic.Uint64
}

func (m *moveMetrics) step(a cluster.Action, err error) {
	switch {
	case err != nil:
		m.failed.Add(1)
	case a == cluster.StepSettle:
		m.settled.Add(1)
	default:
		m.steps.Add(1)
	}
}

// counts are all counters of a node.
type counts struct {
	propose           proposeMetrics
	apply             applyMetrics
	read              readMetrics
	snapshot          snapshotMetrics
	moves             moveMetrics
	slowDiskHandovers atomic.Uint64 // groups handed over since the disk was slow
	audit             auditMetrics
	scrub             scrubMetrics
}
