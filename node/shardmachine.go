package node

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// shardMachine is the state machine of a shard: it applies the log to the shard's state.
type shardMachine struct {
	id     shard.ID
	limits shard.Limits        // of every state
	mem    func() shard.Memory // makes the memory of one state
	slots  chan struct{}       // limits concurrent restores, over all groups of the node
	count  *applyMetrics
	kept   *unions // unions of periods, kept for all shards of the node; nil: none are kept

	mu    sync.RWMutex // guards state: applies and freezes exclude others, questions share it
	state *shard.State

	applied watermark    // index of the newest entry that Raft handed over
	term    watermark    // its term
	clock   atomic.Int64 // the shard's clock, µs since the Unix epoch

	configuration configured

	marks   []mark        // views that are waited for; guarded by mu
	orphans atomic.Uint32 // bitmaps whose parts are to be swept

	behaviour atomic.Uint32 // the behaviour version that is applied

	prepared    *shard.State // from a snapshot that is being installed; nil: from none. Guarded by mu
	preparedKey contentKey

	audits *audits // nil: no checksums are computed
	fail   *fail.Points

	// While the replica fetches another state; guarded by mu:
	recording     bool
	recorded      []*raft.Log
	recordedBytes int
	unrecorded    error  // why the recording ended early
	recordedFrom  uint64 // the last entry before the recorded ones
}

var _ machine = (*shardMachine)(nil)

func newShardMachine(id shard.ID, mem func() shard.Memory, slots chan struct{}, count *applyMetrics, kept *unions, audits *audits) *shardMachine {
	m := &shardMachine{id: id, mem: mem, slots: slots, count: count, kept: kept, audits: audits}
	m.state = shard.New(id, mem())
	m.limit(shard.DefaultLimits())
	return m
}

// limit sets the limits of the state, and of states that are restored later. It must be called before the first entry.
func (m *shardMachine) limit(l shard.Limits) {
	m.limits = l
	m.state.SetLimits(l)
}

// index implements machine.
func (m *shardMachine) index() uint64 { return m.applied.Load() }

// configured implements machine.
func (m *shardMachine) configured() *configured { return &m.configuration }

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
	m.configuration.note(entries)
	last := entries[len(entries)-1]
	m.term.Raise(last.Term)
	m.applied.Raise(last.Index)
	return responses
}

// apply applies one entry. It holds the lock for that entry only, so that questions are answered between entries.
func (m *shardMachine) apply(e *raft.Log) []*ebbv1.CommandResult {
	start := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	data := e.Data
	if err := m.fail.Hit(mutantLoseEntry); err != nil && !errors.Is(err, fail.ErrKilled) {
		data = nil
	}
	results := m.state.Apply(e.Index, data, nil)
	if restored := m.state.Successor(); restored != nil {
		m.state = restored
	}
	m.adopt(m.state)
	m.note(e)
	if audit, ok := m.state.Audited(); ok && m.audits != nil {
		m.audits.begin(m.id, audit, m.state.Freeze)
	}
	m.count.applied(time.Since(start), len(e.Data), results)
	return results
}

// adopt makes state the current one, wherever it comes from, and delivers the views that are due. m.mu is held.
func (m *shardMachine) adopt(state *shard.State) {
	m.state = state
	m.clock.Store(int64(state.Now()))
	m.orphans.Store(state.OrphanCount())
	m.behaviour.Store(state.Behaviour())
	m.reach(state.Applied())
}

// version returns the version of a namespace that the shard has; 0 for none.
func (m *shardMachine) version(namespace string) uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.NamespaceVersion(namespace)
}

// generation returns the version and the hash seed of a namespace that the shard has; 0 for none.
func (m *shardMachine) generation(namespace string) (version, seed uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.NamespaceGeneration(namespace)
}

// eventClock returns the epoch and the time of the event clock of a namespace as the shard has it.
func (m *shardMachine) eventClock(namespace string) (epoch uint64, us int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.EventClock(namespace)
}

// deletion returns what the shard knows of the deletion of a namespace.
func (m *shardMachine) deletion(namespace string) shard.Deletion {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Deletion(namespace)
}

// definitions returns the definitions of the namespaces that the shard knows. Callers must not change them.
func (m *shardMachine) definitions() []*ebbv1.Namespace {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Definitions()
}

// holed reports whether further entries can free pages.
func (m *shardMachine) holed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Fragmented()
}

