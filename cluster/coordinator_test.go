package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func ofKeys(keys ...[]byte) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: keys, Select: &ebbv1.DistributionQuestion_All{All: true},
	}}}
}

func countKeys() *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: new(ebbv1.CountKeysQuestion)}}
}

// fill adds 1 to bin "all" and to a bin of its own for a key on each shard, and returns the keys.
func (e *fakeCluster) fill() (keys [][]byte) {
	req := new(ebbv1.IncrementRequest)
	for number := uint32(1); number <= e.table.Shards(); number++ {
		key := e.keyOn(number, 0)
		keys = append(keys, key)
		req.Increments = append(req.Increments,
			&ebbv1.Increment{Key: key, Bin: []byte("all")},
			&ebbv1.Increment{Key: key, Bin: fmt.Appendf(nil, "only-%d", number)})
	}
	if _, err := e.router("ebb-0").Increment(e.t.Context(), req); err != nil {
		e.t.Fatal(err)
	}
	e.takeCalls()
	return keys
}

func (e *fakeCluster) ask(req *ebbv1.AskRequest) []*ebbv1.Answer {
	e.t.Helper()
	resp, err := e.coordinator("ebb-0").Ask(e.t.Context(), req)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.Answers
}

func countOf(a *ebbv1.Answer, bin string) float64 {
	for _, b := range a.GetDistribution().GetBins() {
		if string(b.GetBin()) == bin {
			return b.GetCount()
		}
	}
	return 0
}

func TestCoordinatorAsksOneCallANodeAndFoldsAll(t *testing.T) {
	e := newFakeCluster(t, 16)
	keys := e.fill()
	answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys...), countKeys(), ofKeys(keys[4])}})
	merged, counted, single := answers[0], answers[1], answers[2]

	if got := countOf(merged, "all"); math.Abs(got-16) > 1e-9 {
		t.Errorf("16 keys merged count %g", got)
	}
	if got := merged.GetDistribution(); got.GetBinsTotal() != 17 || !cmp.Equal(got.GetKeys(), keys) {
		t.Errorf("merged %d bins of keys %q", got.GetBinsTotal(), got.GetKeys())
	}
	if counted.GetCountKeys().GetKeys() != 16 {
		t.Errorf("counted %v", counted)
	}
	if got := single.GetDistribution(); got.GetBinsTotal() != 2 || countOf(single, "only-5") != 1 {
		t.Errorf("single %v", got)
	}
	for i, total := range []uint32{16, 16, 1} {
		want := &ebbv1.Coverage{ShardsTotal: total, ShardsAnswered: total, AsOfMinUs: year2026, AsOfMaxUs: year2026}
		if diff := cmp.Diff(want, answers[i].GetCoverage(), protocmp.Transform()); diff != "" {
			t.Errorf("coverage of answer %d (-want +got):\n%s", i, diff)
		}
	}
	led := func(node string) int { return len(e.ledBy(node)) }
	want := make([]string, 0, 3)
	for _, node := range nodeNames(3) {
		n := 2 * led(node)
		if e.leads[5] == node {
			n++
		}
		want = append(want, fmt.Sprintf("%s: ask %d", node, n))
	}
	if diff := cmp.Diff(want, e.takeCalls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// The same increments under one key, or spread over keys of many shards and
// merged, answer the same.
func TestCoordinatorMergesAsOneShardWould(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newFakeCluster(t, 16)
		spread, whole := new(ebbv1.IncrementRequest), new(ebbv1.IncrementRequest)
		keys := [][]byte{}
		for i := range rapid.IntRange(1, 40).Draw(rt, "increments") {
			key := fmt.Appendf(nil, "key-%d", rapid.IntRange(0, 15).Draw(rt, "key"))
			if !slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == string(key) }) {
				keys = append(keys, key)
			}
			bin := fmt.Appendf(nil, "bin-%d", rapid.IntRange(0, 5).Draw(rt, "bin"))
			amount := float64(i%3 + 1)
			spread.Increments = append(spread.Increments, &ebbv1.Increment{Key: key, Bin: bin, Amount: &amount})
			whole.Increments = append(whole.Increments, &ebbv1.Increment{Key: []byte("whole"), Bin: bin, Amount: &amount})
		}
		for _, req := range []*ebbv1.IncrementRequest{spread, whole} {
			if _, err := e.router("ebb-0").Increment(t.Context(), req); err != nil {
				rt.Fatal(err)
			}
		}
		many, one := ofKeys(keys...), ofKeys([]byte("whole"))
		n := rapid.Uint32Range(1, 8).Draw(rt, "n")
		many.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: n}
		one.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: n}
		asOf := int64(year2026 + 1e6*rapid.IntRange(0, 7200).Draw(rt, "later"))
		many.GetDistribution().AsOfUs, one.GetDistribution().AsOfUs = asOf, asOf
		answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{many, one}})
		got, want := answers[0].GetDistribution(), answers[1].GetDistribution()
		want.Keys = keys
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(a)) })
		if diff := cmp.Diff(want, got, protocmp.Transform(), near); diff != "" {
			rt.Fatalf("merged, against whole (-want +got):\n%s", diff)
		}
	})
}

