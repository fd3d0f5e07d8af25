package cluster

import (
	"cmp"
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// spreads says whether the bitmaps of a question are in several shards, so that no shard can answer it.
func spreads(table *Table, q *ebbv1.Question) bool {
	if q.GetBitmap() == nil {
		return false
	}
	keys, namespace := proto.QuestionKeys(q), cmp.Or(q.GetNamespace(), proto.DefaultNamespace)
	return !allOn(table, namespace, keys[1:], table.ShardOf(namespace, keys[0]))
}

// askSpread answers a question about bitmaps of several shards: it fetches what each can compute, some slices at a time.
// Without one of them there is no answer, also where partial answers are allowed: the others would say something else.
func (c *Coordinator) askSpread(ctx context.Context, table *Table, p *askPlan, q *ebbv1.Question) *ebbv1.Answer {
	q = spelledOut(q)
	g, refused := shard.SpreadBitmap(q.GetBitmap(), func(key []byte) uint32 { return table.ShardOf(q.GetNamespace(), key) })
	if refused != nil {
		return &ebbv1.Answer{Error: refused.Wire()}
	}
	coverage, covered := &ebbv1.Coverage{}, map[uint32]bool{}
	answer, err := g.Answer(func(list []shard.BitmapFetch) ([]*ebbv1.ShardAnswer, error) {
		round := &askPlan{req: p.req, consistency: p.consistency}
		for _, f := range list {
			question := &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Bitmap{Bitmap: f.Question}}
			round.parts = append(round.parts, askPart{question: &ebbv1.ShardQuestion{Shard: f.Shard, Question: question, Partial: true}})
		}
		c.scatter(ctx, table, round)
		for i := range round.parts {
			if part := &round.parts[i]; !covered[part.question.Shard] {
				covered[part.question.Shard] = true
				cover(coverage, part)
			}
		}
		if e := verdict(round.parts); e != nil {
			return nil, proto.FromWire(e)
		}
		answers := make([]*ebbv1.ShardAnswer, len(round.parts))
		for i, part := range round.parts {
			if part.answer.GetError() != nil || part.answer.GetValue() == nil {
				missing := &ebbv1.Coverage{ShardsTotal: uint32(len(covered)), ShardsFailed: []uint32{part.question.Shard}}
				return nil, proto.FromWire(incomplete(round.parts, missing)).WithHint("try again: without one of the bitmaps the others say something else")
			}
			answers[i] = part.answer
		}
		return answers, nil
	})
	if err != nil {
		return &ebbv1.Answer{Error: proto.AsError(err).Wire(), Coverage: coverage}
	}
	answer.Coverage = coverage
	return answer
}
