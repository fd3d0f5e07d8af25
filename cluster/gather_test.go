package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Whatever is asked of bitmaps, the answer is that of Go maps, whichever shards they lie in.

// library is bitmaps by key, and the cluster that should hold the same.
type library struct {
	t    *testing.T
	e    *fakeCluster
	r    *rand.Rand
	sets map[string]ids
	keys []string
}

// newLibrary fills bitmaps of every form: scattered keys, and two families of periods.
func newLibrary(t *testing.T, nodes int, shards uint32) *library {
	l := &library{t: t, e: newFakeClusterOf(t, nodes, shards), r: rand.New(rand.NewPCG(5, uint64(shards))), sets: map[string]ids{}}
	for i := range 12 {
		l.keys = append(l.keys, fmt.Sprintf("country/%c%c", 'A'+i, 'A'+i*i%26), fmt.Sprintf("play/2011-11-%02d", i+1))
	}
	l.keys = append(l.keys, "premium", "staff", "listen/2011-11", "empty")
	slices.Sort(l.keys)
	for _, key := range l.keys {
		l.sets[key] = ids{}
		if key != "empty" {
			l.fill(key)
		}
	}
	return l
}

func (l *library) fill(key string) {
	change := &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET}
	switch n := 1 + l.r.IntN(1<<(4+l.r.IntN(8))); l.r.IntN(4) {
	case 0: // dense
		for range 3 * n {
			change.Ids = append(change.Ids, l.r.Uint64N(2<<16))
		}
	case 1: // over many slices
		for range n {
			change.Ids = append(change.Ids, l.r.Uint64N(40)<<16|l.r.Uint64N(50))
		}
	case 2: // the ends of all ids
		for range n {
			change.Ids = append(change.Ids, l.r.Uint64N(500)-250)
		}
	default: // runs
		first := l.r.Uint64N(5 << 16)
		for i := range uint64(4 * n) {
			change.Ids = append(change.Ids, first+i)
		}
	}
	for _, id := range change.Ids {
		l.sets[key][id] = true
	}
	if _, err := l.e.router("ebb-0").Bits(context.Background(), &ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{change}}); err != nil {
		l.t.Fatal(err)
	}
}

// expression draws one, and what it should be.
func (l *library) expression(depth int) (*ebbv1.BitmapExpr, ids) {
	if depth == 0 || l.r.IntN(5) == 0 {
		if l.r.IntN(8) == 0 {
			first, out := l.r.Uint64N(3<<16), ids{}
			last := first + l.r.Uint64N(70_000)
			for id := first; id <= last; id++ {
				out[id] = true
			}
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: first, Last: last}}}, out
		}
		key := l.keys[l.r.IntN(len(l.keys))]
		return keyed(key), l.sets[key]
	}
	n := 2 + l.r.IntN(3)
	of, sets := make([]*ebbv1.BitmapExpr, n), make([]ids, n)
	for i := range of {
		of[i], sets[i] = l.expression(depth - 1)
	}
	list := &ebbv1.BitmapExprs{Of: of}
	times := 1 + l.r.IntN(n)
	counted, first := map[uint64]int{}, sets[0]
	for _, set := range sets {
		for id := range set {
			counted[id]++
		}
	}
	where := func(in func(id uint64, n int) bool) ids {
		out := ids{}
		for id, n := range counted {
			if in(id, n) {
				out[id] = true
			}
		}
		return out
	}
	switch l.r.IntN(6) {
	case 0:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: list}}, where(func(uint64, int) bool { return true })
	case 1:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: list}}, where(func(_ uint64, c int) bool { return c == n })
	case 2:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: list}}, where(func(id uint64, c int) bool { return c == 1 && first[id] })
	case 3:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: list}}, where(func(_ uint64, c int) bool { return c%2 == 1 })
	case 4:
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: uint32(times), Of: of}}}, where(func(_ uint64, c int) bool { return c >= times })
	}
	not := ids{}
	for id := range sets[1] {
		if !first[id] {
			not[id] = true
		}
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: of[0], Universe: of[1]}}}, not
}

func keyed(key string) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
}

