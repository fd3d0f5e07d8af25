package shard

import (
	"cmp"
	"sort"
	"strconv"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// gatherBytesMax is how many bytes of bitmaps one question may collect from several shards. gatherTermsMax is the
// largest number of terms of its expression: each holds a container of 8 KiB at least.
const (
	gatherBytesMax = 512 << 20
	gatherTermsMax = 4096
	// gatherRoundBytes is about how many bytes the parts of one round take together, and gatherRoundTerms how many
	// parts there are. They fit one message if one node has all of them.
	gatherRoundBytes = 3 << 20
	gatherRoundTerms = 256
)

// BitmapGather is a question about an expression whose bitmaps are in several shards. A term is what one shard can
// compute of it. The containers of terms are fetched, some slices at a time. The caller computes the rest from them:
//
//	and(a, or(b, c), d)  with a and d in shard 1, b in 2, c in 3:    and(t0, or(t1, t2)),  t0 = and(a, d) of 1, t1 = b of 2, t2 = c of 3
//
// Each part is as of a time of its own, as are the parts of other questions.
type BitmapGather struct {
	ask   *ebbv1.Question // whose expressions are over keys that are numbers of terms
	terms []*gatherTerm
	first uint64 // slices of the question
	last  uint64

	fetch func([]BitmapFetch) ([]*ebbv1.ShardAnswer, error)
	size  uint64 // bytes of all terms that have been fetched
	work  bitmapWork
	err   error // the first error, which ends the evaluation
	at    sketch.Tick
}

// BitmapFetch is a question to one shard: about a part of a term.
type BitmapFetch struct {
	Shard    uint32
	Question *ebbv1.BitmapQuestion
}

// gatherTerm is a term, as a cursor over its slices that have been fetched. These are the slices of the closed interval
// [from, to].
type gatherTerm struct {
	g        *BitmapGather
	shard    uint32
	expr     *ebbv1.BitmapExpr
	number   int // among the terms
	loaded   bool
	from, to uint64
	slices   []looseSlice
	at       int
}

// SpreadBitmaps divides a question by the shards of its keys; home returns the shard of a key. Of a question about
// groups it divides the set, but not the keys that the set is counted by.
func SpreadBitmaps(q *ebbv1.Question, home func(key []byte) uint32) (*BitmapGather, *proto.Error) {
	in := spanOf(proto.BitmapRange(q))
	g := &BitmapGather{first: in.first >> sliceBits, last: in.last >> sliceBits, ask: pb.CloneOf(q)}
	switch ask := g.ask.GetAsk().(type) {
	case *ebbv1.Question_Bitmap:
		ask.Bitmap.Expr = g.spread(ask.Bitmap.GetExpr(), home)
	case *ebbv1.Question_BitmapGroups:
		ask.BitmapGroups.Expr = g.spread(ask.BitmapGroups.GetExpr(), home)
	case *ebbv1.Question_BitmapCohort:
		for _, p := range ask.BitmapCohort.GetPeriods() {
			p.Expr = g.spread(p.GetExpr(), home)
		}
		if ask.BitmapCohort.GetWithin() != nil {
			ask.BitmapCohort.Within = g.spread(ask.BitmapCohort.GetWithin(), home)
		}
	}
	if err := g.ranges(); err != nil {
		return nil, err
	}
	if n := len(g.terms); n > gatherTermsMax {
		return nil, proto.ErrBadCount.Errorf("the expression needs %d parts from different shards: the limit is %d", n, gatherTermsMax).
			WithHint("name fewer periods at a time, or store what they are counted with in their family (play/...): " +
				"what is in one shard is one part")
	}
	return g, nil
}

// ranges refuses a question that takes too long because of ids that it holds itself, which are not fetched.
func (g *BitmapGather) ranges() *proto.Error {
	g.work = bitmapWork{first: g.first, last: g.last}
	var visit func(x *ebbv1.BitmapExpr)
	visit = func(x *ebbv1.BitmapExpr) {
		g.work.addGiven(x, sliceMax+1)
		for _, term := range proto.ExprTerms(x) {
			visit(term)
		}
	}
	for _, x := range proto.BitmapExprs(g.ask) {
		visit(x)
	}
	g.work.periods = len(g.ask.GetBitmapCohort().GetPeriods())
	g.work.terms += int64(len(g.ask.GetBitmapGroups().GetKeys()))
	return g.work.check(bitmapCostMax, "the question")
}

// soleShard is the shard of all keys of an expression; 0 if the expression names none. ok is false if there are
// several.
func soleShard(x *ebbv1.BitmapExpr, home func(key []byte) uint32) (shard uint32, ok bool) {
	for _, key := range proto.ExprKeys(x) {
		switch s := home(key); {
		case shard == 0:
			shard = s
		case s != shard:
			return 0, false
		}
	}
	return shard, true
}

// spread returns the expression with terms in place of keys.
func (g *BitmapGather) spread(x *ebbv1.BitmapExpr, home func(key []byte) uint32) *ebbv1.BitmapExpr {
	if s, ok := soleShard(x, home); ok {
		if s == 0 {
			return x // a range
		}
		return g.term(s, x)
	}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Or:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: g.spreadAll(e.Or.GetOf(), home, orOf)}}
	case *ebbv1.BitmapExpr_And:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: g.spreadAll(e.And.GetOf(), home, andOf)}}
	case *ebbv1.BitmapExpr_Xor:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: g.spreadAll(e.Xor.GetOf(), home, xorOf)}}
	case *ebbv1.BitmapExpr_AndNot:
		return g.spreadDifference(e.AndNot.GetOf(), home)
	case *ebbv1.BitmapExpr_Not:
		return g.spreadDifference([]*ebbv1.BitmapExpr{e.Not.GetUniverse(), e.Not.GetOf()}, home)
	}
	list := &ebbv1.BitmapAtLeast{Times: x.GetAtLeast().GetTimes()}
	for _, sub := range x.GetAtLeast().GetOf() {
		list.Of = append(list.Of, g.spread(sub, home))
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: list}}
}

