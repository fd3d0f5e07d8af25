package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// askPlan is a request divided into the questions for each shard.
//
//	questions  q0        q1              q2
//	parts      s7        s1 s2 s3 ...    (refused)
//	first      0         1               P+1     P+1
type askPlan struct {
	req         *ebbv1.AskRequest
	consistency ebbv1.Consistency
	parts       []askPart      // by question, then by shard
	first       []int          // question i has parts first[i] to first[i+1]
	refused     []*proto.Error // by question; nil for questions that are asked; nil as a whole when all are
	spread      []int          // questions that are asked separately; see askSpread and askNames
	table       *Table
	begin       beginnings
}

// askPart is the part of one question that one shard is asked.
type askPart struct {
	question *ebbv1.ShardQuestion
	node     string             // to ask next, or asked last
	answer   *ebbv1.ShardAnswer // the last one
	stale    bool               // a replica was too stale to answer
}

// plan decides which shards to ask. Questions that are invalid are marked as refused.
func plan(table *Table, req *ebbv1.AskRequest) (*askPlan, error) {
	n := len(req.GetQuestions())
	p := &askPlan{
		req:         req,
		consistency: cmp.Or(req.GetConsistency(), ebbv1.Consistency_CONSISTENCY_LINEARIZABLE),
		parts:       make([]askPart, 0, n),
		first:       make([]int, 0, n+1),
		table:       table,
	}
	single := make([]ebbv1.ShardQuestion, n) // one allocation for the common case
	for i, q := range req.GetQuestions() {
		p.first = append(p.first, len(p.parts))
		if err := checkQuestion(table, q); err != nil {
			p.refuse(i, err)
			continue
		}
		if q.GetNames() != nil || spreads(table, q) {
			p.spread = append(p.spread, i)
			continue
		}
		p.add(table, shared(table, withNamespace(q)), &single[i])
		p.begin.note(table, q)
		if len(p.parts) > PartsMax {
			return nil, tooManyParts()
		}
	}
	p.first = append(p.first, len(p.parts))
	if p.addBeginnings(table); len(p.begin) > 0 && len(p.parts) > PartsMax {
		return nil, tooManyParts()
	}
	return p, nil
}

func tooManyParts() *proto.Error {
	return proto.ErrBatchTooLarge.
		Errorf("the questions need more than %d answers from shards, which is the limit", PartsMax)
}

// withNamespace returns the question with its namespace named: shards have no default namespace.
func withNamespace(q *ebbv1.Question) *ebbv1.Question {
	if q.GetNamespace() != "" {
		return q
	}
	return &ebbv1.Question{Namespace: proto.DefaultNamespace, Ask: q.GetAsk()}
}

// shared returns a question about a graph with the bytes that each shard may use for its part: an equal share of
// GraphBytes, since it is not known which shards hold the sets. See evenly.
func shared(table *Table, q *ebbv1.Question) *ebbv1.Question {
	if len(q.GetGraph().GetPatterns()) == 0 {
		return q
	}
	q = pb.CloneOf(q)
	q.GetGraph().PartBytes = shard.GraphBytes / table.Shards()
	return q
}

func checkQuestion(table *Table, q *ebbv1.Question) *proto.Error {
	if err := proto.CheckQuestion(q); err != nil {
		return err
	}
	name := cmp.Or(q.GetNamespace(), proto.DefaultNamespace)
	if err := checkNamespaceExists(table, name); err != nil {
		return proto.AsError(err)
	}
	if err := checkNamed(table.Namespace(name), q); err != nil || q.GetNames() != nil {
		return err
	}
	if err := checkSliced(table.Namespace(name), q); err != nil {
		return err
	}
	if q.GetTrend() != nil && table.Namespace(name).GetSlowHalfLifeUs() == 0 {
		return oneHalfLife(name, table.Namespace(name))
	}
	return nil
}

