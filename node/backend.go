package node

import (
	"bytes"
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/caller"
	"github.com/ebbdb/ebb/internal/cores"
	"github.com/ebbdb/ebb/internal/stage"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// backend serves the shards of this node: what the router and the coordinator
// of any node ask of it.
type backend struct {
	node       string
	replicas   atomic.Pointer[[]*replica] // by shard, 0 unused; nil entry: no replica here; nil: none runs yet
	keeper     *timekeeper
	namespaces *namespaceCache
	// confirm makes the table as new as the control group's.
	confirm         func(ctx context.Context) error
	stall           *diskStall
	memoryAdmission *memoryAdmission
	diskAdmission   *diskAdmission
	audits          *audits
	repairs         chan<- repair
	differs         func(group uint32, replica, at uint64) error                                                          // records that a replica differs
	lead            func(ctx context.Context, node string, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) // asks another node
	count           *readMetrics

	clocks   eventClocks
	renewals renewals
}

// eventClocks is what a node knows of the event clocks of namespaces in all shards: see cluster.Coordinator.
type eventClocks interface {
	EventClock(ctx context.Context, namespace string) *ebbv1.EventClock
	// RefreshEventClock brings the clock up to all events that were acknowledged before the call. It reports whether
	// all shards answered.
	RefreshEventClock(ctx context.Context, namespace string) bool
	NoteEventClock(namespace string, clock *ebbv1.EventClock)
}

var _ cluster.Backend = (*backend)(nil)

// replica returns this node's replica of a shard.
func (b *backend) replica(shard uint32) (*replica, *proto.Error) {
	all := b.replicas.Load()
	switch {
	case all == nil:
		return nil, proto.ErrStarting.Errorf("node %s is starting: its replicas do not run yet", b.node).WithShard(shard)
	case int(shard) >= len(*all) || (*all)[shard] == nil:
		return nil, proto.ErrNotLeader.Errorf("node %s has no replica of shard %d", b.node, shard).WithShard(shard)
	}
	return (*all)[shard], nil
}

// Apply puts commands into the logs of shards that this node leads, and waits for the results. Errors, also the end of
// ctx, are in the results.
func (b *backend) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	commands := req.GetCommands()
	c := newCall(len(commands))
	c.until, _ = ctx.Deadline()
	c.sender = senderOf(ctx, req)
	var last namespaceCheck
	for i, cmd := range commands {
		r, err := b.replica(cmd.GetShard())
		if err == nil {
			err = b.admit(ctx, &last, r, cmd.GetCommand())
		}
		if err != nil {
			c.fail(i, err)
			continue
		}
		r.proposer.enqueue(c, i, cmd.GetCommand())
	}
	for i, cmd := range commands {
		if i > 0 && cmd.GetShard() == commands[i-1].GetShard() {
			continue
		}
		if r, err := b.replica(cmd.GetShard()); err == nil {
			r.proposer.kick()
		}
	}
	ctx, applied := stage.Begin(ctx, "wait for apply", stage.Node.String(b.node), stage.Shards.Int(len(commands)))
	defer applied()
	results := c.wait(ctx, b.stall.begun())
	b.noteClocks(commands, last.dated)
	return &ebbv1.ApplyResponse{Results: results}, nil
}

// senderOf returns the sender of a request, as a hash: the caller that a forwarding node names, or else the caller of
// the connection.
func senderOf(ctx context.Context, req *ebbv1.ApplyRequest) uint64 {
	if req.GetForwarded() && req.GetCaller() != 0 {
		return req.GetCaller()
	}
	return caller.Of(ctx)
}

// noteClocks records how far event clocks have come by commands that were applied. So the next caller of this node gets
// answers as of that time. dated is the namespace that has an event clock; mostly, all commands of a request have the
// same namespace.
func (b *backend) noteClocks(commands []*ebbv1.ShardCommand, dated string) {
	if dated == "" {
		return
	}
	for i, cmd := range commands {
		if i > 0 && cmd.GetShard() == commands[i-1].GetShard() {
			continue
		}
		if r, err := b.replica(cmd.GetShard()); err == nil {
			if epoch, now := r.state.eventClock(dated); now > 0 {
				b.clocks.NoteEventClock(dated, &ebbv1.EventClock{Epoch: epoch, NowUs: now})
			}
		}
	}
}

