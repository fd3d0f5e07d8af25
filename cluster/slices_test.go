package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func (e *fakeCluster) people() {
	e.create(&ebbv1.Namespace{Name: "people", BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE, Universe: []byte("all")})
}

// bits makes one change of the namespace people.
func (e *fakeCluster) bits(namespace string, changes ...*ebbv1.BitChange) []uint64 {
	e.t.Helper()
	resp, err := e.router("ebb-0").Bits(e.t.Context(), &ebbv1.BitsRequest{Namespace: namespace, Changes: changes})
	if err != nil || len(resp.GetRefused()) > 0 {
		e.t.Fatalf("bits: %v, %v", resp, err)
	}
	return resp.GetChanged()
}

func setIDs(key string, ids ...uint64) *ebbv1.BitChange {
	return &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: ids}
}

func keyTerm(key string) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
}

// about asks one question about bitmaps.
func (e *fakeCluster) about(c *Coordinator, q *ebbv1.Question) *ebbv1.Answer {
	e.t.Helper()
	resp, err := c.Ask(e.t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil || resp.Answers[0].GetError() != nil {
		e.t.Fatalf("ask %v: %v, %v", q, resp, err)
	}
	if v := resp.Answers[0].GetCoverage(); v.GetShardsAnswered() != v.GetShardsTotal() || proto.BySlice(e.table.Namespace(q.GetNamespace())) && v.GetShardsTotal() != e.table.Shards() {
		e.t.Fatalf("coverage %v", v)
	}
	return resp.Answers[0]
}

func listIDs(namespace string, x *ebbv1.BitmapExpr) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: x, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: proto.BitPageMax}},
	}}}
}

func (e *fakeCluster) idsOf(key string) []uint64 {
	e.t.Helper()
	return e.about(e.coordinator("ebb-1"), listIDs("people", keyTerm(key))).GetBitmap().GetIds()
}

// idSet is what a bitmap should be.
type idSet map[uint64]bool

func (s idSet) sorted() []uint64 {
	out := []uint64{}
	for id, in := range s {
		if in {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// bitmapWorld are bitmaps, and what they should be.
type bitmapWorld struct {
	rnd  *rand.Rand
	keys []string
	sets map[string]idSet
}

func newBitmapWorld(seed uint64) *bitmapWorld {
	w := &bitmapWorld{rnd: rand.New(rand.NewPCG(seed, 1)), keys: []string{"all", "a", "b", "c/2003-01", "none"}, sets: map[string]idSet{}}
	for _, key := range w.keys {
		w.sets[key] = idSet{}
	}
	return w
}

// id is one of a few slices, some of them far away.
func (w *bitmapWorld) id() uint64 {
	return []uint64{0, 1, 2, 3, 5, 40, 1 << 20, proto.BitSliceMax}[w.rnd.IntN(8)]<<16 | uint64(w.rnd.IntN(1<<16))
}

// change draws a change, does it to the sets, and says how many ids it changes.
func (w *bitmapWorld) change() (*ebbv1.BitChange, uint64) {
	key := w.keys[w.rnd.IntN(len(w.keys)-1)] // the last one never is
	c := &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp(1 + w.rnd.IntN(3))}
	touched := idSet{}
	if w.rnd.IntN(4) == 0 {
		first := w.id() >> 16 << 16
		first += uint64(w.rnd.IntN(1 << 16))
		last := min(first+uint64(w.rnd.IntN(70_000)), 1<<64-1)
		if last < first {
			last = first
		}
		c.Range = &ebbv1.BitRange{First: first, Last: last}
		for id := first; ; id++ {
			if touched[id] = true; id == last {
				break
			}
		}
	} else {
		for range 1 + w.rnd.IntN(500) {
			c.Ids = append(c.Ids, w.id())
			touched[c.Ids[len(c.Ids)-1]] = true
		}
	}
	changed, set := uint64(0), w.sets[key]
	for id := range touched {
		to := c.Op == ebbv1.BitOp_BIT_OP_SET || c.Op == ebbv1.BitOp_BIT_OP_FLIP && !set[id]
		if set[id] != to {
			changed++
		}
		if set[id] = to; !to {
			delete(set, id)
		}
	}
	return c, changed
}

// span draws a range of ids around the border of two slices, and says what it is.
func (w *bitmapWorld) span() (*ebbv1.BitmapExpr, idSet) {
	first := w.id()&^0xffff | 0xffc0
	last := first + uint64(w.rnd.IntN(300))
	if last < first {
		last = 1<<64 - 1
	}
	set := idSet{}
	for id := first; ; id++ {
		if set[id] = true; id == last {
			break
		}
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: first, Last: last}}}, set
}