// oneHalfLife refuses a trend in a namespace with one half-life, and suggests a second one.
func oneHalfLife(name string, ns *ebbv1.Namespace) *proto.Error {
	if ns.GetDecay() == ebbv1.Decay_DECAY_NONE || ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR {
		return proto.ErrBadNamespace.Errorf("namespace %s has no half-life, and a trend compares two", name).
			WithHint("count in another one: ebb namespace create NAME --half-life 10m --slow-half-life 6h")
	}
	const sixHours = 6 * 3600 * 1_000_000
	own := cmp.Or(ns.GetHalfLifeUs(), proto.DefaultHalfLifeUS)
	second := max(sixHours, 10*own)
	if own > proto.HalfLifeMaxUS/10 {
		second = own / 10 // the present half-life is the longer one
	}
	return proto.ErrBadNamespace.Errorf("namespace %s has one half-life, and a trend compares two", name).
		WithHint("ebb namespace set " + name + " --slow-half-life " + spanText(second) +
			": it is compared from then on")
}

// spanText writes a span in the largest unit that divides it, as flags take it; rounded to seconds.
func spanText(us int64) string {
	const second, minute, hour, day = 1_000_000, 60, 3600, 86_400
	s := us / second
	switch {
	case s%day == 0:
		return fmt.Sprintf("%dd", s/day)
	case s%hour == 0:
		return fmt.Sprintf("%dh", s/hour)
	case s%minute == 0:
		return fmt.Sprintf("%dm", s/minute)
	}
	return fmt.Sprintf("%ds", s)
}

func (p *askPlan) refuse(question int, err *proto.Error) {
	if p.refused == nil {
		p.refused = make([]*proto.Error, len(p.req.GetQuestions()))
	}
	p.refused[question] = err
}

func (p *askPlan) add(table *Table, q *ebbv1.Question, single *ebbv1.ShardQuestion) {
	if proto.Everywhere(q) || q.GetBitmap() != nil && proto.BySlice(table.Namespace(q.GetNamespace())) {
		for i := uint32(1); i <= table.Shards(); i++ {
			p.parts = append(p.parts, askPart{question: &ebbv1.ShardQuestion{Shard: i, Question: ofShard(table, q, i), Partial: true}})
		}
		return
	}
	// The coordinator compares these, not a shard: other requests would wait for the shard, and the shard may not know
	// about sets that are made of others.
	if q.GetGraph() != nil || len(q.GetOverlap().GetOf()) > 0 {
		p.addKeys(table, q)
		return
	}
	keys := proto.QuestionKeys(q)
	home := table.ShardOf(q.GetNamespace(), keys[0])
	if len(keys) > 1 && !allOn(table, q.GetNamespace(), keys[1:], home) || q.GetTrend() != nil && begins(table, q) {
		p.addKeys(table, q)
		return
	}
	single.Shard, single.Question = home, q
	p.parts = append(p.parts, askPart{question: single})
}

// ofShard returns a question with patterns as one shard is asked it. If the question also names keys, only the shard of
// a key knows whether the key exists. The other shards must not report that it is missing, or what it may have held.
func ofShard(table *Table, q *ebbv1.Question, number uint32) *ebbv1.Question {
	own := func(keys [][]byte) [][]byte {
		return slices.DeleteFunc(keys, func(key []byte) bool { return table.ShardOf(q.GetNamespace(), key) != number })
	}
	switch {
	case len(q.GetGraph().GetKeys()) > 0:
		q = pb.CloneOf(q)
		q.GetGraph().Keys = own(q.GetGraph().Keys)
	case len(q.GetDistribution().GetKeys()) > 0:
		q = pb.CloneOf(q)
		q.GetDistribution().Keys = own(q.GetDistribution().Keys)
	case len(q.GetSummary().GetKeys()) > 0:
		q = pb.CloneOf(q)
		q.GetSummary().Keys = own(q.GetSummary().Keys)
	}
	return q
}

