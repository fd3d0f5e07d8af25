package swarm

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hashicorp/raft"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Whoever asks what no sum tells notices every lie: a cluster that works is made to answer wrongly, one way at a time,
// and the invariant that the lie is about does not hold.
func TestLiesAreNoticed(t *testing.T) {
	more := func(e *ebbv1.Estimate) {
		if e != nil {
			e.Value, e.Low, e.High = e.Value*1.5+2, e.Low*1.5+2, e.High*1.5+2
		}
	}
	told := math.Inf(1) // what a watch told first
	for _, c := range []struct {
		workload, lie, breaks string
		about                 func(a *ebbv1.Answer)
	}{
		{"unites", "a union has more than was sent", "coverage-honest", func(a *ebbv1.Answer) { more(a.GetSummary().GetTotal()) }},
		{"unites", "a union has nothing of a shard that it includes", "coverage-honest", func(a *ebbv1.Answer) {
			if s := a.GetSummary(); s != nil {
				s.Total = &ebbv1.Estimate{}
			}
		}},
		{"unites", "bins are forgotten", "coverage-honest", func(a *ebbv1.Answer) {
			for _, m := range a.GetSummary().GetMemberships() {
				m.Contained = false
			}
			for _, b := range a.GetSummary().GetBins() {
				b.Value, b.Low, b.High = 0, 0, 0
			}
		}},
		{"unites", "a shard that did not answer is not told", "coverage-adds-up", func(a *ebbv1.Answer) {
			if c := a.GetCoverage(); c.GetShardsTotal() > 1 && a.GetSummary() != nil {
				c.ShardsAnswered--
			}
		}},
		{"unites", "a key is not listed", "keys-listed", func(a *ebbv1.Answer) {
			if k := a.GetKeys(); len(k.GetKeys()) > 1 {
				k.Keys = k.Keys[1:]
			}
		}},
		{"ranks", "the largest bin comes last", "ranking-right", func(a *ebbv1.Answer) { slices.Reverse(a.GetDistribution().GetBins()) }},
		{"ranks", "a bin is counted wrong", "ranking-right", func(a *ebbv1.Answer) {
			for _, b := range a.GetDistribution().GetBins() {
				b.Count++
			}
		}},
		{"ranks", "the entropy is wrong", "ranking-right", func(a *ebbv1.Answer) {
			if d := a.GetDistribution(); d != nil {
				d.EntropyBits += 0.01
			}
		}},
		{"ranks", "the largest key comes last", "ranking-right", func(a *ebbv1.Answer) { slices.Reverse(a.GetKeys().GetKeys()) }},
		{"ranks", "a top-k counts too much", "ranking-right", func(a *ebbv1.Answer) {
			for _, item := range a.GetSummary().GetItems() {
				more(item.GetCount())
			}
		}},
		{"ranks", "a distance is wrong", "surprise-right", func(a *ebbv1.Answer) {
			if s := a.GetSurprise(); s != nil {
				s.JensenShannonBits += 0.01
			}
		}},
		{"compares", "an intersection has too many", "sets-compared", func(a *ebbv1.Answer) { more(a.GetOverlap().GetIntersection()) }},
		{"compares", "a similarity is wrong", "sets-compared", func(a *ebbv1.Answer) {
			for _, n := range a.GetGraph().GetNodes() {
				for _, l := range n.GetLinks() {
					more(l.GetJaccard())
				}
			}
		}},
		{"compares", "links are left out", "sets-compared", func(a *ebbv1.Answer) {
			for _, n := range a.GetGraph().GetNodes() {
				n.Links = nil
			}
		}},
		{"computes", "an id is counted that is not there", "expression-right", func(a *ebbv1.Answer) {
			if b := a.GetBitmap(); b != nil {
				b.Count, b.Ids = b.Count+1, append(b.Ids, 1<<40)
			}
		}},
		{"computes", "a bitmap that lies in all shards lacks an id of one that is included", "coverage-honest", func(a *ebbv1.Answer) {
			if b := a.GetBitmap(); b != nil {
				b.Count = max(b.Count, 1) - 1
			}
		}},
		{"computes", "a group is counted wrong", "expression-right", func(a *ebbv1.Answer) {
			for _, g := range a.GetGroups().GetGroups() {
				g.Count++
			}
		}},
		{"computes", "more come again than do", "expression-right", func(a *ebbv1.Answer) {
			for _, row := range a.GetCohort().GetRows() {
				for i := range row.Again {
					row.Again[i]++
				}
			}
		}},
		{"expiry", "a summary forgets too little", "aged-right", func(a *ebbv1.Answer) { more(a.GetSummary().GetTotal()) }},
		{"expiry", "a bloom does not forget", "aged-right", func(a *ebbv1.Answer) {
			for _, m := range a.GetSummary().GetMemberships() {
				m.Contained = true
			}
		}},
		{"trends", "a rate is wrong", "trend-right", func(a *ebbv1.Answer) {
			for _, b := range a.GetTrend().GetBins() {
				b.SlowRate = b.SlowRate*1.01 + 0.01
			}
		}},
		{"dictionary", "a string is not in", "names-kept", func(a *ebbv1.Answer) { clear(a.GetBitmap().GetContains()) }},
		{"dictionary", "a string gets another id", "names-kept", func(a *ebbv1.Answer) {
			for i := range a.GetNames().GetIds() {
				a.GetNames().Ids[i] += rand.Uint64N(1 << 20)
			}
		}},
		{"deletes", "what was purged comes back", "deletion-right", func(a *ebbv1.Answer) {
			d := a.GetDistribution()
			if slices.ContainsFunc(d.GetKeys(), func(k []byte) bool { return len(k) == 2 && k[0] == 'k' }) {
				d.Z += 5
			}
		}},
		{"deletes", "a string of the namespace before is in", "deletion-right", func(a *ebbv1.Answer) {
			if b := a.GetBitmap(); len(b.GetNames()) > 0 {
				b.Names[0] = []byte("somebody else")
			}
		}},
		{"watches", "a watch goes back", "watch-fresh", func(a *ebbv1.Answer) {
			if d := a.GetDistribution(); d != nil {
				d.Z -= 1
			}
		}},
		{"watches", "a watch tells nothing new", "watch-tells", func(a *ebbv1.Answer) {
			if d := a.GetDistribution(); len(d.GetKeys()) == 1 && string(d.GetKeys()[0]) == watchedKey {
				d.Z = min(d.Z, told)
				told = d.Z
			}
		}},
	} {
		t.Run(c.workload+"/"+c.lie, func(t *testing.T) {
			v := Run(inBubble(t), quiet(3), Options{Workloads: []string{c.workload}, Client: []ebb.Option{ebb.WithGRPC(lying(c.about)...)}})
			if !slices.Contains(v.breached(), c.breaks) {
				t.Errorf("%s held, and not so %v", c.breaks, v.breached())
			}
		})
	}
}

