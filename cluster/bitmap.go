package cluster

import (
	"context"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// spreads reports whether no single shard can answer a question about bitmaps: they are in several shards, or patterns
// name them.
func spreads(table *Table, q *ebbv1.Question) bool {
	if len(proto.BitmapExprs(q)) == 0 || proto.BySlice(table.Namespace(q.GetNamespace())) {
		return false
	}
	q = withNamespace(q)
	keys, namespace := proto.QuestionKeys(q), q.GetNamespace()
	return len(keys) == 0 || len(proto.QuestionPatterns(q)) > 0 || !allOn(table, namespace, keys[1:], table.ShardOf(namespace, keys[0]))
}

// spreadAsk is a question about bitmaps of several shards: the parts that each shard can compute are fetched, some
// slices at a time. If one shard fails, there is no answer, even where partial answers are allowed: without its bitmaps
// the result would be wrong.
type spreadAsk struct {
	c         *Coordinator
	ctx       context.Context
	table     *Table
	plan      *askPlan
	namespace string
	coverage  *ebbv1.Coverage
	covered   map[uint32]bool
	rounds    []*budget.Request // the last ones, oldest first
	readable  int               // the answers of how many rounds may still be read
}

// reads sets how many rounds it takes to fetch one step of all parts. Two steps of each part may be in use at once.
func (s *spreadAsk) reads(rounds int) { s.readable = max(s.readable, 2*rounds) }

// letGo refunds the charges of all rounds except the last ones, whose number is given.
func (s *spreadAsk) letGo(but int) {
	for len(s.rounds) > but {
		s.rounds[0].Close()
		s.rounds = s.rounds[1:]
	}
}

func (c *Coordinator) spreadAsk(ctx context.Context, table *Table, p *askPlan, namespace string) *spreadAsk {
	return &spreadAsk{c: c, ctx: ctx, table: table, plan: p, namespace: namespace, coverage: &ebbv1.Coverage{}, covered: map[uint32]bool{}}
}

func (c *Coordinator) askSpread(ctx context.Context, table *Table, p *askPlan, q *ebbv1.Question) *ebbv1.Answer {
	q = withNamespace(q)
	s := c.spreadAsk(ctx, table, p, q.GetNamespace())
	answer, err := s.answer(q)
	s.letGo(0)
	if err == nil {
		if full := keep(ctx, answer); full != nil {
			err = full
		}
	}
	if err != nil {
		answer = &ebbv1.Answer{Error: proto.AsError(err).Wire()}
	}
	answer.Coverage = s.coverage
	return answer
}

func (s *spreadAsk) answer(q *ebbv1.Question) (*ebbv1.Answer, error) {
	if groups := q.GetBitmapGroups(); groups != nil {
		return s.groups(groups)
	}
	g, refused := shard.SpreadBitmaps(q, s.home)
	if refused != nil {
		return nil, refused
	}
	s.reads(g.Rounds())
	return g.Answer(s.fetch)
}

func (s *spreadAsk) home(key []byte) uint32 { return s.table.ShardOf(s.namespace, key) }

// fetch asks the shards for parts of expressions.
func (s *spreadAsk) fetch(list []shard.BitmapFetch) ([]*ebbv1.ShardAnswer, error) {
	questions := make([]*ebbv1.ShardQuestion, len(list))
	for i, f := range list {
		question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: f.Question}}
		questions[i] = &ebbv1.ShardQuestion{Shard: f.Shard, Question: question, Partial: true}
	}
	return s.ask(questions)
}

// ask asks all shards at once, and fails unless each of them answers.
func (s *spreadAsk) ask(questions []*ebbv1.ShardQuestion) ([]*ebbv1.ShardAnswer, error) {
	round := &askPlan{req: s.plan.req, consistency: s.plan.consistency}
	for _, q := range questions {
		round.parts = append(round.parts, askPart{question: q})
	}
	s.letGo(max(s.readable, 2) - 1)
	ctx, held := budget.Stage(s.ctx)
	s.rounds = append(s.rounds, held)
	s.c.scatter(ctx, s.table, round)
	for i := range round.parts {
		if part := &round.parts[i]; !s.covered[part.question.Shard] {
			s.covered[part.question.Shard] = true
			cover(s.coverage, s.table, part)
		} else {
			s.coverage.MissingKeys = append(s.coverage.MissingKeys, missingIn(s.table, part)...)
		}
	}
	if e := verdict(round.parts); e != nil {
		return nil, proto.FromWire(e)
	}
	answers := make([]*ebbv1.ShardAnswer, len(round.parts))
	for i, part := range round.parts {
		if part.answer.GetError() != nil || part.answer.GetValue() == nil {
			missing := &ebbv1.Coverage{ShardsTotal: uint32(len(s.covered)), ShardsFailed: []uint32{part.question.Shard}}
			return nil, proto.FromWire(incomplete(round.parts, missing)).WithHint("try again: without one of the bitmaps the others say something else")
		}
		answers[i] = part.answer
	}
	return answers, nil
}

// whole returns all ids of an expression over several shards, as an expression that contains them. They must fit into
// room bytes; key, which is to hold them, is for the error text.
func (s *spreadAsk) whole(key []byte, x *ebbv1.BitmapExpr, room int) (*ebbv1.BitmapExpr, error) {
	g, refused := shard.SpreadBitmaps(bitmapQuestion(s.namespace, x), s.home)
	if refused != nil {
		return nil, refused
	}
	s.reads(g.Rounds())
	c, _, _, more, err := g.Containers(s.fetch, 0, room)
	if err != nil {
		return nil, err
	}
	if more || len(c.GetContainers()) > room {
		return nil, proto.ErrQueryTooCostly.Errorf("what key %q is to hold takes more than %d KiB: that is the limit of what goes from one shard to another", key, room>>10).
			WithHint("keep what it is made of, and what it becomes, in one family: periods of play/ are in one shard, where there is no such limit")
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{Containers: c}}, nil
}
