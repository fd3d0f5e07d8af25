package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/stage"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// askTimeout is the time limit of a question whose context has no deadline.
	askTimeout = 2 * time.Second
	// PartsMax is the most shard questions that one request may cause, over all its questions.
	PartsMax = 1 << 16
)

// CoordinatorConfig holds what a Coordinator needs. All fields are required except Now (default time.Now), Limits and
// Confirm.
type CoordinatorConfig struct {
	Node    string        // this node's name
	Table   func() *Table // the current table
	Leaders *Leaders
	Local   Backend // this node's own shards
	Peers   Peers   // the other nodes
	Now     func() time.Time
	Limits  Limits
	// Confirm waits until this node's table is as new as the control group's was at the time of the call. It is called
	// before an answer says that a namespace does not exist. Nil means that the table is always new enough.
	Confirm func(ctx context.Context) error
}

// Limits bound what a node caches and how much it asks other nodes for at once. They do not change results. Zero means
// the default.
type Limits struct {
	// RecentNames is how many dictionary strings each half of a node's cache holds; default 16,384.
	RecentNames int
	// PageIDs is how many ids one round of a page asks for, if the bitmap is stored in all shards; default 200,000.
	// Each shard is asked for at least 64.
	PageIDs uint32
	// PositionIDs is how many ids the last step of a search for a position lists; default 1,024.
	PositionIDs uint32
}

// filled returns the limits with defaults in place of zeros.
func (l Limits) filled() Limits {
	l.RecentNames = cmp.Or(l.RecentNames, recentMax)
	l.PageIDs = cmp.Or(l.PageIDs, pageIDsMax)
	l.PositionIDs = cmp.Or(l.PositionIDs, positionPage)
	return l
}

// Coordinator answers questions for the whole cluster. It plans which shards hold a part of the answer, asks them with
// one call per node, and merges their answers in shard order.
//
// All parts of a question have one evaluation time. Every part begins after the question did, so the answer includes
// all writes that were acknowledged before. It is not an atomic snapshot across the shards.
type Coordinator struct {
	cfg          CoordinatorConfig
	generations  generationCache
	dictionaries dictionaryCache
	hedges       hedges
	clocks       eventClocks
}

// NewCoordinator returns a Coordinator. It panics if a required field of cfg is missing.
func NewCoordinator(cfg CoordinatorConfig) *Coordinator {
	if cfg.Node == "" || cfg.Table == nil || cfg.Leaders == nil || cfg.Local == nil || cfg.Peers == nil {
		panic("cluster: CoordinatorConfig is incomplete")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Limits = cfg.Limits.filled()
	c := &Coordinator{cfg: cfg}
	c.dictionaries.ids.most, c.dictionaries.names.most = cfg.Limits.RecentNames, cfg.Limits.RecentNames
	return c
}

// Ask answers a batch of questions, in their order. An error of one question, or of its shards, stands in its answer.
// The returned error is about the request as a whole.
//
// If some shards of a question could not answer, its answer is the error INCOMPLETE, which names them. With
// allow_partial the answer is made of the other shards' answers. The coverage names the failed shards in both cases.
func (c *Coordinator) Ask(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	return c.ask(ctx, req, missingNamedMax)
}

// ask is Ask whose answers name at most missingMax missing keys. When a shard answers that this node's table is too
// old, ask waits for a newer table and asks again.
func (c *Coordinator) ask(ctx context.Context, req *ebbv1.AskRequest, missingMax int) (*ebbv1.AskResponse, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	for {
		table, tableErr := c.tableOf(ctx, req.GetQuestions())
		resp, err := c.askBy(ctx, table, req, missingMax)
		for _, a := range resp.GetAnswers() {
			if tableErr != nil && a.GetError().GetCode() == ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
				a.Error = proto.AsError(tableErr).Wire()
			}
		}
		if err != nil || !slices.ContainsFunc(resp.GetAnswers(), ofStaleTable) || !c.renewed(ctx, table) {
			return resp, err
		}
	}
}

