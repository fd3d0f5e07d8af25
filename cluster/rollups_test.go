package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	dayUnit     = ebbv1.Period_PERIOD_DAY
	weekUnit    = ebbv1.Period_PERIOD_WEEK
	monthUnit   = ebbv1.Period_PERIOD_MONTH
	quarterUnit = ebbv1.Period_PERIOD_QUARTER
	yearUnit    = ebbv1.Period_PERIOD_YEAR
)

// stretch is a period as the test sees it: a length and two moments.
type stretch struct {
	unit       ebbv1.Period // 1: an hour
	name       string
	begin, end time.Time
}

func stretchOf(unit ebbv1.Period, t time.Time) stretch {
	y, m, d := t.Date()
	s := stretch{unit: unit}
	switch unit {
	case yearUnit:
		s.begin = time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC)
		s.end, s.name = s.begin.AddDate(1, 0, 0), s.begin.Format("2006")
	case quarterUnit:
		s.begin = time.Date(y, (m-1)/3*3+1, 1, 0, 0, 0, 0, time.UTC)
		s.end, s.name = s.begin.AddDate(0, 3, 0), fmt.Sprintf("%d-Q%d", y, (m-1)/3+1)
	case monthUnit:
		s.begin = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		s.end, s.name = s.begin.AddDate(0, 1, 0), s.begin.Format("2006-01")
	case weekUnit:
		s.begin = time.Date(y, m, d-(int(t.Weekday())+6)%7, 0, 0, 0, 0, time.UTC)
		year, week := s.begin.ISOWeek()
		s.end, s.name = s.begin.AddDate(0, 0, 7), fmt.Sprintf("%d-W%02d", year, week)
	case dayUnit:
		s.begin = time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		s.end, s.name = s.begin.AddDate(0, 0, 1), s.begin.Format("2006-01-02")
	default:
		s.begin = t.Truncate(time.Hour)
		s.end, s.name = s.begin.Add(time.Hour), s.begin.Format("2006-01-02T15")
	}
	return s
}

// A period that is rolled up has what was written to it and to all shorter periods in it, wherever bitmaps lie; any
// other period has what was written to it.
func TestRollups(t *testing.T) {
	for _, placement := range []ebbv1.BitmapPlacement{ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE} {
		for _, units := range [][]ebbv1.Period{{monthUnit, yearUnit}, {weekUnit, quarterUnit}, {dayUnit, weekUnit, monthUnit}, {}} {
			t.Run(fmt.Sprint(placement, units), func(t *testing.T) {
				r := rand.New(rand.NewPCG(9, uint64(len(units))))
				e := newFakeCluster(t, 4)
				e.create(&ebbv1.Namespace{Name: "people", BitmapPlacement: placement, Rollups: &ebbv1.Rollups{Units: units}})
				written := map[stretch][]uint64{}
				moment := func() time.Time { return time.Date(2011, 11, 1, r.IntN(70*24), 0, 0, 0, time.UTC) }
				var changes []*ebbv1.BitChange
				for i := range uint64(60) {
					s := stretchOf([]ebbv1.Period{1, 1, dayUnit, dayUnit, dayUnit, weekUnit, monthUnit, quarterUnit, yearUnit}[r.IntN(9)], moment())
					ids := []uint64{i, 100 + i/3, 1<<20 + i}
					written[s] = append(written[s], ids...)
					changes = append(changes, setIDs("play/"+s.name, ids...))
				}
				e.bits("people", changes...)
				// of is who was there in a period.
				of := func(p stretch) idSet {
					in := idSet{}
					for s, ids := range written {
						part := s.unit < p.unit && s.unit != weekUnit && (s.unit > 1 || slices.Contains(units, dayUnit)) &&
							!s.begin.Before(p.begin) && !s.end.After(p.end)
						if s == p || slices.Contains(units, p.unit) && part {
							for _, id := range ids {
								in[id] = true
							}
						}
					}
					return in
				}
				for range 20 {
					p, q := stretchOf(ebbv1.Period(1+r.IntN(6)), moment()), stretchOf(dayUnit+ebbv1.Period(r.IntN(4)), moment())
					both, either := 0, of(q)
					for id := range of(p) {
						if either[id] {
							both++
						}
						either[id] = true
					}
					for text, want := range map[string]int{
						fmt.Sprintf("count(play/%s)", p.name):                    len(of(p)),
						fmt.Sprintf("count(play/%s & play/%s)", p.name, q.name):  both,
						fmt.Sprintf("count(play/%s | play/%s)", p.name, q.name):  len(either),
						fmt.Sprintf("count(play/%s .. play/%s)", q.name, q.name): len(of(q)),
						fmt.Sprintf("count(play/%s - nothing)", q.name):          len(of(q)),
						fmt.Sprintf("count(atleast(1, play/%s, other))", q.name): len(of(q)),
					} {
						got, err := e.query(text + " in people")
						if n := got.GetAnswer().GetBitmap().GetCount(); err != nil || n != uint64(want) {
							t.Fatalf("%s is %d, %v: want %d", text, n, err, want)
						}
					}
				}
			})
		}
	}
}

