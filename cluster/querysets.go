package cluster

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// similarDefault is how many similar sets are listed by default.
const similarDefault = 10

func (x *queryExecution) overlap(o *ebbv1.PlanOverlap) (*queryStage, *proto.Error) {
	if len(o.GetOf()) > 0 {
		return x.overlapOf(o.GetOf(), func(a *ebbv1.Answer) *ebbv1.Answer {
			for at, set := range a.GetOverlap().GetSets() {
				set.Of = query.ExpressionText(o.GetOf()[at])
			}
			return a
		})
	}
	a, err := x.about(o.GetSets()...)
	if err != nil {
		return nil, err
	}
	if len(a.keys) < len(o.GetSets()) {
		return nil, proto.ErrBadQuery.Errorf("a set is named twice, and would be compared with itself")
	}
	return ask("what sets have in common", &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{
		Keys: a.keys, AsOfUs: x.plan.GetAsOfUs(), Confidence: x.plan.GetConfidence(),
	}}}, nil)
}

// overlapOf asks for the overlap of sets that are made of others. answered converts the answer.
func (x *queryExecution) overlapOf(
	of []*ebbv1.PlanExpression, answered func(*ebbv1.Answer) *ebbv1.Answer,
) (*queryStage, *proto.Error) {
	const step = "sets made of others"
	return x.resolvedAs(step, ebbv1.Kind_KIND_SET, termsOf(nil, of...),
		func(namespace string, f found, c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
			q := &ebbv1.OverlapQuestion{AsOfUs: x.plan.GetAsOfUs(), Confidence: x.plan.GetConfidence()}
			for _, e := range of {
				expr, err := f.expr(e)
				if err != nil {
					return nil, nil, err
				}
				if expr == nil {
					expr = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{}}}
				}
				q.Of = append(q.Of, expr)
			}
			if len(proto.OverlapKeys(q)) == 0 { // all are empty
				return x.nothing(f, namespace, q, of, c, answered)
			}
			question := &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Overlap{Overlap: q}}
			e, err := askAnd(step, question, nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
				return nil, answered(a), nil
			})
			return x.lookingFor(e, ebbv1.Kind_KIND_SET, namespace, termsOf(nil, of...)), nil, err
		})
}

// nothing answers for sets that are empty whatever the keys of their expressions hold. It still asks for these keys, so
// that keys of another kind are refused and missing ones are named.
func (x *queryExecution) nothing(
	f found, namespace string, q *ebbv1.OverlapQuestion, of []*ebbv1.PlanExpression, c *ebbv1.Coverage,
	answered func(*ebbv1.Answer) *ebbv1.Answer,
) (*queryStage, *ebbv1.Answer, *proto.Error) {
	seen := &ebbv1.OverlapQuestion{AsOfUs: x.plan.GetAsOfUs()}
	for _, e := range of {
		named := &ebbv1.BitmapExprs{}
		for _, t := range termsOf(nil, e) {
			named.Of = append(named.Of, keyExprs(f.keys(t))...)
		}
		seen.Of = append(seen.Of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: named}})
	}
	if len(proto.OverlapKeys(seen)) == 0 {
		return nil, answered(nothingInCommon(q, nil, c)), nil
	}
	question := &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Overlap{Overlap: seen}}
	e, err := askAnd("keys of empty sets", question, nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return nil, answered(nothingInCommon(q, a.GetOverlap(), a.GetCoverage())), nil
	})
	return e, nil, err
}

// nothingInCommon returns the answer about empty sets, whose keys exist or not as seen says.
func nothingInCommon(q *ebbv1.OverlapQuestion, seen *ebbv1.Overlap, c *ebbv1.Coverage) *ebbv1.Answer {
	zero := func() *ebbv1.Estimate { return &ebbv1.Estimate{Confidence: 1} }
	out := &ebbv1.Overlap{
		Union: zero(), Intersection: zero(), Difference: zero(), Jaccard: zero(),
		AsOfUs:     cmp.Or(seen.GetAsOfUs(), c.GetAsOfMaxUs()),
		Confidence: cmp.Or(q.GetConfidence(), proto.DefaultConfidence),
	}
	for at := range q.GetOf() {
		set := &ebbv1.SizedSet{Size: zero()}
		if sets := seen.GetSets(); at < len(sets) {
			set.Found = sets[at].GetFound()
		}
		out.Sets = append(out.Sets, set)
	}
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Overlap{Overlap: out}}
}