// tableOf returns the table to plan the questions with. If tableErr is not nil, the table may lack a new namespace.
func (c *Coordinator) tableOf(ctx context.Context, questions []*ebbv1.Question) (table *Table, tableErr error) {
	table = c.cfg.Table()
	for _, q := range questions {
		if table.Namespace(q.GetNamespace()) == nil && mayBeNamed(q.GetNamespace()) {
			_, tableErr = c.confirmed(ctx, q.GetNamespace())
			return c.cfg.Table(), tableErr
		}
	}
	return table, nil
}

// confirmed returns a table that has the namespace, or one that is new enough to show that the namespace does not
// exist.
func (c *Coordinator) confirmed(ctx context.Context, namespace string) (*Table, error) {
	table := c.cfg.Table()
	if c.cfg.Confirm == nil || table.Shards() == 0 || table.Namespace(namespace) != nil || !mayBeNamed(namespace) {
		return table, nil
	}
	if err := c.cfg.Confirm(ctx); err != nil {
		return nil, err
	}
	return c.cfg.Table(), nil
}

func mayBeNamed(namespace string) bool {
	return proto.CheckNamespaceName(cmp.Or(namespace, proto.DefaultNamespace)) == nil
}

func ofStaleTable(a *ebbv1.Answer) bool { return staleTable(a.GetError()) }

func staleTable(e *ebbv1.Error) bool { return e.GetCode() == ebbv1.Code_CODE_STALE_TABLE }

// renewed waits until this node has a later table than the given one, and reports whether it arrived in time.
func (c *Coordinator) renewed(ctx context.Context, than *Table) bool {
	for try := 1; c.cfg.Table().Epoch() <= than.Epoch(); try++ {
		if !pause(ctx, try) {
			return false
		}
	}
	return true
}

// askBy is ask with one fixed table.
func (c *Coordinator) askBy(
	ctx context.Context, table *Table, req *ebbv1.AskRequest, missingMax int,
) (*ebbv1.AskResponse, error) {
	if err := checkAsk(table, req); err != nil {
		return nil, err
	}
	if req.GetStrict() {
		if err := checkStrict(table); err != nil {
			return nil, err
		}
	}
	strict := req.GetStrict()
	req, repeats := distinctRequest(req)
	asked := req.GetQuestions()
	req, refused := expandRequest(table, req)
	req, unknown := c.withIDs(ctx, table, req)
	answers, err := c.answer(ctx, table, req)
	if err != nil {
		return nil, err
	}
	c.withNames(ctx, table, req, answers)
	for i, err := range unknown {
		answers[i] = &ebbv1.Answer{Error: err.Wire()}
	}
	for i, err := range refused { // before their missing keys are named, which may be too many to spell out
		answers[i] = &ebbv1.Answer{Error: err.Wire()}
	}
	unmatched, err := c.unmatched(ctx, table, req, answers)
	if err != nil {
		return nil, err
	}
	nameMissing(table, asked, req.GetQuestions(), answers, unmatched, strict, missingMax)
	answers = spread(answers, repeats)
	limitResponse(answers)
	return &ebbv1.AskResponse{Answers: answers}, nil
}

// wayBackMax is the most of a caller's time that is reserved for sending the answer back.
const wayBackMax = 100 * time.Millisecond

// inTime ends the asking of shards before the caller stops waiting, and after askTimeout if the caller has no deadline.
// Otherwise an answer that says which shards are missing would come too late.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, limited := ctx.Deadline()
	if !limited {
		return context.WithTimeout(ctx, askTimeout)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/8, wayBackMax)))
}

// answer answers expanded questions. Questions about bitmaps that are placed by slice go to askSlices.
func (c *Coordinator) answer(ctx context.Context, table *Table, req *ebbv1.AskRequest) ([]*ebbv1.Answer, error) {
	rest, at := bySlice(table, req.GetQuestions())
	if len(at) == 0 {
		return c.answerWhole(ctx, table, req)
	}
	answers := make([]*ebbv1.Answer, len(req.GetQuestions()))
	if err := c.askSlices(ctx, table, req, at, answers); err != nil {
		return nil, err
	}
	if len(rest) == 0 {
		return answers, nil
	}
	whole, err := c.answerWhole(ctx, table, withQuestions(req, rest, nil))
	if err != nil {
		return nil, err
	}
	for i, to := range rest {
		answers[to] = whole[i]
	}
	return answers, nil
}