// storable refuses a command that stores a bitmap, if applying it would block the log for too long.
func (m *shardMachine) storable(command []byte) *proto.Error {
	if _, field, _ := proto.CommandBody(command); field != proto.FieldCommandStore {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Storable(command)
}

// inhabited returns the definition of a namespace under which the shard has keys; nil if it has no keys of the
// namespace.
func (m *shardMachine) inhabited(namespace string) *ebbv1.Namespace {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Inhabited(namespace)
}

// viewCost is the cost of a question, in visited bins, above which it is not answered under the lock: about a
// millisecond.
const viewCost = 50_000

// askView answers one question on a view, with the given number of cores: a question that would delay applies. The
// answer may take room bytes of memory; it is nil if they are too few.
func (m *shardMachine) askView(
	q *ebbv1.ShardQuestion, at sketch.Tick, cores, room int, count *readMetrics,
) *ebbv1.ShardAnswer {
	count.views.Add(1)
	era := m.kept.era(m.id)
	view := m.freeze()
	defer view.Release()
	defer m.kept.lend(m.id, era, view, q, view.Floor(q, at))()
	if pieces := view.Pieces(q, cores); pieces != nil {
		count.pieces.Add(uint64(len(pieces)))
		return atOnce(view, pieces, at)
	}
	return view.AskWithin(q, at, room)
}

// atOnce answers the pieces of a question concurrently, each on one core.
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

// ask answers a cheap question, if its memory can be charged at once. Otherwise the answer is nil, and needs is the
// number of bytes of memory to charge first. view reports that the question must be answered on a view.
func (m *shardMachine) ask(
	q *ebbv1.ShardQuestion, at sketch.Tick, charge *budget.Request,
) (answer *ebbv1.ShardAnswer, needs int, view bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	cost, more := m.state.CostTo(q, viewCost)
	needs = m.state.AnswerBytes(q, cost)
	if more || !charge.Try(needs) {
		return nil, needs, more
	}
	if answer = m.state.AskWithin(q, at, needs); answer == nil {
		charge.Refund(needs)
		return nil, roomStep * needs, false
	}
	return answer, needs, false
}

// askCharged answers a cheap question within room bytes, which are charged already; nil if they are too few.
func (m *shardMachine) askCharged(q *ebbv1.ShardQuestion, at sketch.Tick, room int) *ebbv1.ShardAnswer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.AskWithin(q, at, room)
}

// freeze returns a view of the state, which callers may read without the lock.
func (m *shardMachine) freeze() *shard.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Freeze()
}

// usage calls visit with the usage of each namespace in the shard.
func (m *shardMachine) usage(visit func(space int, name string, u shard.Usage)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.state.Usage(visit)
}

// keys returns how many keys the shard holds.
func (m *shardMachine) keys() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Keys()
}

// prepare implements preparer.
func (m *shardMachine) prepare(key contentKey, r io.Reader) error {
	state, err := m.decode(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prepared, m.preparedKey = state, key
	return nil
}

// forget implements preparer.
func (m *shardMachine) forget(key contentKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.preparedKey == key {
		m.prepared = nil
	}
}

// take returns the state that was prepared from this snapshot; nil if there is none.
func (m *shardMachine) take(r io.Reader) *shard.State {
	if w, ok := r.(raft.ReadCloserWrapper); ok {
		r = w.WrappedReadCloser()
	}
	content, ok := r.(*snap.Content)
	m.mu.RLock()
	state, key := m.prepared, m.preparedKey
	m.mu.RUnlock()
	if !ok || state == nil || content.Key() != key {
		return nil
	}
	m.forget(key)
	return state
}

func (m *shardMachine) decode(r io.Reader) (*shard.State, error) {
	m.slots <- struct{}{}
	defer func() { <-m.slots }()
	state, err := shard.RestoreUnder(m.limits, m.id, m.mem(), r)
	if err != nil {
		return nil, fmt.Errorf("restore shard %d: %w", m.id, err)
	}
	return state, nil
}

// Restore implements raft.FSM. It decodes and verifies the snapshot before it replaces the state. A snapshot that was
// installed was decoded and verified on arrival.
func (m *shardMachine) Restore(r io.ReadCloser) error {
	state := m.take(r)
	if state == nil {
		var err error
		if state, err = m.decode(r); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.adopt(state)
	m.kept.forget(m.id) // the state before may have differed
	if m.recording {    // the recorded entries do not follow the new state
		m.unrecord(proto.ErrTooStale.Errorf("shard %d: a snapshot was installed while its state was fetched", m.id))
	}
	m.mu.Unlock()
	m.configuration.restored()
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
