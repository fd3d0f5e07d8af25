package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Sets nest wherever a set is asked for, over keys of all shards.
func TestQuerySetExpressions(t *testing.T) {
	e := stocked(t) // set/0 and set/1 have guest-0, set/2 and set/3 guest-1, set/4 guest-2; all have ann and bob
	e.put(map[string]ids{
		"bits/a": {1: true, 2: true, 3: true}, "bits/b": {2: true, 3: true, 4: true},
		"bits/c": {9: true},
	})
	for text, want := range map[string]float64{
		"total(set/0 & set/2)":                         2,
		"total(set/0 - set/2)":                         1,
		"total(set/* - set/0)":                         2,
		"distinct(set/0 ^ set/4)":                      2,
		"total(atleast(3, set/*))":                     2,
		"total(atleast(2, set/*) - atleast(5, set/*))": 2,
		"count(set/0 & (set/2 | set/3))":               2,
		"count(set/0)":                                 3,
		"count(set/*)":                                 5,
		"total((set/0 | set/4) | set/2)":               5,
		"total(set/* & none/*)":                        0,
		"total(bits/a & bits/b)":                       2,
		"total(bits/* - bits/c)":                       4,
		"total(bits/a | bits/b)":                       4,
		"total(bits/*)":                                5,
		"count(bits/a ^ bits/b)":                       2,
		"jaccard(set/*, set/0)":                        0.6,
		"jaccard(set/0 | set/2, set/2 | set/4)":        0.6,
		"jaccard(set/0 - set/2, set/1 - set/3)":        1,
		"jaccard(none/*, set/0)":                       0,
		"jaccard(none/*, void/*)":                      0,
	} {
		resp, err := e.query(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := float64(resp.GetAnswer().GetBitmap().GetCount())
		if s := resp.GetAnswer().GetSummary(); s != nil {
			got = s.GetTotal().GetValue()
		}
		if o := resp.GetAnswer().GetOverlap(); o != nil {
			got = o.GetJaccard().GetValue()
		}
		if got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	resp, err := e.query("overlap(set/0 | set/2, set/4, empty - set/1)")
	if err != nil {
		t.Fatal(err)
	}
	o := resp.GetAnswer().GetOverlap()
	var sets []string
	for _, s := range o.GetSets() {
		sets = append(sets, fmt.Sprint(s.GetOf(), " ", s.GetFound(), " ", s.GetSize().GetValue()))
	}
	want := []string{"set/0 | set/2 true 4", "set/4 true 3", "empty - set/1 true 0"}
	if !slices.Equal(sets, want) || o.GetUnion().GetValue() != 5 || o.GetDifference().GetValue() != 2 ||
		o.GetIntersection().GetValue() != 0 {
		t.Errorf("%q\n%v", sets, o)
	}
	if resp, err = e.query("similar(set/0 | set/2, set/*) top 2"); err != nil {
		t.Fatal(err)
	}
	g := resp.GetAnswer().GetGraph()
	if len(g.GetNodes()) != 3 || g.GetNodes()[0].GetSet().GetOf() != "set/0 | set/2" ||
		g.GetNodes()[0].GetLinks()[0].GetJaccard().GetValue() != 0.75 {
		t.Errorf("%v", g)
	}
	for text, want := range map[string]*proto.Error{
		"overlap(set/0 | visits/0, set/1)": proto.ErrWrongKind, "jaccard(bits/a | bits/b, bits/c)": proto.ErrWrongKind,
		"total(visits/0 & visits/1)": proto.ErrWrongKind,
		"total(~set/0)":              proto.ErrBadQuery, "total(set/0 & bits/a)": proto.ErrWrongKind,
	} {
		if _, err := e.query(text); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}

// One union has one estimate, and one interval, in whatever way it is asked for.
func TestQueryOneEstimate(t *testing.T) {
	e := newFakeCluster(t, 7)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 4 {
		req := new(ebbv1.IncrementRequest)
		for range 4000 {
			req.Increments = append(req.Increments,
				&ebbv1.Increment{
					Key: fmt.Appendf(nil, "s/%d", i), Bin: fmt.Append(nil, r.IntN(9000)),
					Kind: ebbv1.Kind_KIND_SET,
				})
		}
		if resp, err := e.router("ebb-0").Increment(t.Context(), req); err != nil || len(resp.Refused) > 0 {
			t.Fatalf("%v %v", resp, err)
		}
	}
	e.takeCalls()
	estimates := func(text string) []*ebbv1.Estimate {
		resp, err := e.query(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		a := resp.GetAnswer()
		if o := a.GetOverlap(); o != nil {
			return []*ebbv1.Estimate{o.GetUnion(), o.GetSets()[0].GetSize(), o.GetIntersection()}
		}
		return []*ebbv1.Estimate{a.GetSummary().GetTotal()}
	}
	same := func(a, b *ebbv1.Estimate) {
		t.Helper()
		if a.GetValue() != b.GetValue() || a.GetStdError() != b.GetStdError() || a.GetLow() != b.GetLow() ||
			a.GetHigh() != b.GetHigh() || a.GetStdError() == 0 {
			t.Errorf("%v and %v", a, b)
		}
	}
	union := estimates("total(s/0 | s/1)")[0]
	for _, text := range []string{
		"distinct(s/0 | s/1)", "overlap(s/0, s/1)", "overlap(s/0 | s/1, s/1)",
		"count(s/0 | s/1)", "total((s/0 & s/1) | (s/0 ^ s/1))",
	} {
		same(estimates(text)[0], union)
	}
	same(estimates("overlap(s/0 | s/1, s/2)")[1], union)
	same(estimates("total(s/0 & s/1)")[0], estimates("overlap(s/0, s/1)")[2])
	same(estimates("total(s/*)")[0], estimates("jaccard(s/0, s/1, s/2, s/3)")[0])
	same(estimates("total(s/3)")[0], estimates("overlap(s/3, s/1)")[1])
	graph, err := e.query("graph(s/*)")
	if err != nil {
		t.Fatal(err)
	}
	same(graph.GetAnswer().GetGraph().GetNodes()[3].GetSet().GetSize(), estimates("total(s/3)")[0])
}

// What is named and not there is named in the answer, of every kind of question, and refused where the question is
// strict.
func TestMissingIsNamed(t *testing.T) {
	e := stocked(t)
	e.table = e.table.WithVersion(proto.VersionMissingKeys)
	e.put(map[string]ids{"bits/a": {1: true}})
	for text, want := range map[string]string{
		"top 3 clicks/1 | clicks/typo":                   "clicks/typo",
		"top 3 clicks/1 | none/*":                        "none/*",
		"top 3 none/*":                                   "none/*",
		"top 3 clicks/* | none/* | nil/*":                "none/* nil/*",
		"surprise(clicks/1 against none/*)":              "none/*",
		"surprise(clicks/1 against clicks/*)":            "",
		"graph(set/1, set/2, nil/*)":                     "nil/*",
		"graph(set/*)":                                   "",
		"top 3 absent | gone":                            "absent gone",
		"top 3 daily/2011-11-29 .. 2011-12-03":           "",
		"top 3 daily/2012-11-29 .. 2012-12-03 | daily/x": "daily/2012-11-29 .. 2012-12-03 daily/x",
		`p(clicks/typo | clicks/1, "x")`:                 "clicks/typo",
		"top 3 searches | search":                        "search",
		"surprise(clicks/1 against clicks/typo)":         "clicks/typo",
		"distinct(visits/1 | visits/typo)":               "visits/typo",
		"total(visits/typo)":                             "visits/typo",
		`contains(sen, "ann")`:                           "sen",
		`estimate(searches | typo, "go")`:                "typo",
		"quantile(latency | typo, 0.5)":                  "typo",
		"members(set/1 | set/typo)":                      "set/typo",
		"overlap(set/1, set/typo)":                       "set/typo",
		"overlap(set/1 | set/typo, set/2)":               "set/typo",
		"overlap(set/1 | nil/*, set/2)":                  "nil/*",
		"similar(set/typo)":                              "set/typo",
		"graph(set/1, set/typo)":                         "set/typo",
		"describe(typo)":                                 "typo",
		"get(typo)":                                      "typo",
		`match(typo, "x")`:                               "typo",
		"count(bits/a | bits/typo)":                      "bits/typo",
		"count(bits/typo)":                               "bits/typo",
		"count(nil/*)":                                   "nil/*",
		"ids(bits/a - bits/typo)":                        "bits/typo",
		"count by bits/* | bits/typo (bits/a)":           "bits/typo",
		"count(bits/a | bits/typo & nil/*)":              "bits/typo nil/*",
		"count(bits/a | bits/typo & atleast(2, bits/a))": "bits/typo",
		"count(set/1 | set/typo & atleast(2, set/1))":    "set/typo",
		"count(set/typo | set/1 & atleast(2, set/typo))": "set/typo",
		"distinct(nil/* & set/typo | set/2)":             "nil/* set/typo",
		"overlap(set/1 | nil/* & set/typo, set/2)":       "nil/* set/typo",
		"similar(set/typo & nil/* | set/1, set/*)":       "set/typo nil/*",
		"similar(set/typo & nil/*, set/*)":               "set/typo nil/*",
		"ids(bits/a - bits/typo & nil/*)":                "bits/typo nil/*",
		"store bits/new = bits/a | bits/typo":            "bits/typo",
		"store bits/new = bits/a | bits/typo & nil/*":    "bits/typo nil/*",
		"store bits/new = bits/a":                        "",
		"keys none/*":                                    "",
		"top 3 clicks/1":                                 "",
		"count(bits/*)":                                  "",
	} {
		resp, err := e.query(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var names []string
		for _, key := range resp.GetAnswer().GetCoverage().GetMissingKeys() {
			names = append(names, string(key))
		}
		if got := strings.Join(names, " "); got != want ||
			int(resp.GetAnswer().GetCoverage().GetMissingTotal()) != len(names) {
			t.Errorf("%s: missing %q, want %q", text, got, want)
		}
		_, err = NewQueries(e.keys("ebb-0")).Query(t.Context(), &ebbv1.QueryRequest{Text: text, Strict: true})
		if (want == "") != (err == nil) || err != nil &&
			(!errors.Is(err, proto.ErrMissingKeys) || !strings.Contains(err.Error(), strings.Fields(want)[0])) {
			t.Errorf("%s, strict: %v", text, err)
		}
	}
}

// A total of bitmaps looks for all the bitmaps that its expression names, also where a pattern means no set.
func TestTotalOfBitmapsByPattern(t *testing.T) {
	e := stocked(t)
	e.put(map[string]ids{"bits/a": {1: true, 2: true}, "bits/b": {2: true}})
	for _, text := range []string{"total(bits/a & bits/* | bits/typo)", "distinct(bits/typo | bits/* & bits/a)"} {
		resp, err := e.query(text)
		if total := resp.GetAnswer().GetSummary().GetTotal(); err != nil || total.GetValue() != 2 || total.GetHigh() != 2 {
			t.Errorf("%s: %v, %v", text, resp, err)
		}
	}
}

// A strict store of what is not there writes nothing.
func TestStrictStore(t *testing.T) {
	e := stocked(t)
	e.table = e.table.WithVersion(proto.VersionMissingKeys)
	e.put(map[string]ids{"bits/a": {1: true}})
	for text, want := range map[string]error{
		"store bits/x = bits/a | bits/typo": proto.ErrMissingKeys,
		"store bits/y = bits/a | bits/a":    nil,
	} {
		if _, err := NewQueries(e.keys("ebb-0")).Query(t.Context(),
			&ebbv1.QueryRequest{Text: text, Strict: true}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	for text, want := range map[string]uint64{"count(bits/x)": 0, "count(bits/y)": 1} {
		if resp, err := e.query(text); err != nil || resp.GetAnswer().GetBitmap().GetCount() != want {
			t.Errorf("%s: %v %v", text, resp, err)
		}
	}
}

// Ask names missing keys too, at most 100 of them, and refuses a strict question alone.
func TestAskMissing(t *testing.T) {
	e := stocked(t)
	e.table = e.table.WithVersion(proto.VersionMissingKeys)
	var keys [][]byte
	for i := range 150 {
		keys = append(keys, fmt.Appendf(nil, "typo/%d", i))
	}
	keys = append(keys, []byte("clicks/1"))
	ask := func(keys ...[]byte) *ebbv1.Question {
		return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: keys, Select: &ebbv1.DistributionQuestion_Top{Top: 3},
		}}}
	}
	questions := []*ebbv1.Question{ask(keys...), ask([]byte("clicks/1")), ask([]byte("typo")), ask(keys...)}
	answers := e.ask(&ebbv1.AskRequest{Questions: questions})
	for i, want := range []uint32{150, 0, 1, 150} {
		c := answers[i].GetCoverage()
		if c.GetMissingTotal() != want || len(c.GetMissingKeys()) != int(min(want, 100)) {
			t.Errorf("question %d: %d missing, %d named", i, c.GetMissingTotal(), len(c.GetMissingKeys()))
		}
	}
	for i, a := range e.ask(&ebbv1.AskRequest{Questions: questions, Strict: true}) {
		if refused := a.GetError().GetCode() == ebbv1.Code_CODE_MISSING_KEYS; refused != (i != 1) {
			t.Errorf("question %d: %v", i, a.GetError())
		}
	}
}
