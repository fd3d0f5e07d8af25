package cluster

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/ebbdb/ebb/internal/caller"
	"github.com/ebbdb/ebb/internal/stage"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// RouterConfig is what a Router works with. All fields are required but Now, which is time.Now when nil.
type RouterConfig struct {
	Node    string        // this node's name
	Table   func() *Table // the current table
	Leaders *Leaders
	Local   Backend // this node's own shards
	Peers   Peers   // the other nodes
	Now     func() time.Time
	Limits  Limits
	Confirm func(ctx context.Context) error
}

// Router takes commands to the leaders of their shards: to the local Backend directly, to other nodes in one call each.
// A command is forwarded at most once, and says so: the node that receives it answers NOT_LEADER rather than send it
// on.
type Router struct {
	cfg RouterConfig
	ask *Coordinator // asks in its name
}

// NewRouter returns a Router. It panics if a required field of cfg is missing.
func NewRouter(cfg RouterConfig) *Router {
	if cfg.Node == "" || cfg.Table == nil || cfg.Leaders == nil || cfg.Local == nil || cfg.Peers == nil {
		panic("cluster: RouterConfig is incomplete")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Router{cfg: cfg, ask: NewCoordinator(CoordinatorConfig(cfg))}
}

// Apply puts commands through the logs of their shards and answers position by
// position. What goes wrong with a shard stands in the results of its commands:
//
//   - NOT_LEADER, NO_LEADER, UNREACHABLE: nothing was appended. Such commands
//     are tried once more, where the answer pointed.
//   - UNKNOWN_OUTCOME: it may have been applied; try again under the same identity.
//   - everything else is the shard's own answer.
//
// The error returned is about the request as a whole.
func (r *Router) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	table := r.cfg.Table()
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	if err := checkParts(table, req); err != nil {
		return nil, err
	}
	if req.GetForwarded() {
		return r.applyHere(ctx, table, req)
	}
	return r.apply(ctx, table, req, retryOnce), nil
}