// countThings estimates the size of a set that is made of others.
func (x *queryExecution) countThings(of *ebbv1.PlanExpression) (*queryStage, *proto.Error) {
	e, err := x.overlapOf([]*ebbv1.PlanExpression{of}, func(a *ebbv1.Answer) *ebbv1.Answer {
		o := a.GetOverlap()
		set := o.GetSets()[0]
		out := &ebbv1.Summary{
			Found: set.GetFound(), Kind: ebbv1.Kind_KIND_SET, Total: set.GetSize(),
			AsOfUs: o.GetAsOfUs(), Confidence: o.GetConfidence(),
		}
		return &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Summary{Summary: out}}
	})
	if err != nil {
		return e, err
	}
	return x.refusingRollups(e, termsOf(nil, of)), nil
}

// countAsOf estimates the size of a set at the as-of time. Bitmaps are refused, since only their present state is
// known.
func (x *queryExecution) countAsOf(of *ebbv1.PlanExpression) (*queryStage, *proto.Error) {
	if x.onlyBitmaps(termsOf(nil, of)) {
		return nil, errBitmapsAsOf()
	}
	e, err := x.countThings(of)
	if err != nil {
		return nil, err
	}
	return followed(e, func(a *ebbv1.Answer, bad *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if bad == nil || bad.Code != ebbv1.Code_CODE_WRONG_KIND {
			return nil, a, bad
		}
		ids, err := x.idsNow(of)
		if err != nil {
			return nil, a, bad
		}
		return followed(ids, func(b *ebbv1.Answer, worse *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if worse == nil && b.GetSummary().GetFound() {
				return nil, nil, errBitmapsAsOf()
			}
			return nil, a, bad // the keys are neither sets nor bitmaps
		}), nil, nil
	}), nil
}

// idsAsTotal returns the number of ids of a bitmap expression, as a total.
func (x *queryExecution) idsAsTotal(of *ebbv1.PlanExpression) (*queryStage, *proto.Error) {
	if x.plan.GetAsOfUs() != 0 {
		return nil, errBitmapsAsOf()
	}
	return x.idsNow(of)
}

// idsNow is idsAsTotal without the check of the as-of time.
func (x *queryExecution) idsNow(of *ebbv1.PlanExpression) (*queryStage, *proto.Error) {
	e, err := x.countIDs(of)
	if err != nil {
		return nil, err
	}
	return followed(e, func(a *ebbv1.Answer, bad *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if bad != nil {
			return nil, nil, bad
		}
		n := float64(a.GetBitmap().GetCount())
		out := &ebbv1.Summary{
			Found: !namesNothing(of, x, a), Kind: ebbv1.Kind_KIND_BITMAP, AsOfUs: a.GetBitmap().GetAsOfUs(),
			Confidence: cmp.Or(x.plan.GetConfidence(), proto.DefaultConfidence),
			Total:      &ebbv1.Estimate{Value: n, Low: n, High: n, Confidence: 1},
		}
		return nil, &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Summary{Summary: out}}, nil
	}), nil
}

// onlyBitmaps reports whether the namespace of terms can hold only bitmaps.
func (x *queryExecution) onlyBitmaps(terms []*ebbv1.PlanTerm) bool {
	a, err := x.about(terms...)
	return err == nil && proto.BySlice(x.table.Namespace(a.namespace))
}

// unionOf returns the union of terms.
func unionOf(terms []*ebbv1.PlanTerm) *ebbv1.PlanExpression {
	of := &ebbv1.PlanOperation{Operator: ebbv1.PlanOperator_PLAN_OPERATOR_UNION}
	for _, t := range terms {
		of.Operands = append(of.Operands, &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Term{Term: t}})
	}
	return &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Operation{Operation: of}}
}

