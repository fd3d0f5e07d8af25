package cluster

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func code(e *ebbv1.Error) string {
	if e == nil {
		return "ok"
	}
	return e.GetCode().String()[len("CODE_"):]
}

func codes(resp *ebbv1.ApplyResponse) (list []string) {
	for _, result := range resp.GetResults() {
		list = append(list, code(result.GetError()))
	}
	return list
}

// Each case sends one command to each of the named nodes' first shards, through
// ebb-0's router.
func TestRouterApply(t *testing.T) {
	for name, c := range map[string]struct {
		to        []string             // leaders of the shards addressed, as the hints have it
		change    func(e *fakeCluster) // before the request
		forwarded bool                 // by another node already
		calls     []string             // that arrive at nodes
		results   []string             // codes
		leaders   []string             // hints afterwards, for the same shards
	}{
		"all here": {
			to:      []string{"ebb-0", "ebb-0"},
			calls:   []string{"ebb-0: apply 2, forwarded false"},
			results: []string{"ok", "ok"},
		},
		"all elsewhere, in one call": {
			to:      []string{"ebb-1", "ebb-1"},
			calls:   []string{"ebb-1: apply 2, forwarded true"},
			results: []string{"ok", "ok"},
		},
		"one call a node": {
			to: []string{"ebb-1", "ebb-0", "ebb-2", "ebb-1"},
			calls: []string{
				"ebb-0: apply 1, forwarded false",
				"ebb-1: apply 2, forwarded true",
				"ebb-2: apply 1, forwarded true",
			},
			results: []string{"ok", "ok", "ok", "ok"},
		},
		"a forwarded request goes no further": {
			to:        []string{"ebb-1"},
			forwarded: true,
			calls:     []string{"ebb-0: apply 1, forwarded true"},
			results:   []string{"NOT_LEADER"},
		},
		"the leader moved, and its follower says where": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.leads[e.ledBy("ebb-1")[0]] = "ebb-2" },
			calls:   []string{"ebb-1: apply 1, forwarded true", "ebb-2: apply 1, forwarded true"},
			results: []string{"ok"},
			leaders: []string{"ebb-2"},
		},
		"the leader moved here": {
			to:      []string{"ebb-1", "ebb-0"},
			change:  func(e *fakeCluster) { e.leads[e.ledBy("ebb-1")[0]] = "ebb-0" },
			calls:   []string{"ebb-0: apply 1, forwarded false", "ebb-0: apply 1, forwarded false", "ebb-1: apply 1, forwarded true"},
			results: []string{"ok", "ok"},
			leaders: []string{"ebb-0", "ebb-0"},
		},
		"nobody leads: another is tried, once": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.leads[e.ledBy("ebb-1")[0]] = "" },
			calls:   []string{"ebb-0: apply 1, forwarded false", "ebb-1: apply 1, forwarded true"},
			results: []string{"NO_LEADER"},
		},
		"the node is away: nothing was sent, so another is tried": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.mood["ebb-1"] = mood{away: true}; e.leads[e.ledBy("ebb-1")[0]] = "ebb-0" },
			calls:   []string{"ebb-0: apply 1, forwarded false"},
			results: []string{"ok"},
			leaders: []string{"ebb-0"},
		},
		"the node cannot be reached: nothing was sent either": {
			to: []string{"ebb-1"},
			change: func(e *fakeCluster) {
				e.mood["ebb-1"] = mood{refuses: proto.ErrUnreachable.Errorf("refused")}
				e.leads[e.ledBy("ebb-1")[0]] = "ebb-0"
			},
			calls:   []string{"ebb-0: apply 1, forwarded false", "ebb-1: apply 1, forwarded true"},
			results: []string{"ok"},
			leaders: []string{"ebb-0"},
		},
		"the call broke: nobody knows, and it is not repeated": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.mood["ebb-1"] = mood{refuses: proto.ErrUnknownOutcome.Errorf("reset")} },
			calls:   []string{"ebb-1: apply 1, forwarded true"},
			results: []string{"UNKNOWN_OUTCOME"},
		},
		"an error without a code": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.mood["ebb-1"] = mood{refuses: errors.New("whatever")} },
			calls:   []string{"ebb-1: apply 1, forwarded true"},
			results: []string{"UNKNOWN_OUTCOME"},
		},
		"a result is missing": {
			to:      []string{"ebb-1"},
			change:  func(e *fakeCluster) { e.mood["ebb-1"] = mood{curt: true} },
			calls:   []string{"ebb-1: apply 1, forwarded true"},
			results: []string{"UNKNOWN_OUTCOME"},
		},
		"the node refuses for now": {
			to:      []string{"ebb-1", "ebb-2"},
			change:  func(e *fakeCluster) { e.mood["ebb-1"] = mood{refuses: proto.ErrOverloaded.Errorf("full")} },
			calls:   []string{"ebb-1: apply 1, forwarded true", "ebb-2: apply 1, forwarded true"},
			results: []string{"OVERLOADED", "ok"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeCluster(t, 16)
			req := &ebbv1.ApplyRequest{Forwarded: c.forwarded}
			used := map[string]int{}
			for _, node := range c.to {
				req.Commands = append(req.Commands, e.increment(e.ledBy(node)[used[node]], "x"))
				used[node]++
			}
			if c.change != nil {
				c.change(e)
			}
			resp, err := e.router("ebb-0").Apply(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.results, codes(resp)); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.calls, e.takeCalls()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for i, want := range c.leaders {
				if got := target("ebb-0", e.table, e.leaders, req.Commands[i].Shard); got != want {
					t.Errorf("hint for command %d: %s, want %s", i, got, want)
				}
			}
		})
	}
}