// ApplyWaiting is Apply that waits, while the context lasts, for shards that are electing a leader.
func (r *Router) ApplyWaiting(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	table := r.cfg.Table()
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	if err := checkParts(table, req); err != nil {
		return nil, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	return r.apply(ctx, table, req, retryUntilLeader), nil
}

// retryPolicy says which commands to try again, all of them known not to be appended.
type retryPolicy int

const (
	retryOnce        retryPolicy = iota // once, those for which another node is known
	retryUntilLeader                    // while the context lasts
)

func errStarting() *proto.Error {
	return proto.ErrStarting.Errorf("the cluster is starting: its table is not known yet").
		WithHint("try again in a few seconds")
}

// applyHere serves a request that was forwarded to this node.
func (r *Router) applyHere(ctx context.Context, table *Table, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	resp, err := r.cfg.Local.Apply(ctx, req)
	if err != nil {
		return nil, err
	}
	for i, result := range resp.GetResults() {
		if e := result.GetError(); e.GetCode() == ebbv1.Code_CODE_NOT_LEADER && e.GetLeader() == "" && i < len(req.GetCommands()) {
			e.Leader = r.hintOtherThanSelf(table, req.Commands[i].GetShard())
		}
	}
	return resp, nil
}

func (r *Router) hintOtherThanSelf(table *Table, shard uint32) string {
	if node := target(r.cfg.Node, table, r.cfg.Leaders, shard); node != r.cfg.Node {
		return node
	}
	return ""
}

// target returns the node to which self takes a shard's business: the last known leader, or the preferred one when none
// is known. It is self when its own replica has just heard that there is no leader. Then self refuses at once, and will
// be among the first to hear of the next leader. Another node may be the one that has just been cut off.
func target(self string, table *Table, leaders *Leaders, shard uint32) string {
	if leaderless(self, table, leaders, shard) {
		return self
	}
	if node, _ := leaders.Leader(shard); node != "" {
		if _, holds := table.ReplicaOn(node, shard); holds {
			return node
		}
	}
	return table.Preferred(shard)
}

// leaderless reports whether a node's own replica of a shard has heard, not long ago, that there is no leader.
func leaderless(self string, table *Table, leaders *Leaders, shard uint32) bool {
	return lostLeader(self, table, leaders, shard) != ""
}

// lostLeader returns the former leader if a node's own replica of a shard has heard, not long ago, that it leads no
// more. It returns "" if the replica has not heard so, or knows the present leader.
func lostLeader(self string, table *Table, leaders *Leaders, shard uint32) (former string) {
	if _, holds := table.ReplicaOn(self, shard); !holds {
		return ""
	}
	return leaders.lost(shard, electionsMax*ElectionTimeout(table.Shards()))
}

// batch is what one node gets in one call.
type batch struct {
	node    string
	at      []int // positions in the request; nil: all of them
	req     *ebbv1.ApplyRequest
	results []*ebbv1.CommandResult
}

// position maps an index within the batch to one in the request.
func (p *batch) position(i int) int {
	if p.at == nil {
		return i
	}
	return p.at[i]
}

func (r *Router) apply(ctx context.Context, table *Table, req *ebbv1.ApplyRequest, policy retryPolicy) *ebbv1.ApplyResponse {
	results := make([]*ebbv1.CommandResult, len(req.GetCommands()))
	batches := r.pack(ctx, table, req, results)
	for try := 1; len(batches) > 0; try++ {
		r.send(ctx, batches)
		again := r.unpack(table, batches, results, policy)
		if len(again) == 0 || policy == retryOnce && try == 2 || !pause(ctx, try) {
			break
		}
		batches = r.repack(ctx, table, req, again)
	}
	return &ebbv1.ApplyResponse{Results: results}
}

// pack makes the batches of the first try. Commands for shards that do not
// exist get their results at once. When all go to one node no lists are copied.
func (r *Router) pack(
	ctx context.Context, table *Table, req *ebbv1.ApplyRequest, results []*ebbv1.CommandResult,
) []*batch {
	if node, one := r.oneNode(table, req); one {
		p := r.batchTo(ctx, node)
		p.req.Commands = req.GetCommands()
		return []*batch{p}
	}
	at := make([]int, 0, len(req.GetCommands()))
	for i, cmd := range req.GetCommands() {
		if err := checkShard(table, cmd.GetShard()); err != nil {
			results[i] = &ebbv1.CommandResult{Error: err.Wire()}
			continue
		}
		at = append(at, i)
	}
	return r.repack(ctx, table, req, at)
}

// batchTo returns an empty batch. One that is forwarded says who the caller is.
func (r *Router) batchTo(ctx context.Context, node string) *batch {
	p := &batch{node: node, req: &ebbv1.ApplyRequest{Forwarded: node != r.cfg.Node}}
	if p.req.Forwarded {
		p.req.Caller = caller.Of(ctx)
	}
	return p
}

// oneNode returns the node that all commands go to, if it is one.
func (r *Router) oneNode(table *Table, req *ebbv1.ApplyRequest) (node string, one bool) {
	var last uint32
	for _, cmd := range req.GetCommands() {
		shard := cmd.GetShard()
		if shard == last && shard != 0 {
			continue
		}
		if checkShard(table, shard) != nil {
			return "", false
		}
		to := target(r.cfg.Node, table, r.cfg.Leaders, shard)
		if node != "" && to != node {
			return "", false
		}
		node, last = to, shard
	}
	return node, node != ""
}

func checkShard(table *Table, shard uint32) *proto.Error {
	if shard == ControlShard || !table.Has(shard) {
		return proto.ErrWrongShard.Errorf("shard %d: the cluster has 1 to %d", shard, table.Shards()).WithShard(shard)
	}
	return nil
}

// repack groups the commands at these positions by node, in the order in which
// the nodes first appear.
func (r *Router) repack(ctx context.Context, table *Table, req *ebbv1.ApplyRequest, at []int) []*batch {
	var batches []*batch
	byNode := make(map[string]*batch)
	for _, i := range at {
		node := target(r.cfg.Node, table, r.cfg.Leaders, req.Commands[i].GetShard())
		p := byNode[node]
		if p == nil {
			p = r.batchTo(ctx, node)
			byNode[node] = p
			batches = append(batches, p)
		}
		p.at = append(p.at, i)
		p.req.Commands = append(p.req.Commands, req.Commands[i])
	}
	return batches
}

// send delivers all batches at once and waits for all: the local one, or else
// the last, on the calling goroutine.
func (r *Router) send(ctx context.Context, batches []*batch) {
	here := len(batches) - 1
	for i, p := range batches {
		if p.node == r.cfg.Node {
			here = i
		}
	}
	var wg sync.WaitGroup
	for i, p := range batches {
		if i != here {
			wg.Go(func() { r.deliver(ctx, p) })
		}
	}
	r.deliver(ctx, batches[here])
	wg.Wait()
}

// deliver makes the one call that a batch is for and fills in its results.
func (r *Router) deliver(ctx context.Context, p *batch) {
	ctx, sent := stage.Begin(ctx, "send to node", stage.Node.String(p.node), stage.Shards.Int(len(p.req.GetCommands())))
	defer sent()
	backend := r.cfg.Local
	if p.node != r.cfg.Node {
		var err error
		if backend, err = r.cfg.Peers.Backend(p.node); err != nil {
			p.fail(proto.ErrUnreachable.Errorf("node %s: %v", p.node, err))
			return
		}
		var answered func()
		ctx, answered = untilDeposed(ctx, r.cfg.Leaders, p.node, p.shards())
		defer answered()
	}
	resp, err := backend.Apply(ctx, p.req)
	if err != nil && context.Cause(ctx) == errDeposed {
		err = proto.ErrUnknownOutcome.Errorf("%v", errDeposed) // whatever the connection says of it
	}
	switch {
	case err != nil:
		p.fail(outcome(p.node, err))
	case len(resp.GetResults()) != len(p.req.Commands):
		p.fail(proto.ErrUnknownOutcome.Errorf("node %s answered %d of %d commands", p.node, len(resp.GetResults()), len(p.req.Commands)))
	default:
		p.results = resp.Results
	}
}

// shards are those of the batch's commands.
func (p *batch) shards() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, cmd := range p.req.GetCommands() {
			if !yield(cmd.GetShard()) {
				return
			}
		}
	}
}

