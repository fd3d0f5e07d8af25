package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// replica is this node's replica of one shard: a member of its Raft group, the state machine that applies the log, the
// proposer of writes, and the read barrier.
type replica struct {
	*member
	state    *shardMachine
	proposer *proposer
	barrier  *barrier

	keeper     *timekeeper
	namespaces *namespaceCache
	skewed     func(*replica) // called when the clock keeps this leader from serving; must not wait
	// onNamespaceRejected is called when the shard refuses a version of a namespace. It must not wait either.
	onNamespaceRejected func(*replica, *ebbv1.Namespace, *ebbv1.Error)
	// knownClock returns the newest event clock of a namespace that this node knows; nil if it knows none.
	knownClock func(namespace string) *ebbv1.EventClock

	transferring atomic.Bool // a transfer of leadership is under way
	caughtUp     atomic.Bool // it has applied all entries that its log had when it started
	quarantined  atomic.Bool // its state differs from the majority's: it answers nothing until that is repaired
	wg           sync.WaitGroup
}

// replicaConfig is what newReplica needs in addition to a memberConfig.
type replicaConfig struct {
	keeper     *timekeeper
	namespaces *namespaceCache
	confirm    confirm
	skewed     func(*replica)
	counts     *counts
	limits     Limits

	onNamespaceRejected func(*replica, *ebbv1.Namespace, *ebbv1.Error)
	// knownClock returns the newest event clock of a namespace that this node knows; nil if it knows none.
	knownClock func(namespace string) *ebbv1.EventClock
}

// newReplica assembles a replica. It sets the machine, led and unsound of its memberConfig.
func newReplica(s memberConfig, state *shardMachine, c replicaConfig) *replica {
	r := &replica{
		state: state, keeper: c.keeper, namespaces: c.namespaces, skewed: c.skewed, onNamespaceRejected: c.onNamespaceRejected, knownClock: c.knownClock,
	}
	s.machine, s.led = state, r.lead
	s.unsound = r.quarantined.Load
	r.member = newMember(s)
	r.proposer = newProposer(s.group, r, &c.counts.propose, c.limits)
	r.barrier = newBarrier(s.group, r, c.confirm, &c.counts.read)
	return r
}

// stopMax is how long a stopping replica waits for its entries in flight.
const stopMax = time.Second

// stop ends the replica: it refuses commands that wait, lets entries in flight finish, and then stops Raft. A leader
// steps down first, so that nothing waits for a majority that may not exist.
func (r *replica) stop() {
	r.barrier.close()
	r.proposer.close()
	r.leave()
	r.proposer.drained(stopMax)
	r.member.stop()
	r.proposer.drained(never)
	r.wg.Wait()
}

// lead begins a term of leadership with a tick. Raft's own first entry does not reach the state machine, so only the
// tick shows how far the log is committed. A second tick tells the followers that the first is committed.
func (r *replica) lead(uint64) {
	r.wg.Go(func() {
		if r.proposer.tick().Error() == nil {
			_ = r.proposer.tick().Error() // if it fails, so does the term
		}
	})
}

// notLeader implements proposals and ledGroup.
func (r *replica) notLeader() *proto.Error {
	leader := r.leader()
	if leader == "" || leader == r.node {
		return proto.ErrNotLeader.Errorf("shard %d: node %s knows no leader", r.group, r.node).WithShard(r.group)
	}
	e := proto.ErrNotLeader.Errorf("shard %d is led by node %s, not by %s", r.group, leader, r.node).WithShard(r.group)
	e.Leader = leader
	return e
}

// stamp implements proposals.
func (r *replica) stamp() (int64, error) {
	_, nodes := r.voters()
	return r.keeper.stamp(r.node, nodes)
}

// clockUS implements proposals.
func (r *replica) clockUS() int64 { return r.state.clock.Load() }

// namespace implements proposals.
func (r *replica) namespace(name []byte) *ebbv1.Namespace {
	return r.namespaces.namespace(string(name))
}

// version implements proposals.
func (r *replica) version(name string) uint64 { return r.state.version(name) }

// eventClock implements proposals.
func (r *replica) eventClock(ns *ebbv1.Namespace, told *ebbv1.EventClock, redefined bool) *ebbv1.EventClock {
	known := r.knownClock(ns.GetName())
	// The definition itself sets the clock. If the earlier clock came first, the shard would decay its counts up to
	// that time. It would then remove keys that still exist under the new clock.
	if known.GetEpoch() < ns.GetClockSetting().GetEpoch() {
		return nil
	}
	if known == nil || !proto.Later(known, told) ||
		shard.BehaviourOf(r.namespaces.table().Version()) < shard.BehaviourEventClocks {
		return nil
	}
	epoch, now := r.state.eventClock(ns.GetName())
	if !proto.Later(known, &ebbv1.EventClock{Epoch: epoch, NowUs: now}) {
		return nil
	}
	// Under linear decay a late event counts for less than an event in time. So shards follow only as far as max_jump
	// needs, and not at all without one. When settings change they follow all the way, since the new settings apply
	// from the namespace's time on.
	most := proto.MaxJumpUS(ns)
	if lag := known.GetNowUs() - now; !redefined && ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR && (most == 0 || lag < most/2) {
		return nil
	}
	return known
}

// behaviour implements proposals.
func (r *replica) behaviour() (has, wants uint32) {
	return r.state.behaviour.Load(), shard.BehaviourOf(r.namespaces.table().Version())
}

// restorable refuses the beginning of a snapshot that needs a newer behaviour version than the one in force. Replicas
// of an older build could not read it. An upgraded cluster raises its version within some seconds.
func (r *replica) restorable(command []byte) *proto.Error {
	has, wants := r.behaviour()
	if needs := shard.RestoredBehaviour(command); needs > max(has, wants, 1) {
		return proto.ErrStarting.Errorf("the backup is of a newer storage version than %d, which is in force",
			r.namespaces.table().Version()).
			WithHint("wait until ebb status shows a newer one: all nodes have to run the newer ebb for some seconds").WithShard(r.group)
	}
	return nil
}

// undefinable implements proposals.
func (r *replica) undefinable(ns *ebbv1.Namespace, err *ebbv1.Error) {
	r.onNamespaceRejected(r, ns, err)
}

// settled implements proposals.
func (r *replica) settled(err error) { r.refused.note(err) }

// unfit implements proposals.
func (r *replica) unfit() { r.skewed(r) }

// committed implements ledGroup.
func (r *replica) committed() uint64 {
	if i := r.now.Load(); i != nil {
		return i.raft.CommitIndex()
	}
	return 0
}

// awaitTerm implements ledGroup.
func (r *replica) awaitTerm(ctx context.Context, term uint64) error {
	return r.state.term.Wait(ctx, term)
}

// awaitIndex implements ledGroup.
func (r *replica) awaitIndex(ctx context.Context, index uint64) error {
	return r.state.applied.Wait(ctx, index)
}

var (
	_ proposals = (*replica)(nil)
	_ ledGroup  = (*replica)(nil)
)

// inTerm reports whether this replica is in exactly this term. It answers another node's read barrier.
func (m *member) inTerm(replica, term uint64) bool {
	i := m.now.Load()
	return i != nil && m.replica == replica && i.raft.State() != raft.Shutdown && i.raft.CurrentTerm() == term
}