// expr draws an expression, and says what it is.
func (w *bitmapWorld) expr(depth int) (*ebbv1.BitmapExpr, idSet) {
	if w.rnd.IntN(8) == 0 {
		return w.span()
	}
	if depth == 0 || w.rnd.IntN(5) == 0 {
		key := w.keys[w.rnd.IntN(len(w.keys))]
		return keyTerm(key), w.sets[key]
	}
	var of []*ebbv1.BitmapExpr
	var sets []idSet
	for range 1 + w.rnd.IntN(3) {
		x, set := w.expr(depth - 1)
		of, sets = append(of, x), append(sets, set)
	}
	counts := map[uint64]int{}
	for _, set := range sets {
		for id := range set {
			counts[id]++
		}
	}
	filtered := func(from map[uint64]int, keep func(id uint64, n int) bool) idSet {
		out := idSet{}
		for id, n := range from {
			if keep(id, n) {
				out[id] = true
			}
		}
		return out
	}
	list := &ebbv1.BitmapExprs{Of: of}
	switch w.rnd.IntN(6) {
	case 0:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: list}}, filtered(counts, func(uint64, int) bool { return true })
	case 1:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: list}}, filtered(counts, func(_ uint64, n int) bool { return n == len(of) })
	case 2:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: list}}, filtered(counts, func(_ uint64, n int) bool { return n%2 == 1 })
	case 3:
		times := 1 + w.rnd.IntN(len(of))
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: uint32(times), Of: of}}},
			filtered(counts, func(_ uint64, n int) bool { return n >= times })
	case 4:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: list}}, filtered(counts, func(id uint64, n int) bool { return n == 1 && sets[0][id] })
	}
	out := idSet{} // what is not in it, of the universe of the namespace
	for id := range w.sets["all"] {
		if !sets[0][id] {
			out[id] = true
		}
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: of[0]}}}, out
}

// Every answer about an expression is that of plain sets, whichever placement, shard count and node count hold the
// bitmaps.
func TestExpressionsHaveOneAnswer(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		for _, shards := range []uint32{1, 4, 64} {
			if int(shards) < nodes {
				continue // there is no such cluster
			}
			for _, placement := range []ebbv1.BitmapPlacement{ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE} {
				t.Run(fmt.Sprintf("%d nodes, %d shards, %v", nodes, shards, placement), func(t *testing.T) {
					e := newFakeClusterOf(t, nodes, shards)
					e.create(&ebbv1.Namespace{Name: "people", BitmapPlacement: placement, Universe: []byte("all")})
					askEverything(t, e, newBitmapWorld(uint64(shards)))
				})
			}
		}
	}
}

