package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// idsDefault is how many ids are listed by default.
const idsDefault = 100

// bitmap builds a stage for a query about bitmaps, or for count, which is also about sets.
func (x *queryExecution) bitmap() (*queryStage, *proto.Error) {
	count := x.plan.GetCount()
	if x.plan.GetAsOfUs() != 0 {
		if count == nil || len(count.GetBy()) > 0 {
			return nil, errBitmapsAsOf()
		}
		return x.countAsOf(count.GetOf())
	}
	switch ask := x.plan.GetAsk().(type) {
	case *ebbv1.Plan_Count:
		return x.counts(count)
	case *ebbv1.Plan_Ids:
		return x.ids(ask.Ids)
	case *ebbv1.Plan_Cohort:
		return x.cohort(ask.Cohort)
	}
	return x.store(x.plan.GetStore())
}

func errBitmapsAsOf() *proto.Error {
	return proto.ErrBadQuery.Errorf("bitmaps are as they are now: as of is for what is forgotten with time").
		WithHint("leave it out; a bitmap for each day (play/2011-11-01) tells what was")
}

// found holds the keys that patterns match, and the key of the namespace's universe if it has one. Named bitmaps need
// no search.
type found struct {
	matched  map[string][][]byte
	universe []byte
}

// keys returns the keys that a term means.
func (f found) keys(t *ebbv1.PlanTerm) [][]byte {
	switch of := t.GetOf().(type) {
	case *ebbv1.PlanTerm_Pattern:
		return f.matched[string(of.Pattern)]
	case *ebbv1.PlanTerm_Range:
		return query.Keys(of.Range)
	}
	return [][]byte{t.GetKey()}
}

// termsOf appends the terms of expressions to terms.
func termsOf(terms []*ebbv1.PlanTerm, exprs ...*ebbv1.PlanExpression) []*ebbv1.PlanTerm {
	for _, e := range exprs {
		if t := e.GetTerm(); t != nil {
			terms = append(terms, t)
		}
		terms = termsOf(terms, e.GetOperation().GetOperands()...)
	}
	return terms
}

// resolved first finds the bitmaps that the patterns of terms match, if there are patterns, and then continues with
// then.
func (x *queryExecution) resolved(
	step string, terms []*ebbv1.PlanTerm, then func(string, found, *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error),
) (*queryStage, *proto.Error) {
	return x.resolvedAs(step, ebbv1.Kind_KIND_BITMAP, terms, then)
}

// resolvedAs is resolved for keys of the given kind.
func (x *queryExecution) resolvedAs(
	step string, kind ebbv1.Kind, terms []*ebbv1.PlanTerm,
	then func(string, found, *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error),
) (*queryStage, *proto.Error) {
	a, err := x.about(terms...)
	if err != nil {
		return nil, err
	}
	f := found{}
	if kind == ebbv1.Kind_KIND_BITMAP {
		f.universe = x.table.Namespace(a.namespace).GetUniverse()
	}
	if len(a.patterns) == 0 {
		e, answer, err := then(a.namespace, f, nil)
		if answer != nil { // the answer for an empty set, which needs no question
			e = &queryStage{step: step, fold: func([]*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) { return nil, answer, nil }}
		}
		return e, err
	}
	e := &queryStage{step: "which " + proto.KindName(kind) + "s match", then: step, thenMost: 1, whole: true}
	for _, pattern := range a.patterns {
		q := &ebbv1.KeysQuestion{Pattern: pattern, Kind: kind, Limit: proto.KeysListMax}
		e.questions = append(e.questions, x.keysQuestion(a.namespace, q))
	}
	e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		f.matched = map[string][][]byte{}
		for at, answer := range answers {
			if n := answer.GetKeys().GetMatched(); n > proto.BitTermsMax {
				return nil, nil, proto.ErrQueryTooCostly.Errorf("the pattern %q matches %d %ss: the limit is %d",
					a.patterns[at], n, proto.KindName(kind), proto.BitTermsMax)
			}
			x.unmatched[string(a.patterns[at])] = len(answer.GetKeys().GetKeys()) == 0
			keys := [][]byte{}
			for _, info := range answer.GetKeys().GetKeys() {
				keys = append(keys, info.GetKey())
			}
			f.matched[string(a.patterns[at])] = keys
		}
		return then(a.namespace, f, answers[0].GetCoverage())
	}
	return e, nil
}

