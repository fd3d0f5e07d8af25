package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
	"github.com/ebbdb/ebb/shard"
)

// expandRequest expands expressions by the settings of namespaces: it adds the universe where one is needed, and
// replaces periods that are rolled up by their parts. It returns the errors of refused questions by position.
func expandRequest(table *Table, req *ebbv1.AskRequest) (*ebbv1.AskRequest, map[int]*proto.Error) {
	var refused map[int]*proto.Error
	out, room := req, rollupsMax
	for i, q := range req.GetQuestions() {
		ns := table.Namespace(q.GetNamespace())
		if ns == nil || proto.CheckQuestion(q) != nil {
			continue
		}
		fit, err := expandQuestion(q, ns, &room)
		switch {
		case err != nil:
			if refused == nil {
				refused = map[int]*proto.Error{}
			}
			refused[i] = err
		case fit != q:
			if out == req {
				out = withQuestions(req, nil, slices.Clone(req.GetQuestions()))
			}
			out.Questions[i] = fit
		}
	}
	return out, refused
}

// expandQuestion returns the question itself if there is nothing to expand. room is how many more bitmaps the periods
// of the request may stand for.
func expandQuestion(q *ebbv1.Question, ns *ebbv1.Namespace, room *int) (*ebbv1.Question, *proto.Error) {
	if err := checkRollups(q, ns); err != nil {
		return nil, err
	}
	out := q
	for i, x := range proto.BitmapExprs(q) {
		fit, err := expandExpr(x, ns, room)
		if err != nil {
			return nil, err
		}
		if fit == x {
			continue
		}
		if out == q {
			out = pb.CloneOf(q)
		}
		proto.BitmapExprs(out)[i].Expr = fit.GetExpr()
	}
	if out != q {
		if err := proto.CheckQuestion(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func expandExpr(x *ebbv1.BitmapExpr, ns *ebbv1.Namespace, room *int) (*ebbv1.BitmapExpr, *proto.Error) {
	x, err := proto.WithUniverse(x, ns)
	if err != nil {
		return nil, err
	}
	if !takeRollups(x, ns, room) {
		return nil, proto.ErrBadCount.Errorf("periods that namespace %s rolls up stand for more than %d bitmaps in this request: that is the limit", ns.GetName(), rollupsMax).
			WithHint("ask for shorter periods, or in several requests")
	}
	return rolledUp(x, ns), nil
}

// checkSliced refuses questions that no shard can answer where bitmaps are placed by slice: homes have no ids.
func checkSliced(ns *ebbv1.Namespace, q *ebbv1.Question) *proto.Error {
	if !proto.BySlice(ns) {
		return nil
	}
	switch q.GetAsk().(type) {
	case *ebbv1.Question_Keys, *ebbv1.Question_Describe, *ebbv1.Question_CountKeys, *ebbv1.Question_Sources:
		return nil
	}
	if len(proto.BitmapExprs(q)) > 0 {
		for _, key := range proto.QuestionKeys(q) {
			if err := proto.CheckSliceKey(key); err != nil {
				return err
			}
		}
		return nil
	}
	if ask := q.GetExport(); ask != nil {
		return proto.ErrWrongKind.Errorf("key %s is not exported: namespace %s places bitmaps by slice, and no shard has a bitmap as a whole",
			query.Quote(ask.GetKey()), ns.GetName()).
			WithHint("take its ids to a file: ebb bits export KEY > FILE; ebb bits load KEY FILE puts them into another key")
	}
	return proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice, and holds nothing else", ns.GetName()).WithHint("ask for ids: ebb bits count, ebb bits ids")
}

// bitmapAsk returns the same question about another expression.
func bitmapAsk(namespace string, q *ebbv1.BitmapQuestion, x *ebbv1.BitmapExpr) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x, Range: q.GetRange(), Select: q.GetSelect()}}}
}

// withQuestions returns a request with some of its questions, by position, and the given ones.
func withQuestions(req *ebbv1.AskRequest, at []int, questions []*ebbv1.Question) *ebbv1.AskRequest {
	for _, i := range at {
		questions = append(questions, req.GetQuestions()[i])
	}
	return &ebbv1.AskRequest{
		Questions: questions, Consistency: req.GetConsistency(), MaxStalenessUs: req.GetMaxStalenessUs(), AllowPartial: req.GetAllowPartial(),
		Seen: req.GetSeen(),
	}
}