func askEverything(t *testing.T, e *fakeCluster, w *bitmapWorld) {
	c := e.coordinator("ebb-0")
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		for range 4 {
			change, want := w.change()
			if got := e.bits("people", change); got[0] != want {
				t.Fatalf("round %d: %v of %v has changed %d ids, want %d", round, change.GetOp(), change.GetRange(), got[0], want)
			}
		}
		for range 3 {
			x, set := w.expr(3)
			if len(proto.ExprKeys(x)) == 0 { // which is no question
				x = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{x, keyTerm("none")}}}}
			}
			all := set.sorted()
			ask := func(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
				q.Expr = x
				return e.about(c, &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Bitmap{Bitmap: q}}).GetBitmap()
			}
			if got := ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Count{Count: true}}).GetCount(); got != uint64(len(all)) {
				t.Fatalf("%v: %d ids, want %d", x, got, len(all))
			}
			a, b := w.id(), w.id()
			in := &ebbv1.BitRange{First: min(a, b), Last: max(a, b)}
			lo, _ := slices.BinarySearch(all, in.First)
			hi, last := slices.BinarySearch(all, in.Last)
			if last {
				hi++
			}
			some := all[lo:hi]
			if got := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Count{Count: true}}).GetCount(); got != uint64(len(some)) {
				t.Fatalf("%v in %v: %d ids, want %d", x, in, got, len(some))
			}
			if got := ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Rank{Rank: in.First}}).GetCount(); got != uint64(lo) {
				t.Fatalf("%v: rank of %d is %d, want %d", x, in.First, got, lo)
			}
			ends := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Ends{Ends: true}})
			if len(some) == 0 && len(ends.GetIds()) != 0 || len(some) > 0 && !slices.Equal(ends.GetIds(), []uint64{some[0], some[len(some)-1]}) || ends.GetCount() != uint64(len(some)) {
				t.Fatalf("%v in %v: ends %v, want those of %d ids", x, in, ends, len(some))
			}
			if at := w.rnd.IntN(len(some) + 2); true {
				got := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Position{Position: uint64(at)}}).GetIds()
				if at >= len(some) && len(got) != 0 || at < len(some) && !slices.Equal(got, some[at:at+1]) {
					t.Fatalf("%v in %v: position %d of %d is %v", x, in, at, len(some), got)
				}
			}
			looked := []uint64{a, b, w.id()}
			if len(all) > 0 {
				looked = append(looked, all[w.rnd.IntN(len(all))])
			}
			for i, got := range ask(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: &ebbv1.BitmapIds{Ids: looked}}}).GetContains() {
				if got != set[looked[i]] {
					t.Fatalf("%v: contains %d: %v", x, looked[i], got)
				}
			}
			limit := uint32(1 + len(some)/3 + w.rnd.IntN(50))
			var listed []uint64
			for from := uint64(0); ; {
				page := ask(&ebbv1.BitmapQuestion{Range: in, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: from, Limit: limit}}})
				if listed = append(listed, page.GetIds()...); !page.GetMore() {
					break
				}
				if len(page.GetIds()) != int(limit) || page.GetNext() <= page.GetIds()[limit-1] {
					t.Fatalf("%v: a page of %d ids, with more from %d on; want %d", x, len(page.GetIds()), page.GetNext(), limit)
				}
				from = page.GetNext()
			}
			if !slices.Equal(listed, some) {
				t.Fatalf("%v in %v: %d ids listed in pages of %d, want %d", x, in, len(listed), limit, len(some))
			}
		}
		w.store(t, e)
		w.askGroups(t, e, c)
		w.askCohort(t, e, c)
	}
}

// common is how many ids of some are in a set.
func (s idSet) common(ids []uint64) (n uint64) {
	for _, id := range ids {
		if s[id] {
			n++
		}
	}
	return n
}

// store makes a bitmap of an expression, which may be about what it replaces.
func (w *bitmapWorld) store(t *testing.T, e *fakeCluster) {
	x, set := w.expr(2)
	key := w.keys[w.rnd.IntN(len(w.keys)-1)]
	got, err := e.keys("ebb-0").StoreBitmap(t.Context(), &ebbv1.StoreBitmapRequest{Namespace: "people", Key: []byte(key), Expr: x})
	if err != nil || got.GetCount() != uint64(len(set)) {
		t.Fatalf("store %s = %v: %v, %v, want %d ids", key, x, got, err, len(set))
	}
	w.sets[key] = maps.Clone(set)
}

// askGroups counts an expression by all bitmaps, some of them named and some matched.
func (w *bitmapWorld) askGroups(t *testing.T, e *fakeCluster, c *Coordinator) {
	x, set := w.expr(2)
	all := set.sorted()
	q := &ebbv1.BitmapGroupsQuestion{Expr: x, Keys: [][]byte{[]byte("a"), []byte("none")}, Patterns: [][]byte{[]byte("*"), []byte("c/*")}, Top: uint32(w.rnd.IntN(4))}
	want := map[string]uint64{}
	for _, key := range w.keys {
		if len(w.sets[key]) > 0 || key == "a" || key == "none" {
			want[key] = w.sets[key].common(all)
		}
	}
	got := e.about(c, &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: q}}).GetGroups()
	least, n := len(want), len(got.GetGroups()) // there are more where a bitmap has lost all its ids
	if q.Top > 0 {
		least = min(least, int(q.Top))
	}
	if got.GetCount() != uint64(len(all)) || n < least || q.Top > 0 && n > int(q.Top) {
		t.Fatalf("%v by %v: %v, want %d ids by %v", x, q, got, len(all), want)
	}
	for i, g := range got.GetGroups() {
		if g.GetCount() != want[string(g.GetKey())] || i > 0 && g.GetCount() > got.GetGroups()[i-1].GetCount() {
			t.Fatalf("%v by %v: %v, want %v", x, q, got, want)
		}
	}
}