func allOn(table *Table, namespace string, keys [][]byte, home uint32) bool {
	for _, key := range keys {
		if table.ShardOf(namespace, key) != home {
			return false
		}
	}
	return true
}

// addKeys asks each shard for a part made of the keys that it holds.
func (p *askPlan) addKeys(table *Table, q *ebbv1.Question) {
	keys := proto.QuestionKeys(q)
	order := make([]placed, len(keys))
	for i, key := range keys {
		order[i] = placed{table.ShardOf(q.GetNamespace(), key), uint32(i)}
	}
	slices.SortFunc(order, comparePlaced)
	for len(order) > 0 {
		n := 1
		for n < len(order) && order[n].shard == order[0].shard {
			n++
		}
		p.parts = append(p.parts, askPart{question: &ebbv1.ShardQuestion{
			Shard: order[0].shard, Question: withKeys(q, order[:n]), Partial: true,
		}})
		order = order[n:]
	}
}

// withKeys returns the question, narrowed to some of its keys.
func withKeys(q *ebbv1.Question, order []placed) *ebbv1.Question {
	all := proto.QuestionKeys(q)
	keys := make([][]byte, len(order))
	for i, p := range order {
		keys[i] = all[p.at]
	}
	if ask := q.GetSummary(); ask != nil {
		// The rest of a summary describes the whole: the coordinator computes it from the parts.
		return &ebbv1.Question{
			Namespace: q.GetNamespace(),
			Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{
				Keys: keys, AsOfUs: ask.AsOfUs, Members: ask.Members, Limit: ask.Limit,
			}},
		}
	}
	if ask := q.GetSurprise(); ask != nil {
		some := &ebbv1.SurpriseQuestion{AsOfUs: ask.AsOfUs}
		for i, p := range order {
			if int(p.at) < len(ask.Keys) {
				some.Keys = append(some.Keys, keys[i])
			} else {
				some.Against = append(some.Against, keys[i])
			}
		}
		return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Surprise{Surprise: some}}
	}
	if ask := q.GetOverlap(); ask != nil {
		return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: keys, AsOfUs: ask.AsOfUs}}}
	}
	if ask := q.GetGraph(); ask != nil {
		return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{
			Keys: keys, AsOfUs: ask.AsOfUs, PartBytes: uint32(shard.GraphBytes / len(all) * len(keys)),
		}}}
	}
	if ask := q.GetTrend(); ask != nil {
		return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{Keys: keys, AsOfUs: ask.AsOfUs}}}
	}
	ask := q.GetDistribution()
	return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: keys, Select: ask.Select, AsOfUs: ask.AsOfUs, Confidence: ask.Confidence, Rate: ask.Rate,
	}}}
}

// askCall is the questions that one node is asked in one call.
type askCall struct {
	node string
	at   []int // positions in the plan's parts; nil: all of them
	req  *ebbv1.ShardAskRequest
	resp *ebbv1.ShardAskResponse
	err  error

	room   int  // bytes that the answers may take; 0: no budget is kept
	capped bool // room is all that is left of the request's budget
}

func (c *askCall) position(i int) int {
	if c.at == nil {
		return i
	}
	return c.at[i]
}

// shards yields the shard of each question of the call.
func (c *askCall) shards() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, q := range c.req.GetQuestions() {
			if !yield(q.GetShard()) {
				return
			}
		}
	}
}

// failure returns the answer that every part gets when the call failed as a whole; nil if the call did not fail.
func (c *askCall) failure() *ebbv1.ShardAnswer {
	err := c.err
	switch {
	case err == nil && len(c.resp.GetAnswers()) != len(c.req.Questions):
		err = proto.ErrInternal.Errorf("node %s answered %d of %d questions", c.node, len(c.resp.GetAnswers()), len(c.req.Questions))
	case errors.Is(err, context.DeadlineExceeded):
		err = proto.ErrDeadline.Errorf("node %s did not answer in time", c.node)
	case errors.Is(err, context.Canceled):
		err = proto.ErrDeadline.Errorf("the caller went away")
	}
	if err == nil {
		return nil
	}
	return &ebbv1.ShardAnswer{Error: proto.AsError(err).Wire()}
}

