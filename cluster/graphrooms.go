package cluster

import (
	"context"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// evenly asks again for parts of graphs over patterns whose sets are in few shards, as the periods of one family are.
// Then each set gets the same share of the bytes, and not each shard.
func (c *Coordinator) evenly(ctx context.Context, table *Table, p *askPlan) {
	again := &askPlan{req: p.req, consistency: p.consistency, table: p.table}
	var at []int // the positions in p of the parts of again
	for i, q := range p.req.GetQuestions() {
		if len(q.GetGraph().GetPatterns()) == 0 {
			continue
		}
		parts := p.parts[p.first[i]:p.first[i+1]]
		answers := make([]*ebbv1.ShardAnswer, 0, len(parts))
		for _, part := range parts {
			if part.answer.GetError() == nil && part.answer.GetValue() != nil {
				answers = append(answers, part.answer)
			}
		}
		if len(answers) < len(parts) || len(parts) < 2 {
			continue // a whole shard's part is missing, or one shard answered all
		}
		for k, room := range shard.GraphRooms(answers) {
			if room == 0 {
				continue
			}
			question := pb.CloneOf(parts[k].question)
			question.GetQuestion().GetGraph().PartBytes = room
			again.parts = append(again.parts, askPart{question: question})
			at = append(at, p.first[i]+k)
		}
	}
	if len(at) == 0 {
		return
	}
	c.scatter(ctx, table, again)
	for k, part := range again.parts {
		if part.answer.GetError() == nil && part.answer.GetValue() != nil {
			p.parts[at[k]].answer = part.answer
		}
	}
}