// askCohort asks for a table of expressions, with or without those that came before.
func (w *bitmapWorld) askCohort(t *testing.T, e *fakeCluster, c *Coordinator) {
	table := &ebbv1.BitmapCohortQuestion{Everyone: w.rnd.IntN(2) == 0}
	sets, seen := []idSet{}, idSet{}
	for i := range 1 + w.rnd.IntN(4) {
		x, set := w.expr(1)
		table.Periods, sets = append(table.Periods, &ebbv1.BitmapCohortPeriod{Period: fmt.Sprint(i), Expr: x}), append(sets, set)
	}
	within := idSet(nil)
	if w.rnd.IntN(2) == 0 {
		table.Within, within = w.expr(1)
	}
	table.Periods = append(table.Periods, &ebbv1.BitmapCohortPeriod{Period: "last", Expr: keyTerm("a")})
	sets = append(sets, w.sets["a"])
	got := e.about(c, &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: table}}).GetCohort()
	for i, set := range sets {
		var row []uint64
		for id := range set {
			if (table.Everyone || !seen[id]) && (table.Within == nil || within[id]) {
				row = append(row, id)
			}
		}
		for id := range set {
			seen[id] = true
		}
		line := got.GetRows()[i]
		if line.GetPeriod() != table.Periods[i].GetPeriod() || line.GetCount() != uint64(len(row)) {
			t.Fatalf("row %d of %v: %v, want %d ids", i, table, line, len(row))
		}
		for j, n := range line.GetAgain() {
			if want := sets[i+1+j].common(row); n != want {
				t.Fatalf("row %d of %v: %d come again in %d, want %d", i, table, n, i+1+j, want)
			}
		}
	}
}

// A bitmap that was deleted is gone at once for every caller, and begins anew with what is set after that. This also
// holds for a node that remembers its number, and if the node that deleted it stopped between its home and its parts.
func TestSlicedDelete(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	e.bits("people", setIDs("a", 1, 70_000, 1<<40), setIDs("b", 1))
	remembers := e.coordinator("ebb-2")
	ask := listIDs("people", &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyTerm("a"), keyTerm("b")}}}})
	if got := e.about(remembers, ask).GetBitmap().GetIds(); !slices.Equal(got, []uint64{1, 70_000, 1 << 40}) {
		t.Fatalf("ids %v", got)
	}

	// The home has forgotten it, and the parts have not heard of that.
	del, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("a")}}}}, "people", nil)
	if err != nil {
		t.Fatal(err)
	}
	e.with(func() { e.enter(e.table.ShardOf("people", []byte("a")), del) })
	if got := e.about(remembers, ask).GetBitmap().GetIds(); !slices.Equal(got, []uint64{1}) {
		t.Errorf("after its home forgot it: ids %v", got)
	}
	if got := e.bits("people", setIDs("a", 70_000)); got[0] != 1 {
		t.Errorf("a new bitmap had an id of the old one: %v", got)
	}
	if got := e.about(remembers, ask).GetBitmap().GetIds(); !slices.Equal(got, []uint64{1, 70_000}) {
		t.Errorf("made anew: ids %v", got)
	}

	// Deleted properly, nothing is left in any shard.
	if resp, err := e.keys("ebb-1").Delete(t.Context(), &ebbv1.DeleteRequest{Namespace: "people", Keys: [][]byte{[]byte("a"), []byte("b"), []byte("c")}}); err != nil || resp.GetDeleted() != 2 {
		t.Errorf("delete: %v, %v", resp, err)
	}
	if got := e.about(remembers, ask).GetBitmap().GetIds(); len(got) != 0 {
		t.Errorf("deleted: ids %v", got)
	}
}

