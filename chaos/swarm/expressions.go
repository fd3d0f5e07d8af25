package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// computer keeps bitmaps that no other client touches: days of one family, which are in one shard, others in other
// shards, and one whose slices are in all shards. It asks for the results of expressions, through the SDK and in the
// query language, and computes them itself. After a command without an answer it takes other keys, as an owner does.
type computer struct {
	w    *world
	rng  *rand.Rand
	life int
	has  map[string]ids // by key
	wide ids            // of the bitmap in all shards
}

type ids map[uint64]bool

const (
	cohortDays  = 4
	flagBitmaps = 3
)

func newComputer(w *world) *computer {
	b := &computer{w: w, rng: w.rng(7400)}
	b.move()
	return b
}

func (b *computer) move() {
	b.life++
	b.has, b.wide = map[string]ids{}, ids{}
	for i := range cohortDays {
		b.has[b.day(i)] = ids{}
	}
	for i := range flagBitmaps {
		b.has[b.flag(i)] = ids{}
	}
}

func (b *computer) day(i int) string  { return fmt.Sprintf("day-%d/2011-11-%02d", b.life, i+1) }
func (b *computer) flag(i int) string { return fmt.Sprintf("flag-%d-%c", b.life, 'a'+rune(i)) }
func (b *computer) spread() string    { return fmt.Sprintf("spread-%d", b.life) }

// any chooses a key.
func (b *computer) any() string {
	if b.rng.IntN(2) == 0 {
		return b.day(b.rng.IntN(cohortDays))
	}
	return b.flag(b.rng.IntN(flagBitmaps))
}

func (b *computer) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(b.rng, 1000, 6000))
	defer cancel()
	switch b.rng.IntN(10) {
	case 0, 1, 2:
		b.write(ctx, c, countsNamespace, b.any())
	case 3:
		b.write(ctx, c, slicedNamespace, b.spread())
	case 4:
		b.store(ctx, c)
	case 5:
		b.w.read(b.partly(ctx, c) == nil)
	case 6:
		b.w.read(b.groups(ctx, c) == nil)
	case 7:
		b.w.read(b.cohort(ctx, c) == nil)
	default:
		b.w.read(b.compute(ctx, c) == nil)
	}
}

// drawn returns a few ids. It draws from a small set, so that ids often repeat.
func (b *computer) drawn() []uint64 {
	some := ids{}
	for range 2 + b.rng.IntN(8) {
		some[b.rng.Uint64N(4)<<16|b.rng.Uint64N(16)] = true
	}
	return some.list()
}