// empty returns the answer about no bitmaps at all.
func empty(c *ebbv1.Coverage) *ebbv1.Answer {
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Bitmap{Bitmap: &ebbv1.BitmapAnswer{AsOfUs: c.GetAsOfMaxUs()}}}
}

func bitmapQuestion(namespace string, expr *ebbv1.BitmapExpr) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: expr, Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}
}

// counts builds the stage of count, and of count by.
func (x *queryExecution) counts(c *ebbv1.PlanCount) (*queryStage, *proto.Error) {
	if len(c.GetBy()) > 0 {
		return x.groups(c)
	}
	return x.sizeOf(c.GetOf(), x.countIDs, x.countThings)
}

// countIDs counts the ids of an expression of bitmaps.
func (x *queryExecution) countIDs(of *ebbv1.PlanExpression) (*queryStage, *proto.Error) {
	return x.one(of, nil)
}

func (x *queryExecution) ids(p *ebbv1.PlanIds) (*queryStage, *proto.Error) {
	return x.one(p.GetOf(), &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: p.GetFrom(), Limit: cmp.Or(p.GetLimit(), idsDefault)}})
}

// one asks one question about an expression: for a page of ids or, if page is nil, for their number.
func (x *queryExecution) one(of *ebbv1.PlanExpression, page *ebbv1.BitmapQuestion_Ids) (*queryStage, *proto.Error) {
	const step = "one expression"
	return x.resolved(step, termsOf(nil, of), func(namespace string, f found, c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		expr, err := f.expr(of)
		if err != nil {
			return nil, nil, err
		}
		if expr == nil {
			return x.noBitmaps(namespace, of, c, empty)
		}
		q := bitmapQuestion(namespace, expr)
		if page != nil {
			q.GetBitmap().Select = page
		}
		e, err := ask(step, q, nil)
		return x.lookingFor(e, ebbv1.Kind_KIND_BITMAP, namespace, termsOf(nil, of)), nil, err
	})
}

// lookingFor adds to a stage the question which keys of terms exist, for keys that the stage's own questions do not
// name. Expressions leave out terms that cannot change the result, such as a in "a & atleast(2, b)".
func (x *queryExecution) lookingFor(
	e *queryStage, kind ebbv1.Kind, namespace string, terms []*ebbv1.PlanTerm,
) *queryStage {
	named := map[string]bool{}
	for _, q := range e.questions {
		for _, key := range proto.QuestionKeys(q) {
			named[string(key)] = true
		}
	}
	var keys [][]byte
	for _, t := range terms {
		if t.GetPattern() == nil {
			keys = append(keys, found{}.keys(t)...)
		}
	}
	keys = slices.DeleteFunc(distinct(keys), func(key []byte) bool { return named[string(key)] })
	if len(keys) == 0 {
		return e
	}
	out, n := *e, len(e.questions)
	out.questions = append(slices.Clone(e.questions), x.lookFor(kind, namespace, keys))
	out.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		missing := answers[n].GetCoverage().GetMissingKeys()
		next, a, bad := e.fold(answers[:n])
		if a.GetCoverage() != nil {
			a.Coverage.MissingKeys = append(a.Coverage.MissingKeys, missing...)
		}
		return next, a, bad
	}
	return &out
}

// lookFor asks whether keys exist, as sets or else as bitmaps.
func (x *queryExecution) lookFor(kind ebbv1.Kind, namespace string, keys [][]byte) *ebbv1.Question {
	whole := union(keyExprs(keys))
	if kind == ebbv1.Kind_KIND_SET {
		return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{
			Of: []*ebbv1.BitmapExpr{whole}, AsOfUs: x.plan.GetAsOfUs(),
		}}}
	}
	q := bitmapQuestion(namespace, whole)
	q.GetBitmap().Select = &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 1}}
	return q
}

// noBitmaps answers for an expression that is empty whatever its named keys hold, for example because a pattern matches
// no bitmap. It asks for these keys first, so that keys of another kind are refused and missing ones are named.
func (x *queryExecution) noBitmaps(
	namespace string, of *ebbv1.PlanExpression, c *ebbv1.Coverage, answered func(*ebbv1.Coverage) *ebbv1.Answer,
) (*queryStage, *ebbv1.Answer, *proto.Error) {
	return x.keysOfNothing(namespace, of, c, func(c *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return nil, answered(c), nil
	})
}