// A client that makes a bitmap and stops before the ids are set leaves an empty one, which is as good as none.
func TestSlicedBitmapWithoutIDs(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	r := e.router("ebb-0")
	if _, err := r.createGenerations(t.Context(), e.table, "people", &ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{setIDs("a", 1)}}); err != nil {
		t.Fatal(err)
	}
	if got := e.idsOf("a"); len(got) != 0 {
		t.Errorf("ids %v", got)
	}
	e.bits("people", setIDs("a", 5), &ebbv1.BitChange{Key: []byte("never"), Op: ebbv1.BitOp_BIT_OP_CLEAR, Ids: []uint64{5}})
	if got := e.idsOf("a"); !slices.Equal(got, []uint64{5}) {
		t.Errorf("ids %v", got)
	}
	keys := &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}}
	resp, err := e.coordinator("ebb-0").Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{keys}})
	if err != nil || resp.Answers[0].GetError() != nil {
		t.Fatal(resp, err)
	}
	list := resp.Answers[0].GetKeys().GetKeys()
	if len(list) != 1 || string(list[0].GetKey()) != "a" || list[0].GetKind() != ebbv1.Kind_KIND_BITMAP {
		t.Errorf("keys %v: parts are not keys, and what was only cleared was not made", list)
	}
}

// A change that is sent again under its identity is done once; one to a bitmap that was made anew since is another.
func TestSlicedChangesOnce(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	req := &ebbv1.BitsRequest{
		Namespace: "people", IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2},
		Changes: []*ebbv1.BitChange{{Key: []byte("a"), Op: ebbv1.BitOp_BIT_OP_FLIP, Ids: []uint64{1, 70_000, 1 << 30}}},
	}
	send := func() {
		t.Helper()
		if resp, err := e.router("ebb-0").Bits(t.Context(), req); err != nil || resp.GetChanged()[0] != 3 {
			t.Fatalf("bits: %v, %v", resp, err)
		}
	}
	send()
	send()
	if got := e.idsOf("a"); len(got) != 3 {
		t.Errorf("flipped once and sent twice: %v", got)
	}
	if _, err := e.keys("ebb-0").Delete(t.Context(), &ebbv1.DeleteRequest{Namespace: "people", Keys: [][]byte{[]byte("a")}}); err != nil {
		t.Fatal(err)
	}
	send()
	if got := e.idsOf("a"); len(got) != 3 {
		t.Errorf("flipped in a new bitmap: %v", got)
	}
}

// An answer that lacks a shard is no answer unless that is allowed, and then it says which.
func TestSlicedCoverage(t *testing.T) { synctest.Test(t, testSlicedCoverage) }

func testSlicedCoverage(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	ask := &ebbv1.AskRequest{Questions: []*ebbv1.Question{{Namespace: "people", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: keyTerm("a"), Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}}}
	early, c := e.coordinator("ebb-2"), e.coordinator("ebb-0")
	if resp, err := askSoon(t.Context(), early, ask); err != nil || resp.Answers[0].GetError() != nil || resp.Answers[0].GetBitmap().GetCount() != 0 {
		t.Fatalf("before it is there: %v, %v", resp, err)
	}
	e.bits("people", &ebbv1.BitChange{Key: []byte("a"), Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: 0, Last: 100*65_536 - 1}})
	home := e.table.ShardOf("people", []byte("a"))
	lost := home%8 + 1
	e.with(func() { e.leads[lost] = "" })
	want := uint64(0)
	for slice := range uint64(100) {
		if proto.SliceShardOf("people", slice, 8) != lost {
			want += 65_536
		}
	}
	resp, err := askSoon(t.Context(), c, ask)
	if err != nil || !errors.Is(proto.FromWire(resp.Answers[0].GetError()), proto.ErrIncomplete) {
		t.Errorf("a shard is missing: %v, %v", resp, err)
	}
	ask.AllowPartial = true
	resp, err = askSoon(t.Context(), c, ask)
	if err != nil || resp.Answers[0].GetBitmap().GetCount() != want || !slices.Equal(resp.Answers[0].GetCoverage().GetShardsFailed(), []uint32{lost}) {
		t.Errorf("without shard %d: %v, %v; want %d ids", lost, resp, err, want)
	}
	e.with(func() { e.leads[lost], e.leads[home] = e.table.Preferred(lost), "" })
	for knows, by := range map[string]*Coordinator{"its number": c, "no number": e.coordinator("ebb-1"), "that it was not there": early} {
		resp, err = askSoon(t.Context(), by, ask)
		if err != nil {
			t.Fatalf("without its home, by a node that knows %s: %v", knows, err)
		}
		if v := resp.Answers[0]; !errors.Is(proto.FromWire(v.GetError()), proto.ErrIncomplete) || v.GetError().GetShard() != home {
			t.Errorf("without its home, by a node that knows %s: %v, %v; want INCOMPLETE", knows, resp, err)
		}
	}
}