// Keys as Spool wrote them roll up, too, wherever bitmaps lie: play:2011-11 has the ids of play:2011-11-01, and
// play_201111 those of play_20111101 and of play_2011110213. Ranges of them are asked as others are.
func TestRollupsOfOtherKeys(t *testing.T) {
	for _, placement := range []ebbv1.BitmapPlacement{
		ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE,
	} {
		e := newFakeCluster(t, 4)
		e.create(&ebbv1.Namespace{
			Name: "people", BitmapPlacement: placement, Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{dayUnit, monthUnit}},
		})
		e.bits("people",
			setIDs("play:2011-11-01", 1, 2), setIDs("play:2011-11-30", 2, 3),
			setIDs("play:2011-12-01", 4), setIDs("play:2011-11-02T13", 5),
			setIDs("play_20111101", 1), setIDs("play_2011110213", 2), setIDs("play_20111201", 3), setIDs("play_201111", 9),
			setIDs("user-1234", 7), setIDs("user-1234-01", 8))
		for text, want := range map[string]uint64{
			"count(play:2011-11)":                                  4,
			"count(play:2011-11-02)":                               1,
			"count(play:2011-11-01 .. 2011-12-01)":                 5,
			"count(play:2011-11 & play:2011-11-30)":                2,
			"count(play_201111)":                                   3,
			"count(play_20111102)":                                 1,
			"count(play_20111101 .. 20111231)":                     3,
			"count(atleast(2, play:2011-11-01 .. 2011-11-30))":     1,
			"count(user-1234)":                                     1,
			"count(play:2011-11-01 .. 2011-11-03 - play:2011-W44)": 3,
		} {
			got, err := e.query(text + " in people")
			if n := got.GetAnswer().GetBitmap().GetCount(); err != nil || n != want {
				t.Errorf("%v: %s is %d, %v: want %d", placement, text, n, err, want)
			}
		}
		got, err := e.query("cohort(play:2011-11-01 .. 2011-12-01 by month) in people")
		if rows := got.GetAnswer().GetCohort(); err != nil || rows == nil {
			t.Errorf("%v: no cohort: %v", placement, err)
		}
	}
}