// orUnionOfBitmaps counts the ids of several bitmaps if a stage finds that the keys are not summaries that merge. For
// periods that are rolled up it also does so if the stage finds no key, or a bitmap: a summary of the key alone lacks
// the ids of shorter periods.
func (x *queryExecution) orUnionOfBitmaps(e *queryStage, terms []*ebbv1.PlanTerm) *queryStage {
	periods := slices.ContainsFunc(terms, x.isRolledUp)
	past := x.plan.GetAsOfUs() != 0
	single := !periods && len(terms) == 1 && terms[0].GetKey() != nil
	return followed(e, func(a *ebbv1.Answer, bad *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
		s := a.GetSummary()
		if past && bad == nil && s.GetFound() && s.GetKind() == ebbv1.Kind_KIND_BITMAP {
			return nil, nil, errBitmapsAsOf()
		}
		short := periods && bad == nil && a.GetError() == nil &&
			(!s.GetFound() || s.GetKind() == ebbv1.Kind_KIND_BITMAP)
		if single || !short && (bad == nil || bad.Code != ebbv1.Code_CODE_WRONG_KIND) {
			return nil, a, bad
		}
		other, err := x.idsNow(unionOf(terms))
		if err != nil {
			return nil, a, bad
		}
		return followed(other, func(b *ebbv1.Answer, worse *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
			switch {
			case worse != nil:
				return nil, a, bad
			case past && b.GetSummary().GetFound():
				return nil, nil, errBitmapsAsOf()
			case past:
				return nil, a, bad
			}
			return nil, b, nil
		}), nil, nil
	})
}

// isRolledUp reports whether a term is a period, or a range of periods, that its namespace rolls up. Such a period may
// have ids in bitmaps without a key of its own.
func (x *queryExecution) isRolledUp(t *ebbv1.PlanTerm) bool {
	ns := x.table.Namespace(cmp.Or(t.GetNamespace(), x.plan.GetNamespace(), proto.DefaultNamespace))
	key := t.GetKey()
	if t.GetRange() != nil {
		key = query.Keys(t.GetRange())[0] // all have the same length
	}
	_, _, ok := rollsUp(ns, key)
	return ok
}

// refusingRollups refuses to compare periods that are rolled up, as stored bitmaps are refused: even without keys of
// their own, they may have ids.
func (x *queryExecution) refusingRollups(e *queryStage, terms []*ebbv1.PlanTerm) *queryStage {
	rolled := map[string]bool{}
	for _, t := range terms {
		if !x.isRolledUp(t) {
			continue
		}
		for _, key := range (found{}).keys(t) {
			rolled[string(key)] = true
		}
	}
	if len(rolled) == 0 {
		return e
	}
	return followed(e, func(a *ebbv1.Answer, bad *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
		keys := slices.DeleteFunc(slices.Clone(a.GetCoverage().GetMissingKeys()), func(key []byte) bool {
			return !rolled[string(key)]
		})
		if bad != nil || len(keys) == 0 {
			return nil, a, bad
		}
		about, err := x.about(terms...)
		if err != nil {
			return nil, nil, err
		}
		q := bitmapQuestion(about.namespace, union(keyExprs(keys)))
		next := &queryStage{step: "periods that are rolled up", questions: []*ebbv1.Question{q}}
		next.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if answers[0].GetBitmap().GetCount() == 0 {
				return nil, a, nil
			}
			name := query.Quote(keys[0])
			return nil, nil, proto.ErrWrongKind.Errorf("key %s is a bitmap, and only sets are compared", name).
				WithHint("count(a & b) is how many ids two bitmaps share, count(a | b) how many either has")
		}
		return next, nil, nil
	})
}

// followed returns a stage after whose last step end is called with the result.
func followed(e *queryStage, end func(*ebbv1.Answer, *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error)) *queryStage {
	out, fold := *e, e.fold
	out.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		next, answer, bad := fold(answers)
		if next != nil {
			return followed(next, end), nil, nil
		}
		return end(answer, bad)
	}
	return &out
}

