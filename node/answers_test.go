package node_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// largeNode is one node whose keys have large answers.
type largeNode struct {
	t        *testing.T
	n        *node.Node
	registry *prometheus.Registry
	ebb      ebbv1grpc.EbbClient
	shards   ebbv1grpc.ShardsClient
	keys     []string
}

const largeBins = 20_000

func newLargeNode(t *testing.T, limit int64, keys int) *largeNode {
	t.Helper()
	c := alone(t, t.TempDir())
	c.HTTP, c.MemoryLimit, c.Registry = "127.0.0.1:0", limit, prometheus.NewRegistry()
	l := &largeNode{t: t, n: open(t, c), registry: c.Registry}
	<-l.n.Ready()
	conn, err := grpc.NewClient("passthrough:///"+l.n.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l.ebb, l.shards = ebbv1grpc.NewEbbClient(conn), ebbv1grpc.NewShardsClient(conn)
	for k := range keys {
		l.keys = append(l.keys, fmt.Sprintf("large/%d", k))
		l.fill(l.keys[k])
	}
	return l
}

func (l *largeNode) fill(key string) {
	l.t.Helper()
	for begin := 0; begin < largeBins; begin += 5_000 {
		req := &ebbv1.IncrementRequest{}
		for i := begin; i < begin+5_000; i++ {
			req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte(key), Bin: fmt.Appendf(nil, "bin number %d", i)})
		}
		if resp, err := l.ebb.Increment(l.t.Context(), req); err != nil || resp.GetApplied() != 5_000 {
			l.t.Fatal(resp, err)
		}
	}
}

// gauge is a metric of the node.
func (l *largeNode) gauge(name string) float64 {
	l.t.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	l.t.Fatalf("no metric %s", name)
	return 0
}

// idle waits until nothing is charged for answers.
func (l *largeNode) idle() {
	l.t.Helper()
	for end := time.Now().Add(10 * time.Second); l.gauge("ebb_node_answer_memory_bytes") != 0; runtime.Gosched() {
		if time.Now().After(end) {
			l.t.Fatalf("%.0f bytes are charged for answers, and nothing is asked", l.gauge("ebb_node_answer_memory_bytes"))
		}
	}
}

func allOf(confidence float64, keys ...string) *ebbv1.Question {
	q := question(keys[0]).Questions[0]
	q.Namespace = "default"
	q.GetDistribution().Confidence, q.GetDistribution().Keys = confidence, nil
	for _, key := range keys {
		q.GetDistribution().Keys = append(q.GetDistribution().Keys, []byte(key))
	}
	return q
}

func repeatedShard(q *ebbv1.Question, times int) *ebbv1.ShardQuestion {
	home := proto.ShardOf(q.GetNamespace(), q.GetDistribution().GetKeys()[0], 2)
	out := &ebbv1.ShardQuestion{Shard: home, Question: q}
	for range times {
		out.Also = append(out.Also, home)
	}
	return out
}

// A small request does not make a node take much memory: what repeats is answered once, and what does not fit the
// answer is not built.
func TestAnswersAreChargedBeforeTheyAreBuilt(t *testing.T) {
	l := newLargeNode(t, 0, 1)
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that little of what is seen is garbage
	key := l.keys[0]
	equal, different := &ebbv1.AskRequest{}, &ebbv1.AskRequest{}
	shards, parts := &ebbv1.ShardAskRequest{}, &ebbv1.ShardAskRequest{}
	for i := range 300 {
		equal.Questions = append(equal.Questions, allOf(0.9, key))
		different.Questions = append(different.Questions, allOf(0.6+float64(i)/1000, key))
		shards.Questions = append(shards.Questions, repeatedShard(allOf(0.6+float64(i)/1000, key), 0))
		parts.Questions = append(parts.Questions, repeatedShard(allOf(0.6+float64(i)/1000, key), 0))
		parts.Questions[i].Partial = true
	}
	manyKeys := allOf(0.9, key)
	for len(manyKeys.GetDistribution().Keys) < 400 {
		manyKeys.GetDistribution().Keys = append(manyKeys.GetDistribution().Keys, []byte(key))
	}
	ask := func(req *ebbv1.AskRequest) func() error {
		return func() error {
			resp, err := l.ebb.Ask(t.Context(), req)
			if err == nil && resp.Answers[0].GetError() != nil {
				err = proto.FromWire(resp.Answers[0].GetError())
			}
			return err
		}
	}
	askShards := func(req *ebbv1.ShardAskRequest) func() error {
		return func() error { // the client does not take so much, which is no matter here
			_, _ = l.shards.Ask(t.Context(), req)
			return nil
		}
	}
	for _, c := range []struct {
		what  string
		do    func() error
		bound uint64
	}{
		{"one shard 900 times", askShards(&ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{repeatedShard(allOf(0.9, key), 900)}}), 96 << 20},
		{"300 questions to a shard", askShards(shards), 192 << 20},
		{"300 parts of a shard", askShards(parts), 256 << 20},
		{"300 equal questions", ask(equal), 48 << 20},
		{"300 different questions", ask(different), 48 << 20},
		{"one key 400 times", ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{manyKeys}}), 32 << 20},
	} {
		debug.FreeOSMemory()
		before := totalMemory()
		took := peakOf(func() {
			if err := c.do(); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		})
		took -= min(took, before)
		t.Logf("%s: %d MB", c.what, took>>20)
		if took > c.bound {
			t.Errorf("%s: %d bytes more than before, over %d", c.what, took, c.bound)
		}
		l.idle()
	}
}