func (p *batch) fail(err *proto.Error) {
	p.results = make([]*ebbv1.CommandResult, len(p.req.Commands))
	for i, cmd := range p.req.Commands {
		p.results[i] = &ebbv1.CommandResult{Error: err.WithShard(cmd.GetShard()).Wire()}
	}
}

// outcome says what a failed call means for its commands. A node that refused the call, or was not reached, applied
// nothing. When the call broke or ran out of time, the outcome is unknown.
func outcome(node string, err error) *proto.Error {
	e := proto.AsError(err)
	switch e.Code {
	case ebbv1.Code_CODE_DEADLINE, ebbv1.Code_CODE_INTERNAL, ebbv1.Code_CODE_SHUTTING_DOWN:
		return proto.ErrUnknownOutcome.Errorf("node %s: %v", node, err)
	}
	return e
}

// unpack puts results in their places, learns from those that name a leader,
// and returns the positions worth another try.
func (r *Router) unpack(table *Table, batches []*batch, results []*ebbv1.CommandResult, policy retryPolicy) (again []int) {
	for _, p := range batches {
		for i, result := range p.results {
			results[p.position(i)] = result
			if result.GetError() == nil {
				continue
			}
			shard, e := p.req.Commands[i].GetShard(), result.GetError()
			if p.node == r.cfg.Node && e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME {
				continue // its own replica knows better who leads than a guess
			}
			safe := learnLeader(r.cfg.Node, table, r.cfg.Leaders, shard, p.node, e)
			if safe && (policy == retryUntilLeader || target(r.cfg.Node, table, r.cfg.Leaders, shard) != p.node) {
				again = append(again, p.position(i))
			}
		}
	}
	return again
}

// learnLeader corrects the hint for a shard after asked answered with an error, and
// reports whether the error promises that nothing happened, so that another try
// is safe.
func learnLeader(self string, table *Table, leaders *Leaders, shard uint32, asked string, e *ebbv1.Error) (safe bool) {
	next, named := table.after(shard, asked), false // who may lead, for all that asked can tell
	switch e.GetCode() {
	case ebbv1.Code_CODE_NOT_LEADER:
		if _, holds := table.ReplicaOn(e.GetLeader(), shard); holds {
			next, named = e.GetLeader(), true
		}
		safe = true
	case ebbv1.Code_CODE_UNREACHABLE, ebbv1.Code_CODE_NO_LEADER:
		safe = true
	case ebbv1.Code_CODE_UNKNOWN_OUTCOME:
	default:
		return false
	}
	correctLeader(self, table, leaders, shard, asked, next, named)
	return safe
}

// correctLeader takes it that next leads a shard and not asked, which named it; otherwise it is a guess. While self's
// own replica has heard of no leader, it does not guess, and does not believe a node that still names the lost leader.
func correctLeader(self string, table *Table, leaders *Leaders, shard uint32, asked, next string, named bool) {
	if former := lostLeader(self, table, leaders, shard); former == "" || named && next != former {
		leaders.Correct(shard, asked, next)
	}
}

const (
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
)

// pause waits before try number try+1: not at all before the second, then
// longer and longer. It reports whether the context still lasts.
func pause(ctx context.Context, try int) bool {
	if try < 2 {
		return ctx.Err() == nil
	}
	return sleep(ctx, min(pauseFirst<<min(try-2, 10), pauseMax))
}
