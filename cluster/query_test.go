package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

func (e *fakeCluster) query(text string) (*ebbv1.QueryResponse, error) {
	e.t.Helper()
	return NewQueries(e.keys("ebb-0")).Query(e.t.Context(), &ebbv1.QueryRequest{Text: text})
}

// stocked is an fakeCluster with keys of several kinds on all its shards.
func stocked(t *testing.T) *fakeCluster {
	e := newFakeCluster(t, 7)
	req := new(ebbv1.IncrementRequest)
	add := func(key string, kind ebbv1.Kind, bins ...string) {
		for _, bin := range bins {
			req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin), Kind: kind})
		}
	}
	for i := range 5 {
		add(fmt.Sprintf("clicks/%d", i), ebbv1.Kind_KIND_DISTRIBUTION, "all", fmt.Sprintf("only-%d", i))
		add(fmt.Sprintf("visits/%d", i), ebbv1.Kind_KIND_DISTINCT, "ann", "bob", fmt.Sprintf("guest-%d", i))
		add(fmt.Sprintf("set/%d", i), ebbv1.Kind_KIND_SET, "ann", "bob", fmt.Sprintf("guest-%d", i/2))
	}
	for day := range 30 {
		add(fmt.Sprintf("daily/2011-11-%02d", day+1), ebbv1.Kind_KIND_DISTRIBUTION, "all")
	}
	add(`a*b\c`, ebbv1.Kind_KIND_DISTRIBUTION, "x")
	add(`axb\c`, ebbv1.Kind_KIND_DISTRIBUTION, "x")
	add(`a*bc`, ebbv1.Kind_KIND_DISTRIBUTION, "x")
	add("searches", ebbv1.Kind_KIND_TOPK, "go", "go", "rust")
	add("seen", ebbv1.Kind_KIND_BLOOM, "ann")
	add("phrases", ebbv1.Kind_KIND_PHRASES, "new york")
	req.Increments = append(req.Increments,
		&ebbv1.Increment{Key: []byte("latency"), Kind: ebbv1.Kind_KIND_QUANTILE, Value: new(float64)},
		&ebbv1.Increment{Key: []byte("banner"), Kind: ebbv1.Kind_KIND_STRING, Text: []byte("hello")})
	resp, err := e.router("ebb-0").Increment(t.Context(), req)
	if err != nil || len(resp.Refused) > 0 {
		t.Fatalf("%v %v", resp, err)
	}
	e.takeCalls()
	return e
}

