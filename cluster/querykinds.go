package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

func (x *queryExecution) distributionQuestion(a about, q *ebbv1.DistributionQuestion) *ebbv1.Question {
	q.Keys, q.Patterns, q.AsOfUs, q.Confidence = a.keys, a.patterns, x.plan.GetAsOfUs(), x.plan.GetConfidence()
	return &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Distribution{Distribution: q}}
}

func (x *queryExecution) summaryQuestion(a about, q *ebbv1.SummaryQuestion) *ebbv1.Question {
	q.Keys, q.Patterns, q.AsOfUs, q.Confidence = a.keys, a.patterns, x.plan.GetAsOfUs(), x.plan.GetConfidence()
	return &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Summary{Summary: q}}
}

// either asks about distributions and, if the keys are not distributions, about another kind: only the shards know the
// kind of a key.
func (x *queryExecution) either(step string, a about, d *ebbv1.DistributionQuestion, s *ebbv1.SummaryQuestion, of func(*ebbv1.Answer) *ebbv1.Answer) *queryStage {
	e := &queryStage{step: step, questions: []*ebbv1.Question{x.distributionQuestion(a, d)}, then: "the same of another kind, if it is no distribution", thenMost: 1}
	e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		first := answers[0]
		wrong := first.GetError().GetCode() == ebbv1.Code_CODE_WRONG_KIND
		switch {
		case first.GetError() != nil && !wrong:
			return nil, nil, failed(answers)
		case !wrong && (first.GetDistribution().GetFound() || len(a.patterns) == 0):
			return nil, of(first), nil
		}
		next, _ := askAnd(step, x.summaryQuestion(a, s), nil, func(second *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if !wrong && !second.GetSummary().GetFound() {
				return nil, of(first), nil
			}
			return nil, second, nil
		})
		return next, nil, nil
	}
	return e
}

func (x *queryExecution) top(t *ebbv1.PlanTop) (*queryStage, *proto.Error) {
	a, err := x.about(t.GetOf()...)
	if err != nil {
		return nil, err
	}
	if h := t.GetTrend(); h != nil {
		if err := x.halfLives(a.namespace, h); err != nil {
			return nil, err
		}
		return x.trendOf(a, &ebbv1.TrendQuestion{Top: t.GetN()})
	}
	step := fmt.Sprintf("the %d bins counted most", t.GetN())
	return x.either(step, a, &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: t.GetN()}}, &ebbv1.SummaryQuestion{Top: t.GetN()},
		func(a *ebbv1.Answer) *ebbv1.Answer { return a }), nil
}

// halfLives refuses a trend whose half-lives are not those of the namespace.
func (x *queryExecution) halfLives(namespace string, h *ebbv1.PlanHalfLives) *proto.Error {
	ns := x.table.Namespace(namespace)
	own, second := ns.GetHalfLifeUs(), ns.GetSlowHalfLifeUs()
	fast, slow := h.GetFastUs(), h.GetSlowUs()
	if ns == nil || second == 0 || min(own, second) == fast && max(own, second) == slow {
		return nil // the check of the question returns the error
	}
	return proto.ErrBadQuery.Errorf("namespace %s has half-lives of %v and %v, and the trend asks for %v and %v",
		namespace, micros(min(own, second)), micros(max(own, second)), micros(fast), micros(slow)).
		WithHint(fmt.Sprintf("by trend(%s, %s)", seconds(min(own, second)), seconds(max(own, second))))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// seconds formats a duration as the query language does.
func seconds(us int64) string {
	if us%1e6 == 0 {
		return strconv.FormatInt(us/1e6, 10) + "s"
	}
	return strconv.FormatInt(us, 10) + "us"
}

func (x *queryExecution) probabilities(d *ebbv1.PlanDistribution) (*queryStage, *proto.Error) {
	a, err := x.about(d.GetOf()...)
	q := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_All{All: true}}
	step := "all bins"
	if bins := d.GetBins(); len(bins) > 0 {
		q.Select = &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: bins}}
		step = fmt.Sprintf("%d bins", len(bins))
	}
	return ask(step, x.distributionQuestion(a, q), err)
}

func (x *queryExecution) summary(s *ebbv1.PlanSummary) (*queryStage, *proto.Error) {
	if s.GetSet() != nil {
		if x.onlyBitmaps(termsOf(nil, s.GetSet())) {
			return x.idsAsTotal(s.GetSet())
		}
		return x.sizeOf(s.GetSet(), x.countThings, x.idsAsTotal)
	}
	a, err := x.about(s.GetOf()...)
	if err != nil {
		return nil, err
	}
	if sizes(s) && x.onlyBitmaps(s.GetOf()) {
		return x.idsAsTotal(unionOf(s.GetOf()))
	}
	if s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_CONTAINS {
		return x.contains(s, a)
	}
	q := &ebbv1.SummaryQuestion{Bins: s.GetBins(), Quantiles: s.GetQuantiles(), WindowUs: s.GetWindowUs(), Limit: s.GetLimit()}
	q.Members = s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_MEMBERS
	if s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL {
		e := x.either("the total", a, &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: 1}}, q,
			totalOf)
		return x.orUnionOfBitmaps(e, s.GetOf()), nil
	}
	e, err := askAnd("one summary", x.summaryQuestion(a, q), nil, func(
		answer *ebbv1.Answer,
	) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return nil, answer, knows(s, a, answer.GetSummary())
	})
	if err == nil && sizes(s) {
		e = x.orUnionOfBitmaps(e, s.GetOf())
	}
	return e, err
}

