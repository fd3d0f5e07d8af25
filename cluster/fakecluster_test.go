package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// fakeCluster is a cluster without a network: three nodes whose replicas agree
// perfectly, because they share one state a shard. What a test changes is who
// leads, who answers and how.
type fakeCluster struct {
	t       testing.TB
	control *Control
	table   *Table
	leaders *Leaders

	mu     sync.Mutex // guards what follows
	states map[uint32]*shard.State
	leads  map[uint32]string // by shard; "": none
	mood   map[string]mood
	quiet  bool     // NOT_LEADER names no leader
	calls  []string // "node: what", in the order of arrival
	index  uint64
	stamp  int64
	crash  *crash // nil: none is coming
}

// crash stops a caller in the middle of its commands: the caller does not hear what became of the rest.
type crash struct {
	left int                   // commands that still get through
	stop func()                // ends the caller that sends them
	late []*ebbv1.ShardCommand // those that did not get through, and may yet
}

// mood is how a node answers.
type mood struct {
	refuses error         // every call
	away    bool          // cannot be reached: Peers has no backend
	hangs   bool          // until the caller gives up
	curt    bool          // leaves out the last result
	stale   bool          // says its answers are stale
	breath  int           // answers only so many questions a call, if any
	slow    time.Duration // before it answers
	behind  bool          // cannot answer for shards that others lead
	lonely  bool          // is cut off from the other replicas, though callers reach it
}

const year2026 = 1_767_225_600_000_000

func newFakeCluster(t testing.TB, shards uint32) *fakeCluster { return newFakeClusterOf(t, 3, shards) }

func newFakeClusterOf(t testing.TB, nodes int, shards uint32) *fakeCluster {
	e := &fakeCluster{
		t: t, control: NewControl(), leaders: NewLeaders(shards), stamp: year2026,
		states: make(map[uint32]*shard.State), leads: make(map[uint32]string), mood: make(map[string]mood),
	}
	e.control.Apply(1, encode(t, initCommand("cluster-a", mustTable(t, nodeNames(nodes), shards, 0))))
	e.table = e.control.Table()
	define := e.definition("")
	for number := uint32(1); number <= shards; number++ {
		e.states[number] = shard.New(shard.ID(number), shard.Heap{})
		e.leads[number] = e.table.Preferred(number)
		e.enter(number, define)
	}
	return e
}

func (e *fakeCluster) definition(namespace string) []byte {
	define, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: e.table.Namespace(namespace)}})
	if err != nil {
		e.t.Fatal(err)
	}
	return define
}

// create makes a namespace, which all shards know at once.
func (e *fakeCluster) create(ns *ebbv1.Namespace) {
	e.t.Helper()
	e.index++
	e.control.Apply(e.index+1, encode(e.t, setCommand(true, ns)))
	if e.table = e.control.Table(); e.table.Namespace(ns.GetName()) == nil {
		e.t.Fatalf("no namespace of %v", ns)
	}
	for number := range e.states {
		e.enter(number, e.definition(ns.GetName()))
	}
}

// enter applies one command to a shard.
func (e *fakeCluster) enter(number uint32, command []byte) *ebbv1.CommandResult {
	e.index++
	raw, err := pb.Marshal(&ebbv1.Entry{StampUs: e.stamp, Commands: [][]byte{command}})
	if err != nil {
		e.t.Error(err)
	}
	return e.states[number].Apply(e.index, raw, nil)[0]
}

func (e *fakeCluster) router(node string) *Router {
	return NewRouter(RouterConfig{
		Node: node, Table: func() *Table { return e.table }, Leaders: e.leaders, Local: replica{e, node}, Peers: e,
		Now: e.now,
	})
}

// now is what the nodes' clocks say, and the stamp of the next entry.
func (e *fakeCluster) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.UnixMicro(e.stamp)
}

func (e *fakeCluster) coordinator(node string) *Coordinator {
	return NewCoordinator(CoordinatorConfig{
		Node: node, Table: func() *Table { return e.table }, Leaders: e.leaders, Local: replica{e, node}, Peers: e,
		Now: e.now,
	})
}

// Backend is the other nodes' side.
func (e *fakeCluster) Backend(node string) (Backend, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mood[node].away {
		return nil, errors.New("no route")
	}
	return replica{e, node}, nil
}

// replica is one node's Backend.
type replica struct {
	e    *fakeCluster
	node string
}