func (c *Coordinator) answerWhole(ctx context.Context, table *Table, req *ebbv1.AskRequest) ([]*ebbv1.Answer, error) {
	_, planned := stage.Begin(ctx, "plan")
	p, err := plan(table, req)
	planned()
	if err != nil {
		return nil, err
	}
	shards, held := budget.Stage(ctx)
	defer held.Close()
	held.Limit(budget.From(ctx))
	c.scatter(shards, table, p)
	c.evenly(shards, table, p)
	_, folded := stage.Begin(ctx, "fold")
	answers := p.fold(shards)
	folded()
	held.Close()
	for i, a := range answers {
		if err := keep(ctx, a); err != nil {
			answers[i] = &ebbv1.Answer{Error: err.Wire(), Coverage: a.GetCoverage()}
		}
	}
	for _, i := range p.spread {
		if q := req.GetQuestions()[i]; q.GetNames() != nil {
			answers[i] = c.askNames(ctx, table, req, q)
		} else {
			answers[i] = c.askSpread(ctx, table, p, q)
		}
	}
	return answers, nil
}

func checkAsk(table *Table, req *ebbv1.AskRequest) error {
	if table.Shards() == 0 {
		return errStarting()
	}
	if n := len(req.GetQuestions()); n > proto.QuestionsMax {
		return proto.ErrBatchTooLarge.Errorf("batch of %d questions: the limit is %d", n, proto.QuestionsMax)
	}
	if n := len(req.GetSeen()); n > proto.NamespacesMax {
		return proto.ErrBatchTooLarge.Errorf("clocks of %d namespaces: the limit is %d", n, proto.NamespacesMax)
	}
	switch req.GetConsistency() {
	case ebbv1.Consistency_CONSISTENCY_UNSPECIFIED, ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, ebbv1.Consistency_CONSISTENCY_ANY:
		return nil
	case ebbv1.Consistency_CONSISTENCY_BOUNDED:
		if req.GetMaxStalenessUs() <= 0 {
			return proto.ErrBadRequest.Errorf("bounded consistency needs max_staleness_us above 0")
		}
		return nil
	}
	return proto.ErrBadRequest.Errorf("consistency %d is unknown: linearizable, bounded or any", req.GetConsistency())
}

// scatter asks all parts. It asks failed parts again at other nodes, as long as the context lasts.
func (c *Coordinator) scatter(ctx context.Context, table *Table, p *askPlan) {
	envelope := &ebbv1.ShardAskRequest{
		Consistency:    p.consistency,
		MaxStalenessUs: p.req.GetMaxStalenessUs(),
		NowUs:          c.cfg.Now().UnixMicro(),
	}
	c.date(ctx, table, p)
	c.address(table, p)
	calls := p.calls(envelope, nil)
	for try := 1; len(calls) > 0; try++ {
		c.send(ctx, table, calls, try)
		again := c.collect(table, p, calls)
		if len(again) == 0 || !pause(ctx, try) {
			return
		}
		calls = p.calls(envelope, again)
	}
}

// address gives every part the node to ask first: the leader, or this node when the consistency allows any replica and
// this node has one.
func (c *Coordinator) address(table *Table, p *askPlan) {
	anywhere := p.consistency != ebbv1.Consistency_CONSISTENCY_LINEARIZABLE
	for i := range p.parts {
		part := &p.parts[i]
		if anywhere {
			if _, here := table.ReplicaOn(c.cfg.Node, part.question.Shard); here {
				part.node = c.cfg.Node
				continue
			}
		}
		part.node = target(c.cfg.Node, table, c.cfg.Leaders, part.question.Shard)
	}
}