// lying changes every answer that a client hears.
func lying(about func(a *ebbv1.Answer)) []grpc.DialOption {
	tell := func(reply any) {
		switch r := reply.(type) {
		case *ebbv1.AskResponse:
			for _, a := range r.GetAnswers() {
				about(a)
			}
		case *ebbv1.QueryResponse:
			if r.GetAnswer() != nil {
				about(r.GetAnswer())
			}
		case *ebbv1.WatchEvent:
			about(r.GetAnswer())
		}
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, conn, opts...)
			if err == nil {
				tell(reply)
			}
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, conn, method, opts...)
			return lyingStream{s, tell}, err
		}),
	}
}

type lyingStream struct {
	grpc.ClientStream
	tell func(reply any)
}

func (s lyingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.tell(m)
	}
	return err
}

// Commands that count twice are noticed one by one, and so are rows of an import whose place is forgotten; and bits
// that always say that they were changed.
func TestRepeatedCommandsAreNoticed(t *testing.T) {
	for _, c := range []struct{ workload, key, breaks string }{
		{"writes-log", "scribed-", "command-once"}, {"imports", "import-", "imported-once"}, {"switches", switchKey, "switches-in-order"},
	} {
		t.Run(c.workload, func(t *testing.T) {
			v := Run(inBubble(t), quiet(4), Options{Workloads: []string{c.workload}, Client: []ebb.Option{ebb.WithGRPC(grpc.WithUnaryInterceptor(twice(c.key)))}})
			if !slices.Contains(v.breached(), c.breaks) {
				t.Errorf("%s held, and not so %v", c.breaks, v.breached())
			}
		})
	}
}