// keysOfNothing is noBitmaps with another continuation.
func (x *queryExecution) keysOfNothing(
	namespace string, of *ebbv1.PlanExpression, c *ebbv1.Coverage,
	then func(*ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error),
) (*queryStage, *ebbv1.Answer, *proto.Error) {
	a, err := x.about(termsOf(nil, of)...)
	if err != nil {
		return nil, nil, err
	}
	if len(a.keys) == 0 {
		return then(c)
	}
	q := x.lookFor(ebbv1.Kind_KIND_BITMAP, namespace, a.keys)
	e, err := askAnd("keys of empty bitmaps", q, nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		return then(a.GetCoverage())
	})
	return e, nil, err
}

// groups counts an expression, and its intersection with each of some bitmaps.
func (x *queryExecution) groups(c *ebbv1.PlanCount) (*queryStage, *proto.Error) {
	terms := append(termsOf(nil, c.GetOf()), c.GetBy()...)
	const step = "one expression with each bitmap"
	return x.resolved(step, terms, func(namespace string, f found, cover *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		expr, err := f.expr(c.GetOf())
		if err != nil {
			return nil, nil, err
		}
		var keys [][]byte
		for _, t := range c.GetBy() {
			keys = append(keys, f.keys(t)...)
		}
		keys = distinct(keys)
		if err := proto.CheckGroups(uint64(len(keys))); err != nil {
			return nil, nil, err
		}
		if expr == nil {
			return x.noBitmaps(namespace, c.GetOf(), cover, func(c *ebbv1.Coverage) *ebbv1.Answer {
				return groupless(0, c)
			})
		}
		if len(keys) == 0 {
			e, err := askAnd(step, bitmapQuestion(namespace, expr), nil, func(a *ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
				return nil, groupless(a.GetBitmap().GetCount(), a.GetCoverage()), nil
			})
			return x.lookingFor(e, ebbv1.Kind_KIND_BITMAP, namespace, terms), nil, err
		}
		e, err := ask(step, &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_BitmapGroups{
			BitmapGroups: &ebbv1.BitmapGroupsQuestion{Expr: expr, Keys: keys, Top: c.GetTop()},
		}}, nil)
		return x.lookingFor(e, ebbv1.Kind_KIND_BITMAP, namespace, terms), nil, err
	})
}

// groupless returns the count of a set with no bitmaps to count by.
func groupless(count uint64, c *ebbv1.Coverage) *ebbv1.Answer {
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Groups{Groups: &ebbv1.BitmapGroups{Count: count, AsOfUs: c.GetAsOfMaxUs()}}}
}

func keyExpr(key []byte) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: key}}
}

// union returns the union of sets; nil if there are none.
func union(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	switch len(of) {
	case 0:
		return nil
	case 1:
		return of[0]
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: of}}}
}

// without returns the ids of a that are in none of the others; nil if a is nil.
func without(a *ebbv1.BitmapExpr, others []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	if a == nil || len(others) == 0 {
		return a
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: &ebbv1.BitmapExprs{Of: append([]*ebbv1.BitmapExpr{a}, others...)}}}
}

func keyExprs(keys [][]byte) []*ebbv1.BitmapExpr {
	out := make([]*ebbv1.BitmapExpr, len(keys))
	for i, key := range keys {
		out[i] = keyExpr(key)
	}
	return out
}

// expr returns an expression as shards take it. It returns nil for an expression that is empty whatever the shards
// hold, such as the bitmaps of a pattern without matches. A complement is taken from the universe.
func (f found) expr(e *ebbv1.PlanExpression) (*ebbv1.BitmapExpr, *proto.Error) {
	x, err := f.formula(e)
	switch {
	case err != nil || !x.not:
		return x.set, err
	case len(f.universe) == 0:
		return nil, unbounded(e)
	case x.set == nil:
		return keyExpr(f.universe), nil
	}
	return without(keyExpr(f.universe), []*ebbv1.BitmapExpr{x.set}), nil
}

