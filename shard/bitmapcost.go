package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

const (
	// bitmapCostMax is how many words one question about bitmaps may read in one shard, or the same time spent
	// otherwise: 4 GiB.
	bitmapCostMax = 1 << 29
	// sliceCost is the cost, in words, to find a container. To read again what was read once, out of a cache, costs one
	// in twiceCost of the first read.
	sliceCost = 8
	twiceCost = 8
	// lookCost is the cost, in words, to find that a term has nothing in a slice, and to skip it there.
	lookCost = 4
	// termsExpected is for how many keys of an expression there is room at first: the days of a month.
	termsExpected = 32
)

// bitmapWork is the work to evaluate expressions, as far as it is known before the evaluation.
type bitmapWork struct {
	first, last uint64 // the slices that are asked about
	words       int    // that are read
	terms       int64  // counted as often as they are named
	slices      int64  // of all terms together
	from, to    uint64 // between which slices the terms are, if there are any slices
	periods     int    // of a cohort table, each counted with each
}

// add adds a term that has up to so many slices, between from and to, and so many words to be read.
func (w *bitmapWork) add(from, to uint64, slices int64, words int) {
	w.words, w.terms = w.words+words, w.terms+1
	from, to = max(from, w.first), min(to, w.last)
	if slices == 0 || from > to {
		return
	}
	slices = min(slices, int64(to-from)+1)
	if w.slices == 0 {
		w.from, w.to = from, to
	}
	w.slices += slices
	w.from, w.to = min(w.from, from), max(w.to, to)
}

// cost is about how many words could be read in the time that the evaluation takes. In each slice that one term has,
// all terms are looked at. Each period is read again for each other period.
func (w *bitmapWork) cost() int {
	visited := int64(0)
	if w.slices > 0 {
		visited = min(w.slices, int64(w.to-w.from)+1)
	}
	looks := lookCost * float64(visited) * float64(w.terms)
	pairs := float64(max(0, w.periods-1)) / 2 * (float64(w.words)/twiceCost + 2*sliceCost*float64(w.slices))
	return w.words + int(min(looks+pairs, 1<<40))
}

// check refuses work above a limit in words.
func (w *bitmapWork) check(most int, what string) *proto.Error {
	const hint = "ask for a range of ids at a time, name fewer keys and ranges, or store parts of it first"
	switch {
	case w.words > most:
		return proto.ErrQueryTooCostly.Errorf("%s reads up to %d MiB of bitmaps: the limit is %d", what, w.words>>17, most>>17).WithHint(hint)
	case w.cost() > most:
		return proto.ErrQueryTooCostly.Errorf("%s looks at %d bitmaps and ranges in up to %d slices of 65,536 ids, which takes as long as to read %d MiB: the limit is %d",
			what, w.terms, w.slices, w.cost()>>17, most>>17).WithHint(hint)
	}
	return nil
}

// bitmapWork returns the work of a question about bitmaps.
func (f *frame) bitmapWork(q *ebbv1.Question) *bitmapWork { return f.bitmapWorkTo(q, math.MaxInt) }

// bitmapWorkTo stops counting when it finds that the question reads more than enough words.
func (f *frame) bitmapWorkTo(q *ebbv1.Question, enough int) *bitmapWork {
	ns, ask := f.lookup([]byte(q.GetNamespace())), q.GetBitmap()
	in := spanOf(proto.BitmapRange(q))
	w := &bitmapWork{first: in.first >> sliceBits, last: in.last >> sliceBits}
	slices := int64(sliceMax + 1)
	switch s := ask.GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Contains:
		slices = int64(len(s.Contains.GetIds()))
	case *ebbv1.BitmapQuestion_Count, *ebbv1.BitmapQuestion_Rank, *ebbv1.BitmapQuestion_Position, *ebbv1.BitmapQuestion_Ends:
		if soleKey(ask.GetExpr()) != nil {
			slices = 2 // root and leaves have the counts of the slices between
		}
	case *ebbv1.BitmapQuestion_Part:
		w.first, w.last = max(w.first, s.Part.GetFrom()), min(w.last, s.Part.GetTo())
	}
	c := costing{f: f, ns: ns, work: w, slices: slices, enough: enough}
	for _, x := range proto.BitmapExprs(q) {
		c.expr(x)
	}
	if groups := q.GetBitmapGroups(); groups != nil {
		c.members(groups.GetKeys())
	}
	w.periods = len(q.GetBitmapCohort().GetPeriods())
	return w
}

// costing adds up the work of expressions. It counts up to so many slices of each term.
type costing struct {
	f       *frame
	ns      *namespace // nil: there are no keys
	work    *bitmapWork
	slices  int64
	known   map[string]bool
	enough  int  // in words: above it, the exact number does not matter
	ownFree bool // Own expressions, with ids for this shard alone, cost nothing
}