// bySlice divides the positions of questions: sliced are about bitmaps that are placed by slice, rest are all others.
func bySlice(table *Table, questions []*ebbv1.Question) (rest, sliced []int) {
	for i, q := range questions {
		if len(proto.BitmapExprs(q)) > 0 && proto.BySlice(table.Namespace(q.GetNamespace())) {
			sliced = append(sliced, i)
		} else {
			rest = append(rest, i)
		}
	}
	return rest, sliced
}

// generationCache caches the generations of bitmaps that are placed by slice. An entry may be out of date: every answer
// is compared with the generations that the homes return.
type generationCache struct {
	mu    sync.Mutex // guards known
	known map[bitmapName]uint64
}

// bitmapName identifies a bitmap.
type bitmapName struct{ namespace, key string }

// generationsMax is how many generations are cached: some 10 MB.
const generationsMax = 1 << 16

func (c *generationCache) get(of bitmapName) (generation uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	generation, known = c.known[of]
	return generation, known
}

func (c *generationCache) set(of bitmapName, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= generationsMax {
		c.known = map[bitmapName]uint64{}
	}
	c.known[of] = generation
}

// slicedAsk is the state of one question about bitmaps that are placed by slice.
type slicedAsk struct {
	q    *ebbv1.Question
	ns   string
	keys [][]byte // each once

	homes []*askPart // answers of the keys' homes
	parts []*askPart // answers of all shards
	used  []uint64   // the generations with which the parts were asked; nil: they were not asked
	late  bool       // the parts are valid if the homes still return these generations; see overdue
	err   *proto.Error
}

// slicesTries is how often a question is asked again because one of its bitmaps was deleted or created anew in between.
const slicesTries = 8

// slicedPartsMax is how many answers of shards one round needs at most, if it has more than one question.
const slicedPartsMax = 8192

// askSlices answers the questions at these positions. Every shard has a part of every bitmap, so each question goes to
// all shards, and their answers are added up. In parallel the homes are asked for the generations of the bitmaps. If
// the parts were asked with other generations, they are asked again.
func (c *Coordinator) askSlices(ctx context.Context, table *Table, req *ebbv1.AskRequest, at []int, answers []*ebbv1.Answer) error {
	for len(at) > 0 {
		n, parts := 0, 0
		for n < len(at) && (n == 0 || parts < slicedPartsMax) {
			parts += int(table.Shards()) + len(proto.QuestionKeys(req.GetQuestions()[at[n]]))
			n++
		}
		if parts > PartsMax {
			return proto.ErrBatchTooLarge.Errorf("a question needs %d answers from shards: the limit is %d", parts, PartsMax)
		}
		var round []*ebbv1.Question
		for _, i := range at[:n] {
			round = append(round, req.GetQuestions()[i])
		}
		for i, answer := range c.slicedAnswers(ctx, table, withQuestions(req, nil, round)) {
			answers[at[i]] = answer
		}
		at = at[n:]
	}
	return nil
}

// slicedAnswers answers questions that are all about bitmaps placed by slice.
func (c *Coordinator) slicedAnswers(ctx context.Context, table *Table, req *ebbv1.AskRequest) []*ebbv1.Answer {
	answers := make([]*ebbv1.Answer, len(req.GetQuestions()))
	for i, q := range req.GetQuestions() {
		if err := cmp.Or(proto.CheckQuestion(q), checkSliced(table.Namespace(q.GetNamespace()), q)); err != nil {
			answers[i] = &ebbv1.Answer{Error: err.Wire()}
			continue
		}
		switch s := q.GetBitmap().GetSelect().(type) {
		case *ebbv1.BitmapQuestion_Part:
			answers[i] = &ebbv1.Answer{Error: proto.ErrBadRequest.Errorf("namespace %s places bitmaps by slice: their parts are in all shards, and none has one to give", q.GetNamespace()).
				WithHint("ask for ids, a page at a time").Wire()}
		case *ebbv1.BitmapQuestion_Ids:
			answers[i] = c.slicedPage(ctx, table, req, q, s.Ids)
		case *ebbv1.BitmapQuestion_Position:
			answers[i] = c.slicedPosition(ctx, table, req, q, s.Position)
		}
	}
	var at []int
	var plain []*ebbv1.Question
	for i, q := range req.GetQuestions() {
		if answers[i] != nil {
			continue
		}
		q, err := c.slicedGroups(ctx, req, q)
		if err != nil {
			answers[i] = &ebbv1.Answer{Error: proto.AsError(err).Wire()}
			continue
		}
		at, plain = append(at, i), append(plain, q)
	}
	for i, answer := range c.slicedRound(ctx, table, withQuestions(req, nil, plain)) {
		answers[at[i]] = answer
	}
	return answers
}

