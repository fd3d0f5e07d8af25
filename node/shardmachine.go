package node

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// shardMachine is a shard's state behind its log.
type shardMachine struct {
	id    shard.ID
	mem   func() shard.Memory // for each state its own
	slots chan struct{}       // limits restores at a time, over all groups of the node
	count *applyMetrics
	kept  *unions // of periods, by all shards of the node; nil: none are

	mu    sync.RWMutex // guards state: applies and freezes alone, questions together
	state *shard.State

	applied watermark    // newest entry that Raft handed over
	term    watermark    // its term
	clock   atomic.Int64 // the shard's clock, µs since the Unix epoch

	remnants atomic.Uint32 // bitmaps whose parts are to be swept
}

var _ machine = (*shardMachine)(nil)

func newShardMachine(id shard.ID, mem func() shard.Memory, slots chan struct{}, count *applyMetrics, kept *unions) *shardMachine {
	return &shardMachine{id: id, mem: mem, slots: slots, count: count, kept: kept, state: shard.New(id, mem())}
}

// index implements machine.
func (m *shardMachine) index() uint64 { return m.applied.Load() }

// Apply implements raft.FSM; Raft prefers ApplyBatch.
func (m *shardMachine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM. The response of a command's entry is
// its []*ebbv1.CommandResult; nil for one that was applied before.
func (m *shardMachine) ApplyBatch(entries []*raft.Log) []any {
	responses := make([]any, len(entries))
	for i, e := range entries {
		if e.Type == raft.LogCommand {
			responses[i] = m.apply(e)
		}
	}
	last := entries[len(entries)-1]
	m.term.Raise(last.Term)
	m.applied.Raise(last.Index)
	return responses
}

// apply holds the lock for one entry only, so that questions come in between.
func (m *shardMachine) apply(e *raft.Log) []*ebbv1.CommandResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := m.state.Apply(e.Index, e.Data, nil)
	m.clock.Store(int64(m.state.Now()))
	m.remnants.Store(m.state.RemnantCount())
	m.count.applied(len(e.Data), results)
	return results
}

// version returns the version of a namespace that the shard has; 0 for none.
func (m *shardMachine) version(namespace string) uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.NamespaceVersion(namespace)
}

// viewCost is the cost of a question, in bins visited, from which on it is not
// answered under the lock: about a millisecond.
const viewCost = 50_000

// askView answers one question on a view, on so many cores: one that would keep applies waiting.
func (m *shardMachine) askView(q *ebbv1.ShardQuestion, at sketch.Tick, cores int, count *readMetrics) *ebbv1.ShardAnswer {
	count.views.Add(1)
	view := m.freeze()
	defer view.Release()
	defer m.kept.lend(view, q, at)()
	if pieces := view.Pieces(q, cores); pieces != nil {
		count.pieces.Add(uint64(len(pieces)))
		return atOnce(view, pieces, at)
	}
	return view.Ask(q, at)
}

// atOnce answers the pieces of a question on as many cores.
func atOnce(view *shard.View, pieces []*ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	answers := make([]*ebbv1.ShardAnswer, len(pieces))
	var asked sync.WaitGroup
	for i, piece := range pieces[1:] {
		asked.Go(func() { answers[i+1] = view.Ask(piece, at) })
	}
	answers[0] = view.Ask(pieces[0], at)
	asked.Wait()
	return shard.JoinPieces(answers)
}

// ask answers a question that is cheap; nil if it is not.
func (m *shardMachine) ask(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.state.Cost(q) > viewCost {
		return nil
	}
	return m.state.Ask(q, at)
}

// freeze returns a view that others may take their time with.
func (m *shardMachine) freeze() *shard.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Freeze()
}

// keys returns how many keys the shard holds.
func (m *shardMachine) keys() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Keys()
}

// Restore implements raft.FSM. What it reads is decoded and verified before it
// takes the place of the present state.
func (m *shardMachine) Restore(r io.ReadCloser) error {
	m.slots <- struct{}{}
	defer func() { <-m.slots }()
	state, err := shard.Restore(m.id, m.mem(), r)
	if err != nil {
		return fmt.Errorf("restore shard %d: %w", m.id, err)
	}
	m.mu.Lock()
	m.state = state
	m.clock.Store(int64(state.Now()))
	m.remnants.Store(state.RemnantCount())
	m.mu.Unlock()
	m.applied.Raise(state.Applied())
	return nil
}

// Snapshot implements raft.FSM.
func (m *shardMachine) Snapshot() (raft.FSMSnapshot, error) {
	return shardSnapshot{m.freeze()}, nil
}

// shardSnapshot writes a view to a snapshot store.
type shardSnapshot struct{ view *shard.View }

// Persist implements raft.FSMSnapshot.
func (s shardSnapshot) Persist(sink raft.SnapshotSink) error {
	return persist(s.view, sink)
}

// Release implements raft.FSMSnapshot.
func (s shardSnapshot) Release() { s.view.Release() }

// persist writes a view and closes the sink, or cancels it.
func persist(view io.WriterTo, sink raft.SnapshotSink) error {
	if _, err := view.WriteTo(sink); err != nil {
		_ = sink.Cancel() // the first error counts
		return err
	}
	return sink.Close()
}