// calls groups the parts at these positions by node, in the order in which the nodes first appear; nil stands for all
// parts. When all go to one node, nothing is grouped: so it is in a cluster of one node, or when a client knows the
// leaders.
func (p *askPlan) calls(envelope *ebbv1.ShardAskRequest, at []int) []askCall {
	if at == nil {
		if call, one := p.oneCall(envelope); one {
			return []askCall{call}
		}
		at = make([]int, len(p.parts))
		for i := range at {
			at[i] = i
		}
	}
	var calls []askCall
	byNode := make(map[string]int)
	for _, i := range at {
		node := p.parts[i].node
		k, seen := byNode[node]
		if !seen {
			k = len(calls)
			byNode[node] = k
			calls = append(calls, askCall{node: node, req: proto.WithQuestions(envelope, nil)})
		}
		calls[k].at = append(calls[k].at, i)
		calls[k].req.Questions = append(calls[k].req.Questions, p.parts[i].question)
	}
	return calls
}

func (p *askPlan) oneCall(envelope *ebbv1.ShardAskRequest) (call askCall, one bool) {
	if len(p.parts) == 0 {
		return askCall{}, false
	}
	for i := range p.parts {
		if p.parts[i].node != p.parts[0].node {
			return askCall{}, false
		}
	}
	questions := make([]*ebbv1.ShardQuestion, len(p.parts))
	for i := range p.parts {
		questions[i] = p.parts[i].question
	}
	return askCall{node: p.parts[0].node, req: proto.WithQuestions(envelope, questions)}, true
}

// fold makes one answer for each question.
func (p *askPlan) fold(ctx context.Context) []*ebbv1.Answer {
	answers := make([]*ebbv1.Answer, len(p.req.GetQuestions()))
	coverage := make([]ebbv1.Coverage, len(answers))
	for i, q := range p.req.GetQuestions() {
		if p.refused != nil && p.refused[i] != nil {
			answers[i] = &ebbv1.Answer{Error: p.refused[i].Wire()}
			continue
		}
		if slices.Contains(p.spread, i) {
			continue
		}
		parts := p.parts[p.first[i]:p.first[i+1]]
		for j := range parts {
			cover(&coverage[i], p.table, &parts[j])
		}
		if begins(p.table, q) {
			answers[i] = p.foldBeginning(ctx, q, parts, &coverage[i])
			answers[i].Coverage = &coverage[i]
			continue
		}
		answers[i] = foldOne(ctx, q, parts, &coverage[i], p.req.GetAllowPartial())
		answers[i].Coverage = &coverage[i]
	}
	return answers
}

// cover adds one part to the coverage.
func cover(c *ebbv1.Coverage, table *Table, part *askPart) {
	number, answer := part.question.Shard, part.answer
	c.ShardsTotal++
	if answer.GetError() != nil || answer.GetValue() == nil {
		c.ShardsFailed = append(c.ShardsFailed, number)
		return
	}
	c.ShardsAnswered++
	c.MissingKeys = append(c.MissingKeys, missingIn(table, part)...)
	if answer.Stale {
		c.ShardsStale = append(c.ShardsStale, number)
	}
	if c.ShardsAnswered == 1 {
		c.AsOfMinUs, c.AsOfMaxUs = answer.AsOfUs, answer.AsOfUs
	}
	coverClock(c, part)
	c.AsOfMinUs = min(c.AsOfMinUs, answer.AsOfUs)
	c.AsOfMaxUs = max(c.AsOfMaxUs, answer.AsOfUs)
}