// The windows in a roll-up can be seen: its periods stand in one union, also when several are united. An explanation
// tells of how many bitmaps it is.
func TestRollupsAreExpanded(t *testing.T) {
	ns := &ebbv1.Namespace{Name: "people", Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{monthUnit, yearUnit}}}
	key := func(name string) *ebbv1.BitmapExpr { return keyTerm("play/" + name) }
	x := union([]*ebbv1.BitmapExpr{key("2011-10"), key("2011-11"), key("x"), key("2011-11"), key("2011-11-02")})
	if got := rolledUp(x, ns); len(got.GetOr().GetOf()) != 1+31+1+30+1 {
		t.Errorf("%d bitmaps: %v", len(got.GetOr().GetOf()), got)
	}
	for name, want := range map[string]int{"2012": 1 + 4 + 12 + 366, "2011-Q4": 0, "2011-11-01": 0, "2011-W44": 0, "2011-13": 0, "201": 0} {
		if got := rollup(ns, []byte("play/"+name)); len(got) != want {
			t.Errorf("%s: %d bitmaps, want %d", name, len(got), want)
		}
	}
	if x := key("2011-11-01"); rolledUp(x, ns) != x || rolledUp(x, &ebbv1.Namespace{}) != x {
		t.Error("an expression without roll-ups is another")
	}
	e := newFakeCluster(t, 4)
	e.create(ns)
	got, err := NewQueries(e.keys("ebb-0")).Query(t.Context(), &ebbv1.QueryRequest{Text: "count(play/2011-11 & premium) in people", Explain: true})
	if err != nil || got.GetExplanation().GetRoot().GetKeys() != 32 || !strings.Contains(fmt.Sprint(got), "roll-up of the bitmaps of shorter periods") {
		t.Errorf("%v, %v", got, err)
	}
}

// Counts by periods that are rolled up are refused, and so is what is made of more bitmaps than an expression may have.
func TestRollupsRefused(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.create(&ebbv1.Namespace{Name: "people", Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{dayUnit, yearUnit}}})
	for text, want := range map[string]*proto.Error{
		"count by play/2011 (premium)":       proto.ErrBadRequest,
		"count(play/2011 | play/2012)":       proto.ErrBadCount,
		"count(play/2009 .. 2012 & premium)": proto.ErrBadCount,
	} {
		got, err := e.query(text + " in people")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
		explained(t, e, text+" in people", err)
	}
	if got, err := e.query("count(play/2011) in people"); err != nil {
		t.Errorf("a year of hours: %v, %v", got, err)
	}
}

// explained sees that the explanation of a question says what its run says.
func explained(t *testing.T, e *fakeCluster, text string, want error) {
	t.Helper()
	req := &ebbv1.QueryRequest{Text: text, Explain: true}
	got, err := NewQueries(e.keys("ebb-0")).Query(t.Context(), req)
	refusal := got.GetExplanation().GetRefusal()
	if refused := proto.AsError(want).Wire(); err != nil || refusal.GetCode() != refused.GetCode() ||
		refusal.GetMessage() != refused.GetMessage() || refusal.GetHint() != refused.GetHint() {
		t.Errorf("%s: its explanation says %v, %v and its run says %v", text, refusal, err, want)
	}
}

// What is stored is made of as many bitmaps as one counts at most, in the same words, wherever bitmaps lie; what would
// be refused, its explanation says.
func TestRollupsStored(t *testing.T) {
	tooMany := proto.ErrTooManyTerms()
	for _, placement := range []ebbv1.BitmapPlacement{
		ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE,
	} {
		e := newFakeCluster(t, 4)
		e.create(&ebbv1.Namespace{
			Name: "people", BitmapPlacement: placement,
			Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{dayUnit, yearUnit}},
		})
		for _, of := range []string{
			"play/2001 .. 2002", "play/2001 .. 2008", "play/2001 | play/2002", "other & play/2001 .. 2003",
			"atleast(2, play/2001 .. 2002)", "play/2001-01-01 .. 2003-12-31",
		} {
			for _, text := range []string{"store z = " + of, "count(" + of + ")"} {
				_, err := e.query(text + " in people")
				if got := proto.AsError(err); err == nil || got.Code != tooMany.Code || got.Message != tooMany.Message {
					t.Errorf("%v: %s: %v", placement, text, err)
				}
				explained(t, e, text+" in people", err)
			}
		}
		if _, err := e.query("store z = play/2001 | other in people"); err != nil {
			t.Errorf("%v: a year of hours: %v", placement, err)
		}
		const many = "store z = play/1001 .. 1800 in people"
		_, err := e.query(many)
		explained(t, e, many, err)
	}
}

