package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Ask sends a batch of questions in wire format; the typed methods are built on it. It returns one answer for each
// question, in the order of the questions. The Error of an answer concerns only its question. Ask itself returns an
// error, in addition to the answers, if some question got no answer from any node before ctx ended.
//
// Ask groups the questions by the node that leads their shard, and asks these nodes concurrently. A question that fails
// for a temporary reason is asked again, possibly on another node.
func (c *Client) Ask(ctx context.Context, questions []*ebbv1.Question, opts ...AskOption) ([]*ebbv1.Answer, error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	a := askingOf(opts)
	round := &askBatch{
		client: c, asking: a, start: c.now(), limit: c.cfg.attemptTimeout,
		answers: make([]*ebbv1.Answer, len(questions)),
	}
	open := make([]*pendingQuestion, 0, len(questions))
	for i, q := range questions {
		if err := proto.CheckQuestion(q); err != nil {
			round.answers[i] = &ebbv1.Answer{Error: err.Wire()}
			continue
		}
		open = append(open, &pendingQuestion{index: i, question: a.fill(q), shard: c.home(q)})
	}
	err := round.run(ctx, open)
	return round.answers, err
}

// fill returns q with the time and the confidence of the options where q has none.
func (a *asking) fill(q *ebbv1.Question) *ebbv1.Question {
	if a.asOf.IsZero() && a.confidence == 0 {
		return q
	}
	q = protobuf.CloneOf(q)
	if d := q.GetDistribution(); d != nil {
		a.fillIn(&d.AsOfUs, &d.Confidence)
	}
	if s := q.GetSummary(); s != nil {
		a.fillIn(&s.AsOfUs, &s.Confidence)
	}
	if o := q.GetOverlap(); o != nil {
		a.fillIn(&o.AsOfUs, &o.Confidence)
	}
	if g := q.GetGraph(); g != nil {
		a.fillIn(&g.AsOfUs, &g.Confidence)
	}
	if t := q.GetTrend(); t != nil {
		a.fillIn(&t.AsOfUs, &t.Confidence)
	}
	if s := q.GetSurprise(); s != nil && s.AsOfUs == 0 {
		s.AsOfUs = microOf(a.asOf)
	}
	if k := q.GetKeys(); k != nil && k.AsOfUs == 0 {
		k.AsOfUs = microOf(a.asOf)
	}
	if d := q.GetDescribe(); d != nil && d.AsOfUs == 0 {
		d.AsOfUs = microOf(a.asOf)
	}
	return q
}

func (a *asking) fillIn(asOfUS *int64, confidence *float64) {
	if *asOfUS == 0 {
		*asOfUS = microOf(a.asOf)
	}
	if *confidence == 0 {
		*confidence = a.confidence
	}
}

// home returns the shard of the first key: its leader should be asked. It returns 0 for a question without keys, which
// any node can answer.
func (c *Client) home(q *ebbv1.Question) uint32 {
	keys := proto.QuestionKeys(q)
	if len(keys) == 0 {
		return 0
	}
	return proto.ShardOf(namespaceOr(q.GetNamespace()), keys[0], c.routing.shards())
}

func namespaceOr(ns string) string {
	if ns == "" {
		return proto.DefaultNamespace
	}
	return ns
}

// pendingQuestion is a question without an answer yet.
type pendingQuestion struct {
	index    int
	question *ebbv1.Question
	shard    uint32
	node     string // asked last
	err      error  // of the last try
}

// askBatch is one batch of questions, until each is answered or given up.
type askBatch struct {
	client *Client
	asking asking
	start  time.Time
	limit  time.Duration // of one try

	mu      sync.Mutex // guards the answers while nodes are being asked
	answers []*ebbv1.Answer
}