// sizes reports whether a function asks for a number that bitmaps can answer: how many ids they have.
func sizes(s *ebbv1.PlanSummary) bool {
	switch s.GetFunction() {
	case ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL:
		return true
	case ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT:
		return s.GetWindowUs() == 0
	}
	return false
}

// totalOf converts the answer of a distribution to the total that other kinds answer. It is exact except for the lost
// amount.
func totalOf(a *ebbv1.Answer) *ebbv1.Answer {
	d := a.GetDistribution()
	total := &ebbv1.Estimate{Value: d.GetZ(), Low: d.GetZ(), High: d.GetZ() + d.GetLost(), Confidence: 1}
	if d.GetSigned() {
		total.Low -= d.GetLost()
	}
	return &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Summary{Summary: &ebbv1.Summary{
		Keys: d.GetKeys(), Found: d.GetFound(), Kind: ebbv1.Kind_KIND_DISTRIBUTION, AsOfUs: d.GetAsOfUs(), Confidence: d.GetConfidence(), Matched: d.GetMatched(),
		Total: total,
	}}}
}

// countsMembers lists the kinds whose total is a number of members.
var countsMembers = []ebbv1.Kind{
	ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_LINEAR, ebbv1.Kind_KIND_BLOOM,
	ebbv1.Kind_KIND_BITMAP,
}

// knows returns an error if a kind answers in another sense than the function asks.
func knows(s *ebbv1.PlanSummary, a about, w *ebbv1.Summary) *proto.Error {
	lacks := ""
	switch bloom := w.GetKind() == ebbv1.Kind_KIND_BLOOM; {
	case !w.GetFound():
	case s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT && !slices.Contains(countsMembers, w.GetKind()):
		lacks = "counts no members"
	case s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_CONTAINS && !bloom:
		lacks = "does not know what it contains"
	case s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_ESTIMATE && bloom:
		lacks = "counts nothing"
	case s.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_GET && w.GetKind() != ebbv1.Kind_KIND_STRING:
		lacks = "has no value"
	}
	if lacks == "" {
		return nil
	}
	return proto.ErrWrongKind.Errorf("%s is a %s, which %s", query.TermText(s.GetOf()[0]), proto.KindName(w.GetKind()), lacks).
		WithHint(fmt.Sprintf("total(%s) is what every kind knows", query.TermText(s.GetOf()...)))
}

func (x *queryExecution) trend(t *ebbv1.PlanTrend) (*queryStage, *proto.Error) {
	a, err := x.about(t.GetOf()...)
	if err != nil {
		return nil, err
	}
	return x.trendOf(a, &ebbv1.TrendQuestion{Top: t.GetTop(), Bins: t.GetBins()})
}

func (x *queryExecution) trendQuestion(namespace string, keys [][]byte, q *ebbv1.TrendQuestion) *ebbv1.Question {
	q.Keys, q.AsOfUs, q.Confidence = keys, x.plan.GetAsOfUs(), x.plan.GetConfidence()
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Trend{Trend: q}}
}

// trendOf asks for a trend. If there are patterns, it first finds the keys that match.
func (x *queryExecution) trendOf(a about, q *ebbv1.TrendQuestion) (*queryStage, *proto.Error) {
	const step = "rates under both half-lives"
	if len(a.patterns) == 0 {
		return ask(step, x.trendQuestion(a.namespace, a.keys, q), nil)
	}
	e := x.listing(a, ebbv1.Kind_KIND_DISTRIBUTION, proto.KeysPerAskMax, func(keys [][]byte, c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if len(keys) == 0 {
			return nil, &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Trend{Trend: &ebbv1.Trend{}}}, nil
		}
		next, _ := ask(step, x.trendQuestion(a.namespace, keys, q), nil)
		return next, nil, nil
	})
	if ns := x.table.Namespace(a.namespace); ns != nil && ns.GetSlowHalfLifeUs() == 0 {
		// The check returns what is missing.
		return e, checkQuestion(x.table, x.trendQuestion(a.namespace, [][]byte{[]byte("any")}, q))
	}
	e.then, e.thenMost = step, 1
	return e, nil
}

func (x *queryExecution) surprise(s *ebbv1.PlanSurprise) (*queryStage, *proto.Error) {
	if _, err := x.about(slices.Concat(s.GetOf(), s.GetAgainst())...); err != nil { // all in one namespace
		return nil, err
	}
	of, _ := x.about(s.GetOf()...)
	against, _ := x.about(s.GetAgainst()...)
	return ask("one compared with the other", &ebbv1.Question{Namespace: of.namespace, Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
		Keys: of.keys, Patterns: of.patterns, Against: against.keys, AgainstPatterns: against.patterns, Bins: s.GetBins(), Top: s.GetTop(), AsOfUs: x.plan.GetAsOfUs(),
	}}}, nil)
}

func (x *queryExecution) match(m *ebbv1.PlanMatch) (*queryStage, *proto.Error) {
	a, err := x.about(m.GetPhrases())
	return ask("phrases in the text", &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{Key: a.keys[0], Text: m.GetText()}}}, err)
}