// Sets in any shards are compared as if they lay in one.
func TestCoordinatorComparesSets(t *testing.T) {
	e := newFakeCluster(t, 16)
	req := new(ebbv1.IncrementRequest)
	var keys [][]byte
	for i := range 12 { // each shares two bins of four with the next one
		keys = append(keys, fmt.Appendf(nil, "set-%d", i))
		for bin := range 4 {
			req.Increments = append(req.Increments, &ebbv1.Increment{Key: keys[i], Bin: fmt.Append(nil, 2*i+bin), Kind: ebbv1.Kind_KIND_SET})
		}
	}
	if _, err := e.router("ebb-0").Increment(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{
		{Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Keys: keys}}},
		{Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Keys: keys[:1]}}},
		{Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: keys[3:6]}}},
		{Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Patterns: [][]byte{[]byte("set-*")}, Keys: keys[11:]}}},
	}})
	nodes := answers[0].GetGraph().GetNodes()
	if len(nodes) != len(keys) || answers[0].GetCoverage().GetShardsTotal() < 4 {
		t.Fatalf("%v", answers[0])
	}
	near := func(e *ebbv1.Estimate, want float64) bool { return math.Abs(e.GetValue()-want) < 0.01 } // a second may have gone by
	for i, n := range nodes {
		if string(n.Set.Key) != string(keys[i]) || len(n.Links) != min(2, i+1, len(keys)-i) {
			t.Fatalf("%v", n)
		}
		for _, l := range n.Links {
			if d := int(l.To) - i; d*d != 1 || !near(l.Jaccard, 2.0/6) {
				t.Errorf("%v", n)
			}
		}
	}
	if one := answers[1].GetGraph().GetNodes(); len(one) != 1 || !near(one[0].Set.Size, 4) {
		t.Errorf("%v", answers[1])
	}
	matching := answers[3].GetGraph().GetNodes()
	if len(matching) != len(keys) || string(matching[0].Set.Key) != "set-11" || string(matching[1].Set.Key) != "set-0" || answers[3].GetCoverage().GetShardsTotal() != 16 {
		t.Errorf("%v", answers[3])
	}
	if o := answers[2].GetOverlap(); !near(o.GetUnion(), 8) || !near(o.GetIntersection(), 0) || !near(o.GetDifference(), 2) || string(o.GetSets()[1].GetKey()) != "set-4" {
		t.Errorf("%v", answers[2])
	}
}

func TestCoordinatorAnswersQuestionsOneByOne(t *testing.T) {
	e := newFakeCluster(t, 16)
	keys := e.fill()
	bad := ofKeys(keys[0])
	bad.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: 0}
	strange := ofKeys(keys[0])
	strange.Namespace = "clicks"
	answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{
		bad, ofKeys(keys[1]), strange, new(ebbv1.Question), ofKeys(keys[2]), ofKeys(), ofKeys([]byte("never seen")),
	}})
	var got []string
	for _, a := range answers {
		got = append(got, code(a.GetError()))
		if a.GetError() == nil && a.GetCoverage().GetShardsAnswered() != 1 {
			t.Errorf("coverage %v", a.GetCoverage())
		}
	}
	want := []string{"BAD_COUNT", "ok", "NAMESPACE_NOT_FOUND", "BAD_REQUEST", "ok", "BAD_COUNT", "ok"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if countOf(answers[4], "only-3") != 1 || answers[6].GetDistribution().GetFound() {
		t.Errorf("answers in the wrong places: %v", answers)
	}
	if got := e.ask(new(ebbv1.AskRequest)); len(got) != 0 {
		t.Errorf("no questions, %d answers", len(got))
	}
}