func (r *askBatch) run(ctx context.Context, open []*pendingQuestion) error {
	tries := 0
	for ; len(open) > 0; tries++ {
		if r.client.ctx.Err() != nil {
			return r.giveUp(ctx, open, tries+1)
		}
		began := r.client.now()
		open = r.askNodes(ctx, open, tries)
		if len(open) == 0 {
			break
		}
		r.limit = longer(ctx, r.limit, r.client.now().Sub(began))
		if ctx.Err() != nil {
			return r.giveUp(ctx, open, tries+1)
		}
		r.client.renewIfOld(tableAgeMin)
		if tries == 0 && all(open, redirected) || all(open, answerTooLarge) {
			continue // no reason to wait
		}
		if err := r.client.sleep(ctx, r.client.backoff(tries, open[0].err)); err != nil {
			return r.giveUp(ctx, open, tries+1)
		}
	}
	return nil
}

func all(open []*pendingQuestion, is func(*proto.Error) bool) bool {
	for _, q := range open {
		if !is(coded(q.err)) {
			return false
		}
	}
	return true
}

// redirected reports whether the error names the leader.
func redirected(e *proto.Error) bool {
	return e.Code == ebbv1.Code_CODE_NOT_LEADER && e.Leader != ""
}

// answerTooLarge reports whether the answer did not fit into the response, which may contain other answers too.
func answerTooLarge(e *proto.Error) bool { return e.Code == ebbv1.Code_CODE_RESPONSE_TOO_LARGE }

// askNodes asks every open question once and returns those that stay open.
func (r *askBatch) askNodes(ctx context.Context, open []*pendingQuestion, tries int) []*pendingQuestion {
	groups := map[*peer][]*pendingQuestion{}
	for _, q := range open {
		node, p := r.client.peerFor(q.shard, tries, q.node)
		q.node = node
		groups[p] = append(groups[p], q)
	}
	if len(groups) == 1 {
		for p, group := range groups {
			r.askPeer(ctx, p, group)
		}
		return r.stillOpen(open)
	}
	var asking sync.WaitGroup
	for p, group := range groups {
		asking.Go(func() { r.askPeer(ctx, p, group) })
	}
	asking.Wait()
	return r.stillOpen(open)
}

func (r *askBatch) stillOpen(open []*pendingQuestion) []*pendingQuestion {
	rest := open[:0]
	for _, q := range open {
		if r.answers[q.index] == nil {
			rest = append(rest, q)
		}
	}
	return rest
}

// askPeer asks one node a group of questions, in requests that fit its limit.
func (r *askBatch) askPeer(ctx context.Context, p *peer, group []*pendingQuestion) {
	for len(group) > 0 {
		n := min(len(group), proto.QuestionsMax)
		r.request(ctx, p, group[:n])
		group = group[n:]
	}
}

func (r *askBatch) request(ctx context.Context, p *peer, group []*pendingQuestion) {
	t := requestOptions{r.asking.consistency, r.asking.staleness, r.asking.partial, r.asking.strict}
	if len(group) == 1 && r.shares(ctx, group[0]) {
		a, first, err := p.asks.ask(ctx, group[0].shard, t, group[0].question)
		if err != nil {
			r.failed(group[0], err)
			return
		}
		r.answered(group[0], a, first)
		return
	}
	questions := make([]*ebbv1.Question, len(group))
	for i, q := range group {
		questions[i] = q.question
	}
	answers, err := r.client.askRequest(ctx, p, t, questions, r.limit)
	for i, q := range group {
		if err != nil {
			r.failed(q, err)
			continue
		}
		r.answered(q, answers[i], i == 0)
	}
}

// shares reports whether a question may share a request with questions of other callers. A question that failed before,
// or whose shard has no known leader, may take long, so it is sent alone.
func (r *askBatch) shares(ctx context.Context, q *pendingQuestion) bool {
	return !r.asking.alone && len(r.client.cfg.grpc) == 0 && q.err == nil &&
		coalescible(ctx, q.question) && r.client.routing.leads(q.shard, q.node)
}