// namespaceCheck caches the check of the last command's namespace: mostly, all commands of a request have the same
// namespace.
type namespaceCheck struct {
	asked     bool
	namespace []byte
	err       *proto.Error
	dated     string // the last namespace that has an event clock; "" for none
}

// admit refuses a command for which memory or disk space is too small, and a command that would take too long to apply.
// It also refuses a command whose namespace neither this node nor the shard knows, while no other node can be asked.
// The log would accept such a command, and the shard would reject it, although it may be valid.
func (b *backend) admit(ctx context.Context, last *namespaceCheck, r *replica, command []byte) *proto.Error {
	if err := r.unsound(); err != nil {
		return err // the answer to a command depends on the state
	}
	if err := b.memoryAdmission.admit(r.group, r, command); err != nil {
		return err
	}
	if err := b.diskAdmission.admit(r.group, r, command); err != nil {
		return err
	}
	// A replica that does not lead may lag. It cannot judge the cost of an expression, nor which commands were applied.
	// It returns NOT_LEADER later.
	if _, leads := r.leading(); leads {
		if err := r.state.storable(command); err != nil {
			return err
		}
		if err := r.restorable(command); err != nil {
			return err
		}
	}
	name := proto.CommandNamespace(command)
	if !last.asked || !bytes.Equal(name, last.namespace) {
		*last = namespaceCheck{asked: true, namespace: name, err: b.namespaces.refresh(ctx, name), dated: last.dated}
		if last.err == nil && b.namespaces.table().Deleted(string(name)) != nil {
			if err := b.confirm(ctx); err != nil { // it may have been undeleted
				last.err = proto.AsError(err)
			}
		}
		if ns := b.namespaces.table().Namespace(string(name)); proto.OnEventTime(ns) {
			last.dated = ns.GetName()
			b.clocks.EventClock(ctx, last.dated) // for the proposer, which does not wait
		}
	}
	if last.dated == string(name) {
		b.beforeSettings(ctx, r, last.dated)
	}
	if last.err != nil && (r.state.version(string(name)) == 0 || b.namespaces.table().Deleted(string(name)) != nil) {
		return last.err.WithShard(r.group)
	}
	return nil
}

// beforeSettings refreshes this node's event clock of a namespace before the next command brings new settings to a
// shard. The new settings apply from the newest event that was acknowledged before they were set.
func (b *backend) beforeSettings(ctx context.Context, r *replica, namespace string) {
	has, version := r.state.version(namespace), b.namespaces.table().Namespace(namespace).GetVersion()
	if has > 0 && has < version {
		b.renewals.once(ctx, namespace, version, func() bool {
			return b.clocks.RefreshEventClock(context.WithoutCancel(ctx), namespace) // settingsWait bounds it
		})
	}
}