// ask asks one question.
func (l *library) ask(q *ebbv1.Question) *ebbv1.Answer {
	l.t.Helper()
	c := l.e.coordinator("ebb-0")
	resp, err := c.Ask(context.Background(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil {
		l.t.Fatal(err)
	}
	a := resp.GetAnswers()[0]
	if a.GetError() != nil {
		l.t.Fatalf("%v: %v", q, a.GetError())
	}
	if c := a.GetCoverage(); c.GetShardsTotal() == 0 || c.GetShardsAnswered() != c.GetShardsTotal() {
		l.t.Fatalf("%v: coverage %v", q, c)
	}
	return a
}

// within draws a range of ids half of the time.
func (l *library) within() *ebbv1.BitRange {
	if l.r.IntN(2) == 0 {
		return nil
	}
	first := l.r.Uint64N(3 << 16)
	return &ebbv1.BitRange{First: first, Last: first + l.r.Uint64N(4<<16)}
}

func (s ids) in(r *ebbv1.BitRange) ids {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(id uint64, _ bool) bool { return r != nil && (id < r.GetFirst() || id > r.GetLast()) })
	return out
}

func (s ids) common(o ids) (n uint64) {
	for id := range s {
		if o[id] {
			n++
		}
	}
	return n
}

func shardCounts(t *testing.T, f func(t *testing.T, l *library)) {
	for _, of := range []struct {
		nodes  int
		shards uint32
	}{{1, 1}, {1, 4}, {1, 64}, {3, 4}, {3, 64}} {
		t.Run(fmt.Sprintf("%d nodes, %d shards", of.nodes, of.shards), func(t *testing.T) { f(t, newLibrary(t, of.nodes, of.shards)) })
	}
}

func TestExpressionsOverShardsAreThoseOfMaps(t *testing.T) {
	shardCounts(t, func(t *testing.T, l *library) {
		for range 30 {
			x, set := l.expression(1 + l.r.IntN(3))
			if len(proto.ExprKeys(x)) == 0 {
				continue // made of ranges only, which is refused
			}
			r := l.within()
			want := slices.Sorted(maps.Keys(set.in(r)))
			q := &ebbv1.BitmapQuestion{Expr: x, Range: r}
			answer := func(sel *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
				sel.Expr, sel.Range = q.Expr, q.Range
				a := l.ask(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: sel}}).GetBitmap()
				if a.GetAsOfUs() != year2026 {
					t.Fatalf("as of %d", a.GetAsOfUs())
				}
				a.AsOfUs = 0
				return a
			}
			same := func(what string, got, want *ebbv1.BitmapAnswer) {
				if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
					t.Fatalf("%s of %v in %v:\n%s", what, x, r, d)
				}
			}
			same("count", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Count{Count: true}}), &ebbv1.BitmapAnswer{Count: uint64(len(want))})
			ends := &ebbv1.BitmapAnswer{Count: uint64(len(want))}
			if len(want) > 0 {
				ends.Ids = []uint64{want[0], want[len(want)-1]}
			}
			same("ends", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ends{Ends: true}}), ends)

			from, limit := l.r.Uint64N(3<<16), 1+l.r.IntN(200)
			at, _ := slices.BinarySearch(want, from)
			page := &ebbv1.BitmapAnswer{Ids: want[at:min(len(want), at+limit)]}
			if at+limit < len(want) {
				page.More, page.Next = true, want[at+limit]
			}
			same("ids", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{From: from, Limit: uint32(limit)}}}), page)
			same("rank", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Rank{Rank: from}}), &ebbv1.BitmapAnswer{Count: uint64(at)})

			position := l.r.IntN(len(want) + 2)
			there := &ebbv1.BitmapAnswer{}
			if position < len(want) {
				there.Ids = want[position : position+1]
			}
			same("position", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Position{Position: uint64(position)}}), there)

			look, contains := &ebbv1.BitmapIds{}, &ebbv1.BitmapAnswer{}
			for range 20 {
				id := l.r.Uint64N(2 << 16)
				if len(want) > 0 && l.r.IntN(2) == 0 {
					id = want[l.r.IntN(len(want))]
				}
				look.Ids = append(look.Ids, id)
				contains.Contains = append(contains.Contains, set.in(r)[id])
			}
			same("contains", answer(&ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: look}}), contains)
		}
	})
}