// slicedGroups resolves the bitmaps that a question counts by, each once; other questions are returned unchanged.
func (c *Coordinator) slicedGroups(ctx context.Context, req *ebbv1.AskRequest, q *ebbv1.Question) (*ebbv1.Question, error) {
	ask := q.GetBitmapGroups()
	if ask == nil {
		return q, nil
	}
	keys, err := c.members(ctx, req, q.GetNamespace(), ask)
	if err != nil {
		return nil, err
	}
	named := &ebbv1.BitmapGroupsQuestion{Expr: ask.GetExpr(), Keys: keys, Top: ask.GetTop(), Range: ask.GetRange()}
	return &ebbv1.Question{Namespace: q.GetNamespace(), Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: named}}, nil
}

// slicedRound asks all shards and adds up their answers. Of pages it keeps the first ids of all shards.
func (c *Coordinator) slicedRound(ctx context.Context, table *Table, req *ebbv1.AskRequest) []*ebbv1.Answer {
	shards, held := budget.Stage(ctx)
	defer held.Close()
	asks := make([]*slicedAsk, len(req.GetQuestions()))
	open := make([]*slicedAsk, len(asks))
	for i, q := range req.GetQuestions() {
		asks[i] = &slicedAsk{q: q, ns: cmp.Or(q.GetNamespace(), proto.DefaultNamespace), keys: distinct(proto.QuestionKeys(q))}
		open[i] = asks[i]
	}
	for try := 1; len(open) > 0; try++ {
		began := c.cfg.Now().UnixMicro()
		c.slicedScatter(shards, table, req, open)
		took := c.cfg.Now().UnixMicro() - began
		var again []*slicedAsk
		for _, a := range open {
			if a.settle(&c.generations, took) {
				continue
			}
			if try == slicesTries {
				a.err = proto.ErrKeyBusy.Errorf("a bitmap of the question was forgotten and made again %d times while it was asked", slicesTries).WithHint("try again")
				continue
			}
			again = append(again, a)
		}
		open = again
	}
	answers := make([]*ebbv1.Answer, len(asks))
	for i, a := range asks {
		answers[i] = a.answer(req.GetAllowPartial())
		if err := keep(ctx, answers[i]); err != nil {
			answers[i] = &ebbv1.Answer{Error: err.Wire()}
		}
	}
	return answers
}

// slicedScatter asks the homes of all keys and, for questions whose generations are cached, all shards.
func (c *Coordinator) slicedScatter(ctx context.Context, table *Table, req *ebbv1.AskRequest, asks []*slicedAsk) {
	p := &askPlan{req: req, consistency: cmp.Or(req.GetConsistency(), ebbv1.Consistency_CONSISTENCY_LINEARIZABLE)}
	homes := map[bitmapName]int{}
	add := func(number uint32, q *ebbv1.Question) int {
		p.parts = append(p.parts, askPart{question: &ebbv1.ShardQuestion{Shard: number, Question: q}})
		return len(p.parts) - 1
	}
	homesOf, partsOf := make([][]int, len(asks)), make([]int, len(asks))
	for i, a := range asks {
		for _, key := range a.keys {
			of := bitmapName{a.ns, string(key)}
			at, asked := homes[of]
			if !asked {
				at = add(table.ShardOf(a.ns, key), homeQuestion(a.ns, key))
				homes[of] = at
			}
			homesOf[i] = append(homesOf[i], at)
		}
		partsOf[i] = -1
		if a.late {
			continue
		}
		if a.used = c.cachedGenerations(a.ns, a.keys); a.used == nil {
			continue
		}
		partsOf[i] = len(p.parts)
		q := a.withGenerations(table.Shards())
		for number := uint32(1); number <= table.Shards(); number++ {
			add(number, q)
		}
	}
	// After that time parts count only if the homes are asked again, see overdue.
	ctx, cancel := context.WithTimeout(ctx, proto.SliceLeaseUS*time.Microsecond)
	defer cancel()
	c.scatter(ctx, table, p)
	for i, a := range asks {
		a.homes = nil
		for _, at := range homesOf[i] {
			a.homes = append(a.homes, &p.parts[at])
		}
		if a.late {
			continue
		}
		a.parts = nil
		for j := range int(table.Shards()) {
			if partsOf[i] >= 0 {
				a.parts = append(a.parts, &p.parts[partsOf[i]+j])
			}
		}
	}
}

