package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// hedgeShare is the share of calls to other nodes that may be made twice, and hedgesSaved how many unused second
	// calls are saved up.
	hedgeShare  = 0.05
	hedgesSaved = 10
	// hedgeLeast is the least time to wait before a second call.
	hedgeLeast = 2 * time.Millisecond
	// latenciesKept is how many latencies are kept for a node. Before latenciesLeast calls, its latency is not known.
	latenciesKept  = 64
	latenciesLeast = 16
	// latenciesFresh is after how many calls to a node its latency is computed again.
	latenciesFresh = 8
)

// hedges decides when a call is also made to other replicas: when the node takes a quarter longer than the 95th
// percentile of its last calls, if only few calls were made twice. Otherwise one slow node delays every question that
// needs all nodes. It is safe for concurrent use; the zero value is ready.
type hedges struct {
	mu     sync.Mutex // guards what follows
	nodes  map[string]*latencies
	budget float64 // calls that may be made twice

	sent, won atomic.Uint64
}

// latencies are the latencies of the last calls to a node.
type latencies struct {
	kept [latenciesKept]time.Duration
	n    int           // calls so far
	most time.Duration // 95th percentile of the kept ones; computed every latenciesFresh calls
}

// delay returns how long to wait for a node before a second call; ok is false while its latency is not known.
func (h *hedges) delay(node string) (d time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.budget = min(h.budget+hedgeShare, hedgesSaved)
	l := h.nodes[node]
	if l == nil || l.n < latenciesLeast {
		return 0, false
	}
	return max(l.most+l.most/4, hedgeLeast), true
}

// took records how long a node took to answer.
func (h *hedges) took(node string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.nodes[node]
	if l == nil {
		if h.nodes == nil {
			h.nodes = make(map[string]*latencies)
		}
		l = new(latencies)
		h.nodes[node] = l
	}
	l.kept[l.n%latenciesKept] = d
	if l.n++; l.n%latenciesFresh == 0 {
		sorted := l.kept
		kept := sorted[:min(l.n, latenciesKept)]
		slices.Sort(kept)
		l.most = kept[len(kept)*95/100]
	}
}

// spend takes one second call from the budget, and reports whether there was one.
func (h *hedges) spend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.budget < 1 {
		return false
	}
	h.budget--
	h.sent.Add(1)
	return true
}

// Hedges returns how many calls to other nodes were made a second time because the first was slow, and how often the
// second call answered first.
func (c *Coordinator) Hedges() (sent, won uint64) { return c.hedges.sent.Load(), c.hedges.won.Load() }

// hedged asks a node. If the node is slow, it also asks other replicas of the shards. The first answer counts, and the
// other call is canceled. A call that only leaders answer in full is made once.
func (c *Coordinator) hedged(ctx context.Context, table *Table, backend Backend, call *askCall) (*ebbv1.ShardAskResponse, error) {
	start := time.Now()
	delay, known := c.hedges.delay(call.node)
	if !known || call.forLeaders() {
		resp, err := backend.Ask(ctx, call.req)
		if err == nil {
			c.hedges.took(call.node, time.Since(start))
		}
		return resp, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	charge := &secondCharge{budget: budget.From(ctx)}
	defer charge.end()
	second := make(chan *ebbv1.ShardAskResponse, 1)
	late := time.AfterFunc(delay, func() {
		c.hedges.took(call.node, time.Since(start)) // a lower bound
		resp := c.askTwice(ctx, table, call, charge)
		second <- resp
		if resp != nil {
			cancel() // the first call ends
		}
	})
	defer late.Stop()
	resp, err := backend.Ask(ctx, call.req)
	inTime := late.Stop()
	switch {
	case err == nil && inTime:
		c.hedges.took(call.node, time.Since(start))
	case err != nil && !inTime:
		if other := <-second; other != nil {
			c.hedges.won.Add(1)
			return other, nil
		}
	}
	return resp, err
}

// forLeaders reports whether only leaders can answer a call: exports, and questions before which shards take over
// settings of a namespace. Only leaders can put the settings into the log; other replicas would answer by the former
// settings.
func (c *askCall) forLeaders() bool {
	return slices.ContainsFunc(c.req.GetQuestions(), func(q *ebbv1.ShardQuestion) bool {
		return q.GetSettingsVersion() != 0 || q.GetQuestion().GetExport() != nil
	})
}

// secondCharge is the budget charge of the second call of a hedge. It lasts as long as the first call.
type secondCharge struct {
	budget *budget.Request

	mu   sync.Mutex // guards what follows
	n    int
	over bool // the call has its answer
}

// take charges n bytes. It returns false if there is no room, or if the call already has its answer.
func (s *secondCharge) take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || !s.budget.Try(n) {
		return false
	}
	s.n += n
	return true
}

func (s *secondCharge) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.budget.Refund(s.n)
}

// askTwice asks other replicas the questions of a call. It returns nil unless all are answered, when no second call is
// allowed, and when the first call already has its answer.
func (c *Coordinator) askTwice(
	ctx context.Context, table *Table, call *askCall, charge *secondCharge,
) *ebbv1.ShardAskResponse {
	others := c.elsewhere(table, call)
	if others == nil || !charge.take(roomFactor*call.room*len(others)) || !c.hedges.spend() {
		return nil
	}
	return c.askOthers(ctx, call, others)
}

// elsewhere divides the questions of a call among other nodes with replicas of their shards, and prefers this node. It
// returns nil if a shard has no other replica.
func (c *Coordinator) elsewhere(table *Table, call *askCall) []askCall {
	var calls []askCall
	envelope := proto.WithQuestions(call.req, nil)
	envelope.Follow = call.req.GetConsistency() == ebbv1.Consistency_CONSISTENCY_LINEARIZABLE
	for i, q := range call.req.GetQuestions() {
		node := table.after(q.GetShard(), call.node)
		if _, here := table.ReplicaOn(c.cfg.Node, q.GetShard()); here {
			node = c.cfg.Node
		}
		if node == call.node {
			return nil
		}
		at := slices.IndexFunc(calls, func(other askCall) bool { return other.node == node })
		if at < 0 {
			at = len(calls)
			calls = append(calls, askCall{node: node, req: proto.WithQuestions(envelope, nil)})
		}
		calls[at].at = append(calls[at].at, i)
		calls[at].req.Questions = append(calls[at].req.Questions, q)
	}
	return calls
}

// askOthers makes the calls into which elsewhere divided a call; nil unless all questions are answered.
func (c *Coordinator) askOthers(ctx context.Context, call *askCall, others []askCall) *ebbv1.ShardAskResponse {
	var wg sync.WaitGroup
	for i := range others {
		wg.Go(func() {
			other := &others[i]
			backend := c.cfg.Local
			if other.node != c.cfg.Node {
				if backend, other.err = c.cfg.Peers.Backend(other.node); other.err != nil {
					return
				}
			}
			other.resp, other.err = backend.Ask(ctx, other.req)
		})
	}
	wg.Wait()
	out := &ebbv1.ShardAskResponse{Answers: make([]*ebbv1.ShardAnswer, len(call.req.GetQuestions()))}
	for i := range others {
		if others[i].failure() != nil {
			return nil
		}
		for j, a := range others[i].resp.GetAnswers() {
			if a.GetError() != nil {
				return nil
			}
			out.Answers[others[i].position(j)] = a
		}
	}
	return out
}
