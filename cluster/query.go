package cluster

import (
	"cmp"
	"context"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// Queries answers questions in the query language: it makes questions to shards of them, and an answer of what these say.
type Queries struct {
	coordinator *Coordinator
	keys        *Keys
}

// NewQueries returns a Queries that asks and writes through k.
func NewQueries(k *Keys) *Queries { return &Queries{coordinator: k.coordinator, keys: k} }

// Query answers, or says what it would do. Nothing is asked before the whole of it is known to be right and within its limits.
func (q *Queries) Query(ctx context.Context, req *ebbv1.QueryRequest) (*ebbv1.QueryResponse, error) {
	plan, err := Understood(req)
	if err != nil {
		return nil, err
	}
	table := q.coordinator.cfg.Table()
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	resp := &ebbv1.QueryResponse{Plan: plan, Text: query.Text(plan)}
	i := &inquiry{table: table, plan: plan}
	e, bad := i.errand()
	if req.GetExplain() {
		resp.Explanation = i.explain(e, bad)
		return resp, nil
	}
	if bad != nil {
		return nil, bad
	}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, askTimeout)
		defer cancel()
	}
	ctx, _ = budget.Stage(ctx) // what its stages find out is no answer
	if resp.Answer, err = q.run(ctx, plan, req.GetClocks(), e); err != nil {
		return nil, err
	}
	if size := pb.Size(resp); size > proto.MessageBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("answer of %d bytes: the limit is %d", size, proto.MessageBytesMax).WithHint("ask for less, or for fewer keys at once")
	}
	return resp, nil
}

// Understood returns the plan of a request, with the namespace that the request names if the question names none.
func Understood(req *ebbv1.QueryRequest) (*ebbv1.Plan, error) {
	plan := pb.CloneOf(req.GetPlan())
	switch {
	case plan != nil && req.GetText() != "":
		return nil, proto.ErrBadRequest.Errorf("text and plan: only one of them may be given")
	case plan != nil:
		if err := query.Check(plan); err != nil {
			return nil, err
		}
	default:
		var err error
		if plan, err = query.Parse(req.GetText()); err != nil {
			return nil, err
		}
	}
	if ns := req.GetNamespace(); ns != "" && plan.GetNamespace() == "" {
		if err := proto.CheckNamespaceName(ns); err != nil {
			return nil, err
		}
		plan.Namespace = ns
	}
	return plan, nil
}

// run goes on errands until there is an answer.
func (q *Queries) run(
	ctx context.Context, plan *ebbv1.Plan, clocks []*ebbv1.NamespaceClock, e *errand,
) (*ebbv1.Answer, error) {
	for {
		if e.store != nil {
			return q.store(ctx, e.store)
		}
		resp := &ebbv1.AskResponse{}
		if len(e.questions) > 0 {
			var err error
			resp, err = q.coordinator.Ask(ctx, &ebbv1.AskRequest{
				Questions: e.questions, Consistency: plan.GetConsistency(), MaxStalenessUs: plan.GetMaxStalenessUs(), AllowPartial: plan.GetAllowPartial() && !e.whole,
				Clocks: clocks,
			})
			if err != nil {
				return nil, err
			}
		}
		next, answer, bad := e.fold(resp.GetAnswers())
		switch {
		case bad != nil:
			return nil, bad
		case next == nil:
			if answer.GetClock() == nil {
				answer.Clock = latestClock(e.questions, resp.GetAnswers())
			}
			return answer, nil
		}
		e = next
	}
}

// latestClock is the clock of answers to questions about one namespace; nil if they are about several.
func latestClock(questions []*ebbv1.Question, answers []*ebbv1.Answer) (clock *ebbv1.EventClock) {
	for i, a := range answers {
		if questions[i].GetNamespace() != questions[0].GetNamespace() {
			return nil
		}
		clock = proto.LaterClock(clock, a.GetClock())
	}
	return clock
}

// errand is questions that are asked at once.
type errand struct {
	step      string // what is done with the answers, in a few words
	questions []*ebbv1.Question
	whole     bool                      // without one of the shards the others say something else
	store     *ebbv1.StoreBitmapRequest // instead of questions
	then      string                    // what may have to be asked when they are answered
	thenMost  int                       // how many questions that may be
	fold      func([]*ebbv1.Answer) (*errand, *ebbv1.Answer, *proto.Error)
}