func TestGroupsOverShardsAreThoseOfMaps(t *testing.T) {
	shardCounts(t, func(t *testing.T, l *library) {
		for range 15 {
			x, set := l.expression(l.r.IntN(3))
			r, top := l.within(), uint32(l.r.IntN(6))
			want := &ebbv1.BitmapGroups{Count: uint64(len(set.in(r))), AsOfUs: year2026}
			ask := &ebbv1.BitmapGroupsQuestion{Expr: x, Range: r, Top: top, Keys: [][]byte{[]byte("staff"), []byte("empty")}}
			members := []string{"staff", "empty"}
			if l.r.IntN(2) == 0 {
				ask.Patterns = [][]byte{[]byte("country/*"), []byte("*f*")} // staff again
				for _, key := range l.keys {
					if bytes.HasPrefix([]byte(key), []byte("country/")) {
						members = append(members, key)
					}
				}
			}
			for _, key := range members {
				want.Groups = append(want.Groups, &ebbv1.BitmapGroup{Key: []byte(key), Count: set.in(r).common(l.sets[key])})
			}
			slices.SortFunc(want.Groups, func(a, b *ebbv1.BitmapGroup) int {
				return order(b.GetCount(), a.GetCount(), bytes.Compare(a.GetKey(), b.GetKey()))
			})
			if top > 0 {
				want.Groups = want.Groups[:min(int(top), len(want.Groups))]
			}
			got := l.ask(&ebbv1.Question{Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: ask}}).GetGroups()
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Fatalf("%v:\n%s", ask, d)
			}
		}
	})
}

func order(a, b uint64, otherwise int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return otherwise
}

func TestCohortsOverShardsAreThoseOfMaps(t *testing.T) {
	shardCounts(t, func(t *testing.T, l *library) {
		for range 15 {
			ask := &ebbv1.BitmapCohortQuestion{Range: l.within(), Everyone: l.r.IntN(2) == 0}
			var sets []ids
			family := l.r.IntN(2) == 0
			for i := range 1 + l.r.IntN(7) {
				p := &ebbv1.BitmapCohortPeriod{Period: fmt.Sprint(i)}
				var set ids
				if family {
					key := fmt.Sprintf("play/2011-11-%02d", i+1)
					p.Expr, set = keyed(key), l.sets[key]
				} else {
					p.Expr, set = l.expression(1)
				}
				ask.Periods, sets = append(ask.Periods, p), append(sets, set)
			}
			var within ids
			if l.r.IntN(2) == 0 {
				ask.Within, within = l.expression(1)
			}
			want, seen := &ebbv1.BitmapCohort{AsOfUs: year2026}, ids{}
			for i, set := range sets {
				row := set.in(ask.Range)
				maps.DeleteFunc(row, func(id uint64, _ bool) bool { return ask.Within != nil && !within[id] || !ask.Everyone && seen[id] })
				line := &ebbv1.BitmapCohortRow{Period: fmt.Sprint(i), Count: uint64(len(row))}
				for _, later := range sets[i+1:] {
					line.Again = append(line.Again, row.common(later))
				}
				want.Rows = append(want.Rows, line)
				maps.Copy(seen, set)
			}
			q := &ebbv1.Question{Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: ask}}
			if len(proto.QuestionKeys(q)) == 0 {
				continue
			}
			if d := cmp.Diff(want, l.ask(q).GetCohort(), protocmp.Transform()); d != "" {
				t.Fatalf("%v:\n%s", ask, d)
			}
		}
	})
}

// What is stored is what the expression is, wherever its keys are and that of the result; once.
func TestStoreOverShards(t *testing.T) {
	shardCounts(t, func(t *testing.T, l *library) {
		for round := range 30 {
			x, set := l.expression(1 + l.r.IntN(2))
			to := []string{"premium", "play/2011-11-30", "new/key", "empty"}[round%4]
			req := &ebbv1.StoreBitmapRequest{Key: []byte(to), Expr: x, IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: uint64(round)}}
			want := maps.Clone(set)
			for range 2 { // the second time is a repetition, though the target may be part of the expression
				resp, err := l.e.keys("ebb-0").StoreBitmap(context.Background(), req)
				if err != nil || resp.GetCount() != uint64(len(want)) {
					t.Fatalf("%v: %v, %v: want %d ids", x, resp, err, len(want))
				}
			}
			l.sets[to] = want
			a := l.ask(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
				Expr: keyed(to), Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: proto.BitPageMax}},
			}}}).GetBitmap()
			if !slices.Equal(a.GetIds(), slices.Sorted(maps.Keys(want))) || a.GetMore() {
				t.Fatalf("%v: %d ids are stored: want %d", x, len(a.GetIds()), len(want))
			}
		}
	})
}

