package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	// ceding is how long a replica that leads and is to be repaired waits until another one leads.
	ceding = 5 * time.Second
	// repairRetry is how long a replica waits before it tries again to repair itself.
	repairRetry = time.Second
	// recordedMax is how many bytes of entries may come while a replica fetches a state: above that it tries again.
	recordedMax = 256 << 20
	// quarantineDir holds copies of states that differed, the last one of each shard.
	quarantineDir = "quarantine"
)

// Audited returns what this node's replica of a shard found at an audit: its checksum, or that there is none.
func (b *backend) Audited(_ context.Context, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	r, err := b.replica(req.GetShard())
	if err != nil {
		return nil, err
	}
	if req.GetFormat() != shard.AuditFormat {
		return &ebbv1.AuditedResponse{Absent: true}, nil // a checksum of another build does not show damage
	}
	sum, known, absent := b.audits.at(shard.ID(req.GetShard()), req.GetIndex(), r.state.index())
	return &ebbv1.AuditedResponse{Known: known, Checksum: sum, Absent: absent}, nil
}

// Repair begins to repair a replica, unless that is under way. From now on, also after a crash, the replica answers
// nothing until it is repaired.
func (b *backend) Repair(_ context.Context, req *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error) {
	r, err := b.replica(req.GetShard())
	if err != nil {
		return nil, err
	}
	if !r.quarantined.CompareAndSwap(false, true) {
		return &ebbv1.RepairResponse{}, nil
	}
	marked := b.differs(r.group, r.member.replica, req.GetIndex())
	b.repairs <- repair{r, req.GetIndex(), false} // there is room for all replicas
	return &ebbv1.RepairResponse{}, marked
}

// unsound returns an error if a replica is in quarantine. A leader in quarantine hands over, so that the caller may try
// again.
func (r *replica) unsound() *proto.Error {
	if !r.quarantined.Load() {
		return nil
	}
	const says = "shard %d: the replica on node %s differed from the others and is being repaired"
	if _, leads := r.leading(); leads {
		return proto.ErrNoLeader.Errorf(says, r.group, r.node).WithShard(r.group)
	}
	return proto.ErrTooStale.Errorf(says, r.group, r.node).WithHint("ask another node").WithShard(r.group)
}

// repairer gives replicas that differ from the majority of their shard the leader's state. Raft's own log and votes are
// sound and stay: only the state that the replica made from the log is wrong.
type repairer struct {
	dir    string // of copies for inspection
	fs     fs.FS
	fetch  func(ctx context.Context, node string, id uint32, into io.Writer) (*ebbv1.SnapshotSummary, error)
	others func(r *replica) // hands a shard over to a node that is fit to lead it
	lead   func(ctx context.Context, node string, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error)
	sound  func(r *replica) error // records that a replica is repaired
	fail   *fail.Points
	count  *auditMetrics
}

// repair is a replica that is to be repaired, since it differed at an entry.
type repair struct {
	replica *replica
	index   uint64
	again   bool // it was being repaired when the node stopped
}

// run repairs replicas until ctx ends.
func (p *repairer) run(ctx context.Context, todo <-chan repair) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case t := <-todo:
			wg.Go(func() { p.repair(ctx, t) })
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs one replica. It ends when that is done, the replica is stopped for good, or ctx ends. Until then the
// replica answers nothing.
func (p *repairer) repair(ctx context.Context, t repair) {
	r := t.replica
	p.count.repairing.Add(1)
	defer p.count.repairing.Add(-1)
	if t.again {
		r.logger.Warn("a replica that differed was not repaired when the node stopped", "differed_at", t.index)
	} else if err := p.keep(r); err != nil {
		r.logger.Warn("no copy of a state that differs could be kept", "err", err)
	}
	for {
		took, err := p.once(ctx, r)
		if err == nil {
			err = p.sound(r)
		}
		if err == nil {
			p.count.repairs.Add(1)
			r.quarantined.Store(false)
			r.logger.Warn("a replica that differed has the leader's state now", "differed_at", t.index, "index", took)
			return
		}
		if r.over() {
			return // it has moved away, or the node stops
		}
		r.logger.Warn("a replica that differs is not repaired yet", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairRetry):
		}
	}
}

// keep writes the state of the replica to a file.
func (p *repairer) keep(r *replica) error {
	view := r.state.freeze()
	defer view.Release()
	if err := p.fs.MkdirAll(p.dir); err != nil {
		return err
	}
	f, err := fs.Create(p.fs, filepath.Join(p.dir, fmt.Sprintf("shard-%d.snapshot", r.group)))
	if err != nil {
		return err
	}
	_, err = view.WriteTo(f)
	return errors.Join(err, f.Close())
}