// twice sends commands about some keys without their identity, and a second time; and says of bits that each was
// changed.
func twice(key string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		about := func(c *ebbv1.ShardCommand) bool { return bytes.Contains(c.GetCommand(), []byte(key)) }
		if apply, ok := req.(*ebbv1.ApplyRequest); ok && slices.ContainsFunc(apply.GetCommands(), about) {
			if err := anonymous(ctx, method, req, new(ebbv1.ApplyResponse), conn, invoke, opts...); err != nil {
				return err
			}
			err := anonymous(ctx, method, req, reply, conn, invoke, opts...)
			if resp, ok := reply.(*ebbv1.ApplyResponse); ok && key == switchKey {
				for _, r := range resp.GetResults() {
					r.Changed = 1
				}
			}
			return err
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// What cannot be in a log is noticed.
func TestJudgeLog(t *testing.T) {
	first, second := written{mark: "<scribe-0>", key: "scribed-0", behind: 1, from: 1, to: 2}, written{mark: "<scribe-1>", key: "scribed-0", behind: 2, from: 3, to: 4}
	without := func(log committed, indexes ...uint64) committed {
		for _, i := range indexes {
			delete(log, i)
		}
		return log
	}
	log := func(terms string, texts ...string) committed {
		c := committed{}
		for i, text := range texts {
			c[uint64(i+1)] = entry{term: uint64(terms[i] - '0'), kind: raft.LogCommand, data: []byte(text), node: "ebb-0"}
		}
		return c
	}
	for _, c := range []struct {
		name string
		log  committed
		end  uint64
		ok   bool
	}{
		{"in order", log("112", "", "x<scribe-0>y", "<scribe-1>"), 3, true},
		{"in one entry", log("1", "<scribe-0><scribe-1>"), 1, true},
		{"sent again", log("111", "<scribe-0>", "<scribe-1>", "<scribe-0>"), 3, true},
		{"sent again, and the first is cut off", without(log("11111", "x", "<scribe-0>", "x", "<scribe-1>", "<scribe-0>"), 1, 2), 5, true},
		{"sent again, and the first is in a gap", without(log("11111", "x", "<scribe-0>", "x", "<scribe-1>", "<scribe-0>"), 2), 5, true},
		{"the later one comes first, behind what is cut off", without(log("111", "x", "<scribe-1>", "<scribe-0>"), 1), 3, false},
		{"one is missing", log("11", "<scribe-0>", "x"), 2, false},
		{"one is missing behind what is cut off", without(log("111", "x", "<scribe-0>", "x"), 1), 3, false},
		{"one is in a gap, perhaps", without(log("11111", "x", "<scribe-0>", "x", "x", "x"), 3), 5, true},
		{"one is in what is missing at the end, perhaps", without(log("1111", "x", "<scribe-0>", "x", "x"), 3, 4), 4, true},
		{"the later one comes first", log("11", "<scribe-1>", "<scribe-0>"), 2, false},
		{"a term falls", log("21", "<scribe-0>", "<scribe-1>"), 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &logWriters{w: &world{plan: Plan{Shards: 1}, begun: time.Now(), verdict: &Verdict{Checks: map[string]int{}}}, written: []written{first, second}}
			s.judgeLog(1, c.log, c.end)
			if s.w.verdict.Failed() == c.ok {
				t.Errorf("%v", s.w.verdict.Breaches)
			}
			for index, e := range c.log {
				s.agree(1, c.log, index, e)
			}
			if slices.Contains(s.w.verdict.breached(), "logs-agree") {
				t.Errorf("a log does not agree with itself: %v", s.w.verdict.Breaches)
			}
			index := uint64(len(c.log)) // there in all of them
			s.agree(1, c.log, index, entry{term: 1, kind: raft.LogCommand, data: []byte("another"), node: "ebb-1"})
			if !slices.Contains(s.w.verdict.breached(), "logs-agree") {
				t.Errorf("two logs with another entry %d agree", index)
			}
		})
	}
}

// Strings whose ids are not in the order in which they were acknowledged are noticed.
func TestIDsOutOfOrder(t *testing.T) {
	for _, c := range []struct {
		ids  []uint64
		fine bool
	}{{[]uint64{1, 3, 2, 5}, true}, {[]uint64{3, 2, 4, 1}, false}} {
		n := &dictionaryClient{
			w:   &world{plan: Plan{Shards: 2}, begun: time.Now(), verdict: &Verdict{Checks: map[string]int{}}},
			ids: map[string]uint64{}, of: map[uint64]string{},
		}
		for i, name := range []string{"a", "b", "c", "d"} {
			n.batches = append(n.batches, []string{name})
			n.ids[name], n.of[c.ids[i]] = c.ids[i], name
		}
		n.ordered()
		if n.w.verdict.Failed() == c.fine {
			t.Errorf("ids %v: %v", c.ids, n.w.verdict.Breaches)
		}
	}
}