// Ask answers questions to shards of this node. An error of a shard is in its answer; Ask itself fails only if ctx
// ends.
func (b *backend) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	now := req.GetNowUs()
	if now == 0 {
		now = b.keeper.nowUS()
	}
	ctx, asked := stage.Begin(ctx, "ask shards", stage.Node.String(b.node), stage.Shards.Int(len(req.GetQuestions())))
	defer asked()
	barrier, confirmed := stage.Begin(ctx, "read barrier")
	reads := b.beginReads(barrier, req)
	confirmed()
	resp := &ebbv1.ShardAskResponse{Answers: make([]*ebbv1.ShardAnswer, len(req.GetQuestions()))}
	take := &taker{budget: budget.From(ctx), most: int64(req.GetAnswerBytes())}
	var long []longQuestion
	for i, q := range req.GetQuestions() {
		read := reads.of(q.GetShard())
		if ctx.Err() != nil {
			return nil, context.Cause(ctx) // the caller no longer waits for the others
		}
		if read.err != nil {
			resp.Answers[i] = &ebbv1.ShardAnswer{Error: read.err.Wire()}
			continue
		}
		b.count.questions.Add(1)
		if err := b.outdated(read.replica, q); err != nil {
			resp.Answers[i] = &ebbv1.ShardAnswer{Error: err.WithShard(q.GetShard()).Wire()}
			continue
		}
		if err := b.clockSet(ctx, read.replica, q.GetQuestion().GetNamespace()); err != nil {
			resp.Answers[i] = &ebbv1.ShardAnswer{Error: err.WithShard(q.GetShard()).Wire()}
			continue
		}
		if err := b.defineBefore(ctx, read.replica, q); err != nil {
			resp.Answers[i] = &ebbv1.ShardAnswer{Error: err.WithShard(q.GetShard()).Wire()}
			continue
		}
		state, needs, view := read.replica.state, 0, false
		if resp.Answers[i] = take.refused(); resp.Answers[i] != nil {
			continue
		}
		if resp.Answers[i], needs, view = state.ask(q, sketch.Tick(now), take.budget); resp.Answers[i] != nil {
			resp.Answers[i] = take.built(q, resp.Answers[i], needs)
			continue
		}
		if view {
			long = append(long, longQuestion{i, needs})
			continue
		}
		resp.Answers[i] = take.charged(ctx, q, needs, func(room int) *ebbv1.ShardAnswer {
			return state.askCharged(q, sketch.Tick(now), room)
		})
	}
	onAllCores(len(long), func(n, cores int) {
		at := long[n].at
		q := req.GetQuestions()[at]
		if ctx.Err() != nil {
			return
		}
		if resp.Answers[at] = take.refused(); resp.Answers[at] != nil {
			return
		}
		resp.Answers[at] = take.charged(ctx, q, long[n].needs, func(room int) *ebbv1.ShardAnswer {
			return reads.of(q.GetShard()).replica.state.askView(q, sketch.Tick(now), cores, room, b.count)
		})
	})
	if len(long) > 0 && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for i, q := range req.GetQuestions() {
		if resp.Answers[i].GetError().GetCode() == ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
			resp.Answers[i] = b.askUndeleted(ctx, reads.of(q.GetShard()), q, sketch.Tick(now), take, resp.Answers[i])
		}
		if resp.Answers[i].GetError() == nil {
			resp.Answers[i] = b.askUnseenNamespace(reads.of(q.GetShard()).replica, q, resp.Answers[i])
		}
		resp.Answers[i].Stale = resp.Answers[i].Stale || reads.of(q.GetShard()).stale
	}
	return resp, nil
}

// askUnseenNamespace answers for a shard whose log does not have a namespace yet that this node's table has.
func (b *backend) askUnseenNamespace(r *replica, q *ebbv1.ShardQuestion, a *ebbv1.ShardAnswer) *ebbv1.ShardAnswer {
	if len(a.GetMissing()) == 0 { // something was found, or the question names no key
		return a
	}
	name := cmp.Or(q.GetQuestion().GetNamespace(), proto.DefaultNamespace)
	if r.state.version(name) > 0 {
		return a
	}
	table := b.namespaces.table()
	ns := table.Namespace(name)
	if ns == nil {
		return a
	}
	behaviour := shard.BehaviourOf(table.Version())
	return cmp.Or(shard.AskUnknownNamespace(shard.ID(q.GetShard()), behaviour, ns, q, sketch.Tick(a.GetAsOfUs())), a)
}

// outdated refuses a question about a namespace that was deleted, purged, or created anew, if this node knows so and
// the shard does not yet. The shard would answer from keys that no longer exist.
func (b *backend) outdated(r *replica, q *ebbv1.ShardQuestion) *proto.Error {
	table := b.namespaces.table()
	dropped := table.DroppedVersion()
	if dropped == 0 && len(table.DeletedNamespaces()) == 0 {
		return nil
	}
	name := cmp.Or(q.GetQuestion().GetNamespace(), proto.DefaultNamespace)
	ns := table.Defined(name)
	has, seed := r.state.generation(name)
	switch {
	case has == 0:
		return nil
	case ns == nil && has <= dropped, // the table lacks it, and it is old enough to have been purged
		ns != nil && has < ns.GetVersion() && (ns.GetDeletion() != nil || ns.GetHashSeed() != seed):
		return table.NamespaceNotFound(name)
	}
	return nil
}