func (r replica) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	mood, err := r.enter(ctx, fmt.Sprintf("apply %d, forwarded %v", len(req.Commands), req.Forwarded))
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	resp := new(ebbv1.ApplyResponse)
	for _, cmd := range req.Commands {
		if e := r.refusal(cmd.Shard); e != nil {
			resp.Results = append(resp.Results, &ebbv1.CommandResult{Error: e})
			continue
		}
		if c := r.e.crash; c != nil {
			if c.left == 0 {
				c.late = append(c.late, cmd)
				c.stop()
				resp.Results = append(resp.Results, &ebbv1.CommandResult{Error: proto.ErrUnknownOutcome.Wire()})
				continue
			}
			c.left--
		}
		resp.Results = append(resp.Results, r.e.enter(cmd.Shard, cmd.Command))
	}
	if mood.curt {
		resp.Results = resp.Results[1:]
	}
	return resp, nil
}

func (r replica) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	mood, err := r.enter(ctx, fmt.Sprintf("ask %d", len(req.Questions)))
	if err != nil {
		return nil, err
	}
	if size := pb.Size(req); size > proto.MessageBytesMax {
		r.e.t.Errorf("a call of %d bytes, which no peer takes", size)
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	resp := new(ebbv1.ShardAskResponse)
	for _, q := range req.Questions {
		if e := r.refusal(q.Shard); e != nil && req.Consistency == ebbv1.Consistency_CONSISTENCY_LINEARIZABLE && (!req.Follow || mood.behind) {
			resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{Error: e})
			continue
		}
		if mood.stale && req.Consistency == ebbv1.Consistency_CONSISTENCY_BOUNDED {
			resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{Error: proto.ErrTooStale.Wire()})
			continue
		}
		if err := proto.CheckShardQuestion(q); err != nil {
			r.e.t.Errorf("a question that a peer refuses: %v", err)
		}
		answer := r.e.states[q.Shard].Ask(q, sketch.Tick(req.NowUs))
		answer.Stale = mood.stale
		if mood.breath > 0 && len(resp.Answers) >= mood.breath {
			answer = &ebbv1.ShardAnswer{Error: proto.ErrOverloaded.Wire()}
		}
		resp.Answers = append(resp.Answers, answer)
	}
	if mood.curt {
		resp.Answers = resp.Answers[1:]
	}
	return resp, nil
}

// enter notes the call and behaves as the node's mood has it.
func (r replica) enter(ctx context.Context, what string) (mood, error) {
	r.e.mu.Lock()
	mood := r.e.mood[r.node]
	r.e.calls = append(r.e.calls, r.node+": "+what)
	r.e.mu.Unlock()
	if mood.hangs {
		<-ctx.Done()
		return mood, ctx.Err()
	}
	if mood.slow > 0 {
		select {
		case <-time.After(mood.slow):
		case <-ctx.Done():
			return mood, ctx.Err()
		}
	}
	return mood, mood.refuses
}

// refusal is what a shard that this node does not lead answers.
func (r replica) refusal(number uint32) *ebbv1.Error {
	leader := r.e.leads[number]
	switch {
	case leader == r.node && !r.e.mood[r.node].lonely:
		return nil
	case leader == "" || r.e.mood[r.node].lonely:
		return proto.ErrNoLeader.Errorf("shard %d has no leader", number).Wire()
	case r.e.quiet:
		leader = ""
	}
	return &ebbv1.Error{Code: ebbv1.Code_CODE_NOT_LEADER, Message: "not the leader", Leader: leader}
}

// with changes the world under its lock.
func (e *fakeCluster) with(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// takeCalls returns the calls since the last time, sorted, for those of one round
// arrive in any order.
func (e *fakeCluster) takeCalls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := slices.Sorted(slices.Values(e.calls))
	e.calls = nil
	return calls
}

// ledBy returns the shards that a node leads, in order.
func (e *fakeCluster) ledBy(node string) (shards []uint32) {
	for number := uint32(1); number <= e.table.Shards(); number++ {
		if e.leads[number] == node {
			shards = append(shards, number)
		}
	}
	return shards
}

// keyOn returns the i-th key that lives on a shard.
func (e *fakeCluster) keyOn(number uint32, i int) []byte {
	for n := 0; ; n++ {
		key := fmt.Appendf(nil, "key-%d", n)
		if e.table.ShardOf("", key) == number {
			if i == 0 {
				return key
			}
			i--
		}
	}
}

// increment is a serialised command that adds 1 to a bin of some key of a shard.
func (e *fakeCluster) increment(number uint32, bin string) *ebbv1.ShardCommand {
	raw, err := pb.Marshal(&ebbv1.Command{
		Namespace: proto.DefaultNamespace,
		Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
			Increments: []*ebbv1.Increment{{Key: e.keyOn(number, 0), Bin: []byte(bin)}},
		}},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return &ebbv1.ShardCommand{Shard: number, Command: raw}
}
