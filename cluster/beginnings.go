package cluster

import (
	"cmp"
	"context"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// Rates of a namespace on event time begin with the events of all its shards (shard.Beginnings). So a request that asks
// for trends asks every shard, once a namespace, what it knows of that, in the same calls. Coverage counts these shards
// in, and one that does not answer makes the answer incomplete, as where it holds keys.

// begins reports whether the answer to a question says when rates of its namespace begin, and all shards decide that.
// What a key holds, with both half-lives, says it too, unless it stays in its namespace.
func begins(table *Table, q *ebbv1.Question) bool {
	if q.GetTrend() == nil && (!q.GetExport().GetBoth() || q.GetExport().GetSameNamespace()) {
		return false
	}
	ns := table.Namespace(q.GetNamespace())
	return table.Version() >= proto.VersionUnited && proto.OnEventTime(ns) && ns.GetSlowHalfLifeUs() > 0
}

// beginnings are the namespaces whose shards are asked when rates begin, and where the parts are.
type beginnings []beginningParts

type beginningParts struct {
	namespace string
	first     int               // part of shard 1
	begin     *shard.Beginnings // read once
	failed    error             // of reading them
}

// note notes the namespace of a question.
func (b *beginnings) note(table *Table, q *ebbv1.Question) {
	if name := table.Namespace(q.GetNamespace()).GetName(); begins(table, q) && b.of(name) == nil {
		*b = append(*b, beginningParts{namespace: name})
	}
}

func (b beginnings) of(namespace string) *beginningParts {
	for i := range b {
		if b[i].namespace == namespace {
			return &b[i]
		}
	}
	return nil
}

// addBeginnings asks all shards when rates of the namespaces that were noted begin.
func (p *askPlan) addBeginnings(table *Table) {
	for i := range p.begin {
		p.begin[i].first = len(p.parts)
		q := &ebbv1.Question{
			Namespace: p.begin[i].namespace, Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{}},
		}
		for number := uint32(1); number <= table.Shards(); number++ {
			p.parts = append(p.parts, askPart{
				question: &ebbv1.ShardQuestion{Shard: number, Question: q, Partial: true, Beginnings: true},
			})
		}
	}
}

// foldBeginning makes an answer of the parts of a question, and of what all shards say of when rates begin.
func (p *askPlan) foldBeginning(
	ctx context.Context, q *ebbv1.Question, parts []askPart, c *ebbv1.Coverage,
) *ebbv1.Answer {
	b := p.begin.of(p.table.Namespace(q.GetNamespace()).GetName())
	others := p.parts[b.first : b.first+int(p.table.Shards())]
	for i := range others {
		coverBeginning(c, parts, &others[i])
	}
	if e := cmp.Or(verdict(parts), verdict(others)); e != nil {
		return &ebbv1.Answer{Error: e}
	}
	if len(parts) == 1 && parts[0].answer.GetError() != nil {
		return foldWhole(&parts[0])
	}
	if len(answered(parts)) == 0 || len(c.ShardsFailed) > 0 && !p.req.GetAllowPartial() {
		return &ebbv1.Answer{Error: incomplete(slices.Concat(parts, others), c)}
	}
	begin, err := b.read(others)
	if err != nil {
		return &ebbv1.Answer{Error: proto.AsError(err).Wire()}
	}
	if q.GetExport() != nil {
		answer := foldWhole(&parts[0])
		if e := answer.GetExport(); e.GetFound() {
			e.Image = begin.Date(e.GetImage())
		}
		return answer
	}
	return mergeAnswered(ctx, parts, func(answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
		return shard.MergeTrend(q, answers, begin)
	})
}

// read reads what the shards have said, once for all questions about the namespace.
func (b *beginningParts) read(parts []askPart) (*shard.Beginnings, error) {
	if b.begin == nil && b.failed == nil {
		b.begin, b.failed = shard.ReadBeginnings(answered(parts))
	}
	return b.begin, b.failed
}

// coverBeginning counts a shard in that was asked when rates begin: once, if it was asked for keys too.
func coverBeginning(c *ebbv1.Coverage, parts []askPart, other *askPart) {
	number, answer := other.question.Shard, other.answer
	failed := answer.GetError() != nil || answer.GetValue() == nil
	counted := slices.ContainsFunc(parts, func(part askPart) bool { return part.question.Shard == number })
	switch {
	case failed && counted && !slices.Contains(c.ShardsFailed, number):
		c.ShardsAnswered--
		c.ShardsFailed = append(c.ShardsFailed, number)
	case failed && !counted:
		c.ShardsTotal++
		c.ShardsFailed = append(c.ShardsFailed, number)
	case !counted:
		c.ShardsTotal++
		c.ShardsAnswered++
	}
	if !failed && answer.GetStale() && !slices.Contains(c.ShardsStale, number) {
		c.ShardsStale = append(c.ShardsStale, number)
	}
}