func (s ids) list() []uint64 {
	out := make([]uint64, 0, len(s))
	for id := range s {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// write sets or clears ids. Some of them may be set or clear already.
func (b *computer) write(ctx context.Context, c *ebb.Client, ns, key string) {
	state := b.wide
	if ns == countsNamespace {
		state = b.has[key]
	}
	some, set := b.drawn(), b.rng.IntN(4) > 0
	want := 0
	for _, id := range some {
		if state[id] != set {
			want++
		}
	}
	edit := c.SetBits
	if !set {
		edit = c.ClearBits
	}
	changed, err := edit(ctx, ns, key, some...)
	b.w.done(outcomeOf(err))
	if err != nil {
		b.move()
		return
	}
	b.w.hold("bits-answer", changed == want, "%v of %s in %s were set: %v, and it is said that %d changed and not %d", some, key, ns, set, changed, want)
	for _, id := range some {
		delete(state, id)
		if set {
			state[id] = true
		}
	}
}

// store stores the result of an expression under a key.
func (b *computer) store(ctx context.Context, c *ebb.Client) {
	x, key := b.draw(1), b.flag(b.rng.IntN(flagBitmaps))
	n, err := c.Bitmap(countsNamespace, x.expr).Store(ctx, key)
	b.w.done(outcomeOf(err))
	if err != nil {
		b.move()
		return
	}
	b.w.hold("expression-right", n == uint64(len(x.ids)), "%d ids of %s were stored, and not the %d of %v", n, x.text, len(x.ids), x.ids.list())
	b.has[key] = x.ids
}

// formula is an expression, for the SDK and in the query language, with its result.
type formula struct {
	expr ebb.BitmapExpr
	text string
	ids  ids
}

// draw returns a random expression that is at most this deep.
func (b *computer) draw(deep int) formula {
	if deep == 0 {
		key := b.any()
		return formula{ebb.Bits(key), key, b.has[key]}
	}
	parts := []formula{b.draw(b.rng.IntN(deep)), b.draw(deep - 1), b.draw(0)}
	var exprs []ebb.BitmapExpr
	var texts []string
	times := map[uint64]int{} // in how many parts an id is
	for _, p := range parts {
		exprs, texts = append(exprs, p.expr), append(texts, p.text)
		for id := range p.ids {
			times[id]++
		}
	}
	out := formula{ids: ids{}}
	var in func(id uint64, n int) bool
	switch b.rng.IntN(5) {
	case 0:
		out.expr, out.text = ebb.AnyOf(exprs...), "("+strings.Join(texts, " | ")+")"
		in = func(_ uint64, n int) bool { return n > 0 }
	case 1:
		out.expr, out.text = ebb.AllOf(exprs...), "("+strings.Join(texts, " & ")+")"
		in = func(_ uint64, n int) bool { return n == len(parts) }
	case 2:
		out.expr, out.text = ebb.OddOf(exprs...), "("+strings.Join(texts, " ^ ")+")"
		in = func(_ uint64, n int) bool { return n%2 == 1 }
	case 3:
		out.expr, out.text = exprs[0].Without(exprs[1:]...), "("+strings.Join(texts, " - ")+")"
		in = func(id uint64, n int) bool { return parts[0].ids[id] && n == 1 }
	default:
		out.expr, out.text = ebb.AtLeast(2, exprs...), "atleast(2, "+strings.Join(texts, ", ")+")"
		in = func(_ uint64, n int) bool { return n >= 2 }
	}
	for id, n := range times {
		if in(id, n) {
			out.ids[id] = true
		}
	}
	return out
}

// compute asks how many ids an expression has, or which.
func (b *computer) compute(ctx context.Context, c *ebb.Client) error {
	x := b.draw(b.rng.IntN(3))
	var got []uint64
	var n uint64
	var coverage ebb.Coverage
	var err error
	var r ebb.Result
	way := b.rng.IntN(4)
	switch way {
	case 0:
		var count ebb.BitCount
		count, err = c.Bitmap(countsNamespace, x.expr).Count(ctx)
		n, coverage = count.Count, count.Coverage
	case 1:
		r, err = c.Query(ctx, "count("+x.text+")", ebb.InNamespace(countsNamespace))
		if err == nil {
			n, coverage = r.Count().Count, r.Coverage
		}
	case 2:
		var page ebb.BitPage
		page, err = c.Bitmap(countsNamespace, x.expr).Page(ctx, 0, 0)
		got, n, coverage = page.IDs, uint64(len(page.IDs)), page.Coverage
	default:
		r, err = c.Query(ctx, "ids("+x.text+") limit 1000", ebb.InNamespace(countsNamespace))
		if err == nil {
			got, n, coverage = r.Page().IDs, uint64(len(r.Page().IDs)), r.Coverage
		}
	}
	if err != nil {
		return err
	}
	b.w.complete(coverage, false)
	b.w.hold("expression-right", n == uint64(len(x.ids)) && (way < 2 || slices.Equal(got, x.ids.list())), "%s has %d ids, %v, and should have %v", x.text, n, got, x.ids.list())
	return nil
}

// groups asks how many ids of an expression are in each bitmap that matches a pattern.
func (b *computer) groups(ctx context.Context, c *ebb.Client) error {
	x := b.draw(1)
	pattern := fmt.Sprintf("flag-%d-*", b.life)
	g, err := c.Bitmap(countsNamespace, x.expr).CountBy(ctx, pattern, 0)
	if err != nil {
		return err
	}
	have := map[string]uint64{}
	ok := g.Count == uint64(len(x.ids)) && slices.IsSortedFunc(g.Groups, func(a, b ebb.Group) int { return int(b.Count) - int(a.Count) })
	for _, group := range g.Groups {
		have[group.Key] = group.Count
	}
	for i := range flagBitmaps {
		both := uint64(0)
		for id := range b.has[b.flag(i)] {
			if x.ids[id] {
				both++
			}
		}
		ok = ok && have[b.flag(i)] == both
	}
	b.w.hold("expression-right", ok && len(have) <= flagBitmaps, "%s by %s is %+v, of %v and %v", x.text, pattern, g, x.ids.list(), b.has)
	return nil
}

// cohort asks how many of the ids that first occur on a day occur again later.
func (b *computer) cohort(ctx context.Context, c *ebb.Client) error {
	everyone := b.rng.IntN(2) == 0
	var rows []ebb.CohortRow
	var err error
	if b.rng.IntN(2) == 0 {
		of := ebb.CohortQuery{Everyone: everyone}
		for i := range cohortDays {
			of.Periods = append(of.Periods, ebb.CohortPeriod{Name: fmt.Sprintf("2011-11-%02d", i+1), IDs: ebb.Bits(b.day(i))})
		}
		rows, err = c.Cohort(ctx, countsNamespace, of)
	} else {
		text := fmt.Sprintf("cohort(%s .. 2011-11-%02d)", b.day(0), cohortDays)
		if everyone {
			text += " of everyone"
		}
		var r ebb.Result
		if r, err = c.Query(ctx, text, ebb.InNamespace(countsNamespace)); err == nil {
			rows = r.Cohort()
		}
	}
	if err != nil {
		return err
	}
	ok := len(rows) == cohortDays
	for i := 0; ok && i < cohortDays; i++ {
		first := ids{}
		for id := range b.has[b.day(i)] {
			first[id] = everyone || !slices.ContainsFunc(rows[:i], func(r ebb.CohortRow) bool { return b.has[fmt.Sprintf("day-%d/%s", b.life, r.Period)][id] })
		}
		want := make([]uint64, cohortDays-i)
		for j := i; j < cohortDays; j++ {
			for id, in := range first {
				if in && b.has[b.day(j)][id] {
					want[j-i]++
				}
			}
		}
		ok = rows[i].Period == fmt.Sprintf("2011-11-%02d", i+1) && rows[i].Count == want[0] && slices.Equal(rows[i].Again, want[1:])
	}
	b.w.hold("expression-right", ok, "the cohorts, of everyone: %v, are %+v, of %v", everyone, rows, b.has)
	return nil
}

// partly counts the bitmap whose slices are in all shards. It may accept an answer that lacks some shards.
func (b *computer) partly(ctx context.Context, c *ebb.Client) error {
	var opts []ebb.AskOption
	partial := b.rng.IntN(3) > 0
	if partial {
		opts = append(opts, ebb.AllowPartial())
	}
	n, err := c.Bitmap(slicedNamespace, ebb.Bits(b.spread()), opts...).Count(ctx)
	if err != nil {
		return err
	}
	b.w.complete(n.Coverage, partial)
	floor := uint64(0)
	for id := range b.wide {
		if included(n.Coverage, proto.SliceShardOf(slicedNamespace, id>>16, b.w.plan.Shards)) {
			floor++
		}
	}
	b.w.hold("coverage-honest", n.Count >= floor && n.Count <= uint64(len(b.wide)), "%d of %d shards (failed: %v) say that %s has %d ids: %d are in those, and %d in all",
		n.Coverage.ShardsAnswered, n.Coverage.ShardsTotal, n.Coverage.ShardsFailed, b.spread(), n.Count, floor, len(b.wide))
	return nil
}

// settle asks everything once more.
func (b *computer) settle(ctx context.Context, c *ebb.Client) {
	for _, ask := range []func(context.Context, *ebb.Client) error{b.compute, b.groups, b.cohort, b.partly} {
		err := ask(ctx, c)
		b.w.hold("healed-reads", err == nil, "compute with bitmaps when all was mended: %v", err)
	}
}