// unbounded is the error of a complement in a namespace without a universe.
func unbounded(e *ebbv1.PlanExpression) *proto.Error {
	text := query.ExpressionText(e)
	return proto.ErrBadQuery.Errorf("%s is whatever it does not name, and that depends on what there may be", text).
		WithHint(fmt.Sprintf("a & (%s), where a is all that there may be; or say it once: ebb namespace set NAME --universe a", text))
}

// formula is a set, or its complement. With complements as values, an expression needs no universe as long as its
// result is not a complement.
//
//	~a & ~b   is  ~(a | b)       a & ~b  is  a - b
//	~a | ~b   is  ~(a & b)       a | ~b  is  ~(b - a)       ~a ^ b  is  ~(a ^ b)
type formula struct {
	set *ebbv1.BitmapExpr // nil: empty
	not bool
}

func (f found) formula(e *ebbv1.PlanExpression) (formula, *proto.Error) {
	if t := e.GetTerm(); t != nil {
		return formula{set: union(keyExprs(f.keys(t)))}, nil
	}
	o := e.GetOperation()
	if o.GetOperator() == ebbv1.PlanOperator_PLAN_OPERATOR_AT_LEAST {
		set, err := f.atLeast(o)
		return formula{set: set}, err
	}
	of := make([]formula, len(o.GetOperands()))
	for at, operand := range o.GetOperands() {
		var err *proto.Error
		if of[at], err = f.formula(operand); err != nil {
			return formula{}, err
		}
	}
	switch o.GetOperator() {
	case ebbv1.PlanOperator_PLAN_OPERATOR_COMPLEMENT:
		return of[0].complement(), nil
	case ebbv1.PlanOperator_PLAN_OPERATOR_UNION:
		return inAny(of), nil
	case ebbv1.PlanOperator_PLAN_OPERATOR_INTERSECTION:
		return inAll(of), nil
	case ebbv1.PlanOperator_PLAN_OPERATOR_DIFFERENCE:
		for at := range of[1:] {
			of[at+1] = of[at+1].complement()
		}
		return inAll(of), nil
	}
	return inOdd(of), nil
}

func (x formula) complement() formula { return formula{x.set, !x.not} }

// apart divides formulas into sets and sets whose complements they are.
func apart(of []formula) (in, out []*ebbv1.BitmapExpr) {
	for _, x := range of {
		if x.not {
			out = append(out, x.set)
		} else {
			in = append(in, x.set)
		}
	}
	return in, out
}

func inAll(of []formula) formula {
	in, out := apart(of)
	out = filled(out)
	if len(in) == 0 {
		return formula{union(out), true}
	}
	return formula{set: without(intersection(in), out)}
}

func inAny(of []formula) formula {
	in, out := apart(of)
	in = filled(in)
	if len(out) == 0 {
		return formula{set: union(in)}
	}
	return formula{without(intersection(out), in), true}
}

func inOdd(of []formula) formula {
	var x formula
	in, out := apart(of)
	sets := filled(append(in, out...))
	x.not = len(out)%2 == 1
	if x.set = union(sets); len(sets) > 1 {
		x.set = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: &ebbv1.BitmapExprs{Of: sets}}}
	}
	return x
}

// filled returns the sets that are not empty.
func filled(of []*ebbv1.BitmapExpr) []*ebbv1.BitmapExpr {
	return slices.DeleteFunc(of, func(x *ebbv1.BitmapExpr) bool { return x == nil })
}

// intersection returns the intersection of one or more sets.
func intersection(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	switch {
	case slices.Contains(of, nil):
		return nil
	case len(of) == 1:
		return of[0]
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: of}}}
}

// atLeast builds an "at least" expression. A range or pattern counts as all its bitmaps.
func (f found) atLeast(o *ebbv1.PlanOperation) (*ebbv1.BitmapExpr, *proto.Error) {
	var of []*ebbv1.BitmapExpr
	for _, operand := range o.GetOperands() {
		if t := operand.GetTerm(); t != nil {
			of = append(of, keyExprs(f.keys(t))...)
			continue
		}
		x, err := f.expr(operand)
		if err != nil {
			return nil, err
		}
		of = append(of, x)
	}
	if of = filled(of); len(of) < int(o.GetLeast()) {
		return nil, nil
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: o.GetLeast(), Of: of}}}, nil
}