func TestRouterTriesOnceMoreAtMost(t *testing.T) {
	e := newFakeCluster(t, 16)
	e.quiet = true // followers know of no leader
	number := e.ledBy("ebb-1")[0]
	e.leads[number] = "ebb-2"
	for range 5 {
		resp, err := e.router("ebb-0").Apply(t.Context(), &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{e.increment(number, "x")}})
		if err != nil {
			t.Fatal(err)
		}
		calls := e.takeCalls()
		if len(calls) > 2 {
			t.Fatalf("calls %q", calls)
		}
		if code(resp.Results[0].Error) == "ok" {
			return
		}
	}
	t.Error("going round the replicas never found the leader")
}

func TestRouterKeepsTheOrderOfResults(t *testing.T) {
	e := newFakeCluster(t, 16)
	req := new(ebbv1.ApplyRequest)
	for i := range 64 {
		cmd := e.increment(uint32(i%16)+1, "x")
		if i%8 == 3 {
			cmd.Command = []byte{}
			cmd.Shard = 99
		}
		if i%8 == 5 {
			cmd.Shard = ControlShard
		}
		req.Commands = append(req.Commands, cmd)
	}
	resp, err := e.router("ebb-2").Apply(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range codes(resp) {
		want := "ok"
		if i%8 == 3 || i%8 == 5 {
			want = "WRONG_SHARD"
		}
		if got != want {
			t.Errorf("command %d: %s, want %s", i, got, want)
		}
	}
	if resp, err := e.router("ebb-2").Apply(t.Context(), new(ebbv1.ApplyRequest)); err != nil || len(resp.Results) != 0 {
		t.Errorf("an empty request: %v, %v", resp, err)
	}
}

func TestRouterNamesTheLeaderToWhoForwarded(t *testing.T) {
	e := newFakeCluster(t, 16)
	e.quiet = true
	number := e.ledBy("ebb-1")[0]
	req := &ebbv1.ApplyRequest{Forwarded: true, Commands: []*ebbv1.ShardCommand{e.increment(number, "x")}}
	resp, err := e.router("ebb-0").Apply(t.Context(), req)
	if err != nil || resp.Results[0].GetError().GetLeader() != "ebb-1" {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestRouterWaitsForAllAndHonoursTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		e.mood["ebb-1"] = mood{hangs: true}
		ctx, cancel := contextFor(t, 3)
		defer cancel()
		resp, err := e.router("ebb-0").Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{
			e.increment(e.ledBy("ebb-1")[0], "x"), e.increment(e.ledBy("ebb-2")[0], "x"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"UNKNOWN_OUTCOME", "ok"}, codes(resp)); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

// A node that was cut off while it led does not answer. The node that forwarded to it waits only until it learns that
// another leads.
func TestRouterGivesUpOnWhoLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		shard := e.ledBy("ebb-1")[0]
		e.leaders.Observe(shard, "ebb-1", 2)
		e.mood["ebb-1"] = mood{hangs: true}
		began := time.Now()
		time.AfterFunc(time.Second, func() { e.leaders.Observe(shard, "ebb-2", 3) })
		ctx, cancel := contextFor(t, 3)
		defer cancel()
		resp, err := e.router("ebb-0").Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{e.increment(shard, "x")}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"UNKNOWN_OUTCOME"}, codes(resp)); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if took := time.Since(began); took != time.Second+deposedGrace {
			t.Errorf("it took %v", took)
		}
		if leader, _ := e.leaders.Leader(shard); leader != "ebb-2" {
			t.Errorf("%s is believed to lead", leader)
		}
	})
}