// A question in the language is the question that it means.
func TestQueryMeans(t *testing.T) {
	e := stocked(t)
	b := func(names ...string) (out [][]byte) {
		for _, name := range names {
			out = append(out, []byte(name))
		}
		return out
	}
	top := func(n uint32) *ebbv1.DistributionQuestion_Top { return &ebbv1.DistributionQuestion_Top{Top: n} }
	named := func(bins ...string) *ebbv1.DistributionQuestion_Bins {
		return &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: b(bins...)}}
	}
	ofDistribution := func(q *ebbv1.DistributionQuestion) *ebbv1.Question {
		return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: q}}
	}
	ofSummary := func(q *ebbv1.SummaryQuestion) *ebbv1.Question {
		return &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: q}}
	}
	november := make([]string, 30)
	for i := range november {
		november[i] = fmt.Sprintf("daily/2011-11-%02d", i+1)
	}
	for text, q := range map[string]*ebbv1.Question{
		"top 3 clicks/1":                        ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1"), Select: top(3)}),
		"top 3 clicks/1 | clicks/2 | clicks/1":  ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1", "clicks/2"), Select: top(3)}),
		"top 9 clicks/* | clicks/2":             ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/2"), Patterns: b("clicks/*"), Select: top(9)}),
		"top 9 daily/2011-11-01 .. 2011-11-30":  ofDistribution(&ebbv1.DistributionQuestion{Keys: b(november...), Select: top(9)}),
		"top 2 searches":                        ofSummary(&ebbv1.SummaryQuestion{Keys: b("searches"), Top: 2}),
		"top 2 search*":                         ofSummary(&ebbv1.SummaryQuestion{Patterns: b("search*"), Top: 2}),
		"dist(clicks/1)":                        ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1"), Select: &ebbv1.DistributionQuestion_All{All: true}}),
		`p(clicks/1, "all", "none")`:            ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1"), Select: named("all", "none")}),
		"top 3 clicks/1 with confidence 0.5":    ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1"), Select: top(3), Confidence: 0.5}),
		"top 3 clicks/1 as of 2030-01-01":       ofDistribution(&ebbv1.DistributionQuestion{Keys: b("clicks/1"), Select: top(3), AsOfUs: 1_893_456_000_000_000}),
		"top 3 nobody":                          ofDistribution(&ebbv1.DistributionQuestion{Keys: b("nobody"), Select: top(3)}),
		"top 3 nobody/*":                        ofDistribution(&ebbv1.DistributionQuestion{Patterns: b("nobody/*"), Select: top(3)}),
		"distinct(visits/0 | visits/1)":         ofSummary(&ebbv1.SummaryQuestion{Keys: b("visits/0", "visits/1")}),
		"distinct(visits/*)":                    ofSummary(&ebbv1.SummaryQuestion{Patterns: b("visits/*")}),
		"total(visits/0)":                       ofSummary(&ebbv1.SummaryQuestion{Keys: b("visits/0")}),
		"quantile(latency, 0.5, 0.99)":          ofSummary(&ebbv1.SummaryQuestion{Keys: b("latency"), Quantiles: []float64{0.5, 0.99}}),
		`estimate(searches, "go")`:              ofSummary(&ebbv1.SummaryQuestion{Keys: b("searches"), Bins: b("go")}),
		`contains(seen, "ann", "bob")`:          ofSummary(&ebbv1.SummaryQuestion{Keys: b("seen"), Bins: b("ann", "bob")}),
		"members(set/0) limit 2":                ofSummary(&ebbv1.SummaryQuestion{Keys: b("set/0"), Members: true, Limit: 2}),
		"get(banner)":                           ofSummary(&ebbv1.SummaryQuestion{Keys: b("banner")}),
		"overlap(set/0, set/1)":                 {Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: b("set/0", "set/1")}}},
		"jaccard(set/0, set/1, set/2)":          {Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: b("set/0", "set/1", "set/2")}}},
		"graph(set/*, set/0, links 3, min 0.6)": {Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Keys: b("set/0"), Patterns: b("set/*"), Links: 3, MinJaccard: 0.6}}},
		"describe(set/0)":                       {Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: b("set/0")[0]}}},
		`match(phrases, "in New York")`:         {Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{Key: b("phrases")[0], Text: b("in New York")[0]}}},
		"surprise(clicks/1 against clicks/*, \"all\") top 3": {Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
			Keys: b("clicks/1"), AgainstPatterns: b("clicks/*"), Bins: b("all"), Top: 3,
		}}},
		"keys":                            {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}},
		"keys set/* from set/1 limit 2":   {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: b("set/*")[0], After: b("set/1")[0], Limit: 2}}},
		`keys "a*b\\c"`:                   {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: []byte(`a\*b\\c`)}}},
		"top 2 keys":                      {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Order: ebbv1.KeyOrder_KEY_ORDER_TOTAL, Limit: 2}}},
		"top 2 keys visits/* by recent":   {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: b("visits/*")[0], Order: ebbv1.KeyOrder_KEY_ORDER_RECENT, Limit: 2}}},
		"describe(@default/set/0)":        {Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: b("set/0")[0]}}},
		"describe(set/0) in default":      {Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: b("set/0")[0]}}},
		"overlap(@default/set/0, set/1)":  {Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: b("set/0", "set/1")}}},
		"describe(set/0) allow partial":   {Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: b("set/0")[0]}}},
		"keys with consistency any":       {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}},
		"keys set/0 as of 2030-01-01":     {Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: b("set/0")[0], AsOfUs: 1_893_456_000_000_000}}},
		"total(set/* | set/0) in default": ofSummary(&ebbv1.SummaryQuestion{Keys: b("set/0"), Patterns: b("set/*")}),
	} {
		got, err := e.query(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})[0]
		if want.GetError() != nil {
			t.Errorf("%s: %v", text, want.GetError())
		}
		if diff := cmp.Diff(want, got.GetAnswer(), protocmp.Transform()); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
		if got.GetText() != query.Text(got.GetPlan()) {
			t.Errorf("%s is understood as %s, and that is not %v", text, got.GetText(), got.GetPlan())
		}
	}
}

// The total of a distribution is said as that of any kind.
func TestQueryTotal(t *testing.T) {
	e := stocked(t)
	for text, want := range map[string]float64{"total(clicks/1)": 2, "total(clicks/*)": 10, "total(daily/2011-11-01 .. 2011-11-10)": 10, "total(nobody)": 0} {
		got, err := e.query(text)
		total := got.GetAnswer().GetSummary().GetTotal()
		if err != nil || total.GetValue() != want || total.GetLow() != want || total.GetConfidence() != 1 || got.GetAnswer().GetCoverage() == nil {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
}

// The sets most like one are that of a graph; its own directory is what it is compared with.
func TestQuerySimilar(t *testing.T) {
	e := stocked(t)
	for text, want := range map[string][]string{
		"similar(set/0)":                      {"set/0", "set/1", "set/2", "set/3", "set/4"},
		"similar(set/0) top 1":                {"set/0", "set/1"},
		"similar(set/4, set/0, set/3)":        {"set/4", "set/0", "set/3"},
		"similar(set/nobody)":                 nil,
		"similar(set/0, visits/nobody) top 1": {"set/0"},
	} {
		got, err := e.query(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		g := got.GetAnswer().GetGraph()
		var names []string
		for _, n := range g.GetNodes() {
			if n.GetSet().GetFound() {
				names = append(names, string(n.GetSet().GetKey()))
			}
		}
		slices.Sort(names[min(1, len(names)):])
		if slices.Sort(want[min(1, len(want)):]); !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", text, names, want)
		}
		for i, link := range g.GetNodes()[:min(1, len(g.GetNodes()))] {
			for j, l := range link.GetLinks() {
				if int(l.GetTo()) != j+1 || i != 0 || l.GetJaccard().GetValue() <= 0 {
					t.Errorf("%s: link %d: %v", text, j, l)
				}
			}
		}
	}
}

// What a question asks of the wrong kind, of two namespaces, or of none, is refused with its code.
func TestQueryRefused(t *testing.T) {
	e := stocked(t)
	for _, c := range []struct {
		text string
		want *proto.Error
		says string
	}{
		{"top 10", proto.ErrBadQuery, "column 7"},
		{"top 10 visits/0", proto.ErrWrongKind, "knows no"},
		{"distinct(searches)", proto.ErrWrongKind, "counts no members"},
		{"distinct(clicks/0)", proto.ErrWrongKind, "is a distribution"},
		{`contains(searches, "go")`, proto.ErrWrongKind, "does not know what it contains"},
		{`estimate(seen, "ann")`, proto.ErrWrongKind, "counts nothing"},
		{"get(searches)", proto.ErrWrongKind, "has no value"},
		{"total(clicks/0 | visits/0)", proto.ErrWrongKind, ""},
		{"top 3 clicks/0 in nowhere", proto.ErrNamespaceNotFound, "nowhere"},
		{"top 3 @a/x | @b/x", proto.ErrBadQuery, "keys of two namespaces, a and b"},
		{"surprise(@a/x against y)", proto.ErrBadQuery, "keys of two namespaces, a and default"},
		{"overlap(set/0, set/0)", proto.ErrBadQuery, "named twice"},
		{"trend(clicks/0)", proto.ErrBadNamespace, "one half-life"},
		{"trend(clicks/*)", proto.ErrBadNamespace, "one half-life"},
		{"top 3 clicks/* by trend(10m, 6h)", proto.ErrBadNamespace, "one half-life"},
		{"top 3 keys by trend(10m, 6h)", proto.ErrBadNamespace, "one half-life"},
		{"top 3 a* | b* | c* | d* | e* | f* | g* | h* | i* | j* | k* | l* | m* | n* | o* | p* | q*", proto.ErrBadCount, "17 patterns"},
	} {
		_, err := e.query(c.text)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want %v saying %q", c.text, err, c.want, c.says)
		}
	}
	for own, second := range map[int64]string{
		1e6: "6h", 3600e6: "10h", 365 * 86_400e6: "3650d", 20_000 * 86_400e6: "2000d", 5400e6: "15h",
	} {
		err := oneHalfLife("n", &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_HALF_LIFE, HalfLifeUs: own})
		if !strings.Contains(err.Hint, "ebb namespace set n --slow-half-life "+second+":") {
			t.Errorf("half-life of %d us, of a second one: %s", own, err.Hint)
		}
	}
	plan, err := query.Parse("describe(x)")
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueries(e.keys("ebb-0"))
	for _, req := range []*ebbv1.QueryRequest{{}, {Text: "keys", Plan: plan}, {Plan: &ebbv1.Plan{}}, {Text: "keys", Namespace: "no/name"}} {
		if _, err := q.Query(t.Context(), req); err == nil {
			t.Errorf("%v is answered", req)
		}
	}
	if resp, err := q.Query(t.Context(), &ebbv1.QueryRequest{Plan: plan, Namespace: "default"}); err != nil || resp.GetText() != "describe(x) in default" {
		t.Errorf("%v %v", resp, err)
	}
}

// To explain asks nothing, and names the shards that would be asked.
func TestQueryExplain(t *testing.T) {
	e := stocked(t)
	q := NewQueries(e.keys("ebb-0"))
	home := func(key string) uint32 { return e.table.ShardOf("default", []byte(key)) }
	all := []uint32{1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		text   string
		shards []uint32
		cost   uint64
	}{
		{"describe(set/0)", []uint32{home("set/0")}, 1},
		{"top 3 clicks/0", []uint32{home("clicks/0")}, 2},
		{"keys", all, 7},
		{"distinct(visits/*)", all, 7},
		{"top 10 daily/2011-11-01 .. 2011-11-30", []uint32{home("daily/2011-11-01")}, 2},
		{"describe(x) in nowhere", nil, 0},
	} {
		resp, err := q.Query(t.Context(), &ebbv1.QueryRequest{Text: c.text, Explain: true})
		got := resp.GetExplanation()
		if err != nil || !slices.Equal(got.GetShards(), c.shards) || got.GetCost() != c.cost || got.GetCostMax() != PartsMax || resp.GetAnswer() != nil {
			t.Errorf("%s: %v %v", c.text, resp, err)
		}
		if (got.GetRefusal() != nil) != (c.shards == nil) {
			t.Errorf("%s: refused with %v", c.text, got.GetRefusal())
		}
	}
	if calls := e.takeCalls(); len(calls) > 0 {
		t.Errorf("asked %q", calls)
	}
}

// What is missing is missing: an answer of some shards only where that is allowed.
func TestQueryPartial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := stocked(t)
		e.with(func() { e.leads[3] = "" })
		if _, err := e.query("keys"); !errors.Is(err, proto.ErrIncomplete) {
			t.Errorf("%v", err)
		}
		resp, err := e.query("keys allow partial")
		if c := resp.GetAnswer().GetCoverage(); err != nil || c.GetShardsAnswered() != 6 || !slices.Equal(c.GetShardsFailed(), []uint32{3}) {
			t.Errorf("%v %v", c, err)
		}
		if resp, err := e.query("keys with consistency any"); err != nil || resp.GetAnswer().GetCoverage().GetShardsAnswered() != 7 {
			t.Errorf("%v %v", resp, err)
		}
	})
}

// Keys are ranked by how significantly their rates have risen.
func TestRanked(t *testing.T) {
	trend := func(key string, found bool, z float64) *ebbv1.Answer {
		return &ebbv1.Answer{Value: &ebbv1.Answer_Trend{Trend: &ebbv1.Trend{
			Keys: [][]byte{[]byte(key)}, Found: found, FastHalfLifeUs: 1, SlowHalfLifeUs: 2, SinceUs: int64(10 * z), Total: &ebbv1.Change{ZScore: z},
		}}}
	}
	answers := []*ebbv1.Answer{trend("a", true, 1), trend("gone", false, 9), trend("b", true, 3), trend("d", true, 1), trend("c", true, -2)}
	got := ranked(answers, 3, &ebbv1.Coverage{ShardsTotal: 4}).GetTrend()
	var names []string
	for _, c := range got.GetRising() {
		names = append(names, string(c.GetBin()))
	}
	if !slices.Equal(names, []string{"b", "a", "d"}) || !got.GetFound() || got.GetFastHalfLifeUs() != 1 || got.GetSinceUs() != 30 {
		t.Errorf("%v", got)
	}
	if none := ranked([]*ebbv1.Answer{trend("gone", false, 1)}, 3, nil).GetTrend(); none.GetFound() || len(none.GetRising()) > 0 {
		t.Errorf("%v", none)
	}
}