// homeQuestion asks the home of a bitmap for its generation.
func homeQuestion(namespace string, key []byte) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr:   &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: key}},
		Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 1}},
	}}}
}

// cachedGenerations returns the cached generations of bitmaps; nil if one is not cached.
func (c *Coordinator) cachedGenerations(namespace string, keys [][]byte) []uint64 {
	out := make([]uint64, len(keys))
	for i, key := range keys {
		var known bool
		if out[i], known = c.generations.get(bitmapName{namespace, string(key)}); !known {
			return nil
		}
	}
	return out
}

// withGenerations returns the question about the parts of bitmaps that every shard is asked.
func (a *slicedAsk) withGenerations(shards uint32) *ebbv1.Question {
	parts := partsOf(a.keys, a.used, shards)
	out := &ebbv1.Question{Namespace: a.ns}
	switch ask := a.q.GetAsk().(type) {
	case *ebbv1.Question_Bitmap:
		q := ask.Bitmap
		out.Ask = &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: parts.expr(q.GetExpr()), Range: q.GetRange(), Select: q.GetSelect()}}
	case *ebbv1.Question_BitmapGroups:
		groups := &ebbv1.BitmapGroupsQuestion{Expr: parts.expr(ask.BitmapGroups.GetExpr()), Range: ask.BitmapGroups.GetRange(), Plain: true}
		for _, key := range ask.BitmapGroups.GetKeys() {
			groups.Keys = append(groups.Keys, parts.names[string(key)])
		}
		out.Ask = &ebbv1.Question_BitmapGroups{BitmapGroups: groups}
	case *ebbv1.Question_BitmapCohort:
		table := &ebbv1.BitmapCohortQuestion{Everyone: ask.BitmapCohort.GetEveryone(), Range: ask.BitmapCohort.GetRange()}
		for _, p := range ask.BitmapCohort.GetPeriods() {
			table.Periods = append(table.Periods, &ebbv1.BitmapCohortPeriod{Expr: parts.expr(p.GetExpr())})
		}
		if within := ask.BitmapCohort.GetWithin(); within != nil {
			table.Within = parts.expr(within)
		}
		out.Ask = &ebbv1.Question_BitmapCohort{BitmapCohort: table}
	}
	return out
}

// parts converts expressions about bitmaps into expressions about their parts.
type parts struct {
	names  map[string][]byte // by key
	shards uint32
}

func partsOf(keys [][]byte, generations []uint64, shards uint32) parts {
	p := parts{map[string][]byte{}, shards}
	for i, key := range keys {
		p.names[string(key)] = proto.PartName(generations[i], key)
	}
	return p
}

// expr returns the expression that each shard evaluates on its own parts.
func (p parts) expr(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	return proto.RewriteExpr(x, func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
		switch e := x.GetExpr().(type) {
		case *ebbv1.BitmapExpr_Key:
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: p.names[string(e.Key)]}}
		case *ebbv1.BitmapExpr_Range, *ebbv1.BitmapExpr_Containers:
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Own{Own: &ebbv1.BitmapOwn{Of: x, Shards: p.shards}}}
		}
		return x
	})
}

