package cluster

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// ids is a set as an oracle has it.
type ids map[uint64]bool

// short is how many times something is tried: a fifth with -short.
func short(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// put makes bitmaps of sets.
func (e *fakeCluster) put(sets map[string]ids) {
	e.t.Helper()
	req := &ebbv1.BitsRequest{}
	for key, set := range sets {
		if len(set) > 0 {
			req.Changes = append(req.Changes, &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: slices.Collect(maps.Keys(set))})
		}
	}
	if resp, err := e.router("ebb-0").Bits(e.t.Context(), req); err != nil || len(resp.GetRefused()) > 0 {
		e.t.Fatalf("%v %v", resp, err)
	}
}

// The days of a family that the tests below know, which are on one shard.
func dayKey(day int) string { return fmt.Sprintf("play/2011-11-%02d", day) }

const days = 6

// scattered are sets of few ids, of many in a row, and of ids far apart.
func scattered(rng *rand.Rand) map[string]ids {
	sets := map[string]ids{}
	for day := 1; day <= days; day++ {
		set := ids{}
		for range rng.IntN(400) {
			set[uint64(rng.IntN(300))] = true
		}
		for id := range uint64(rng.IntN(3000)) {
			set[1<<33+id] = true
		}
		set[1<<63+uint64(rng.IntN(3))] = true
		sets[dayKey(day)] = set
	}
	return sets
}

// expression draws one, as text and as the set that it is. With no complements alone: what is left out is left out of
// something.
func expression(rng *rand.Rand, sets map[string]ids, depth int) (text string, is ids) {
	term := func() (string, ids) {
		if rng.IntN(5) > 0 {
			key := dayKey(1 + rng.IntN(days))
			return key, sets[key]
		}
		from := 1 + rng.IntN(days)
		to := from + rng.IntN(days-from+1)
		is := ids{}
		for day := from; day <= to; day++ {
			maps.Copy(is, sets[dayKey(day)])
		}
		if from == 1 && to == days {
			return "play/*", is
		}
		return fmt.Sprintf("%s .. 2011-11-%02d", dayKey(from), to), is
	}
	if depth == 0 {
		return term()
	}
	n := 2 + rng.IntN(3)
	texts, operands := make([]string, n), make([]ids, n)
	for i := range n {
		texts[i], operands[i] = expression(rng, sets, depth-1)
		texts[i] = "(" + texts[i] + ")"
	}
	times := map[uint64]int{}
	for _, set := range operands {
		for id := range set {
			times[id]++
		}
	}
	is = ids{}
	keep := func(yes func(id uint64, times int) bool) {
		for id, n := range times {
			if yes(id, n) {
				is[id] = true
			}
		}
	}
	switch rng.IntN(6) {
	case 0:
		keep(func(uint64, int) bool { return true })
		return strings.Join(texts, " | "), is
	case 1:
		keep(func(_ uint64, times int) bool { return times == n })
		return strings.Join(texts, " & "), is
	case 2:
		keep(func(_ uint64, times int) bool { return times%2 == 1 })
		return strings.Join(texts, " ^ "), is
	case 3:
		keep(func(id uint64, times int) bool { return times == 1 && operands[0][id] })
		return strings.Join(texts, " - "), is
	case 4:
		keep(func(id uint64, times int) bool { return times == 1 && operands[0][id] })
		return strings.Join(texts, " & ~"), is
	}
	least := 1 + rng.IntN(n)
	keep(func(_ uint64, times int) bool { return times >= least })
	// in parentheses they would be counted one by one
	for i := range texts {
		texts[i] = "(" + texts[i] + " | " + texts[i] + ")"
	}
	return fmt.Sprintf("atleast(%d, %s)", least, strings.Join(texts, ", ")), is
}