func TestCoordinatorRefusesBadRequests(t *testing.T) {
	e := newFakeCluster(t, 16)
	many := make([]*ebbv1.Question, proto.QuestionsMax+1)
	for i := range many {
		many[i] = countKeys()
	}
	different := make([]*ebbv1.Question, 1000)
	for i := range different {
		different[i] = &ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Limit: uint32(i + 1)}}}
	}
	wide := newFakeCluster(t, 128)
	for what, c := range map[string]struct {
		e    *fakeCluster
		req  *ebbv1.AskRequest
		want *proto.Error
	}{
		"too many questions":        {e, &ebbv1.AskRequest{Questions: many}, proto.ErrBatchTooLarge},
		"too many parts":            {wide, &ebbv1.AskRequest{Questions: different}, proto.ErrBatchTooLarge},
		"bounded without a bound":   {e, &ebbv1.AskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_BOUNDED}, proto.ErrBadRequest},
		"an unknown consistency":    {e, &ebbv1.AskRequest{Consistency: 9}, proto.ErrBadRequest},
		"a cluster without a table": {&fakeCluster{t: t, table: NewControl().Table(), leaders: NewLeaders(1)}, &ebbv1.AskRequest{}, proto.ErrStarting},
	} {
		if resp, err := c.e.coordinator("ebb-0").Ask(t.Context(), c.req); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", what, resp, err)
		}
	}
}

func TestCoordinatorSaysWhichShardsAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		keys := e.fill()
		e.leads[3], e.leads[7] = "", ""
		questions := []*ebbv1.Question{countKeys(), ofKeys(keys...), ofKeys(keys[2]), ofKeys(keys[0], keys[1])}

		start := time.Now()
		answers := e.ask(&ebbv1.AskRequest{Questions: questions})
		if took := time.Since(start); took != askTimeout {
			t.Errorf("gave up after %v", took)
		}
		var got []string
		for _, a := range answers {
			got = append(got, code(a.GetError()))
		}
		if diff := cmp.Diff([]string{"INCOMPLETE", "INCOMPLETE", "NO_LEADER", "ok"}, got); diff != "" {
			t.Errorf("without allow_partial (-want +got):\n%s", diff)
		}
		t.Log(answers[0].GetError().GetMessage())

		answers = e.ask(&ebbv1.AskRequest{Questions: questions, AllowPartial: true})
		if answers[0].GetCountKeys().GetKeys() != 14 || countOf(answers[1], "all") != 14 || countOf(answers[1], "only-3") != 0 {
			t.Errorf("partial answers %v, %v", answers[0], answers[1])
		}
		want := &ebbv1.Coverage{
			ShardsTotal: 16, ShardsAnswered: 14, ShardsFailed: []uint32{3, 7}, AsOfMinUs: year2026, AsOfMaxUs: year2026,
		}
		for i := range 2 {
			if diff := cmp.Diff(want, answers[i].GetCoverage(), protocmp.Transform()); diff != "" {
				t.Errorf("coverage of answer %d (-want +got):\n%s", i, diff)
			}
		}
		if code(answers[2].GetError()) != "NO_LEADER" || answers[2].GetCoverage().GetShardsTotal() != 1 {
			t.Errorf("nothing is left of the single one: %v", answers[2])
		}
	})
}