// settle caches the generations that the homes returned, and reports whether the question is finished: its parts were
// asked with the right generations, or it failed. If a home does not answer, the question fails even if partial answers
// are allowed: a cached generation may be older than the bitmap. Then the other shards would find no parts under it and
// still count as answered. tookUS is how long the asking took, by the wall clock.
func (a *slicedAsk) settle(known *generationCache, tookUS int64) (done bool) {
	same := a.used != nil
	for i, home := range a.homes {
		generation, err := homeGeneration(home.answer)
		if err != nil {
			a.err = failedHome(err, home.question.Shard)
			return true
		}
		if a.used == nil || a.used[i] != generation {
			same = false
			known.set(bitmapName{a.ns, string(a.keys[i])}, generation)
		}
	}
	a.late = same && !a.late && (tookUS > proto.SliceLeaseUS || a.overdue())
	return same && !a.late
}

// overdue reports whether a part may have been swept between the homes' answers and its own: its shard's clock, which a
// sweep needs (see Sweep), is ahead of the homes' by more than a lease. This can happen if this node was suspended, and
// its clocks with it. Then the homes are asked again: if they still return the same generations, no part under these
// was swept before it answered.
func (a *slicedAsk) overdue() bool {
	if len(a.homes) == 0 {
		return false
	}
	asOf := func(part *askPart) int64 { return part.answer.GetAsOfUs() }
	first := asOf(slices.MinFunc(a.homes, func(x, y *askPart) int { return cmp.Compare(asOf(x), asOf(y)) }))
	return slices.ContainsFunc(a.parts, func(part *askPart) bool { return asOf(part)-first > proto.SliceLeaseUS })
}

func failedHome(err *proto.Error, number uint32) *proto.Error {
	if err.Code/1000 == 2 {
		return err.WithShard(number)
	}
	return proto.ErrIncomplete.Errorf("shard %d, which says what a bitmap of the question is, did not answer: %s", number, err.Message).
		WithHint("try again; no partial answer does without that shard").WithShard(number)
}

// homeGeneration returns the generation in a home's answer, 0 if the bitmap does not exist.
func homeGeneration(a *ebbv1.ShardAnswer) (uint64, *proto.Error) {
	if e := a.GetError(); e != nil {
		return 0, proto.FromWire(e)
	}
	b := a.GetAnswer().GetBitmap()
	if b == nil {
		return 0, proto.ErrInternal.Errorf("no answer")
	}
	if len(b.GetIds()) == 0 {
		return 0, nil
	}
	return b.GetIds()[0], nil
}

// answer adds up the answers of the shards.
func (a *slicedAsk) answer(allowPartial bool) *ebbv1.Answer {
	if a.err != nil {
		return &ebbv1.Answer{Error: a.err.Wire()}
	}
	c := &ebbv1.Coverage{}
	parts := make([]askPart, len(a.parts))
	for i, part := range a.parts {
		parts[i] = *part
		cover(c, nil, part)
	}
	for i, number := range a.used {
		if number == 0 {
			c.MissingKeys = append(c.MissingKeys, a.keys[i])
		}
	}
	if e := verdict(parts); e != nil {
		return &ebbv1.Answer{Error: e, Coverage: c}
	}
	if c.ShardsAnswered == 0 || len(c.ShardsFailed) > 0 && !allowPartial {
		return &ebbv1.Answer{Error: incomplete(parts, c), Coverage: c}
	}
	switch ask := a.q.GetAsk().(type) {
	case *ebbv1.Question_BitmapGroups:
		return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Groups{Groups: sumGroups(ask.BitmapGroups, parts)}}
	case *ebbv1.Question_BitmapCohort:
		return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Cohort{Cohort: sumCohort(ask.BitmapCohort, parts)}}
	}
	out := &ebbv1.BitmapAnswer{}
	var lists []*ebbv1.BitmapAnswer
	for i := range parts {
		b := parts[i].answer.GetAnswer().GetBitmap()
		if b == nil {
			continue
		}
		lists = append(lists, b)
		out.Count += b.GetCount()
		out.AsOfUs = max(out.AsOfUs, b.GetAsOfUs())
		for j, in := range b.GetContains() {
			if len(out.Contains) < len(b.GetContains()) {
				out.Contains = make([]bool, len(b.GetContains()))
			}
			out.Contains[j] = out.Contains[j] || in
		}
	}
	switch s := a.q.GetBitmap().GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Ends:
		mergeEnds(out, lists)
	case *ebbv1.BitmapQuestion_Ids:
		mergePages(out, lists, int(cmp.Or(s.Ids.GetLimit(), proto.BitPageDefault)))
	}
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Bitmap{Bitmap: out}}
}