func orOf(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: of}}}
}

func andOf(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: of}}}
}

func xorOf(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: &ebbv1.BitmapExprs{Of: of}}}
}

// spreadAll makes one term of all arguments that are in one shard.
func (g *BitmapGather) spreadAll(of []*ebbv1.BitmapExpr, home func(key []byte) uint32, join func([]*ebbv1.BitmapExpr) *ebbv1.BitmapExpr) *ebbv1.BitmapExprs {
	out, byShard, order := &ebbv1.BitmapExprs{}, map[uint32][]*ebbv1.BitmapExpr{}, []uint32(nil)
	for _, x := range of {
		s, ok := soleShard(x, home)
		if !ok || s == 0 {
			out.Of = append(out.Of, g.spread(x, home))
			continue
		}
		if byShard[s] == nil {
			order = append(order, s)
		}
		byShard[s] = append(byShard[s], x)
	}
	for _, s := range order {
		out.Of = append(out.Of, g.term(s, join(byShard[s])))
	}
	return out
}

// spreadDifference subtracts in the shard of the first argument what lies there, and the rest outside.
func (g *BitmapGather) spreadDifference(of []*ebbv1.BitmapExpr, home func(key []byte) uint32) *ebbv1.BitmapExpr {
	first, rest := of[:1:1], []*ebbv1.BitmapExpr(nil)
	s, sole := soleShard(of[0], home)
	for _, x := range of[1:] {
		if other, ok := soleShard(x, home); sole && ok && (other == s || other == 0) {
			first = append(first, x)
		} else {
			rest = append(rest, x)
		}
	}
	minuend := first[0]
	if len(first) > 1 {
		minuend = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: &ebbv1.BitmapExprs{Of: first}}}
	}
	head := g.spread(minuend, home)
	list := g.spreadAll(rest, home, orOf)
	list.Of = append([]*ebbv1.BitmapExpr{head}, list.Of...)
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: list}}
}

func (g *BitmapGather) term(shard uint32, x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	g.terms = append(g.terms, &gatherTerm{g: g, shard: shard, expr: x, number: len(g.terms)})
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(strconv.Itoa(len(g.terms) - 1))}}
}

// Answer evaluates the question. fetch asks all shards at once, and returns the answers in the order of the questions.
// Answer calls it until it has all slices that matter.
func (g *BitmapGather) Answer(fetch func([]BitmapFetch) ([]*ebbv1.ShardAnswer, error)) (*ebbv1.Answer, error) {
	g.fetch = fetch
	a, err := evaluateBitmaps(g.ask, bitmapNames{of: g.named})
	if err = cmp.Or(g.err, err); err != nil {
		return nil, err
	}
	evaluatedAt(a, g.at)
	return a, nil
}

// named finds a term.
func (g *BitmapGather) named(name []byte) (bitmap.Cursor, error) {
	i, err := strconv.Atoi(string(name))
	if err != nil {
		return nil, err
	}
	return g.terms[i], nil
}

// Containers evaluates the one expression of the question from a slice on, as far as containers fit in room bytes. It
// returns the containers and the number of their ids. next is the slice to continue with; more is false at the end.
func (g *BitmapGather) Containers(fetch func([]BitmapFetch) ([]*ebbv1.ShardAnswer, error), from uint64, room int) (c *ebbv1.BitmapContainers, ids, next uint64, more bool, err error) {
	g.fetch = fetch
	from = max(from, g.first)
	expr, err := ranged(proto.BitmapExprs(g.ask)[0], proto.BitmapRange(g.ask), bitmapNames{of: g.named})
	if err != nil {
		return nil, 0, 0, false, err
	}
	r := reader{rest: expr.appendPart(&ebbv1.BitmapPart{From: from, To: g.last, Bytes: uint32(room)}, 0, 0)}
	if g.err != nil {
		return nil, 0, 0, false, g.err
	}
	r.byte()
	r.uvarint()
	next = r.uvarint()
	r.uvarint()
	c = &ebbv1.BitmapContainers{From: from, Containers: r.rest}
	list, err := decodeContainers(c)
	for _, l := range list {
		ids += uint64(l.Count)
	}
	return c, ids, next, next <= g.last, err
}