// A node that hands its lead over answers what waits there a little after the others have heard of it. A write gets
// that answer, and a question the one that it was about to get.
func TestWhoHandsOverIsHeardOut(t *testing.T) {
	for name, observe := range map[string]func(*Leaders, uint32){
		"another leads":    func(l *Leaders, shard uint32) { l.Observe(shard, "ebb-2", 3) },
		"nobody leads yet": func(l *Leaders, shard uint32) { l.Observe(shard, "", 3) },
		"it leads again in a moment": func(l *Leaders, shard uint32) {
			l.Observe(shard, "", 3)
			time.AfterFunc(deposedGrace/2, func() { l.Observe(shard, "ebb-1", 4) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeCluster(t, 16)
				shard := e.ledBy("ebb-1")[0]
				slow := time.Second + deposedGrace*4/5
				if name == "it leads again in a moment" {
					slow = 2 * time.Second
				}
				e.mood["ebb-1"] = mood{slow: slow}
				ctx, cancel := contextFor(t, 10)
				defer cancel()
				for what, ask := range map[string]func() (*ebbv1.Error, error){
					"a write": func() (*ebbv1.Error, error) {
						resp, err := e.router("ebb-0").Apply(ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{e.increment(shard, "x")}})
						return resp.GetResults()[0].GetError(), err
					},
					"a question": func() (*ebbv1.Error, error) {
						resp, err := e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(e.keyOn(shard, 0))}})
						return resp.GetAnswers()[0].GetError(), err
					},
				} {
					e.leaders = NewLeaders(16)
					e.leaders.Observe(shard, "ebb-1", 2)
					e.takeCalls()
					began := time.Now()
					leaders := e.leaders
					time.AfterFunc(time.Second, func() { observe(leaders, shard) })
					if refused, err := ask(); refused != nil || err != nil {
						t.Errorf("%s: %v, %v", what, refused, err)
					}
					if took := time.Since(began); took != slow {
						t.Errorf("%s took %v", what, took)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// A node that was cut off while it led steps down and knows no other leader. The node that should lead is behind the
// cut and does not answer. So the node that was cut off refuses at once, and the caller goes elsewhere. Nor does it
// guess when another node answers that it knows no leader either.
func TestRouterRefusesWhileItsReplicaKnowsNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		shard := e.ledBy("ebb-1")[0]
		e.leads[shard] = ""
		e.leaders.Observe(shard, "ebb-0", 2)
		e.leaders.Observe(shard, "", 2)
		e.mood["ebb-1"], e.mood["ebb-2"] = mood{hangs: true}, mood{hangs: true}
		ctx, cancel := contextFor(t, 3)
		defer cancel()
		began := time.Now()
		req := &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{e.increment(shard, "x")}}
		for range 3 {
			resp, err := e.router("ebb-0").Apply(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"NO_LEADER"}, codes(resp)); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		req.Forwarded = true
		e.quiet, e.leads[shard] = true, "ebb-2"
		resp, err := e.router("ebb-0").Apply(ctx, req)
		if err != nil || resp.Results[0].GetError().GetLeader() != "" {
			t.Errorf("whoever forwarded is sent on: %v, %v", resp, err)
		}
		e.leaders.Observe(shard, "ebb-2", 3)
		e.mood["ebb-2"] = mood{}
		req.Forwarded = false
		if resp, err := e.router("ebb-0").Apply(ctx, req); err != nil || resp.Results[0].GetError() != nil {
			t.Errorf("once a leader is known: %v, %v", resp, err)
		}
	})
}