func foldOne(ctx context.Context, q *ebbv1.Question, parts []askPart, c *ebbv1.Coverage, allowPartial bool) *ebbv1.Answer {
	if e := verdict(parts); e != nil {
		return &ebbv1.Answer{Error: e}
	}
	if len(parts) == 1 && !parts[0].question.Partial {
		return foldWhole(&parts[0])
	}
	if c.ShardsAnswered == 0 || len(c.ShardsFailed) > 0 && !allowPartial {
		return &ebbv1.Answer{Error: incomplete(parts, c)}
	}
	return mergeAnswered(ctx, parts, func(answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
		return shard.Merge(q, answers)
	})
}

// answered returns the answers of the parts that have no error.
func answered(parts []askPart) []*ebbv1.ShardAnswer {
	out := make([]*ebbv1.ShardAnswer, 0, len(parts))
	for i := range parts {
		if parts[i].answer.GetError() == nil && parts[i].answer.GetValue() != nil {
			out = append(out, parts[i].answer)
		}
	}
	return out
}

// mergeAnswered merges the answers of the shards into one answer, within the budget of the request.
func mergeAnswered(
	ctx context.Context, parts []askPart, merge func([]*ebbv1.ShardAnswer) (*ebbv1.Answer, error),
) *ebbv1.Answer {
	answers := answered(parts)
	b := budget.From(ctx)
	if err := b.Full(); err != nil {
		return &ebbv1.Answer{Error: err.Wire()}
	}
	work := shard.MergeBytes(answers)
	if err := b.Charge(ctx, work); err != nil {
		return &ebbv1.Answer{Error: err.Wire()}
	}
	answer, err := merge(answers)
	b.Refund(work)
	if err != nil {
		return &ebbv1.Answer{Error: proto.AsError(err).Wire()}
	}
	return merged(ctx, answer, parts)
}

// merged charges the budget for an answer that was merged from parts, and releases the memory of these parts.
func merged(ctx context.Context, answer *ebbv1.Answer, parts []askPart) *ebbv1.Answer {
	b := budget.From(ctx)
	if b == nil {
		return answer
	}
	for i := range parts {
		if a := parts[i].answer; a.GetError() == nil {
			b.Refund(shard.AnswerHeld(a))
			parts[i].answer = &ebbv1.ShardAnswer{AsOfUs: a.GetAsOfUs()}
		}
	}
	n := shard.AnswerSize(answer)
	if err := b.Charge(ctx, n); err != nil {
		return &ebbv1.Answer{Error: err.Wire()}
	}
	if err := b.Finished(n); err != nil {
		return &ebbv1.Answer{Error: err.Wire()}
	}
	return answer
}

// foldWhole returns the answer of the only shard that could give it. The shard's own error is more precise than
// INCOMPLETE.
func foldWhole(part *askPart) *ebbv1.Answer {
	if e := part.answer.GetError(); e != nil {
		return &ebbv1.Answer{Error: named(e, part.question.Shard)}
	}
	if whole := part.answer.GetAnswer(); whole != nil {
		return whole
	}
	return &ebbv1.Answer{Error: proto.ErrInternal.Errorf("shard %d gave no answer", part.question.Shard).Wire()}
}

// named returns the error with its shard filled in.
func named(e *ebbv1.Error, number uint32) *ebbv1.Error {
	if e.GetShard() == number {
		return e
	}
	c := pb.Clone(e).(*ebbv1.Error)
	c.Shard = number
	return c
}

// isVerdict reports whether an error is about the question and not about the coverage: the shard found the question
// invalid (for another kind than the key's, say) or the table too old, or the node has no memory for the answer now.
func isVerdict(e *ebbv1.Error) bool { return e.GetCode()/1000 == 2 || overloaded(e) || staleTable(e) }

// verdict returns the first error for which isVerdict holds.
func verdict(parts []askPart) *ebbv1.Error {
	for i := range parts {
		if e := parts[i].answer.GetError(); isVerdict(e) {
			return named(e, parts[i].question.Shard)
		}
	}
	return nil
}

