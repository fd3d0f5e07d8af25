package cluster

import (
	"cmp"
	"context"
	"math"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// Queries answers questions in the query language: it translates a query into questions for shards, and merges their
// answers.
type Queries struct {
	coordinator *Coordinator
	keys        *Keys
}

// NewQueries returns a Queries that asks and writes through k.
func NewQueries(k *Keys) *Queries { return &Queries{coordinator: k.coordinator, keys: k} }

// Query answers a query, or explains how it would be executed. It asks nothing before the whole query is known to be
// valid and within its limits.
func (q *Queries) Query(ctx context.Context, req *ebbv1.QueryRequest) (*ebbv1.QueryResponse, error) {
	plan, err := Understood(req)
	if err != nil {
		return nil, err
	}
	table, err := q.coordinator.confirmed(ctx, plan.GetNamespace())
	if err != nil {
		return nil, err
	}
	if table.Shards() == 0 {
		return nil, errStarting()
	}
	resp := &ebbv1.QueryResponse{Plan: plan, Text: query.Text(plan)}
	x := &queryExecution{table: table, plan: plan, unmatched: map[string]bool{}}
	if req.GetStrict() {
		if err := checkStrict(table); err != nil {
			return nil, err
		}
	}
	e, bad := x.stage()
	if req.GetExplain() {
		resp.Explanation = x.explain(e, bad)
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
	var missing [][]byte
	if plan.GetStore() != nil && table.Version() >= proto.VersionMissingKeys {
		if missing, err = q.missingFrom(ctx, plan, req.GetStrict()); err != nil {
			return nil, err
		}
	}
	ctx, _ = budget.Stage(ctx) // the answers of its stages are not part of the response
	if resp.Answer, err = q.run(ctx, plan, req.GetSeen(), e); err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		resp.Answer.Coverage.MissingKeys = missing
	}
	if err := x.nameMissing(resp.Answer, req.GetStrict()); err != nil {
		return nil, err
	}
	if size := pb.Size(resp); size > proto.MessageBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("answer of %d bytes: the limit is %d", size, proto.MessageBytesMax).WithHint("ask for less, or for fewer keys at once")
	}
	return resp, nil
}

// missingFrom returns which bitmaps do not exist among those that a new bitmap is to be made of. If strict is set, a
// missing bitmap is an error.
func (q *Queries) missingFrom(ctx context.Context, plan *ebbv1.Plan, strict bool) ([][]byte, error) {
	seen := pb.CloneOf(plan)
	seen.Ask = &ebbv1.Plan_Ids{Ids: &ebbv1.PlanIds{Of: plan.GetStore().GetOf(), Limit: 1}}
	resp, err := q.Query(ctx, &ebbv1.QueryRequest{Plan: seen, Strict: strict})
	if err != nil && !strict && proto.AsError(err).Code == ebbv1.Code_CODE_WRONG_KIND {
		return nil, nil // the store itself returns the error
	}
	return resp.GetAnswer().GetCoverage().GetMissingKeys(), err
}

// Understood returns the checked plan of a request. If the plan names no namespace, it gets the one that the request
// names.
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

// run executes stages until there is an answer.
func (q *Queries) run(
	ctx context.Context, plan *ebbv1.Plan, seen []*ebbv1.SeenClock, e *queryStage,
) (*ebbv1.Answer, error) {
	for {
		if e.store != nil {
			return q.store(ctx, e.store)
		}
		resp := &ebbv1.AskResponse{}
		if len(e.questions) > 0 {
			var err error
			resp, err = q.coordinator.ask(ctx, &ebbv1.AskRequest{
				Questions: e.questions, Consistency: plan.GetConsistency(), MaxStalenessUs: plan.GetMaxStalenessUs(), AllowPartial: plan.GetAllowPartial() && !e.whole,
				Seen: seen,
			}, math.MaxInt)
			if err != nil {
				return nil, err
			}
		}
		next, answer, bad := e.fold(resp.GetAnswers())
		switch {
		case bad != nil:
			return nil, bad
		case next == nil:
			return answer, nil
		}
		e = next
	}
}