// Random expressions have the ids that a map has, whichever the number of shards.
func TestQueryBitmapsAgainstAnOracle(t *testing.T) {
	for _, shards := range []uint32{3, 4, 64} {
		rng := rand.New(rand.NewPCG(4, uint64(shards)))
		sets := scattered(rng)
		e := newFakeCluster(t, shards)
		e.put(sets)
		for i := range short(300) {
			text, is := expression(rng, sets, i%4)
			got, err := e.query("count(" + text + ")")
			if err != nil || got.GetAnswer().GetBitmap().GetCount() != uint64(len(is)) {
				t.Fatalf("count(%s) is %v, %v: want %d", text, got.GetAnswer(), err, len(is))
			}
			sorted := slices.Sorted(maps.Keys(is))
			from := uint64(rng.IntN(400))
			at, _ := slices.BinarySearch(sorted, from)
			want := sorted[at:min(at+7, len(sorted))]
			got, err = e.query(fmt.Sprintf("ids(%s) from %d limit 7", text, from))
			if err != nil || !slices.Equal(got.GetAnswer().GetBitmap().GetIds(), want) || got.GetAnswer().GetBitmap().GetMore() != (at+7 < len(sorted)) {
				t.Fatalf("ids(%s) from %d are %v, %v: want %v", text, from, got.GetAnswer(), err, want)
			}
		}
	}
}