// shardsNamedMax bounds how many failed shards an error text lists; the coverage lists all of them.
const shardsNamedMax = 10

func incomplete(parts []askPart, c *ebbv1.Coverage) *ebbv1.Error {
	names, more := c.ShardsFailed, ""
	if len(names) > shardsNamedMax {
		names, more = names[:shardsNamedMax], " and more"
	}
	var cause *ebbv1.Error
	for i := range parts {
		if e := parts[i].answer.GetError(); e != nil {
			cause = e
			break
		}
	}
	return proto.ErrIncomplete.Errorf("%d of %d shards did not answer: %d%s (shard %d: %s)",
		len(c.ShardsFailed), c.ShardsTotal, names, more, c.ShardsFailed[0], cause.GetMessage()).
		WithHint("try again, or allow partial answers").WithShard(c.ShardsFailed[0]).Wire()
}

// Estimates of the encoded bytes that an answer needs in addition to its keys and bins, and that each bin or key needs
// in addition to its own bytes.
const (
	answerRoom = 256
	binRoom    = 64
	keyRoom    = 8
)

// namesSize is the encoded size of an answer's strings, and of the ids of an answer about a dictionary.
func namesSize(a *ebbv1.Answer) int {
	size := 11 * len(a.GetNames().GetIds())
	for _, name := range slices.Concat(a.GetBitmap().GetNames(), a.GetNames().GetNames()) {
		size += len(name) + keyRoom
	}
	return size
}

// limitResponse replaces answers that would push the response over the message limit by errors, in their order. It
// measures only responses whose upper bound is over the limit.
func limitResponse(answers []*ebbv1.Answer) {
	bound := 0
	for _, a := range answers {
		if bound > proto.MessageBytesMax {
			break
		}
		d, s, x := a.GetDistribution(), a.GetSummary(), a.GetSurprise()
		keys := len(d.GetKeys()) + len(s.GetKeys()) + len(x.GetKeys()) + len(x.GetAgainst())
		bins := len(d.GetBins()) + len(s.GetItems()) + len(s.GetMembers()) + len(x.GetBins())
		for _, m := range a.GetMatch().GetMatches() {
			bound += len(m.GetPhrase()) + binRoom
		}
		bound += len(s.GetText()) + len(a.GetCoverage().GetMissingKeys())*(proto.KeyLenMax+keyRoom)
		bound += answerRoom + keys*(proto.KeyLenMax+keyRoom) + bins*(proto.BinLenMax+binRoom) +
			(len(s.GetBins())+len(s.GetQuantiles())+len(s.GetMemberships())+len(x.GetSurpriseBits()))*binRoom +
			4*(len(a.GetCoverage().GetShardsFailed())+len(a.GetCoverage().GetShardsStale())) + pb.Size(a.GetOverlap()) + pb.Size(a.GetGraph()) + pb.Size(a.GetTrend()) + pb.Size(a.GetGroups()) + pb.Size(a.GetCohort()) +
			10*len(a.GetBitmap().GetIds()) + namesSize(a) + len(a.GetBitmap().GetContains()) + len(a.GetKeys().GetKeys())*(proto.KeyLenMax+2*binRoom) + len(a.GetExport().GetImage())
	}
	if bound <= proto.MessageBytesMax {
		return
	}
	total, sizes := 0, make(map[*ebbv1.Answer]int, len(answers)) // equal questions share their answer
	for i, a := range answers {
		size, known := sizes[a]
		if !known {
			size = pb.Size(a) + keyRoom
			sizes[a] = size
		}
		if total+size > proto.MessageBytesMax {
			answers[i] = &ebbv1.Answer{Coverage: a.GetCoverage(), Error: proto.ErrResponseTooLarge.
				Errorf("answer of %d bytes does not fit the response: the limit is %d", size, proto.MessageBytesMax).
				WithHint("ask for fewer bins, or fewer questions at once").Wire()}
			size = answerRoom
		}
		total += size
	}
}