// askRequest makes one request, which takes limit at most. Without an error it returns one answer for each question.
func (c *Client) askRequest(
	ctx context.Context, p *peer, t requestOptions, questions []*ebbv1.Question, limit time.Duration,
) ([]*ebbv1.Answer, error) {
	req := &ebbv1.AskRequest{
		Consistency: t.consistency, MaxStalenessUs: t.staleness.Microseconds(), AllowPartial: t.partial,
		Strict: t.strict, Questions: questions, Seen: c.seen.of(questions...),
	}
	var resp *ebbv1.AskResponse
	_, err := c.tryFor(ctx, limit, p, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(conn).Ask(ctx, req)
		return err
	})
	c.meter.asked(len(questions), err)
	if err == nil && len(resp.GetAnswers()) != len(questions) {
		err = proto.ErrInternal.Errorf("%d answers to %d questions", len(resp.GetAnswers()), len(questions))
	}
	for i, a := range resp.GetAnswers() {
		if err == nil {
			c.seen.note(questions[i].GetNamespace(), a.GetCoverage().GetClock())
		}
	}
	return resp.GetAnswers(), err
}

// answered accepts an answer, unless another try may bring a better one. The first answer of a response had the whole
// response as its space. If that answer was too large, another try does not help.
func (r *askBatch) answered(q *pendingQuestion, a *ebbv1.Answer, first bool) {
	e := proto.FromWire(a.GetError())
	switch {
	case e == nil:
		r.settle(q, a)
	case answerTooLarge(e) && !first:
		q.err = e
	case worthAnotherTry(e.Code):
		r.failed(q, e)
	default:
		r.settle(q, a)
	}
}

// failed keeps a question open if another try may help, and otherwise makes the
// error its answer.
func (r *askBatch) failed(q *pendingQuestion, err error) {
	pe := coded(err)
	q.err = err
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrClosed):
	case pe.Code == ebbv1.Code_CODE_NOT_LEADER:
		r.client.routing.learn(q.shard, q.node, pe.Leader)
	case pe.Code == ebbv1.Code_CODE_UNREACHABLE:
		r.client.routing.lost(q.shard, q.node, r.client.now())
	case worthAnotherTry(pe.Code):
	default:
		r.settle(q, &ebbv1.Answer{Error: pe.Wire()})
	}
}

func (r *askBatch) settle(q *pendingQuestion, a *ebbv1.Answer) {
	r.mu.Lock()
	r.answers[q.index] = a
	r.mu.Unlock()
}

// giveUp makes the last error of each open question its answer.
func (r *askBatch) giveUp(ctx context.Context, open []*pendingQuestion, tries int) error {
	for _, q := range open {
		if q.err == nil {
			q.err = endOf(ctx, r.client)
		}
		r.answers[q.index] = &ebbv1.Answer{Error: wireOf(q.err)}
	}
	q := open[0]
	err := q.err
	if ended := endOf(ctx, r.client); ended != nil && !errors.Is(err, ended) {
		err = &contextEnded{err: err, end: ended}
	}
	return r.client.fail(attempt{
		op: "ask", key: keyOf(q.question), shard: q.shard, node: q.node, tries: tries, start: r.start,
	}, err)
}

// wireOf returns the coded error of err, with the whole text of err.
func wireOf(err error) *ebbv1.Error {
	w := coded(err).Wire()
	w.Message = causeText(err)
	return w
}

// contextEnded is the error of an operation whose context ended: err is the error of the last try, end why the context
// ended.
type contextEnded struct{ err, end error }

func (o *contextEnded) Error() string   { return o.err.Error() }
func (o *contextEnded) Unwrap() []error { return []error{o.err, o.end} }

func endOf(ctx context.Context, c *Client) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	return context.Cause(ctx)
}

func keyOf(q *ebbv1.Question) string {
	if keys := proto.QuestionKeys(q); len(keys) == 1 {
		return string(keys[0])
	}
	return ""
}

func (c *Client) askOne(ctx context.Context, op, key string, q *ebbv1.Question, opts []AskOption) (*ebbv1.Answer, error) {
	start := c.now()
	answers, err := c.Ask(ctx, []*ebbv1.Question{q}, opts...)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.Op = op
		}
		return nil, err
	}
	if e := proto.FromWire(answers[0].GetError()); e != nil {
		return nil, c.fail(attempt{op: op, key: key, shard: e.Shard, start: start}, e)
	}
	return answers[0], nil
}