// A replica may know of no leader because it is being made, has just started, or is not called by others any more. It
// does not keep its node from asking other nodes: they know the leader. A replica that has lost a leader does so for
// two election timeouts.
func TestRouterAsksOthersWhereItsReplicaKnowsNothing(t *testing.T) {
	for name, observe := range map[string]func(*Leaders, uint32){
		"it has heard of no leader yet": func(l *Leaders, shard uint32) { l.Observe(shard, "", 1) },
		"it says so again": func(l *Leaders, shard uint32) {
			l.Correct(shard, "ebb-1", "ebb-2")
			l.Observe(shard, "", 1)
			l.Observe(shard, "", 2)
		},
		"it has heard of none for long": func(l *Leaders, shard uint32) {
			l.Observe(shard, "ebb-1", 2)
			l.Observe(shard, "", 2)
			time.Sleep(electionsMax * ElectionTimeout(16))
			l.Observe(shard, "", 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newFakeCluster(t, 16)
				e.quiet = true
				shard := e.ledBy("ebb-1")[0]
				e.leads[shard] = "ebb-2"
				observe(e.leaders, shard)
				ctx, cancel := contextFor(t, 1)
				defer cancel()
				req := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: e.keyOn(shard, 0), Bin: []byte("US")}}}
				resp, err := e.router("ebb-0").Increment(ctx, req)
				if err != nil || resp.GetApplied() != 1 {
					t.Errorf("an increment: %v, %v", resp, err)
				}
				asked, err := e.coordinator("ebb-0").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{ofKeys(e.keyOn(shard, 0))}})
				if err != nil || asked.GetAnswers()[0].GetError() != nil {
					t.Errorf("a question: %v, %v", asked, err)
				}
			})
		})
	}
}

// What an older call brings back takes nothing away of what this node's own replica has heard since: neither a guess,
// nor the name of the node that it has lost.
func TestLateAnswersBringNoLostLeaderBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeCluster(t, 16)
		shard := e.ledBy("ebb-1")[0]
		for _, c := range []struct {
			asked string
			e     *ebbv1.Error
			want  string
		}{
			{"ebb-1", &ebbv1.Error{Code: ebbv1.Code_CODE_DEADLINE}, ""},
			{"ebb-1", &ebbv1.Error{Code: ebbv1.Code_CODE_SHUTTING_DOWN}, ""},
			{"ebb-1", &ebbv1.Error{Code: ebbv1.Code_CODE_UNREACHABLE}, ""},
			{"ebb-2", &ebbv1.Error{Code: ebbv1.Code_CODE_NOT_LEADER, Leader: "ebb-1"}, ""},
			{"ebb-1", &ebbv1.Error{Code: ebbv1.Code_CODE_NOT_LEADER, Leader: "ebb-2"}, "ebb-2"},
		} {
			e.leaders = NewLeaders(16)
			e.leaders.Observe(shard, "ebb-1", 2)
			e.leaders.Observe(shard, "", 2)
			e.leaders.Observe(shard, "", 3)
			e.coordinator("ebb-0").redirect(e.table, &askPart{node: c.asked}, shard, c.e)
			if leader, _ := e.leaders.Leader(shard); leader != c.want {
				t.Errorf("after %v of %s: %q is believed to lead, want %q", c.e, c.asked, leader, c.want)
			}
		}
	})
}

func TestRouterIsStartingUntilThereIsATable(t *testing.T) {
	e := newFakeCluster(t, 16)
	e.table = NewControl().Table()
	r := e.router("ebb-0")
	if _, err := r.Apply(t.Context(), new(ebbv1.ApplyRequest)); !errors.Is(err, proto.ErrStarting) {
		t.Error(err)
	}
	if _, err := r.Increment(t.Context(), new(ebbv1.IncrementRequest)); !errors.Is(err, proto.ErrStarting) {
		t.Error(err)
	}
}

func BenchmarkRouterApplyHere(b *testing.B) {
	e := newFakeCluster(b, 64)
	for number := range e.leads {
		e.leads[number] = "ebb-0"
		e.leaders.Observe(number, "ebb-0", 1)
	}
	r := NewRouter(RouterConfig{
		Node: "ebb-0", Table: func() *Table { return e.table }, Leaders: e.leaders, Local: sink{}, Peers: e,
	})
	req := new(ebbv1.ApplyRequest)
	for i := range 64 {
		req.Commands = append(req.Commands, e.increment(uint32(i)+1, "x"))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Apply(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRouterApplySplit(b *testing.B) {
	e := newFakeCluster(b, 64)
	r := NewRouter(RouterConfig{
		Node: "ebb-0", Table: func() *Table { return e.table }, Leaders: e.leaders, Local: sink{}, Peers: sinks{},
	})
	req := new(ebbv1.ApplyRequest)
	for i := range 64 {
		req.Commands = append(req.Commands, e.increment(uint32(i)+1, "x"))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Apply(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSplitIncrements(b *testing.B) {
	e := newFakeCluster(b, 64)
	req := new(ebbv1.IncrementRequest)
	for i := range 1000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "link/%d", i), Bin: []byte("US")})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := splitIncrements(e.table, req); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/increment")
}
