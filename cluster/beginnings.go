package cluster

import (
	"cmp"
	"context"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// In a namespace on event time, rates begin with the events of all its shards (shard.Beginnings). So a request that
// asks for trends asks every shard, once per namespace and in the same calls, when its rates begin. The coverage counts
// these shards. If one of them does not answer, the answer is incomplete, as if the shard held a key.

// begins reports whether the answer needs to know when the rates of its namespace begin, and all shards decide that. An
// export of a key with both half-lives needs it too, unless the export stays in its namespace.
func begins(table *Table, q *ebbv1.Question) bool {
	if q.GetTrend() == nil && (!q.GetExport().GetBoth() || q.GetExport().GetSameNamespace()) {
		return false
	}
	ns := table.Namespace(q.GetNamespace())
	return table.Version() >= proto.VersionUnited && proto.OnEventTime(ns) && ns.GetSlowHalfLifeUs() > 0
}

// beginnings are the namespaces whose shards are asked when rates begin, and the positions of these parts.
type beginnings []beginningParts

type beginningParts struct {
	namespace string
	first     int               // part of shard 1
	begin     *shard.Beginnings // read once
	failed    error             // of reading them
}

// note adds the namespace of a question if its answer needs to know when rates begin.
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

// addBeginnings adds parts that ask all shards when the rates of the noted namespaces begin.
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

// foldBeginning merges the parts of a question into an answer, given when rates begin by the answers of all shards.
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

// read decodes the shards' answers, once for all questions about the namespace.
func (b *beginningParts) read(parts []askPart) (*shard.Beginnings, error) {
	if b.begin == nil && b.failed == nil {
		b.begin, b.failed = shard.ReadBeginnings(answered(parts))
	}
	return b.begin, b.failed
}

// coverBeginning adds to the coverage a shard that was asked when rates begin. A shard that was also asked for keys
// counts once.
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