// A caller with a deadline hears before the deadline which shards are missing: afterwards it would not hear the answer.
func TestMissingShardsAreNamedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		keys := e.fill()
		e.leads[3], e.leads[7] = "", ""
		for _, limit := range []time.Duration{300 * time.Millisecond, time.Second, time.Minute} {
			for _, partial := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				start := time.Now()
				resp, err := e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys...)}, AllowPartial: partial})
				took := time.Since(start)
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				a := resp.GetAnswers()[0]
				if want := map[bool]string{false: "INCOMPLETE", true: "ok"}[partial]; code(a.GetError()) != want || !slices.Equal(a.GetCoverage().GetShardsFailed(), []uint32{3, 7}) {
					t.Errorf("in %v, partial %v: %v", limit, partial, a)
				}
				if least := limit - min(limit/8, wayBackMax) - pauseMax; took >= limit || took < least {
					t.Errorf("in %v, partial %v: it took %v", limit, partial, took)
				}
			}
		}
	})
}

func TestCoordinatorFollowsTheLeader(t *testing.T) {
	for name, change := range map[string]func(e *fakeCluster){
		"it moved":                  func(e *fakeCluster) { e.leads[3] = e.table.after(3, e.leads[3]) },
		"it moved, and nobody says": func(e *fakeCluster) { e.leads[3] = e.table.after(3, e.leads[3]); e.quiet = true },
		"it moved twice on":         func(e *fakeCluster) { e.leads[3] = e.table.after(3, e.table.after(3, e.leads[3])); e.quiet = true },
		"the old one is away": func(e *fakeCluster) {
			e.mood[e.leads[3]] = mood{away: true}
			e.leads[3] = e.table.after(3, e.leads[3])
		},
		"the old one refuses": func(e *fakeCluster) {
			e.mood[e.leads[3]] = mood{refuses: proto.ErrUnreachable.Errorf("reset")}
			e.leads[3] = e.table.after(3, e.leads[3])
		},
		"the old one stops": func(e *fakeCluster) {
			e.mood[e.leads[3]] = mood{refuses: proto.ErrShuttingDown.Errorf("stopping")}
			e.leads[3] = e.table.after(3, e.leads[3])
		},
		"the old one is cut off from the others": func(e *fakeCluster) {
			e.mood[e.leads[3]] = mood{lonely: true}
			e.leads[3] = e.table.after(3, e.leads[3])
		},
		"the old one hangs": func(e *fakeCluster) {
			e.mood[e.leads[3]] = mood{hangs: true}
			e.leads[3] = e.table.after(3, e.leads[3])
		},
		"it comes late": func(e *fakeCluster) {
			leader := e.leads[3]
			e.leads[3] = ""
			time.AfterFunc(1500*time.Millisecond, func() { e.with(func() { e.leads[3] = leader }) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeCluster(t, 16)
				keys := e.fill()
				e.leads[3] = "ebb-1" // never the coordinator itself: a hint for it would be its own
				e.leaders.Observe(3, "ebb-1", 1)
				change(e)
				a := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys[2])}})[0]
				if a.GetError() != nil || countOf(a, "only-3") != 1 {
					t.Errorf("%v after %q", a, e.takeCalls())
				}
			})
		})
	}
}

// A shard that has a later namespace of its name says so: the coordinator asks again when it has a table that has it,
// too.
func TestCoordinatorAsksAgainByALaterTable(t *testing.T) {
	for _, x := range []struct {
		name  string
		later time.Duration // until the later table; 0: it never comes
		want  ebbv1.Code
	}{
		{"it comes", time.Second, ebbv1.Code_CODE_UNSPECIFIED},
		{"it does not", 0, ebbv1.Code_CODE_STALE_TABLE},
	} {
		for _, partial := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partial %v", x.name, partial), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newFakeCluster(t, 16)
					keys := e.fill()
					e.mood[e.leads[3]] = mood{refuses: proto.ErrStaleTable.Errorf("made anew")}
					table := e.table
					c := NewCoordinator(CoordinatorConfig{
						Node: "ebb-0", Table: func() *Table {
							e.mu.Lock()
							defer e.mu.Unlock()
							return table
						}, Leaders: e.leaders, Local: replica{e, "ebb-0"}, Peers: e, Now: e.now,
					})
					if x.later > 0 {
						time.AfterFunc(x.later, func() {
							e.create(&ebbv1.Namespace{Name: "other", Decay: ebbv1.Decay_DECAY_NONE})
							e.with(func() { table, e.mood = e.table, map[string]mood{} })
						})
					}
					resp, err := c.Ask(t.Context(), &ebbv1.AskRequest{
						Questions: []*ebbv1.Question{ofKeys(keys...)}, AllowPartial: partial,
					})
					if err != nil {
						t.Fatal(err)
					}
					a := resp.GetAnswers()[0]
					if a.GetError().GetCode() != x.want || x.want == 0 && countOf(a, "only-3") != 1 {
						t.Errorf("%v after %q", a, e.takeCalls())
					}
				})
			})
		}
	}
}

func TestCoordinatorReadsNearbyWhenItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		keys := e.fill()
		req := &ebbv1.AskRequest{
			Questions: []*ebbv1.Question{ofKeys(keys...)}, Consistency: ebbv1.Consistency_CONSISTENCY_ANY,
		}
		e.mood["ebb-0"] = mood{stale: true}
		a := e.ask(req)[0]
		if diff := cmp.Diff([]string{"ebb-0: ask 16"}, e.takeCalls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if got := a.GetCoverage().GetShardsStale(); len(got) != 16 || countOf(a, "all") != 16 {
			t.Errorf("coverage %v", a.GetCoverage())
		}

		req.Consistency, req.MaxStalenessUs = ebbv1.Consistency_CONSISTENCY_BOUNDED, 1
		number := uint32(3)
		e.leads[number] = "ebb-1"
		e.leaders.Observe(number, "ebb-1", 1)
		req.Questions = []*ebbv1.Question{ofKeys(keys[2])}
		a = e.ask(req)[0]
		if diff := cmp.Diff([]string{"ebb-0: ask 1", "ebb-1: ask 1"}, e.takeCalls()); diff != "" || a.GetError() != nil {
			t.Errorf("%v; calls (-want +got):\n%s", a.GetError(), diff)
		}

		e.leaders.Observe(number, "", 1) // of those that are left one is stale, too
		e.mood["ebb-1"] = mood{stale: true}
		if a = e.ask(req)[0]; a.GetError() != nil {
			t.Errorf("%v after %q", a.GetError(), e.takeCalls())
		}
	})
}

func TestCoordinatorLimitsTheResponse(t *testing.T) {
	e := newFakeCluster(t, 16)
	key := e.keyOn(1, 0)
	for range 5 {
		req := new(ebbv1.IncrementRequest)
		for range 4000 {
			req.Increments = append(req.Increments, &ebbv1.Increment{
				Key: key, Bin: fmt.Appendf(make([]byte, 0, 256), "%0200d", len(req.Increments)+1e6*len(e.calls)),
			})
		}
		if _, err := e.router("ebb-0").Increment(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	top := ofKeys(key)
	top.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: 10_000}
	small := ofKeys(e.keyOn(2, 0))
	answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{top, top, small, ofKeys(key)}})
	var got []string
	for _, a := range answers {
		got = append(got, code(a.GetError()))
	}
	if diff := cmp.Diff([]string{"ok", "RESPONSE_TOO_LARGE", "ok", "RESPONSE_TOO_LARGE"}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	t.Log(answers[1].GetError().GetMessage())
}

func TestCoordinatorSurvivesBackendsThatAnswerShort(t *testing.T) {
	e := newFakeCluster(t, 16)
	keys := e.fill()
	for _, node := range nodeNames(3) {
		e.mood[node] = mood{curt: true}
	}
	a := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(keys[2]), countKeys()}})
	if code(a[0].GetError()) != "INTERNAL" || code(a[1].GetError()) != "INCOMPLETE" {
		t.Errorf("%v", a)
	}
}

func BenchmarkCoordinatorHere(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			e := newFakeCluster(b, 64)
			for number := range e.leads {
				e.leaders.Observe(number, "ebb-0", 1)
			}
			c := NewCoordinator(CoordinatorConfig{
				Node: "ebb-0", Table: func() *Table { return e.table }, Leaders: e.leaders, Local: sink{}, Peers: e,
			})
			benchmarkAsk(b, e, c, batch)
		})
	}
}

