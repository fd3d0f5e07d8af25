package node

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/cluster"
)

// controlMachine is the state of the control group behind its log.
type controlMachine struct {
	control *cluster.Control
	applied watermark
	term    watermark

	configuration configured
	changed       func() // called after every entry and restore; must not wait
}

var _ machine = (*controlMachine)(nil)

// index implements machine.
func (m *controlMachine) index() uint64 { return m.applied.Load() }

// configured implements machine.
func (m *controlMachine) configured() *configured { return &m.configuration }

// Apply implements raft.FSM; Raft prefers ApplyBatch.
func (m *controlMachine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM. The response of a command's entry is
// its *ebbv1.ControlResult.
func (m *controlMachine) ApplyBatch(entries []*raft.Log) []any {
	responses := make([]any, len(entries))
	for i, e := range entries {
		if e.Type == raft.LogCommand {
			responses[i] = m.control.Apply(e.Index, e.Data)
		}
	}
	m.configuration.note(entries)
	last := entries[len(entries)-1]
	m.term.Raise(last.Term)
	m.applied.Raise(last.Index)
	m.changed()
	return responses
}

// Restore implements raft.FSM.
func (m *controlMachine) Restore(r io.ReadCloser) error {
	if err := m.control.Restore(r); err != nil {
		return fmt.Errorf("restore the control group: %w", err)
	}
	m.configuration.restored()
	m.applied.Raise(m.control.Applied())
	m.changed()
	return nil
}

// Snapshot implements raft.FSM. Raft calls it on the goroutine that applies.
func (m *controlMachine) Snapshot() (raft.FSMSnapshot, error) {
	return controlSnapshot{m.control.Freeze()}, nil
}

// controlSnapshot writes a view to a snapshot store.
type controlSnapshot struct{ view *cluster.ControlView }

// Persist implements raft.FSMSnapshot.
func (s controlSnapshot) Persist(sink raft.SnapshotSink) error { return persist(s.view, sink) }

// Release implements raft.FSMSnapshot.
func (controlSnapshot) Release() {}