func (c *costing) expr(x *ebbv1.BitmapExpr) {
	if c.work.words > c.enough {
		return
	}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Key:
		from, to, n, words := c.read(e.Key, c.slices)
		if c.known[string(e.Key)] {
			words /= twiceCost
		}
		c.know(e.Key)
		c.work.add(from, to, n, words)
	case *ebbv1.BitmapExpr_Own:
		if !c.ownFree {
			c.work.addGiven(x, c.slices)
		}
	default:
		c.work.addGiven(x, c.slices)
	}
	for _, term := range proto.ExprTerms(x) {
		c.expr(term)
	}
}

// know records a key that is read.
func (c *costing) know(key []byte) {
	if c.known == nil {
		c.known = make(map[string]bool, termsExpected)
	}
	c.known[string(key)] = true
}

// members adds bitmaps that are counted with a set: each is looked at in all slices of the set.
func (c *costing) members(keys [][]byte) {
	for _, key := range keys {
		_, _, _, words := c.read(key, min(c.slices, c.work.slices))
		c.work.words += words
		c.work.terms++
	}
}

// read returns about how many words it takes to read a key, but no more than so many slices of it. It also returns how
// many slices these are, and between which.
func (c *costing) read(name []byte, slices int64) (from, to uint64, n int64, words int) {
	if c.ns == nil {
		return 0, 0, 0, bodyCost
	}
	key, ok := c.f.findKey(c.ns, name)
	if !ok {
		return 0, 0, 0, bodyCost
	}
	r := c.f.summaries.record(key)
	if r.form() != recordBitmap {
		return 0, 0, 0, bodyCost
	}
	h := r.bitmap()
	from, to, n = c.f.summaries.bins.extent(h)
	from, to = max(from, c.work.first), min(to, c.work.last)
	if from > to {
		return 0, 0, 0, bodyCost
	}
	n = min(n, slices, int64(to-from)+1)
	return from, to, n, bodyCost + int(h.leaves) + int(min(sliceCost*n+int64(min(h.ids/4, 1<<40)), bitmap.DenseWords*n))
}

// addGiven adds ids that an expression holds itself. Own ids are the ones in this shard: the slices of other shards are
// skipped one after the other, so own ids cost as much as all of them.
func (w *bitmapWork) addGiven(x *ebbv1.BitmapExpr, slices int64) {
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Range:
		w.addRange(e.Range, slices)
	case *ebbv1.BitmapExpr_Containers:
		n := len(e.Containers.GetContainers())
		w.add(e.Containers.GetFrom(), sliceMax, int64(n/4), bodyCost+n/8) // none takes less than 4 bytes
	case *ebbv1.BitmapExpr_Own:
		w.addGiven(e.Own.GetOf(), min(slices*int64(min(e.Own.GetShards(), proto.ShardsMax)), sliceMax+1))
	}
}

// addRange adds a range of ids.
func (w *bitmapWork) addRange(r *ebbv1.BitRange, slices int64) {
	from, to := r.GetFirst()>>sliceBits, r.GetLast()>>sliceBits
	n := min(slices, int64(min(to, w.last)-min(from, w.last))+1)
	w.add(from, to, n, bodyCost+int(sliceCost*n))
}

// extent returns the first and the last slice of a bitmap that is not empty, and an upper estimate of the number of its
// slices.
func (b *slab) extent(h bitmapHead) (from, to uint64, slices int64) {
	if h.isSmall() {
		s := h.small()
		first, _ := s.Select(0)
		last, _ := s.Select(h.ids - 1)
		return first >> sliceBits, last >> sliceBits, int64(h.ids)
	}
	root := b.at(h.root)
	r := entryAt(root, int(h.leaves)-1)
	end := entryAt(b.at(r.ref()), r.count()-1)
	return entryAt(root, 0).slice(), end.slice(), int64(h.leaves) * leafSlices
}

// full says whether a bitmap would take more than so many words if none of its slices were runs. This depends only on
// its ids, and not on where they lie, so that replicas agree.
func (b *slab) full(h bitmapHead, words uint64) bool {
	if h.ids <= max(words/(sliceCost+1), 2*bitmap.SmallWords) {
		return false // though each id had a slice of its own; whether so few are small, does not matter
	}
	slices := uint64(0)
	for leaf := range int(h.leaves) {
		slices += uint64(entryAt(b.at(h.root), leaf).count())
	}
	return min(sliceCost*slices+h.ids/4, bitmap.DenseWords*slices) > words
}