// sizeOf asks for the size of an expression of sets or of bitmaps: only the shards know which. It builds the stage
// first and, if the keys are of another kind, or none exists, then the stage second.
func (x *queryExecution) sizeOf(
	of *ebbv1.PlanExpression, first, second func(*ebbv1.PlanExpression) (*queryStage, *proto.Error),
) (*queryStage, *proto.Error) {
	e, err := first(of)
	if err != nil {
		return nil, err
	}
	out := followed(e, func(a *ebbv1.Answer, bad *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
		wrong := bad != nil && bad.Code == ebbv1.Code_CODE_WRONG_KIND
		if bad != nil && !wrong || bad == nil && !namesNothing(of, x, a) {
			return nil, a, bad
		}
		other, err := second(of)
		if err != nil {
			return nil, a, bad // the kind does not matter if no key exists
		}
		return followed(other, func(b *ebbv1.Answer, worse *proto.Error) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if worse != nil || !wrong && namesNothing(of, x, b) {
				return nil, a, bad
			}
			return nil, b, nil
		}), nil, nil
	})
	out.then, out.thenMost = "the same of another kind, if the keys are of that", 2
	return out, nil
}

// namesNothing reports whether no key exists that an expression names or that its patterns match.
func namesNothing(of *ebbv1.PlanExpression, x *queryExecution, a *ebbv1.Answer) bool {
	gone := map[string]bool{}
	for _, key := range a.GetCoverage().GetMissingKeys() {
		gone[string(key)] = true
	}
	terms := termsOf(nil, of)
	return len(missingTerms(terms, gone, x.unmatched)) == len(distinctTerms(terms))
}

// distinctTerms returns the text of terms, without repetitions.
func distinctTerms(terms []*ebbv1.PlanTerm) [][]byte {
	var texts [][]byte
	for _, t := range terms {
		if t.GetKey() != nil {
			texts = append(texts, t.GetKey())
		} else {
			texts = append(texts, []byte(query.TermText(t)))
		}
	}
	return distinct(texts)
}

func (x *queryExecution) graphQuestion(a about, q *ebbv1.GraphQuestion) *ebbv1.Question {
	q.Keys, q.Patterns, q.AsOfUs, q.Confidence = a.keys, a.patterns, x.plan.GetAsOfUs(), x.plan.GetConfidence()
	return &ebbv1.Question{Namespace: a.namespace, Ask: &ebbv1.Question_Graph{Graph: q}}
}

func (x *queryExecution) graph(g *ebbv1.PlanGraph) (*queryStage, *proto.Error) {
	a, err := x.about(g.GetSets()...)
	return ask("each set compared with each", x.graphQuestion(a, &ebbv1.GraphQuestion{Links: g.GetLinks(), MinJaccard: g.GetMinJaccard()}), err)
}

// similar asks for a graph, and keeps one of its sets with the links of that set.
func (x *queryExecution) similar(s *ebbv1.PlanSimilar) (*queryStage, *proto.Error) {
	if s.GetOf() != nil {
		return x.similarTo(s)
	}
	key := s.GetTo().GetKey()
	among := s.GetAmong()
	if len(among) == 0 {
		directory := key[:bytes.LastIndexByte(key, '/')+1]
		among = []*ebbv1.PlanTerm{{Namespace: s.GetTo().GetNamespace(), Of: &ebbv1.PlanTerm_Pattern{Pattern: append(literally(directory), '*')}}}
	}
	a, err := x.about(append([]*ebbv1.PlanTerm{s.GetTo()}, among...)...)
	q := x.graphQuestion(a, &ebbv1.GraphQuestion{Links: cmp.Or(s.GetTop(), similarDefault)})
	return askAnd("the set compared with others", q, err, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return nil, &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Graph{Graph: neighbours(a.GetGraph(), key)}}, nil
	})
}