// In the language, too; and what does not fit a command is refused where it would have to leave its shard.
func TestQueryStores(t *testing.T) {
	e := newFakeCluster(t, 64)
	e.put(map[string]ids{dayKey(1): {1: true, 2: true}, dayKey(2): {2: true, 3: true}, "staff": {3: true}})
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"store november = play/2011-11-01 .. 2011-11-30", 3},
		{"store november = november - staff", 2},
		{"store play/2011 = play/* - staff", 2},
		{"store november = nothing/*", 0},
		{"count(november | play/2011)", 2},
		{"store play/2011-12-01 = atleast(2, play/2011-11-01, play/2011-11-02) ^ staff", 2},
	} {
		got, err := e.query(c.text)
		if err != nil || got.GetAnswer().GetBitmap().GetCount() != c.want || got.GetAnswer().GetCoverage().GetShardsAnswered() == 0 {
			t.Errorf("%s: %v, %v: want %d", c.text, got, err, c.want)
		}
	}
	wide := &ebbv1.BitChange{Key: []byte("wide"), Op: ebbv1.BitOp_BIT_OP_SET}
	for i := range uint64(60_000) {
		wide.Ids = append(wide.Ids, 5*i*i)
	}
	for range 3 {
		if _, err := e.router("ebb-0").Bits(t.Context(), &ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{wide}}); err != nil {
			t.Fatal(err)
		}
		for i := range wide.Ids {
			wide.Ids[i]++
		}
	}
	if _, err := e.query("store elsewhere = wide"); !errors.Is(err, proto.ErrQueryTooCostly) || !strings.Contains(err.Error(), "239 KiB") {
		t.Errorf("more than a command has room for: %v", err)
	}
	if got, err := e.query("store elsewhere/2011 = elsewhere/2012 | elsewhere/2013"); err != nil || got.GetAnswer().GetBitmap().GetCount() != 0 {
		t.Errorf("within one shard: %v, %v", got, err)
	}
}

// What cannot be answered says what it would cost, or which shard is missing.
func TestGatheringRefuses(t *testing.T) {
	l := newLibrary(t, 3, 64)
	refusal := func(q *ebbv1.Question) error {
		t.Helper()
		resp, err := l.e.coordinator("ebb-0").Ask(context.Background(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
		if err != nil {
			t.Fatal(err)
		}
		return proto.FromWire(resp.GetAnswers()[0].GetError())
	}
	var many []*ebbv1.BitmapExpr
	for i := range 5000 {
		many = append(many, keyed(fmt.Sprint("k", i)))
	}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: 2, Of: many}}}, Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}
	if err := refusal(q); !errors.Is(err, proto.ErrBadCount) {
		t.Errorf("5000 bitmaps of several shards: %v", err)
	}
	var members [][]byte
	for i := range proto.BitGroupsMax + 1 {
		members = append(members, fmt.Append(nil, i))
	}
	groups := &ebbv1.BitmapGroupsQuestion{Expr: keyed("premium"), Keys: members}
	if err := refusal(&ebbv1.Question{Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: groups}}); !errors.Is(err, proto.ErrQueryTooCostly) || !strings.Contains(err.Error(), "10001 bitmaps to count by: the limit is 10000") {
		t.Errorf("10001 groups: %v", err)
	}
	wrong := &ebbv1.Question{Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: &ebbv1.BitmapGroupsQuestion{Expr: keyed("premium"), Keys: [][]byte{[]byte("words")}}}}
	l.e.write([]byte("words"), "a bin")
	if err := refusal(wrong); !errors.Is(err, proto.ErrWrongKind) {
		t.Errorf("counted by a distribution: %v", err)
	}
	one := &ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: union([]*ebbv1.BitmapExpr{keyed("premium"), keyed("staff"), keyed("country/AA")}), Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}
	l.e.with(func() { l.e.leads[l.e.table.ShardOf("default", []byte("staff"))] = "" })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	resp, err := l.e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{one}, AllowPartial: true})
	if err != nil {
		t.Fatal(err)
	}
	a := resp.GetAnswers()[0]
	if err := proto.FromWire(a.GetError()); !errors.Is(err, proto.ErrIncomplete) || len(a.GetCoverage().GetShardsFailed()) != 1 {
		t.Errorf("a shard without leader: %v, %v", err, a.GetCoverage())
	}
}