func BenchmarkCoordinatorThreeNodes(b *testing.B) {
	e := newFakeCluster(b, 64)
	c := NewCoordinator(CoordinatorConfig{
		Node: "ebb-0", Table: func() *Table { return e.table }, Leaders: e.leaders, Local: sink{}, Peers: sinks{},
	})
	benchmarkAsk(b, e, c, 32)
}

func benchmarkAsk(b *testing.B, e *fakeCluster, c *Coordinator, batch int) {
	req := new(ebbv1.AskRequest)
	for i := range batch {
		q := ofKeys(e.keyOn(uint32(i)+1, 0))
		q.Namespace = "default"
		q.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: 10}
		req.Questions = append(req.Questions, q)
	}
	ctx, cancel := contextFor(b, 3600)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Ask(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/answer")
}

// A node that cannot say all at once is asked for the rest, and asked for nothing twice.
func TestCoordinatorAsksForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		keys := e.fill()
		for number := range e.leads {
			e.leads[number] = "ebb-1"
			e.leaders.Correct(number, e.table.Preferred(number), "ebb-1")
		}
		e.mood["ebb-1"] = mood{breath: 5}
		e.calls = nil
		answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{countKeys(), ofKeys(keys...)}})
		for i, a := range answers {
			if a.GetError() != nil || a.GetCoverage().GetShardsAnswered() != 16 {
				t.Errorf("question %d: %v", i, a)
			}
		}
		want := []string{"ebb-1: ask 32", "ebb-1: ask 27", "ebb-1: ask 22", "ebb-1: ask 17", "ebb-1: ask 12", "ebb-1: ask 7", "ebb-1: ask 2"}
		if diff := cmp.Diff(want, e.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// Of a set whose shard is missing a graph says nothing, also where patterns ask all the others: it is unknown, and not
// absent.
func TestGraphOfAMissingShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 3)
		here, away, nowhere := e.keyOn(1, 0), e.keyOn(2, 0), e.keyOn(3, 0)
		for _, key := range [][]byte{here, away} {
			req := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: key, Bin: []byte("a"), Kind: ebbv1.Kind_KIND_SET}}}
			if _, err := e.router("ebb-0").Increment(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		e.with(func() { e.leads[2] = "" })
		for _, patterns := range [][][]byte{nil, {[]byte("no/such/*")}} {
			q := &ebbv1.GraphQuestion{Keys: [][]byte{here, away, nowhere}, Patterns: patterns}
			a := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{{Ask: &ebbv1.Question_Graph{Graph: q}}}, AllowPartial: true})[0]
			got := map[string]bool{}
			for _, n := range a.GetGraph().GetNodes() {
				got[string(n.GetSet().GetKey())] = n.GetSet().GetFound()
			}
			if diff := cmp.Diff(map[string]bool{string(here): true, string(nowhere): false}, got); diff != "" {
				t.Errorf("patterns %q (-want +got):\n%s", patterns, diff)
			}
		}
	})
}

// A node that was cut off while it led does not answer a question either. The node that asked waits until it learns
// that there is no leader. Then it waits for what its own replica hears of another leader, not for other nodes behind
// the cut.
func TestCoordinatorGivesUpOnWhoLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		shard := e.ledBy("ebb-1")[0]
		e.leaders.Observe(shard, "ebb-1", 2)
		e.mood["ebb-1"] = mood{hangs: true}
		e.with(func() { e.leads[shard] = "" })
		began := time.Now()
		time.AfterFunc(time.Second, func() { e.leaders.Observe(shard, "", 2) })
		time.AfterFunc(1500*time.Millisecond, func() {
			e.with(func() { e.leads[shard] = "ebb-2" })
			e.leaders.Observe(shard, "ebb-2", 3)
		})
		ctx, cancel := contextFor(t, 10)
		defer cancel()
		resp, err := e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(e.keyOn(shard, 0))}})
		if err != nil {
			t.Fatal(err)
		}
		if e := resp.GetAnswers()[0].GetError(); e != nil {
			t.Error(e)
		}
		if took := time.Since(began); took > 1500*time.Millisecond+2*pauseMax { // it hears where to ask, and asks
			t.Errorf("it took %v", took)
		}
	})
}