// Other kinds, and edits that pass the split by, are refused by the shard itself.
func TestSlicedNamespaceHoldsBitmapsOnly(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	r := e.router("ebb-0")
	if _, err := r.Increment(t.Context(), &ebbv1.IncrementRequest{Namespace: "people", Increments: []*ebbv1.Increment{{Key: []byte("a"), Bin: []byte("b")}}}); !errors.Is(err, proto.ErrWrongKind) {
		t.Errorf("an increment: %v", err)
	}
	if _, err := e.keys("ebb-0").Rename(t.Context(), &ebbv1.RenameRequest{Namespace: "people", Key: []byte("a"), To: []byte("b")}); !errors.Is(err, proto.ErrWrongKind) {
		t.Errorf("a rename: %v", err)
	}
	for name, body := range map[string]*ebbv1.Command{
		"put":  {Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("a"), What: &ebbv1.PutKey_From{From: []byte("b")}}}},
		"bits": {Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(setIDs("a", 1))}}}},
	} {
		cmd, err := encoded(body, "people", nil)
		if err != nil {
			t.Fatal(err)
		}
		result := &ebbv1.CommandResult{}
		e.with(func() { addResult(result, e.enter(1, cmd)) })
		if result.GetError() == nil {
			t.Errorf("%s was applied", name)
		}
	}
	if _, err := r.Bits(t.Context(), &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{setIDs("\x00abcdefghijk", 1)}}); !errors.Is(err, proto.ErrBadKey) {
		t.Errorf("the name of a part: %v", err)
	}
	for name, q := range map[string]*ebbv1.Question{
		"a summary":          {Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a")}}}},
		"an export":          {Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte("a")}}},
		"a part":             {Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: keyTerm("a"), Select: &ebbv1.BitmapQuestion_Part{Part: &ebbv1.BitmapPart{}}}}},
		"the name of a part": listIDs("people", keyTerm("\x00abcdefghijk")),
	} {
		q.Namespace = "people"
		resp, err := e.coordinator("ebb-0").Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
		if code := resp.GetAnswers()[0].GetError().GetCode(); err != nil || code/1000 != 2 {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
	}
	c := NewControl()
	c.Apply(1, encode(t, initCommand("cluster-a", e.table)))
	c.Apply(2, encode(t, setCommand(true, &ebbv1.Namespace{Name: "keys"})))
	if _, err := c.setNamespace(&ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{Name: "keys", BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE}}); !errors.Is(err, proto.ErrBadNamespace) {
		t.Errorf("another placement: %v", err)
	}
}

// askSoon asks with a deadline that a missing leader does not outlast.
func askSoon(ctx context.Context, c *Coordinator, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return c.Ask(ctx, req)
}

// A range of thousands of days is answered of bitmaps that are placed by slice, too.
func TestSlicedLongRange(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	day := time.Date(1996, 1, 1, 0, 0, 0, 0, time.UTC)
	last := time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
	days, set, changes := 0, 0, []*ebbv1.BitChange(nil)
	for ; !day.After(last); day = day.AddDate(0, 0, 1) {
		if days%20 == 0 {
			changes = append(changes, setIDs("up/"+day.Format(time.DateOnly), uint64(days)<<16, 1))
			set++
		}
		days++
	}
	for list := range slices.Chunk(changes, 100) {
		e.bits("people", list...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := NewQueries(e.keys("ebb-1"))
	for range 2 {
		resp, err := q.Query(ctx, &ebbv1.QueryRequest{Text: "count(up/1996-01-01 .. 2023-01-01) in people"})
		if err != nil {
			t.Fatal(err)
		}
		if n := resp.GetAnswer().GetBitmap().GetCount(); n != uint64(set)+1 {
			t.Errorf("%d ids: want %d", n, set+1)
		}
	}
}