// clockSet brings a set event clock to a shard that this node leads, if the shard does not have it yet.
func (b *backend) clockSet(ctx context.Context, r *replica, name string) *proto.Error {
	ns := b.namespaces.table().Namespace(name)
	if ns.GetClockSetting().GetTimeUs() == 0 {
		return nil
	}
	if epoch, _ := r.state.eventClock(ns.GetName()); epoch >= ns.GetClockSetting().GetEpoch() {
		return nil
	}
	if r.state.version(ns.GetName()) >= ns.GetVersion() {
		return nil
	}
	if _, leads := r.leading(); !leads {
		return nil // its answer carries the earlier epoch
	}
	if err := r.define(ctx, ns.GetName()); err != nil {
		return proto.AsError(err)
	}
	return nil
}

// defineBefore brings the newest settings of a namespace to a shard that this node leads, in two cases. One is a
// question that asks for these settings. The other is an export of a key, since its new shard may have the new settings
// already.
func (b *backend) defineBefore(ctx context.Context, r *replica, q *ebbv1.ShardQuestion) *proto.Error {
	wants := q.GetSettingsVersion()
	if q.GetQuestion().GetExport() == nil && wants == 0 {
		return nil
	}
	name := cmp.Or(q.GetQuestion().GetNamespace(), proto.DefaultNamespace)
	settings := func() *ebbv1.Namespace { return b.namespaces.table().Namespace(name) }
	// If they do not come in time, the next command under the namespace brings them.
	_ = await(ctx, handOverPoll, func() bool { return settings().GetVersion() >= wants })
	ns := settings()
	if has := r.state.version(name); has == 0 || has >= ns.GetVersion() {
		return nil
	}
	if _, leads := r.leading(); !leads {
		if wants > 0 {
			return r.notLeader() // the caller has to ask the leader
		}
		return nil
	}
	// Until that time, counts decay by the earlier settings.
	if wants > 0 {
		b.clocks.NoteEventClock(name, q.GetClock())
	} else {
		b.beforeSettings(ctx, r, name)
	}
	if err := r.define(ctx, name); err != nil {
		return proto.AsError(err)
	}
	return nil
}

// askUndeleted asks again when a shard does not know yet that a namespace was undeleted.
func (b *backend) askUndeleted(
	ctx context.Context, g *shardRead, q *ebbv1.ShardQuestion, now sketch.Tick, take *taker, refusal *ebbv1.ShardAnswer,
) *ebbv1.ShardAnswer {
	name := q.GetQuestion().GetNamespace()
	ns := b.namespaces.table().Namespace(name)
	if ns == nil && q.GetNamespaceVersion() > b.namespaces.table().Defined(name).GetVersion() && b.confirm(ctx) == nil {
		ns = b.namespaces.table().Namespace(name) // the coordinator knew of it first
	}
	if g.err != nil || ns == nil {
		return refusal
	}
	if g.replica.state.version(ns.GetName()) < ns.GetVersion() { // else it has the new version since it refused
		if _, leads := g.replica.leading(); !leads {
			return &ebbv1.ShardAnswer{Error: g.replica.notLeader().Wire()}
		}
		if q.GetQuestion().GetEventClock() == nil { // the question that beforeSettings asks must not wait for itself
			b.beforeSettings(ctx, g.replica, ns.GetName())
		}
		if err := g.replica.define(ctx, ns.GetName()); err != nil {
			return &ebbv1.ShardAnswer{Error: proto.AsError(err).Wire()}
		}
	}
	state := g.replica.state
	answer, needs, view := state.ask(q, now, take.budget)
	if answer != nil {
		return take.built(q, answer, needs)
	}
	return take.charged(ctx, q, needs, func(room int) *ebbv1.ShardAnswer {
		if view {
			return state.askView(q, now, 1, room, b.count)
		}
		return state.askCharged(q, now, room)
	})
}