// queryStage is questions that are asked at once, and a function that makes the answer, or the next stage, of their
// answers.
type queryStage struct {
	step      string // what is done with the answers, in a few words
	questions []*ebbv1.Question
	whole     bool                      // no partial answers: without one of the shards the result would be wrong
	store     *ebbv1.StoreBitmapRequest // instead of questions
	then      string                    // what may have to be asked after this stage
	thenMost  int                       // how many questions that may be
	fold      func([]*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error)
}

// ask is a stage of one question whose answer is the result.
func ask(step string, q *ebbv1.Question, err *proto.Error) (*queryStage, *proto.Error) {
	return askAnd(step, q, err, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) { return nil, a, nil })
}

// askAnd is a stage of one question, whose answer is passed to fold unless it is an error.
func askAnd(step string, q *ebbv1.Question, err *proto.Error, fold func(*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error)) (*queryStage, *proto.Error) {
	return &queryStage{step: step, questions: []*ebbv1.Question{q}, fold: func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
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

// queryExecution builds the stages of a plan.
type queryExecution struct {
	table *Table
	plan  *ebbv1.Plan

	unmatched map[string]bool // patterns that have matched no key
	expanded  int             // how many periods an explanation has expanded
}

// nameMissing puts the terms of the query that mean no existing key into the coverage of its answer. A strict answer
// with such terms is refused.
func (x *queryExecution) nameMissing(a *ebbv1.Answer, strict bool) *proto.Error {
	terms := planTerms(x.plan)
	if matchedNone(a) {
		for _, t := range terms {
			if _, resolved := x.unmatched[string(t.GetPattern())]; !resolved {
				x.unmatched[string(t.GetPattern())] = true
			}
		}
	}
	if a.Coverage == nil {
		a.Coverage = &ebbv1.Coverage{}
	}
	gone := map[string]bool{}
	for _, key := range a.Coverage.GetMissingKeys() {
		gone[string(key)] = true
	}
	setMissing(a.Coverage, x.withUniverse(missingTerms(terms, gone, x.unmatched), terms, gone), missingNamedMax)
	if strict {
		return lacking(a.Coverage)
	}
	return nil
}

// withUniverse adds the universe of the namespace to the missing keys, if the query needed it and it does not exist.
func (x *queryExecution) withUniverse(missing [][]byte, terms []*ebbv1.PlanTerm, gone map[string]bool) [][]byte {
	namespace := x.plan.GetNamespace()
	if len(terms) > 0 {
		namespace = cmp.Or(terms[0].GetNamespace(), namespace)
	}
	universe := x.table.Namespace(cmp.Or(namespace, proto.DefaultNamespace)).GetUniverse()
	if len(universe) > 0 && gone[string(universe)] {
		missing = distinct(append(missing, universe))
	}
	return missing
}

// matchedNone reports whether an answer about patterns says that they match no key.
func matchedNone(a *ebbv1.Answer) bool {
	switch v := a.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		return v.Distribution.GetMatched() == 0
	case *ebbv1.Answer_Summary:
		return v.Summary.GetMatched() == 0
	case *ebbv1.Answer_Graph:
		return len(v.Graph.GetNodes()) == 0
	}
	return false
}

// planTerms returns the keys, patterns and ranges that a plan asks about. A plan that lists keys has none: an empty
// list is not an error.
func planTerms(plan *ebbv1.Plan) []*ebbv1.PlanTerm {
	switch ask := plan.GetAsk().(type) {
	case *ebbv1.Plan_Top:
		return ask.Top.GetOf()
	case *ebbv1.Plan_Distribution:
		return ask.Distribution.GetOf()
	case *ebbv1.Plan_Summary:
		return termsOf(ask.Summary.GetOf(), ask.Summary.GetSet())
	case *ebbv1.Plan_Trend:
		return ask.Trend.GetOf()
	case *ebbv1.Plan_Surprise:
		return slices.Concat(ask.Surprise.GetOf(), ask.Surprise.GetAgainst())
	case *ebbv1.Plan_Overlap:
		return termsOf(ask.Overlap.GetSets(), ask.Overlap.GetOf()...)
	case *ebbv1.Plan_Graph:
		return ask.Graph.GetSets()
	case *ebbv1.Plan_Similar:
		terms := termsOf(slices.Clone(ask.Similar.GetAmong()), ask.Similar.GetOf())
		if to := ask.Similar.GetTo(); to != nil {
			terms = append(terms, to)
		}
		return terms
	case *ebbv1.Plan_Describe:
		return []*ebbv1.PlanTerm{ask.Describe.GetKey()}
	case *ebbv1.Plan_Match:
		return []*ebbv1.PlanTerm{ask.Match.GetPhrases()}
	}
	return bitmapTerms(plan)
}

// bitmapTerms is planTerms for questions about bitmaps.
func bitmapTerms(plan *ebbv1.Plan) []*ebbv1.PlanTerm {
	switch ask := plan.GetAsk().(type) {
	case *ebbv1.Plan_Count:
		return termsOf(slices.Clone(ask.Count.GetBy()), ask.Count.GetOf())
	case *ebbv1.Plan_Ids:
		return termsOf(nil, ask.Ids.GetOf())
	case *ebbv1.Plan_Cohort:
		return termsOf([]*ebbv1.PlanTerm{ask.Cohort.GetOf()}, ask.Cohort.GetWithin())
	case *ebbv1.Plan_Store:
		return termsOf(nil, ask.Store.GetOf())
	}
	return nil
}

// about is the keys and patterns of one namespace that a query is about.
type about struct {
	namespace      string
	keys, patterns [][]byte
}

// about resolves terms. A key that is named several times counts once.
func (x *queryExecution) about(terms ...*ebbv1.PlanTerm) (about, *proto.Error) {
	var out about
	for at, t := range terms {
		ns := cmp.Or(t.GetNamespace(), x.plan.GetNamespace(), proto.DefaultNamespace)
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

// distinct returns names without repetitions.
func distinct(names [][]byte) [][]byte {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(name []byte) bool {
		twice := seen[string(name)]
		seen[string(name)] = true
		return twice
	})
}

// stage builds and checks the first stage of a plan.
func (x *queryExecution) stage() (*queryStage, *proto.Error) {
	e, err := x.build()
	if err != nil {
		return e, err
	}
	for _, question := range e.questions {
		if err := checkQuestion(x.table, question); err != nil {
			return e, err
		}
	}
	return e, nil
}

// build builds the first stage without the check.
func (x *queryExecution) build() (*queryStage, *proto.Error) {
	e, err := x.buildByKind()
	switch x.plan.GetAsk().(type) {
	case *ebbv1.Plan_Overlap, *ebbv1.Plan_Graph, *ebbv1.Plan_Similar:
		if err == nil {
			e = x.refusingRollups(e, planTerms(x.plan))
		}
	}
	return e, err
}

func (x *queryExecution) buildByKind() (*queryStage, *proto.Error) {
	switch ask := x.plan.GetAsk().(type) {
	case *ebbv1.Plan_Top:
		return x.top(ask.Top)
	case *ebbv1.Plan_Keys:
		return x.keys(ask.Keys)
	case *ebbv1.Plan_Distribution:
		return x.probabilities(ask.Distribution)
	case *ebbv1.Plan_Summary:
		return x.summary(ask.Summary)
	case *ebbv1.Plan_Trend:
		return x.trend(ask.Trend)
	case *ebbv1.Plan_Surprise:
		return x.surprise(ask.Surprise)
	case *ebbv1.Plan_Overlap:
		return x.overlap(ask.Overlap)
	case *ebbv1.Plan_Graph:
		return x.graph(ask.Graph)
	case *ebbv1.Plan_Similar:
		return x.similar(ask.Similar)
	case *ebbv1.Plan_Describe:
		return x.describe(ask.Describe)
	case *ebbv1.Plan_Match:
		return x.match(ask.Match)
	}
	return x.bitmap()
}