// An explanation tells how many parts an expression has in other shards, where the run would be refused for them.
func TestPartsExplained(t *testing.T) {
	e := newFakeCluster(t, 4)
	const text = "count(atleast(2, a/2001-01-01 .. 2008-12-31, b/2001-01-01 .. 2008-12-31, c/2001-01-01 .. 2008-12-31))"
	_, err := e.query(text)
	if !errors.Is(err, proto.ErrBadCount) {
		t.Fatal(err)
	}
	explained(t, e, text, err)
}

// What is refused is refused at once, and explained as fast: nothing of it is expanded.
func TestRefusedRollupsAreNotExpanded(t *testing.T) {
	e := newFakeCluster(t, 3)
	e.create(&ebbv1.Namespace{Name: "people", Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{dayUnit, yearUnit}}})
	e.bits("people", setIDs("play/2001", 1))
	q := NewQueries(e.keys("ebb-0"))
	for _, explain := range []bool{false, true} {
		req := &ebbv1.QueryRequest{Text: "count(play/0001 .. 2001) in people", Explain: explain}
		allocs := testing.AllocsPerRun(1, func() {
			got, err := q.Query(t.Context(), req)
			if err == nil && got.GetExplanation().GetRefusal().GetCode() != ebbv1.Code_CODE_BAD_COUNT {
				t.Error(got)
			}
		})
		if allocs > 3_000_000 { // 18 million periods
			t.Errorf("explain %v: %v allocations", explain, allocs)
		}
	}
}

// A request whose periods stand for more than there is room for is refused before they are expanded, also where they
// are the same again or in several questions.
func TestRollupsOfOneRequest(t *testing.T) {
	e := newFakeCluster(t, 3)
	e.create(&ebbv1.Namespace{Name: "people", Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{dayUnit, yearUnit}}})
	year := keyTerm("play/2011") // of 8760 hours, 365 days, 12 months and 4 quarters
	const fit = rollupsMax / 9141
	for n, want := range map[int]int{1: 0, fit: 0, fit + 1: 1, 3 * fit: 2 * fit} {
		req := &ebbv1.AskRequest{}
		for range n {
			req.Questions = append(req.Questions, listIDs("people", year))
		}
		out, refused := expandRequest(e.table, req)
		if len(refused) != want || len(out.Questions[0].GetBitmap().GetExpr().GetOr().GetOf()) != 1+9141 {
			t.Errorf("of %d questions %d are refused, want %d", n, len(refused), want)
		}
		for i, err := range refused {
			if i < fit || !errors.Is(err, proto.ErrBadCount) || out.Questions[i] != req.Questions[i] {
				t.Errorf("question %d: %v", i, err)
			}
		}
	}
	and := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: slices.Repeat([]*ebbv1.BitmapExpr{year}, 9000)}}}
	allocations := testing.AllocsPerRun(1, func() {
		if _, refused := expandRequest(e.table, &ebbv1.AskRequest{Questions: []*ebbv1.Question{listIDs("people", and)}}); !errors.Is(refused[0], proto.ErrBadCount) {
			t.Error(refused)
		}
	})
	if allocations > 50_000 {
		t.Errorf("%v allocations for what is refused", allocations)
	}
}

// A period is rolled up also where the keys of shorter ones would be longer than keys may be.
func TestRollupsOfLongKeys(t *testing.T) {
	for placement, longest := range map[ebbv1.BitmapPlacement]int{
		ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY: proto.KeyLenMax, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE: proto.PartKeyLenMax,
	} {
		e := newFakeCluster(t, 3)
		e.create(&ebbv1.Namespace{Name: "people", BitmapPlacement: placement, Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{monthUnit, yearUnit}}})
		for _, rest := range []string{"/2011", "/2011-11", "/2011-11-01"} {
			family := strings.Repeat("k", longest-len(rest))
			e.bits("people", setIDs(family+rest, 1, 2))
			if got, err := e.query("count(" + family + "/2011) in people"); err != nil || got.GetAnswer().GetBitmap().GetCount() != 2 {
				t.Errorf("%v, %s: %v, %v", placement, rest, got, err)
			}
		}
	}
}
