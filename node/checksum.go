package node

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	// checksumsAtOnce is how many checksums a node computes at a time, and checksumCallsAtOnce is for how many calls.
	checksumsAtOnce     = 2
	checksumCallsAtOnce = 4
	// ticksMax is the most entries that a leader writes so that its log reaches a requested entry.
	ticksMax = 4096
	// leadsEvery is how often a replica that waits for an entry checks whether it leads now, and so has to write the
	// entry. Without this, no replica would write it if leadership moved at the wrong moment.
	leadsEvery = 100 * time.Millisecond
)

// Checksum returns a hash of everything that this node's replica of a shard
// replicates, and the index of the last entry that it includes. Replicas with
// the same index have the same hash, or have diverged. It reports false where
// this node has no replica of the shard, or not yet.
func (n *Node) Checksum(shard uint32) (index, sum uint64, ok bool) {
	r, err := n.backend.replica(shard)
	if err != nil {
		return 0, 0, false
	}
	view := r.state.freeze()
	defer view.Release()
	return view.Applied(), view.Checksum(), true
}

// checksums limits how many calls that compare replicas, and how many of their checksums, run at a time.
type checksums struct{ calls, slots chan struct{} }

func newChecksums() checksums {
	return checksums{make(chan struct{}, checksumCallsAtOnce), make(chan struct{}, checksumsAtOnce)}
}

// begin admits a call, or returns OVERLOADED. It does not wait: nodes wait for each other's entries, and would also
// wait for each other's slots.
func (c checksums) begin() (end func(), err error) {
	select {
	case c.calls <- struct{}{}:
		return func() { <-c.calls }, nil
	default:
		return nil, proto.ErrOverloaded.Errorf("this node takes checksums for %d callers already, which is the limit", checksumCallsAtOnce).WithHint("try again when they are done")
	}
}

// summed returns the node's status, with the checksums that are asked for.
func (n *Node) summed(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.NodeStatus, error) {
	status := n.Status()
	if len(req.GetChecksums()) == 0 {
		return status, nil
	}
	end, err := n.checksums.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	byShard := make(map[uint32]*ebbv1.ReplicaStatus)
	for _, r := range status.GetReplicas() {
		byShard[r.GetShard()] = r
	}
	var wg sync.WaitGroup
	for _, ask := range req.GetChecksums() {
		to := byShard[ask.GetShard()]
		r, err := n.backend.replica(ask.GetShard())
		if to == nil || err != nil {
			continue
		}
		delete(byShard, ask.GetShard()) // if it is asked twice
		wg.Go(func() {
			view := r.viewAt(ctx, ask.GetAt())
			if view == nil {
				return
			}
			defer view.Release()
			select {
			case n.checksums.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-n.checksums.slots }()
			to.ChecksumIndex, to.Checksum = view.Applied(), view.Checksum()
		})
	}
	wg.Wait()
	return status, nil
}

// mark is a request for a view of a shard's state at an entry, or at once if the entry is past.
type mark struct {
	at   uint64
	view chan *shard.View // gets one
}

// viewAt returns a view of the state after the first command at or behind entry at. If the state is past that entry
// already, it returns a view of the current state. It returns nil if ctx ends first. A leader writes entries until its
// log reaches the entry; so does a replica that becomes leader during the wait.
func (r *replica) viewAt(ctx context.Context, at uint64) *shard.View {
	w := mark{at: at, view: make(chan *shard.View, 1)}
	r.state.wait(w)
	look := time.NewTicker(leadsEvery)
	defer look.Stop()
	for ticks := 0; ; {
		select {
		case view := <-w.view:
			return view
		default:
		}
		if _, leads := r.leading(); leads && ticks < ticksMax && ctx.Err() == nil {
			ticks++
			if r.proposer.tick().Error() == nil {
				continue
			}
		}
		select {
		case view := <-w.view:
			return view
		case <-ctx.Done():
			r.state.giveUp(w)
			return nil
		case <-look.C:
		}
	}
}

// wait registers a mark.
func (m *shardMachine) wait(w mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks = append(m.marks, w)
	m.reach(m.state.Applied())
}

// reach delivers the views that are due after an entry. m.mu is held.
func (m *shardMachine) reach(index uint64) {
	left := m.marks[:0]
	for _, w := range m.marks {
		if w.at > index {
			left = append(left, w)
			continue
		}
		w.view <- m.state.Freeze()
	}
	clear(m.marks[len(left):])
	m.marks = left
}

// giveUp removes a mark, and releases its view if that was delivered.
func (m *shardMachine) giveUp(w mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.marks[:0]
	for _, other := range m.marks {
		if other.view != w.view {
			left = append(left, other)
		}
	}
	clear(m.marks[len(left):])
	m.marks = left
	select {
	case view := <-w.view:
		view.Release()
	default:
	}
}
