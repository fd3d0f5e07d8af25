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

// RouterConfig holds what a Router needs; see CoordinatorConfig, which has the same fields.
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

// Router sends commands to the leaders of their shards: to the local Backend directly, to other nodes with one call per
// node. A command is forwarded at most once, and the request is marked as forwarded: a node that receives it and does
// not lead answers NOT_LEADER instead of forwarding it again.
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

// Apply puts commands through the logs of their shards and returns the results in the order of the commands. An error
// of a shard stands in the results of its commands:
//
//   - NOT_LEADER, NO_LEADER, UNREACHABLE: nothing was appended. Apply tried such
//     commands once more if it knew another node to try.
//   - UNKNOWN_OUTCOME: the command may have been applied. The caller may repeat it
//     under the same identity.
//   - every other error is the shard's own answer.
//
// The returned error is about the request as a whole.
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

// ApplyWaiting is Apply, but while the context lasts, it also waits for shards that are electing a leader.
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

// retryPolicy says which commands to try again. Only commands that were certainly not appended are tried again.
type retryPolicy int

const (
	retryOnce        retryPolicy = iota // once, if another node is known that may lead
	retryUntilLeader                    // while the context lasts
)

func errStarting() *proto.Error {
	return proto.ErrStarting.Errorf("the cluster is starting: its table is not known yet").
		WithHint("try again in a few seconds")
}

// applyHere applies a request that another node forwarded to this node.
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

// target returns the node to which self sends the commands and questions of a shard: the last known leader, or the
// preferred leader if none is known. It returns self if self's own replica has just lost its leader. Then self refuses
// at once, and is among the first nodes to learn of the next leader. Another node might just have been partitioned
// away.
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

// leaderless reports whether self's own replica of a shard recently lost its leader and knows no new one.
func leaderless(self string, table *Table, leaders *Leaders, shard uint32) bool {
	return lostLeader(self, table, leaders, shard) != ""
}

// lostLeader returns the former leader of a shard if self's own replica recently saw the leadership end. It returns ""
// if the replica did not see that, or knows the present leader.
func lostLeader(self string, table *Table, leaders *Leaders, shard uint32) (former string) {
	if _, holds := table.ReplicaOn(self, shard); !holds {
		return ""
	}
	return leaders.lost(shard, electionsMax*ElectionTimeout(table.Shards()))
}

// batch is the commands that one node gets in one call.
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

// pack makes the batches of the first try. Commands for shards that do not exist get their results at once. When all
// commands go to one node, no lists are copied.
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

// batchTo returns an empty batch. A forwarded batch names the original caller.
func (r *Router) batchTo(ctx context.Context, node string) *batch {
	p := &batch{node: node, req: &ebbv1.ApplyRequest{Forwarded: node != r.cfg.Node}}
	if p.req.Forwarded {
		p.req.Caller = caller.Of(ctx)
	}
	return p
}

// oneNode returns the node that all commands go to, if there is only one such node.
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

// send delivers all batches at once and waits for them. The calling goroutine delivers the local batch, or the last one
// if none is local.
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

// deliver sends a batch with one call and stores its results.
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
		err = proto.ErrUnknownOutcome.Errorf("%v", errDeposed) // whatever error the connection returned
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

// shards yields the shard of each command of the batch.
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

// outcome returns what a failed call means for its commands. A node that refused the call, or was not reached, applied
// nothing. When the call broke or ran out of time, the outcome is unknown.
func outcome(node string, err error) *proto.Error {
	e := proto.AsError(err)
	switch e.Code {
	case ebbv1.Code_CODE_DEADLINE, ebbv1.Code_CODE_INTERNAL, ebbv1.Code_CODE_SHUTTING_DOWN:
		return proto.ErrUnknownOutcome.Errorf("node %s: %v", node, err)
	}
	return e
}

// unpack puts results in their places, updates the leader hints, and returns the positions that are worth another try.
func (r *Router) unpack(table *Table, batches []*batch, results []*ebbv1.CommandResult, policy retryPolicy) (again []int) {
	for _, p := range batches {
		for i, result := range p.results {
			results[p.position(i)] = result
			if result.GetError() == nil {
				continue
			}
			shard, e := p.req.Commands[i].GetShard(), result.GetError()
			if p.node == r.cfg.Node && e.GetCode() == ebbv1.Code_CODE_UNKNOWN_OUTCOME {
				continue // the local replica knows the leader better than a guess does
			}
			safe := learnLeader(r.cfg.Node, table, r.cfg.Leaders, shard, p.node, e)
			if safe && (policy == retryUntilLeader || target(r.cfg.Node, table, r.cfg.Leaders, shard) != p.node) {
				again = append(again, p.position(i))
			}
		}
	}
	return again
}

// learnLeader corrects the leader hint of a shard after the node asked answered with an error. safe reports whether the
// error guarantees that nothing was applied, so that another try cannot apply the command twice.
func learnLeader(self string, table *Table, leaders *Leaders, shard uint32, asked string, e *ebbv1.Error) (safe bool) {
	next, named := table.after(shard, asked), false // the next node that may lead; the error may name a better one
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

// correctLeader sets the hint that next leads a shard, and asked does not. named says that asked named next; otherwise
// next is a guess. While self's own replica knows no leader, guesses are ignored, and so is an answer that still names
// the lost leader.
func correctLeader(self string, table *Table, leaders *Leaders, shard uint32, asked, next string, named bool) {
	if former := lostLeader(self, table, leaders, shard); former == "" || named && next != former {
		leaders.Correct(shard, asked, next)
	}
}

const (
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
)

// pause waits before try number try+1: not at all before the second, then for longer each time. It reports whether the
// context still lasts.
func pause(ctx context.Context, try int) bool {
	if try < 2 {
		return ctx.Err() == nil
	}
	return sleep(ctx, min(pauseFirst<<min(try-2, 10), pauseMax))
}