// sumGroups adds up the counts of shards.
func sumGroups(q *ebbv1.BitmapGroupsQuestion, parts []askPart) *ebbv1.BitmapGroups {
	out, counts := &ebbv1.BitmapGroups{}, make([]uint64, len(q.GetKeys()))
	for i := range parts {
		g := parts[i].answer.GetAnswer().GetGroups()
		out.Count += g.GetCount()
		out.AsOfUs = max(out.AsOfUs, g.GetAsOfUs())
		for j, n := range g.GetCounts()[:min(len(counts), len(g.GetCounts()))] {
			counts[j] += n
		}
	}
	for i, key := range q.GetKeys() {
		out.Groups = append(out.Groups, &ebbv1.BitmapGroup{Key: key, Count: counts[i]})
	}
	shard.TopGroups(out, q.GetTop())
	return out
}

// sumCohort adds up the tables of shards.
func sumCohort(q *ebbv1.BitmapCohortQuestion, parts []askPart) *ebbv1.BitmapCohort {
	out := &ebbv1.BitmapCohort{}
	for i, p := range q.GetPeriods() {
		out.Rows = append(out.Rows, &ebbv1.BitmapCohortRow{Period: p.GetPeriod(), Again: make([]uint64, len(q.GetPeriods())-1-i)})
	}
	for i := range parts {
		table := parts[i].answer.GetAnswer().GetCohort()
		out.AsOfUs = max(out.AsOfUs, table.GetAsOfUs())
		for j, row := range table.GetRows()[:min(len(out.Rows), len(table.GetRows()))] {
			out.Rows[j].Count += row.GetCount()
			for k, n := range row.GetAgain()[:min(len(out.Rows[j].Again), len(row.GetAgain()))] {
				out.Rows[j].Again[k] += n
			}
		}
	}
	return out
}

func mergeEnds(out *ebbv1.BitmapAnswer, lists []*ebbv1.BitmapAnswer) {
	for _, b := range lists {
		if len(b.GetIds()) != 2 {
			continue
		}
		if out.Ids == nil {
			out.Ids = slices.Clone(b.Ids)
		}
		out.Ids[0], out.Ids[1] = min(out.Ids[0], b.Ids[0]), max(out.Ids[1], b.Ids[1])
	}
}

// mergePages takes the first ids of several pages, as far as they are certain: if a page has more, the ids after it are
// not known.
func mergePages(out *ebbv1.BitmapAnswer, lists []*ebbv1.BitmapAnswer, limit int) {
	for _, b := range lists {
		if b.GetMore() && (!out.More || b.GetNext() < out.Next) {
			out.More, out.Next = true, b.GetNext()
		}
		out.Ids = append(out.Ids, b.GetIds()...)
	}
	slices.Sort(out.Ids)
	if out.More {
		n, _ := slices.BinarySearch(out.Ids, out.Next)
		if n < len(out.Ids) {
			out.Ids = out.Ids[:n] // the others are asked for again
		}
	}
	if len(out.Ids) > limit {
		out.More, out.Next = true, out.Ids[limit]
		out.Ids = out.Ids[:limit]
	}
}

// pageIDsMax is how many ids one round of a page asks for in all shards together, so that the answers fit into calls.
const pageIDsMax = 200_000