// similarTo compares a set that is made of others with each of some sets.
func (x *queryExecution) similarTo(s *ebbv1.PlanSimilar) (*queryStage, *proto.Error) {
	const step = "a set made of others compared with each"
	terms := append(termsOf(nil, s.GetOf()), s.GetAmong()...)
	return x.resolvedAs(step, ebbv1.Kind_KIND_SET, terms,
		func(namespace string, f found, c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
			of, err := f.expr(s.GetOf())
			if err != nil {
				return nil, nil, err
			}
			var among [][]byte
			for _, t := range s.GetAmong() {
				among = append(among, f.keys(t)...)
			}
			q := &ebbv1.OverlapQuestion{
				First: true, AsOfUs: x.plan.GetAsOfUs(), Confidence: x.plan.GetConfidence(),
				Of: []*ebbv1.BitmapExpr{of},
			}
			if q.Of = append(q.Of, keyExprs(distinct(among))...); of == nil || len(q.Of) == 1 {
				return x.alike(namespace, terms, c)
			}
			question := &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Overlap{Overlap: q}}
			e, err := askAnd(step, question, nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
				top := int(cmp.Or(s.GetTop(), similarDefault))
				g := similarGraph(a.GetOverlap(), query.ExpressionText(s.GetOf()), top)
				return nil, &ebbv1.Answer{Coverage: a.GetCoverage(), Value: &ebbv1.Answer_Graph{Graph: g}}, nil
			})
			return x.lookingFor(e, ebbv1.Kind_KIND_SET, namespace, terms), nil, err
		})
}

// alike answers if the set is empty whatever the keys of its expression hold, or if there are no sets to compare: no
// set is similar. It still asks whether the named keys exist.
func (x *queryExecution) alike(
	namespace string, terms []*ebbv1.PlanTerm, c *ebbv1.Coverage,
) (*queryStage, *ebbv1.Answer, *proto.Error) {
	none := func(c *ebbv1.Coverage) *ebbv1.Answer {
		empty := &ebbv1.Graph{AsOfUs: c.GetAsOfMaxUs()}
		return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Graph{Graph: empty}}
	}
	a, err := x.about(terms...)
	if err != nil || len(a.keys) == 0 {
		return nil, none(c), err
	}
	q := x.lookFor(ebbv1.Kind_KIND_SET, namespace, a.keys)
	e, err := askAnd("keys of empty sets", q, nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return nil, none(a.GetCoverage()), nil
	})
	return e, nil, err
}

// similarGraph returns a graph of the first set of an overlap and the sets that are most similar to it.
func similarGraph(o *ebbv1.Overlap, text string, n int) *ebbv1.Graph {
	order := make([]int, len(o.GetSimilar()))
	for i := range order {
		order[i] = i
	}
	similar := func(i int) float64 { return o.GetSimilar()[i].GetValue() }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(similar(b), similar(a)) })
	self := &ebbv1.GraphNode{Set: o.GetSets()[0]}
	self.Set.Of = text
	g := &ebbv1.Graph{AsOfUs: o.GetAsOfUs(), Confidence: o.GetConfidence(), Nodes: []*ebbv1.GraphNode{self}}
	for _, i := range order[:min(n, len(order))] {
		if e := o.GetSimilar()[i]; e.GetValue() > 0 || e.GetStdError() >= 1 { // an error of 1: nothing is known
			self.Links = append(self.Links, &ebbv1.GraphLink{To: uint32(len(g.Nodes)), Jaccard: o.GetSimilar()[i]})
			g.Nodes = append(g.Nodes, &ebbv1.GraphNode{Set: o.GetSets()[i+1]})
		}
	}
	return g
}

// neighbours returns the part of a graph that consists of a set and its links; empty if the set is not in the graph.
func neighbours(g *ebbv1.Graph, key []byte) *ebbv1.Graph {
	out := &ebbv1.Graph{AsOfUs: g.GetAsOfUs(), Confidence: g.GetConfidence()}
	at := slices.IndexFunc(g.GetNodes(), func(n *ebbv1.GraphNode) bool { return bytes.Equal(n.GetSet().GetKey(), key) })
	if at < 0 {
		return out
	}
	self := &ebbv1.GraphNode{Set: g.GetNodes()[at].GetSet()}
	out.Nodes = append(out.Nodes, self)
	for _, link := range g.GetNodes()[at].GetLinks() {
		self.Links = append(self.Links, &ebbv1.GraphLink{To: uint32(len(out.Nodes)), Jaccard: link.GetJaccard()})
		out.Nodes = append(out.Nodes, &ebbv1.GraphNode{Set: g.GetNodes()[link.GetTo()].GetSet()})
	}
	return out
}