// randomRequest is a request of any kind, about keys that have large answers.
func (l *largeNode) randomRequest(r *rand.Rand) (pb.Message, bool) {
	some := func() []string {
		keys := make([]string, 1+r.IntN(4))
		for i := range keys {
			keys[i] = l.keys[r.IntN(len(l.keys))]
		}
		return keys
	}
	one := func() *ebbv1.Question {
		q := allOf(0.5+r.Float64()/3, some()...)
		switch r.IntN(6) {
		case 0:
			q.GetDistribution().Select = &ebbv1.DistributionQuestion_Top{Top: uint32(1 + r.IntN(largeBins))}
		case 1:
			q.GetDistribution().Patterns = [][]byte{[]byte("large/*")}
		case 2:
			q.Ask = &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
				Keys: q.GetDistribution().Keys, Against: [][]byte{[]byte(l.keys[0])}, Top: uint32(1 + r.IntN(largeBins)),
			}}
		case 3:
			q.Ask = &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Limit: uint32(1 + r.IntN(10_000)), Order: ebbv1.KeyOrder(r.IntN(4))}}
		}
		return q
	}
	n := 1 + r.IntN(1<<r.IntN(9))
	if r.IntN(2) == 0 {
		req := &ebbv1.AskRequest{}
		for range n {
			req.Questions = append(req.Questions, one())
		}
		return req, false
	}
	req := &ebbv1.ShardAskRequest{}
	for range n {
		q := &ebbv1.ShardQuestion{Shard: uint32(1 + r.IntN(2)), Question: one(), Partial: r.IntN(2) == 0}
		for range r.IntN(1 << r.IntN(11)) {
			q.Also = append(q.Also, uint32(1+r.IntN(2)))
		}
		req.Questions = append(req.Questions, q)
	}
	return req, true
}

// totalMemory is what the process takes of the system for Go.
func totalMemory() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// peakOf samples totalMemory while do runs.
func peakOf(do func()) uint64 {
	var peak atomic.Uint64
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for ticker := time.NewTicker(time.Millisecond); ; {
			select {
			case <-done:
				ticker.Stop()
				return
			case <-ticker.C:
				peak.Store(max(peak.Load(), totalMemory()))
			}
		}
	})
	do()
	close(done)
	wg.Wait()
	return peak.Load()
}

// Whatever is asked, by 64 callers at a time, over gRPC and HTTP: a node with 512 MiB stays below 640 MiB. Requests
// that find no room get OVERLOADED with a retry time.
func TestManyLargeAnswersAtATime(t *testing.T) {
	long(t)
	const limit, most = 512 << 20, 640 << 20
	l := newLargeNode(t, limit, 8)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	var asked, refused, answered atomic.Int64
	overHTTP := func(q *ebbv1.Question) {
		body := fmt.Sprintf(`{"questions":[%s]}`, jsonOf(q))
		resp, err := http.Post("http://"+l.n.Addresses().HTTP+"/v1/ask", "application/json", bytes.NewBufferString(body))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	one := func(r *rand.Rand) {
		asked.Add(1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		little := grpc.MaxCallRecvMsgSize(64 << 10) // larger answers are dropped when they arrive: this process holds the callers, too
		req, shards := l.randomRequest(r)
		var err error
		switch {
		case shards:
			_, err = l.shards.Ask(ctx, req.(*ebbv1.ShardAskRequest), little)
		case r.IntN(2) == 0:
			overHTTP(allOf(0.9, l.keys[r.IntN(len(l.keys))]))
		default:
			_, err = l.ebb.Ask(ctx, req.(*ebbv1.AskRequest), little)
		}
		if err = ebbv1grpc.FromStatus(err); err == nil {
			answered.Add(1)
		} else if e := proto.AsError(err); e.Is(proto.ErrOverloaded) {
			if refused.Add(1); e.RetryAfterUS == 0 {
				t.Errorf("%v: without a retry time", err)
			}
		}
	}
	peak := peakOf(func() {
		var wg sync.WaitGroup
		for caller := range 64 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(19, uint64(caller)))
				for range 4 {
					one(r)
				}
			})
		}
		wg.Wait()
	})
	t.Logf("%d requests, %d answered, %d refused: peak %d MB", asked.Load(), answered.Load(), refused.Load(), peak>>20)
	if peak > most {
		t.Errorf("peak of %d bytes, more than %d", peak, most)
	}
	l.idle()
	if charged := l.gauge("ebb_node_answer_memory_limit_bytes"); charged != limit/4 {
		t.Errorf("answers may take %.0f bytes, want a quarter of the memory", charged)
	}
}

func jsonOf(q *ebbv1.Question) string {
	return fmt.Sprintf(`{"distribution":{"keys":[%q],"all":true}}`, q.GetDistribution().GetKeys()[0])
}
