package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
	"github.com/ebbdb/ebb/shard"
)

// explain describes what a stage would do: which shards it would ask, and how many answers of shards that needs. It
// asks no shard.
func (x *queryExecution) explain(e *queryStage, bad *proto.Error) *ebbv1.Explanation {
	out := &ebbv1.Explanation{CostMax: PartsMax, Refusal: bad.Wire()}
	out.Root = &ebbv1.ExplainedStep{Of: query.Text(x.plan)}
	if e == nil {
		out.Root.Step = "refused"
		x.explainBitmaps(out.Root)
		return out
	}
	out.Root.Step = e.step
	for _, q := range e.questions {
		step, refused := x.explainQuestion(q)
		if bad == nil && refused != nil {
			bad = refused
			out.Refusal = refused.Wire()
		}
		out.Root.Steps = append(out.Root.Steps, step)
		out.Shards = append(out.Shards, step.GetShards()...)
		out.Cost += uint64(len(step.GetShards()))
	}
	if e.store != nil && bad == nil {
		if _, err := storable(x.table, e.store); err != nil {
			out.Refusal = proto.AsError(err).Wire()
		}
	}
	if e.then != "" {
		out.Root.Steps = append(out.Root.Steps, &ebbv1.ExplainedStep{Step: "then " + e.then})
		out.Cost += uint64(e.thenMost)
	}
	slices.Sort(out.Shards)
	out.Shards = slices.Compact(out.Shards)
	for _, step := range out.Root.GetSteps() {
		out.Root.Keys += step.GetKeys()
	}
	x.explainBitmaps(out.Root)
	return out
}

// explainBitmaps adds the expression of a query that has one.
func (x *queryExecution) explainBitmaps(root *ebbv1.ExplainedStep) {
	if e := expressionOf(x.plan); e != nil {
		of := x.explainExpression(e)
		limit := fmt.Sprintf("names %d bitmaps of at most %d", bitmapsIn(of), proto.BitTermsMax)
		root.Steps = append(root.Steps, of, &ebbv1.ExplainedStep{Step: limit})
	}
}

// bitmapsIn returns how many bitmaps the terms of an expression name; matches of patterns are not known yet.
func bitmapsIn(step *ebbv1.ExplainedStep) uint64 {
	n := step.GetKeys()
	for _, below := range step.GetSteps() {
		n += bitmapsIn(below)
	}
	return n
}

// explainQuestion returns which shards the coordinator would ask a question, and the error if it would be refused.
func (x *queryExecution) explainQuestion(q *ebbv1.Question) (*ebbv1.ExplainedStep, *proto.Error) {
	step := &ebbv1.ExplainedStep{Step: asked(q), Of: "namespace " + q.GetNamespace()}
	if ns := x.table.Namespace(q.GetNamespace()); ns != nil {
		room := rollupsMax
		fit, err := expandQuestion(q, ns, &room)
		if err != nil {
			return step, err
		}
		q = fit
	}
	p, err := plan(x.table, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil {
		return step, proto.AsError(err)
	}
	if p.refused != nil {
		return step, p.refused[0]
	}
	for _, part := range p.parts {
		step.Shards = append(step.Shards, part.question.GetShard())
	}
	if len(p.spread) > 0 {
		step.Step = "gather from several shards what each can compute of a " + strings.TrimPrefix(step.Step, "ask ")
		step.Shards = x.homes(q.GetNamespace(), proto.QuestionKeys(q))
		home := func(key []byte) uint32 { return x.table.ShardOf(q.GetNamespace(), key) }
		if _, err := shard.SpreadBitmaps(q, home); err != nil {
			return step, err
		}
	}
	step.Keys = uint64(len(proto.QuestionKeys(q)))
	if proto.Everywhere(q) {
		step.Keys += uint64(len(step.Shards) * max(1, len(proto.QuestionPatterns(q))))
	}
	return step, nil
}

// asked returns the name of a question in the protocol.
func asked(q *ebbv1.Question) string {
	m := q.ProtoReflect()
	return fmt.Sprintf("ask %s", m.WhichOneof(m.Descriptor().Oneofs().ByName("ask")).Name())
}

// expressionOf returns the expression of a query about bitmaps; nil if it has none.
func expressionOf(p *ebbv1.Plan) *ebbv1.PlanExpression {
	switch ask := p.GetAsk().(type) {
	case *ebbv1.Plan_Count:
		return ask.Count.GetOf()
	case *ebbv1.Plan_Ids:
		return ask.Ids.GetOf()
	case *ebbv1.Plan_Cohort:
		return ask.Cohort.GetWithin()
	case *ebbv1.Plan_Store:
		return ask.Store.GetOf()
	}
	return nil
}

var operatorNames = map[ebbv1.PlanOperator]string{
	ebbv1.PlanOperator_PLAN_OPERATOR_UNION: "in any", ebbv1.PlanOperator_PLAN_OPERATOR_INTERSECTION: "in all",
	ebbv1.PlanOperator_PLAN_OPERATOR_DIFFERENCE:           "in the first and in none of the others",
	ebbv1.PlanOperator_PLAN_OPERATOR_SYMMETRIC_DIFFERENCE: "in an odd number", ebbv1.PlanOperator_PLAN_OPERATOR_COMPLEMENT: "in everything but",
}

// explainExpression returns an expression as a tree, with the shards of its bitmaps.
func (x *queryExecution) explainExpression(e *ebbv1.PlanExpression) *ebbv1.ExplainedStep {
	o := e.GetOperation()
	if o == nil {
		return x.explainTerm(e.GetTerm())
	}
	step := &ebbv1.ExplainedStep{Step: operatorNames[o.GetOperator()]}
	if o.GetOperator() == ebbv1.PlanOperator_PLAN_OPERATOR_AT_LEAST {
		step.Step = fmt.Sprintf("in %d at least", o.GetLeast())
	}
	for _, operand := range o.GetOperands() {
		step.Steps = append(step.Steps, x.explainExpression(operand))
	}
	return step
}

func (x *queryExecution) explainTerm(t *ebbv1.PlanTerm) *ebbv1.ExplainedStep {
	step := &ebbv1.ExplainedStep{Step: "bitmap", Of: query.TermText(t)}
	a, _ := x.about(t) // a single term is of one namespace
	if len(a.patterns) > 0 {
		step.Step = "bitmaps that match"
		return step
	}
	if t.GetRange() != nil {
		step.Step = "bitmaps of a range"
	}
	ns, keys := x.table.Namespace(a.namespace), a.keys
	if a.keys = nil; t.GetRange() == nil && rollup(ns, keys[0]) != nil {
		step.Step = "roll-up of the bitmaps of shorter periods"
	}
	for _, key := range keys {
		parts, n := [][]byte{key}, partsIn(ns, key)
		if x.expanded += n; n > 0 && x.expanded <= rollupsMax { // above the limit they are refused, and only counted
			parts = rollup(ns, key)
			n = len(parts) - 1
		}
		a.keys = append(a.keys, parts...)
		step.Keys += 1 + uint64(n)
	}
	step.Shards = x.homes(a.namespace, a.keys)
	return step
}

// homes returns the shards of keys, in order.
func (x *queryExecution) homes(namespace string, keys [][]byte) (shards []uint32) {
	for _, key := range keys {
		shards = append(shards, x.table.ShardOf(namespace, key))
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}