// once replaces the state by the leader's, and returns the last entry that it includes.
func (p *repairer) once(ctx context.Context, r *replica) (index uint64, err error) {
	if r.leader() == r.node {
		p.others(r)
	}
	// Continue as soon as another replica leads: it may hand the shard back soon.
	eventually(ceding, func() bool { return ctx.Err() != nil || r.leader() != "" && r.leader() != r.node })
	leader := r.leader()
	if leader == "" || leader == r.node {
		return 0, proto.ErrNoLeader.Errorf("shard %d: no other replica leads it", r.group)
	}
	r.state.record(true)
	defer r.state.record(false)
	state, err := p.read(ctx, r, leader)
	if err != nil {
		return 0, err
	}
	if err := p.fail.Hit("repair.fetched"); err != nil {
		return 0, err
	}
	if index, err = r.state.replace(state); err != nil {
		return 0, err
	}
	// A restart would rebuild the old state from what is on disk: it must not start from there.
	if err := await(ctx, auditPoll, func() bool { return r.state.index() >= index || r.over() }); err != nil {
		return 0, err
	}
	return index, p.persist(ctx, r, leader)
}

// persist writes a snapshot of the new state. Raft refuses a snapshot if nothing was applied to the replica since it
// started. Then persist makes the leader propose one more entry, by a read index request that claims to have applied
// nothing.
func (p *repairer) persist(ctx context.Context, r *replica, leader string) error {
	for {
		i := r.now.Load()
		err := withShutdown(i.raft.Snapshot(), i.life).Error()
		if !errors.Is(err, raft.ErrNothingNewToSnapshot) || r.over() {
			return err
		}
		if _, err := p.lead(ctx, leader, &ebbv1.ReadIndexRequest{Shards: []uint32{r.group}, Applied: []uint64{0}}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(auditPoll):
		}
	}
}

// read restores a state from the snapshot that the leader sends.
func (p *repairer) read(ctx context.Context, r *replica, leader string) (*shard.State, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := io.Pipe()
	sum := xxh3.New()
	type fetched struct {
		summary *ebbv1.SnapshotSummary
		err     error
	}
	done := make(chan fetched, 1)
	go func() {
		summary, err := p.fetch(ctx, leader, r.group, in)
		_ = in.CloseWithError(err) // nil is the end
		done <- fetched{summary, err}
	}()
	state, err := shard.RestoreUnder(r.state.limits, r.state.id, r.state.mem(), io.TeeReader(out, sum))
	_ = out.CloseWithError(err) // ends the other side
	f := <-done
	switch {
	case f.err != nil:
		return nil, f.err
	case err != nil:
		return nil, err
	case f.summary.GetChecksum() != sum.Sum64():
		return nil, proto.ErrCorrupt.Errorf("shard %d: what node %s sent is not what it meant to send", r.group, leader)
	}
	return state, nil
}

// record begins or ends to keep the entries that are applied.
func (m *shardMachine) record(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recording, m.recorded, m.recordedBytes, m.recordedFrom, m.unrecorded = on, nil, 0, m.state.Applied(), nil
}

// note keeps an entry, while entries are recorded. m.mu is held.
func (m *shardMachine) note(e *raft.Log) {
	if m.recording {
		m.recorded = append(m.recorded, e)
		m.recordedBytes += len(e.Data)
		if m.recordedBytes > recordedMax {
			m.unrecord(proto.ErrOverloaded.Errorf("shard %d: more than %d bytes of entries came while its state was fetched", m.id, recordedMax))
		}
	}
}

// unrecord ends the recording early. m.mu is held.
func (m *shardMachine) unrecord(why error) { m.recording, m.recorded, m.unrecorded = false, nil, why }

// replace makes state the current one, after it has applied the recorded entries to it. It returns the last entry that
// the state includes.
func (m *shardMachine) replace(state *shard.State) (index uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.recording:
		return 0, m.unrecorded
	case state.Applied() < m.recordedFrom:
		return 0, proto.ErrTooStale.Errorf("shard %d: what was fetched ends at entry %d, and this replica was at %d already", m.id, state.Applied(), m.recordedFrom)
	}
	for _, e := range m.recorded {
		state.Apply(e.Index, e.Data, nil) // it skips what it has
		if restored := state.Successor(); restored != nil {
			state = restored
		}
	}
	m.adopt(state)
	m.kept.forget(m.id)
	return state.Applied(), nil
}