// onAllCores calls do for 0 to n-1, as many at once as there are cores. Each call gets its part of the cores.
func onAllCores(n int, do func(i, cores int)) {
	cores := cores.Count()
	workers := min(n, cores)
	var next atomic.Int64
	work := func() {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			do(int(i), cores/workers)
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// shardRead is the state of one shard's read: its replica, and the barrier that the read has to pass.
type shardRead struct {
	shard   uint32
	replica *replica
	round   *readRound
	stale   bool // the answer may lag behind the log
	err     *proto.Error
	follows bool // it must first apply the leader's read index, which is to be asked for
}

// shardReads holds the reads of one request's shards. There are few, mostly one.
type shardReads []shardRead

func (reads shardReads) of(shard uint32) *shardRead {
	for i := range reads {
		if reads[i].shard == shard {
			return &reads[i]
		}
	}
	return nil
}

// beginReads begins a read for each shard of the request: it joins all barriers before it waits for the first.
func (b *backend) beginReads(ctx context.Context, req *ebbv1.ShardAskRequest) shardReads {
	var reads shardReads
	for _, q := range req.GetQuestions() {
		if reads.of(q.GetShard()) == nil {
			reads = append(reads, b.beginRead(q.GetShard(), req))
		}
	}
	b.follow(ctx, reads)
	for i := range reads {
		if g := &reads[i]; g.round != nil {
			if err := g.replica.barrier.pass(ctx, g.round); err != nil {
				g.err = proto.AsError(err)
			}
		}
	}
	return reads
}

func (b *backend) beginRead(shard uint32, req *ebbv1.ShardAskRequest) shardRead {
	g := shardRead{shard: shard}
	if g.replica, g.err = b.replica(shard); g.err != nil {
		return g
	}
	if g.err = g.replica.unsound(); g.err != nil {
		return g
	}
	_, leads := g.replica.leading()
	switch req.GetConsistency() {
	case ebbv1.Consistency_CONSISTENCY_ANY:
		g.stale, g.err = !leads, g.replica.replayed()
	case ebbv1.Consistency_CONSISTENCY_BOUNDED:
		if leads {
			g.round = g.replica.barrier.join()
			break
		}
		g.stale = true
		g.err = g.replica.fresh(time.Duration(req.GetMaxStalenessUs()) * time.Microsecond)
	default:
		switch {
		case leads:
			g.round = g.replica.barrier.join()
		case req.GetFollow():
			g.follows = true
		default:
			g.err = g.replica.notLeader()
		}
	}
	return g
}

// replayed returns TOO_STALE until the state has all entries that the log had when the replica started. Before that,
// the replica would answer as if nothing had been counted. Without a leader a replica does not know which of its
// entries are committed.
func (r *replica) replayed() *proto.Error {
	if r.caughtUp.Load() {
		return nil
	}
	// A leader of a later term may have replaced the end of the log. Its term begins with an entry of the shard.
	if found := r.found.Load(); found != nil && r.state.applied.Load() > 0 &&
		(r.state.applied.Load() >= found.index || r.state.term.Load() > found.term) {
		r.caughtUp.Store(true)
		return nil
	}
	return proto.ErrTooStale.Errorf("shard %d: node %s has not applied its log since it started", r.group, r.node).
		WithHint("try again: it needs a leader to know what is committed").WithShard(r.group)
}

// fresh returns TOO_STALE unless this replica can prove that it has all writes that are older than max. The proof is
// the stamp of its last entry, which is the leader's time if that is plausible (see staleness).
func (r *replica) fresh(max time.Duration) *proto.Error {
	_, nodes := r.voters()
	now, ok := r.keeper.median(r.node, nodes)
	if !ok {
		return proto.ErrTooStale.Errorf("shard %d: node %s cannot tell the time of its leader", r.group, r.node).WithShard(r.group)
	}
	age, ok := staleness(now, r.state.clock.Load())
	if !ok {
		return proto.ErrTooStale.Errorf("shard %d: its clock is %v ahead of its voters' clocks, so node %s cannot tell how old what it has is",
			r.group, (stampAheadMax - age).Round(time.Millisecond), r.node).WithHint("ask the leader").WithShard(r.group)
	}
	if age > max {
		return proto.ErrTooStale.Errorf("shard %d: node %s can prove no better than %v, and %v was asked", r.group, r.node, age.Round(time.Millisecond), max).
			WithHint("ask the leader, or allow more").WithShard(r.group)
	}
	return nil
}
