package cluster

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// explain says what an errand would do: which shards it asks, and how many answers of shards that takes. Nothing is asked.
func (i *inquiry) explain(e *errand, bad *proto.Error) *ebbv1.Explanation {
	out := &ebbv1.Explanation{CostMax: partsMax, Refusal: bad.Wire()}
	out.Root = &ebbv1.ExplainedStep{Of: query.Text(i.plan)}
	if e == nil {
		out.Root.Step = "refused"
		return out
	}
	out.Root.Step = e.step
	for _, q := range e.questions {
		step := i.explainQuestion(q)
		out.Root.Steps = append(out.Root.Steps, step)
		out.Shards = append(out.Shards, step.GetShards()...)
		out.Cost += uint64(len(step.GetShards()))
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
	return out
}

// explainQuestion says which shards a question goes to, as the coordinator would send it.
func (i *inquiry) explainQuestion(q *ebbv1.Question) *ebbv1.ExplainedStep {
	step := &ebbv1.ExplainedStep{Step: asked(q), Of: "namespace " + q.GetNamespace()}
	p, err := plan(i.table, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil || p.refused != nil {
		return step
	}
	for _, part := range p.parts {
		step.Shards = append(step.Shards, part.question.GetShard())
	}
	step.Keys = uint64(len(proto.QuestionKeys(q)))
	if proto.Everywhere(q) {
		step.Keys += uint64(len(step.Shards) * max(1, len(proto.QuestionPatterns(q))))
	}
	return step
}

// asked names a question as the protocol does.
func asked(q *ebbv1.Question) string {
	m := q.ProtoReflect()
	return fmt.Sprintf("ask %s", m.WhichOneof(m.Descriptor().Oneofs().ByName("ask")).Name())
}