// Bitmaps of several shards answer as those of one do.
func TestQueryBitmapsOfSeveralShards(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	e := newFakeCluster(t, 7)
	sets := map[string]ids{}
	for i := range 8 {
		set := ids{}
		for range 300 {
			set[uint64(rng.IntN(500)+rng.IntN(3)<<17)] = true
		}
		sets[fmt.Sprintf("family%d/2011-11-01", i)] = set
	}
	e.put(sets)
	var draw func(depth int) (string, func(uint64) bool)
	draw = func(depth int) (string, func(uint64) bool) {
		if depth == 0 {
			key := fmt.Sprintf("family%d/2011-11-01", rng.IntN(8))
			return key, func(id uint64) bool { return sets[key][id] }
		}
		a, inA := draw(depth - 1)
		b, inB := draw(rng.IntN(depth))
		switch rng.IntN(5) {
		case 0:
			return "(" + a + " | " + b + ")", func(id uint64) bool { return inA(id) || inB(id) }
		case 1:
			return "(" + a + " & " + b + ")", func(id uint64) bool { return inA(id) && inB(id) }
		case 2:
			return "(" + a + " - " + b + ")", func(id uint64) bool { return inA(id) && !inB(id) }
		case 3:
			return "atleast(2, " + a + ", " + b + ")", func(id uint64) bool { return inA(id) && inB(id) }
		}
		return "(" + a + " ^ " + b + ")", func(id uint64) bool { return inA(id) != inB(id) }
	}
	all := ids{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	for i := range short(200) {
		text, is := draw(i % 4)
		want := uint64(0)
		for id := range all {
			if is(id) {
				want++
			}
		}
		got, err := e.query("count(" + text + ")")
		if err != nil || got.GetAnswer().GetBitmap().GetCount() != want {
			t.Fatalf("count(%s) is %v, %v: want %d", text, got.GetAnswer(), err, want)
		}
	}
	resp, err := NewQueries(e.keys("ebb-0")).Query(t.Context(), &ebbv1.QueryRequest{Text: "count(family1/2011-11-01 & family2/2011-11-01)", Explain: true})
	homes := []uint32{e.table.ShardOf("default", []byte("family1/2011-11-01")), e.table.ShardOf("default", []byte("family2/2011-11-01"))}
	slices.Sort(homes)
	if x := resp.GetExplanation(); err != nil || !slices.Equal(x.GetShards(), slices.Compact(homes)) || x.GetRefusal() != nil {
		t.Errorf("%v %v", resp, err)
	}
}

// Complements are left out of something in the end, wherever they stand; what is in everything but something is
// refused.
func TestQueryComplements(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.put(map[string]ids{dayKey(1): {1: true, 2: true, 3: true, 4: true}, dayKey(2): {1: true, 2: true}, dayKey(3): {1: true, 3: true}})
	all := func(id uint64) (in [3]bool) { return [3]bool{true, id < 3, id%2 == 1} }
	rng := rand.New(rand.NewPCG(9, 9))
	var draw func(depth int) (text string, is func(id uint64) bool)
	draw = func(depth int) (string, func(uint64) bool) {
		if depth == 0 {
			day := rng.IntN(3)
			return dayKey(day + 1), func(id uint64) bool { return all(id)[day] && id < 5 && id > 0 }
		}
		a, inA := draw(depth - 1)
		b, inB := draw(rng.IntN(depth))
		switch rng.IntN(5) {
		case 0:
			return "~(" + a + ")", func(id uint64) bool { return !inA(id) }
		case 1:
			return "(" + a + ") | (" + b + ")", func(id uint64) bool { return inA(id) || inB(id) }
		case 2:
			return "(" + a + ") & (" + b + ")", func(id uint64) bool { return inA(id) && inB(id) }
		case 3:
			return "(" + a + ") - (" + b + ")", func(id uint64) bool { return inA(id) && !inB(id) }
		}
		return "(" + a + ") ^ (" + b + ")", func(id uint64) bool { return inA(id) != inB(id) }
	}
	refused := 0
	for i := range short(2000) {
		text, is := draw(i % 5)
		var want []uint64
		for id := range uint64(6) {
			if is(id) {
				want = append(want, id)
			}
		}
		got, err := e.query("ids(" + text + ")")
		if is(0) { // which is in no bitmap
			refused++
			if !errors.Is(err, proto.ErrBadQuery) {
				t.Fatalf("ids(%s): %v %v", text, got.GetAnswer(), err)
			}
			if got, err = e.query("ids(play/2011-11-01 & (" + text + "))"); len(want) > 0 {
				want = slices.DeleteFunc(want, func(id uint64) bool { return id == 0 || id == 5 })
			}
		}
		if err != nil || !slices.Equal(got.GetAnswer().GetBitmap().GetIds(), want) {
			t.Fatalf("ids(%s) are %v, %v: want %v", text, got.GetAnswer(), err, want)
		}
	}
	if refused < 20 {
		t.Errorf("%d were refused", refused)
	}
}

// What a range or a pattern stands for in atleast is counted one by one.
func TestQueryAtLeastOfDays(t *testing.T) {
	e := newFakeCluster(t, 4)
	sets := map[string]ids{}
	for day := 1; day <= days; day++ {
		set := ids{}
		for id := range uint64(day) {
			set[id] = true // id n comes on days-n days
		}
		sets[dayKey(day)] = set
	}
	e.put(sets)
	for text, want := range map[string]uint64{
		"count(atleast(1, play/*))":                                   6,
		"count(atleast(4, play/*))":                                   3,
		"count(atleast(6, play/2011-11-01 .. 2011-11-06))":            1,
		"count(atleast(2, play/2011-11-05 .. 2011-11-06, play/2011))": 5,
		"count(atleast(2, (play/2011-11-01 .. 2011-11-06)))":          5,
		"count(atleast(7, play/*))":                                   0,
		"count(atleast(1, nothing/*))":                                0,
		"count(nothing/* | play/2011-11-01)":                          1,
		"count(nothing/* & play/2011-11-01)":                          0,
		"count(play/2011-11-01 - nothing/*)":                          1,
		"count(nothing/* - play/2011-11-01)":                          0,
		"count(nothing/* ^ play/2011-11-01)":                          1,
		"count(nothing/*)":                                            0,
		"count(play/2011-11-01 & ~nothing/*)":                         1,
		"count(play/2011-11-06 & ~(play/2011-11-01 | play/2011))":     5,
	} {
		got, err := e.query(text)
		if err != nil || got.GetAnswer().GetBitmap().GetCount() != want {
			t.Errorf("%s is %v, %v: want %d", text, got.GetAnswer(), err, want)
		}
	}
}

// A count by others says how many ids each of them has in common with the expression, the largest first.
func TestQueryCountBy(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.put(map[string]ids{dayKey(1): {1: true, 2: true, 3: true}, dayKey(2): {2: true, 3: true}, dayKey(3): {3: true, 9: true}, dayKey(4): {9: true}})
	for text, want := range map[string]string{
		"count by play/* (play/2011-11-01)":                                              "3: play/2011-11-01 3, play/2011-11-02 2, play/2011-11-03 1, play/2011-11-04 0",
		"count by play/* (play/2011-11-01) top 2":                                        "3: play/2011-11-01 3, play/2011-11-02 2",
		"count by play/2011-11-03 | play/2011-11-04 (play/2011-11-01 ^ play/2011-11-03)": "3: play/2011-11-03 1, play/2011-11-04 1",
		"count by play/2011-11-02 .. 2011-11-03 (play/*)":                                "4: play/2011-11-02 2, play/2011-11-03 2",
		"count by play/* (nothing/*)":                                                    "0: ",
		"count by nothing/* (play/2011-11-01)":                                           "3: ",
	} {
		got, err := e.query(text)
		g := got.GetAnswer().GetGroups()
		var names []string
		for _, group := range g.GetGroups() {
			names = append(names, fmt.Sprintf("%s %d", group.GetKey(), group.GetCount()))
		}
		if is := fmt.Sprintf("%d: %s", g.GetCount(), strings.Join(names, ", ")); err != nil || is != want || got.GetAnswer().GetCoverage() == nil {
			t.Errorf("%s is %s, %v: want %s", text, is, err, want)
		}
	}
}

// A cohort table says of those who come for the first time in each period how many come in each later one; as a plain
// recount does.
func TestQueryCohort(t *testing.T) {
	e := newFakeCluster(t, 4)
	rng := rand.New(rand.NewPCG(7, 7))
	sets := map[string]ids{}
	for day := 1; day <= 30; day++ {
		set := ids{}
		for range 20 {
			set[uint64(rng.IntN(200))] = true
		}
		sets[dayKey(day)] = set
	}
	sets["play/2011"] = ids{}
	for id := range uint64(100) {
		sets["play/2011"][id] = true
	}
	e.put(sets)
	week := func(day int) int { return (day + 6) / 7 } // 2011-11-07 was a Monday
	for _, c := range []struct {
		text   string
		days   int
		period func(day int) int
		within ids
		names  string
	}{
		{"cohort(play/2011-11-01 .. 2011-11-12)", 12, func(day int) int { return day }, nil, "2011-11-01 2011-11-02"},
		{"cohort(play/2011-11-01 .. 2011-11-30 by week)", 30, func(day int) int { return week(day + 1) }, nil, "2011-W44 2011-W45 2011-W46 2011-W47 2011-W48"},
		{"cohort(play/2011-11-01 .. 2011-11-30 by week, play/2011)", 30, func(day int) int { return week(day + 1) }, sets["play/2011"], "2011-W44"},
		{"cohort(play/2011-11-01 .. 2011-11-30 by quarter)", 30, func(int) int { return 1 }, nil, "2011-Q4"},
		{"cohort(play/2011-11-01 .. 2011-11-30 by week, nothing/*)", 30, func(day int) int { return week(day + 1) }, ids{}, "2011-W44"},
	} {
		periods := map[int]ids{}
		for day := 1; day <= c.days; day++ {
			p := c.period(day)
			if periods[p] == nil {
				periods[p] = ids{}
			}
			for id := range sets[dayKey(day)] {
				if c.within == nil || c.within[id] {
					periods[p][id] = true
				}
			}
		}
		order := slices.Sorted(maps.Keys(periods))
		seen := ids{}
		var want []string
		for at, p := range order {
			first := ids{}
			for id := range periods[p] {
				if !seen[id] {
					first[id], seen[id] = true, true
				}
			}
			line := fmt.Sprint(len(first))
			for _, later := range order[at+1:] {
				n := 0
				for id := range first {
					if periods[later][id] {
						n++
					}
				}
				line += fmt.Sprint(" ", n)
			}
			want = append(want, line)
		}
		got, err := e.query(c.text)
		var is, names []string
		for _, row := range got.GetAnswer().GetCohort().GetRows() {
			line := fmt.Sprint(row.GetCount())
			for _, n := range row.GetAgain() {
				line += fmt.Sprint(" ", n)
			}
			is, names = append(is, line), append(names, row.GetPeriod())
		}
		if err != nil || !slices.Equal(is, want) || !strings.HasPrefix(strings.Join(names, " "), c.names) {
			t.Errorf("%s: %v\n%s\n%s\nwant\n%s", c.text, err, names, strings.Join(is, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestQueryBitmapsRefused(t *testing.T) {
	e := stocked(t)
	for _, c := range []struct {
		text string
		want *proto.Error
		says string
	}{
		{"count(~play/2011)", proto.ErrBadQuery, "~play/2011 is whatever it does not name"},
		{"count(~play/2011 & ~play/2012)", proto.ErrBadQuery, "is whatever it does not name"},
		{"count(play/2011 | ~play/2012)", proto.ErrBadQuery, "is whatever it does not name"},
		{"count(@a/x & @b/x)", proto.ErrBadQuery, "two namespaces"},
		{"count(clicks/1)", proto.ErrWrongKind, "distribution"},
		{"count(x) in nowhere", proto.ErrNamespaceNotFound, "nowhere"},
		{"count(x* | play/2011) in nowhere", proto.ErrNamespaceNotFound, "nowhere"},
		{"cohort(play/2011-01-01 .. 2012-12-31)", proto.ErrQueryTooCostly, "731 periods: the limit is 400"},
		{"count(" + strings.Repeat("(a | b & ", 70) + "c" + strings.Repeat(")", 70) + ")", proto.ErrBadRequest, "64 deep"},
		{"store clicks/1 = a | b", proto.ErrWrongKind, "distribution"},
		{"store @a/x = @b/x", proto.ErrBadQuery, "two namespaces"},
		{"ids(play/2011) as of 2013-05-06", proto.ErrBadQuery, "as they are now"},
		{"count by play/* (play/2011) as of 2013-05-06", proto.ErrBadQuery, "as they are now"},
		{"cohort(play/2011-01-01 .. 2011-01-31) as of 2013-05-06", proto.ErrBadQuery, "as they are now"},
	} {
		if _, err := e.query(c.text); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %v saying %q", c.text, err, c.want, c.says)
		}
	}
}

// To explain an expression names its bitmaps and where they are.
func TestQueryExplainExpression(t *testing.T) {
	e := stocked(t)
	resp, err := NewQueries(e.keys("ebb-0")).Query(t.Context(), &ebbv1.QueryRequest{Text: "count(play/2011-11-01 .. 2011-11-30 & ~staff/* - atleast(2, a, b))", Explain: true})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	var visit func(s *ebbv1.ExplainedStep, depth int)
	visit = func(s *ebbv1.ExplainedStep, depth int) {
		lines = append(lines, strings.Repeat(" ", depth)+s.GetStep()+" "+s.GetOf())
		for _, below := range s.GetSteps() {
			visit(below, depth+1)
		}
	}
	visit(resp.GetExplanation().GetRoot().GetSteps()[2], 0)
	want := []string{
		"in all ", " bitmaps of a range play/2011-11-01 .. 2011-11-30", " in the first and in none of the others ", "  in everything but ", "   bitmaps that match staff/*",
		"  in 2 at least ", "   bitmap a", "   bitmap b",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
	if calls := e.takeCalls(); len(calls) > 0 {
		t.Errorf("asked %q", calls)
	}
	if _, err := query.Parse(resp.GetText()); err != nil {
		t.Error(err)
	}
}

// Which bitmaps a pattern means is known of all shards or not at all: without one of them the others would say
// something else, and be stored, too.
func TestQueryPatternsAreWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 4)
		e.put(map[string]ids{"a/1": {1: true}, "a/2": {2: true}, "a/3": {3: true}, "a/4": {4: true}, "a/5": {5: true}})
		e.with(func() { e.leads[e.table.ShardOf(proto.DefaultNamespace, []byte("a/3"))] = "" })
		for _, text := range []string{"count(a/*)", "ids(a/*)", "count by a/* (a/1)", "store a/1 = a/*", "cohort(a/2011-11-01 .. 2011-11-03, a/*)"} {
			if got, err := e.query(text + " allow partial"); !errors.Is(err, proto.ErrIncomplete) {
				t.Errorf("%s: %v, %v", text, got.GetAnswer(), err)
			}
		}
	})
}

// In a namespace with a universe a complement is what of that is not in something, wherever it stands.
func TestQueryUniverse(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.create(&ebbv1.Namespace{Name: "people", Universe: []byte("all")})
	req := &ebbv1.BitsRequest{Namespace: "people"}
	for key, ids := range map[string][]uint64{"all": {1, 2, 3, 4, 5, 6}, dayKey(1): {1, 2, 3}, dayKey(2): {3, 4}, "a": {1, 6}} {
		req.Changes = append(req.Changes, &ebbv1.BitChange{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: ids})
	}
	if _, err := e.router("ebb-0").Bits(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"count(~a)", 4},
		{"count(~(a - play/2011-11-01) | a)", 6},
		{"count(~nothing/*)", 6},
		{"count(a & ~nothing/*)", 2},
		{"count(~play/* ^ a)", 2},
		{"count(atleast(2, ~play/2011-11-01, a, ~play/2011-11-02))", 3},
		{"count(atleast(1, ~(play/* | a)))", 1},
		{"store b = ~a", 4},
		{"count(b & a)", 0},
		{"store b = ~nothing/*", 6},
	} {
		got, err := e.query(c.text + " in people")
		if n := got.GetAnswer().GetBitmap().GetCount(); err != nil || n != c.want {
			t.Errorf("%s is %d, %v: want %d", c.text, n, err, c.want)
		}
	}
	got, err := e.query("cohort(play/2011-11-01 .. 2011-11-02, ~a) in people")
	if rows := got.GetAnswer().GetCohort().GetRows(); err != nil || len(rows) != 2 || rows[0].GetCount() != 2 || rows[0].GetAgain()[0] != 1 || rows[1].GetCount() != 1 {
		t.Errorf("of those who are not in a: %v, %v", rows, err)
	}
}

// A set that others count by their bitmaps goes to all of them in calls that a peer takes, however many shards one has.
func TestCountByOfManyShards(t *testing.T) {
	e := newFakeCluster(t, 64)
	req := &ebbv1.BitsRequest{}
	for i := range 300 {
		req.Changes = append(req.Changes, &ebbv1.BitChange{Key: fmt.Appendf(nil, "country/%d", i), Op: ebbv1.BitOp_BIT_OP_SET, Ids: []uint64{uint64(i), 1 << 20}})
	}
	if _, err := e.router("ebb-0").Bits(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for range 7 { // 217 dense containers
		change := &ebbv1.BitChange{Key: []byte("wide"), Op: ebbv1.BitOp_BIT_OP_SET}
		for range 31 {
			for low := range uint64(2100) {
				change.Ids = append(change.Ids, n<<16|31*low)
			}
			n++
		}
		if _, err := e.router("ebb-0").Bits(t.Context(), &ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{change}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := e.query("count by country/* (wide)")
	g := got.GetAnswer().GetGroups()
	if err != nil || g.GetCount() != n*2100 || len(g.GetGroups()) != 300 {
		t.Fatalf("%d of %d groups, %v", g.GetCount(), len(g.GetGroups()), err)
	}
	for _, group := range g.GetGroups() {
		var i uint64
		fmt.Sscanf(string(group.GetKey()), "country/%d", &i)
		want := uint64(1) // 2^20 begins slice 16
		if i%31 == 0 {
			want++
		}
		if group.GetCount() != want {
			t.Errorf("%s has %d, want %d", group.GetKey(), group.GetCount(), want)
		}
	}
}