// slicedPage lists ids. Each shard returns its first ids; the first of these are the first of all. It continues from
// there until the page is full.
func (c *Coordinator) slicedPage(ctx context.Context, table *Table, req *ebbv1.AskRequest, q *ebbv1.Question, page *ebbv1.BitmapPage) *ebbv1.Answer {
	limit := cmp.Or(page.GetLimit(), proto.BitPageDefault)
	each := max(64, c.cfg.Limits.PageIDs/table.Shards())
	from := page.GetFrom()
	var out *ebbv1.Answer
	for {
		had := len(out.GetBitmap().GetIds())
		ask := bitmapAsk(q.GetNamespace(), q.GetBitmap(), q.GetBitmap().GetExpr())
		ask.GetBitmap().Select = &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: from, Limit: min(limit-uint32(had), each)}}
		one := c.slicedRound(ctx, table, withQuestions(req, nil, []*ebbv1.Question{ask}))[0]
		if one.GetError() != nil {
			return one
		}
		if out == nil {
			out = one
		} else {
			b := out.GetBitmap()
			b.Ids = append(b.Ids, one.GetBitmap().GetIds()...)
			b.More, b.Next, b.AsOfUs = one.GetBitmap().GetMore(), one.GetBitmap().GetNext(), one.GetBitmap().GetAsOfUs()
			out.Coverage = one.GetCoverage()
		}
		if b := out.GetBitmap(); !b.GetMore() || len(b.GetIds()) >= int(limit) {
			return out
		}
		from = out.GetBitmap().GetNext()
	}
}

// positionWays is into how many ranges one step of the search for a position divides the present range. positionPage is
// how many ids the last step lists.
const (
	positionWays = 16
	positionPage = 1024
)

// slicedPosition finds the id with the given number of ids below it. It counts ids in ranges, and divides the right
// range again, until the remaining ids can be listed.
func (c *Coordinator) slicedPosition(ctx context.Context, table *Table, req *ebbv1.AskRequest, q *ebbv1.Question, position uint64) *ebbv1.Answer {
	ask := func(first, last uint64) *ebbv1.Question {
		out := bitmapAsk(q.GetNamespace(), q.GetBitmap(), q.GetBitmap().GetExpr())
		out.GetBitmap().Range = &ebbv1.BitRange{First: first, Last: last}
		out.GetBitmap().Select = &ebbv1.BitmapQuestion_Count{Count: true}
		return out
	}
	in := q.GetBitmap().GetRange()
	if in == nil {
		in = &ebbv1.BitRange{Last: 1<<64 - 1}
	}
	ends := ask(in.GetFirst(), in.GetLast())
	ends.GetBitmap().Select = &ebbv1.BitmapQuestion_Ends{Ends: true}
	answer := c.slicedRound(ctx, table, withQuestions(req, nil, []*ebbv1.Question{ends}))[0]
	b := answer.GetBitmap()
	if answer.GetError() != nil {
		return answer
	}
	ids := b.GetIds()
	b.Ids = nil
	if position >= b.GetCount() {
		b.Count = 0
		return answer
	}
	b.Count = 0
	first, last := ids[0], ids[1]
	for last-first >= uint64(c.cfg.Limits.PositionIDs) {
		var ranges []*ebbv1.Question
		step := (last-first)/positionWays + 1
		for at := first; ; at += step {
			end := last
			if last-at >= step {
				end = at + step - 1
			}
			if ranges = append(ranges, ask(at, end)); end == last {
				break
			}
		}
		found := false
		for i, count := range c.slicedRound(ctx, table, withQuestions(req, nil, ranges)) {
			if count.GetError() != nil {
				return count
			}
			if n := count.GetBitmap().GetCount(); position >= n {
				position -= n
				continue
			}
			first, last, found = ranges[i].GetBitmap().GetRange().GetFirst(), ranges[i].GetBitmap().GetRange().GetLast(), true
			answer.Coverage, b.AsOfUs = count.GetCoverage(), count.GetBitmap().GetAsOfUs()
			break
		}
		if !found {
			return answer // ids were removed in between, and the position is behind the last one
		}
	}
	page := ask(first, last)
	page.GetBitmap().Select = &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: c.cfg.Limits.PositionIDs}}
	list := c.slicedRound(ctx, table, withQuestions(req, nil, []*ebbv1.Question{page}))[0]
	if list.GetError() != nil {
		return list
	}
	if all := list.GetBitmap().GetIds(); position < uint64(len(all)) {
		b.Ids = []uint64{all[position]}
	}
	answer.Coverage, b.AsOfUs = list.GetCoverage(), list.GetBitmap().GetAsOfUs()
	return answer
}