// AsOf is the latest as-of time of the parts that were fetched, in microseconds.
func (g *BitmapGather) AsOf() int64 { return int64(g.at) }

// Seek implements bitmap.Cursor. After an error it finds nothing.
func (t *gatherTerm) Seek(slice uint64) (at uint64, ok bool) {
	slice = max(slice, t.g.first)
	for slice <= t.g.last {
		if !t.loaded || slice < t.from || slice > t.to {
			if t.g.load(t, slice); t.g.err != nil {
				return 0, false
			}
		}
		t.at = sort.Search(len(t.slices), func(i int) bool { return t.slices[i].slice >= slice })
		if t.at < len(t.slices) {
			return t.slices[t.at].slice, true
		}
		slice = t.to + 1
	}
	return 0, false
}

// Container implements bitmap.Cursor.
func (t *gatherTerm) Container() bitmap.Container { return t.slices[t.at].Container }

// Rounds is the largest number of rounds of questions that it takes to fetch something of each term.
func (g *BitmapGather) Rounds() int { return (len(g.terms) + gatherRoundTerms - 1) / gatherRoundTerms }

// next returns the terms to fetch from a slice on: the wanted one, and those after it that will need the same slice, as
// many as fit in a round.
func (g *BitmapGather) next(wanted *gatherTerm, slice uint64) (terms []*gatherTerm) {
	for i := range g.terms {
		t := g.terms[(wanted.number+i)%len(g.terms)]
		if t != wanted && t.loaded && (t.to >= slice || slice < t.from) {
			continue
		}
		if terms = append(terms, t); len(terms) == gatherRoundTerms {
			break
		}
	}
	return terms
}

// load fetches a term from a slice on, and other terms with it. INVARIANT: the first error stays. After an error all
// terms look empty, and the result is not an answer.
func (g *BitmapGather) load(wanted *gatherTerm, slice uint64) {
	if g.err != nil {
		return
	}
	terms := g.next(wanted, slice)
	list := make([]BitmapFetch, 0, len(terms))
	room := gatherRoundBytes / min(len(g.terms), gatherRoundTerms)
	for _, t := range terms {
		part := &ebbv1.BitmapPart{From: slice, To: g.last, Bytes: uint32(min(room, proto.BitPartBytesMax))}
		question := &ebbv1.BitmapQuestion{Expr: t.expr, Select: &ebbv1.BitmapQuestion_Part{Part: part}}
		list = append(list, BitmapFetch{t.shard, question})
	}
	answers, err := g.fetch(list)
	if err != nil {
		g.err = err
		return
	}
	fresh := false // whether this is the first fetch of a term
	for i, t := range terms {
		first := !t.loaded
		bytes, ok := t.take(slice, answers[i])
		if !ok {
			g.err = errPart(i)
			return
		}
		if first {
			fresh = true
			g.size += bytes
			g.work.add(g.first, g.last, int64(bytes)/max(8*sliceCost, t.perSlice(answers[i])), int(bytes/8))
		}
	}
	if fresh {
		g.err = g.within()
	}
}

// within refuses a question that takes too much, by what is known of the terms that have been fetched.
func (g *BitmapGather) within() error {
	if err := g.work.check(bitmapCostMax, "the question"); err != nil {
		return err
	}
	if g.size > gatherBytesMax {
		return proto.ErrResponseTooLarge.Errorf(
			"the question brings together up to %d MiB of bitmaps from several shards: the limit is %d",
			g.size>>20, gatherBytesMax>>20).
			WithHint("ask for a range of ids at a time, or name keys of one family (play/2011-11-01, play/2011-11-02), " +
				"which are in one shard")
	}
	return nil
}

// perSlice is how many bytes a slice takes in a part that was just taken.
func (t *gatherTerm) perSlice(a *ebbv1.ShardAnswer) int64 {
	return int64(len(a.GetPart()) / max(1, len(t.slices)))
}

// take reads a part that begins with a slice, and returns about how many bytes there are from there on.
func (t *gatherTerm) take(from uint64, a *ebbv1.ShardAnswer) (bytes uint64, ok bool) {
	r := reader{rest: a.GetPart()}
	kind, at, end := r.byte(), sketch.Tick(r.uvarint()), r.uvarint()
	bytes = min(r.uvarint(), 1<<50)
	if r.bad || kind != partBitmap || at < 0 || at > clockMax || end <= from || end > t.g.last+1 {
		return 0, false
	}
	t.g.at = max(t.g.at, at)
	t.loaded, t.from, t.to, t.slices, t.at = true, from, end-1, t.slices[:0], 0
	d := bitmapDecoder{slice: from}
	for {
		l, rest, err := d.next(r.rest)
		if err != nil || l.Count > 0 && l.slice >= end {
			return 0, false
		}
		if r.rest = rest; l.Count == 0 {
			return bytes, len(rest) == 0
		}
		t.slices = append(t.slices, l)
	}
}

// partBytes is about the largest number of bytes of containers that there are for a part.
func (f *frame) partBytes(q *ebbv1.Question) uint64 {
	return 8 * uint64(cmp.Or(f.bitmapWork(q).words, 1))
}