// ask is the errand of one question whose answer is the answer.
func ask(step string, q *ebbv1.Question, err *proto.Error) (*errand, *proto.Error) {
	return askAnd(step, q, err, func(a *ebbv1.Answer) (*errand, *ebbv1.Answer, *proto.Error) { return nil, a, nil })
}

// askAnd is the errand of one question, whose answer is folded if it is one.
func askAnd(step string, q *ebbv1.Question, err *proto.Error, fold func(*ebbv1.Answer) (*errand, *ebbv1.Answer, *proto.Error)) (*errand, *proto.Error) {
	return &errand{step: step, questions: []*ebbv1.Question{q}, fold: func(answers []*ebbv1.Answer) (*errand, *ebbv1.Answer, *proto.Error) {
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		return fold(answers[0])
	}}, err
}

// failed returns the first error among answers.
func failed(answers []*ebbv1.Answer) *proto.Error {
	for _, a := range answers {
		if a.GetError() != nil {
			return proto.FromWire(a.GetError())
		}
	}
	return nil
}

// inquiry makes an errand of a plan.
type inquiry struct {
	table *Table
	plan  *ebbv1.Plan
}

// about is what a question is about: keys and patterns of one namespace.
type about struct {
	namespace      string
	keys, patterns [][]byte
}

// about resolves terms. Each key counts once, however often it is named.
func (i *inquiry) about(terms ...*ebbv1.PlanTerm) (about, *proto.Error) {
	var out about
	for at, t := range terms {
		ns := cmp.Or(t.GetNamespace(), i.plan.GetNamespace(), proto.DefaultNamespace)
		if at > 0 && ns != out.namespace {
			return out, proto.ErrBadQuery.Errorf("keys of two namespaces, %s and %s: those of one question are of one", out.namespace, ns).WithHint("ask about each by itself")
		}
		out.namespace = ns
		switch of := t.GetOf().(type) {
		case *ebbv1.PlanTerm_Key:
			out.keys = append(out.keys, of.Key)
		case *ebbv1.PlanTerm_Pattern:
			out.patterns = append(out.patterns, of.Pattern)
		case *ebbv1.PlanTerm_Range:
			out.keys = append(out.keys, query.Keys(of.Range)...)
		}
	}
	out.keys, out.patterns = distinct(out.keys), distinct(out.patterns)
	return out, nil
}

// distinct returns names without those that came before.
func distinct(names [][]byte) [][]byte {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(name []byte) bool {
		twice := seen[string(name)]
		seen[string(name)] = true
		return twice
	})
}

// errand makes one of whatever is asked.
func (i *inquiry) errand() (*errand, *proto.Error) {
	e, err := i.make()
	if err != nil {
		return e, err
	}
	for _, question := range e.questions {
		if err := checkQuestion(i.table, question); err != nil {
			return e, err
		}
	}
	return e, nil
}

func (i *inquiry) make() (*errand, *proto.Error) {
	switch ask := i.plan.GetAsk().(type) {
	case *ebbv1.Plan_Top:
		return i.top(ask.Top)
	case *ebbv1.Plan_Keys:
		return i.keys(ask.Keys)
	case *ebbv1.Plan_Distribution:
		return i.probabilities(ask.Distribution)
	case *ebbv1.Plan_Summary:
		return i.summary(ask.Summary)
	case *ebbv1.Plan_Trend:
		return i.trend(ask.Trend)
	case *ebbv1.Plan_Surprise:
		return i.surprise(ask.Surprise)
	case *ebbv1.Plan_Overlap:
		return i.overlap(ask.Overlap)
	case *ebbv1.Plan_Graph:
		return i.graph(ask.Graph)
	case *ebbv1.Plan_Similar:
		return i.similar(ask.Similar)
	case *ebbv1.Plan_Describe:
		return i.describe(ask.Describe)
	case *ebbv1.Plan_Match:
		return i.match(ask.Match)
	}
	return i.bitmap()
}