// send makes all calls at once and waits for them. The calling goroutine makes the local call, or the last one if none
// is local.
func (c *Coordinator) send(ctx context.Context, table *Table, calls []askCall, try int) {
	here := len(calls) - 1
	for i := range calls {
		if calls[i].node == c.cfg.Node {
			here = i
		} else if err := calls[i].charge(ctx, try, len(calls)-i); err != nil {
			calls[i].err = err
		}
	}
	var wg sync.WaitGroup
	for i := range calls {
		if i != here {
			wg.Go(func() { c.call(ctx, table, &calls[i]) })
		}
	}
	c.call(ctx, table, &calls[here])
	wg.Wait()
}

// call asks one node. If other nodes hold replicas too, a remote node gets only half of the remaining time, so that
// time is left to ask them when it does not answer.
func (c *Coordinator) call(ctx context.Context, table *Table, call *askCall) {
	ctx, asked := stage.Begin(ctx, "ask node", stage.Node.String(call.node), stage.Shards.Int(len(call.req.GetQuestions())))
	defer asked()
	if call.node == c.cfg.Node {
		call.resp, call.err = c.cfg.Local.Ask(ctx, call.req)
		return
	}
	if call.err != nil {
		return
	}
	whole := ctx
	defer func() { call.settle(whole) }()
	backend, err := c.cfg.Peers.Backend(call.node)
	if err != nil {
		call.err = proto.ErrUnreachable.Errorf("node %s: %v", call.node, err)
		return
	}
	if deadline, ok := ctx.Deadline(); ok && table.Replication() > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	ctx, answered := untilDeposed(ctx, c.cfg.Leaders, call.node, call.shards())
	defer answered()
	call.resp, call.err = c.hedged(ctx, table, backend, call)
	if call.err != nil && context.Cause(ctx) == errDeposed {
		call.err = proto.ErrUnreachable.Errorf("node %s: %v", call.node, errDeposed)
	}
}

// collect puts the answers in their places, updates the leader hints, and returns the parts that are worth another try.
func (c *Coordinator) collect(table *Table, p *askPlan, calls []askCall) (again []int) {
	for i := range calls {
		call := &calls[i]
		failure := call.failure()
		if failure == nil && call.stuck() {
			failure = &ebbv1.ShardAnswer{Error: budget.TooLarge(budget.RequestMax).Wire()}
		}
		for j, question := range call.req.Questions {
			at := call.position(j)
			part := &p.parts[at]
			part.answer = failure
			if failure == nil {
				part.answer = call.resp.Answers[j]
			}
			if e := part.answer.GetError(); e != nil && c.redirect(table, part, question.Shard, e) {
				again = append(again, at)
			}
		}
	}
	return again
}

// redirect reports whether a part that got this error is worth asking again, and sets the node to ask.
func (c *Coordinator) redirect(table *Table, part *askPart, shard uint32, e *ebbv1.Error) bool {
	switch e.GetCode() {
	case ebbv1.Code_CODE_NOT_LEADER, ebbv1.Code_CODE_NO_LEADER, ebbv1.Code_CODE_UNREACHABLE:
		learnLeader(c.cfg.Node, table, c.cfg.Leaders, shard, part.node, e)
	case ebbv1.Code_CODE_DEADLINE, ebbv1.Code_CODE_SHUTTING_DOWN, ebbv1.Code_CODE_STARTING:
		if part.node != c.cfg.Node {
			correctLeader(c.cfg.Node, table, c.cfg.Leaders, shard, part.node, table.after(shard, part.node), false)
		}
	case ebbv1.Code_CODE_OVERLOADED:
		return asksAgain(e) // of the same node: its answer did not fit the budget together with the others
	case ebbv1.Code_CODE_TOO_STALE:
		asked, before := part.node, part.stale
		part.stale = true
		if part.node = target(c.cfg.Node, table, c.cfg.Leaders, shard); before || part.node == asked { // a leader behind a cut is stale, too, and this node may know of none
			part.node = table.after(shard, asked)
		}
		return true
	default:
		return false
	}
	asked := part.node
	part.node = target(c.cfg.Node, table, c.cfg.Leaders, shard)
	if part.node == asked && !leaderless(c.cfg.Node, table, c.cfg.Leaders, shard) {
		part.node = table.after(shard, asked)
	}
	return true
}
