package transport

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Each test here shows a fault of hashicorp/raft v1.8.0 twice: contained, and
// with the containment taken away, where it must strike. A test that no longer
// finds the fault says that its containment can go.

// bothWays runs a scenario with and without its containment; it returns
// whether the fault struck.
func bothWays(t *testing.T, scenario func(t *testing.T, contained bool) (struck bool)) {
	t.Run("contained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			if scenario(t, true) {
				t.Error("the fault struck through its containment")
			}
		})
	})
	t.Run("not contained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			if !scenario(t, false) {
				t.Error("the fault did not strike without its containment")
			}
		})
	})
}

// A heartbeat that is handled off the main goroutine, while that is writing the
// term of its own candidacy, lets the replica's term fall.
func TestHeartbeatsGoThroughTheMainGoroutine(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) bool {
		w := newWorld(t, nil, "f", "l", "x")
		w.nodes["f"].faults.heartbeatFastPath = !contained
		conf := servers(1, w.names...)
		leader := w.nodes["l"].Group(1, conf.Servers[1].Address)
		t.Cleanup(respond(leader, func(rpc raft.RPC) any {
			if v, ok := rpc.Command.(*raft.RequestVoteRequest); ok {
				return &raft.RequestVoteResponse{Term: v.Term}
			}
			return echoed(rpc)
		}))
		stable := &termStore{InmemStore: raft.NewInmemStore(), slow: 2, begun: make(chan struct{})}
		f := w.nodes["f"].raftOn(1, conf, stable)
		<-stable.begun // f is a candidate and about to be in term 2
		args := &raft.AppendEntriesRequest{RPCHeader: header("l", 12), Term: 5}
		var resp raft.AppendEntriesResponse
		if err := leader.AppendEntries("", conf.Servers[0].Address, args, &resp); err != nil {
			t.Fatal(err)
		}
		if contained && (!resp.Success || f.CurrentTerm() != 5) {
			t.Fatalf("the heartbeat was answered with %+v and f is in term %d", resp, f.CurrentTerm())
		}
		time.Sleep(3 * time.Second)
		return !slices.IsSorted(stable.seen())
	})
}

// raftOn starts a replica with a stable store of its own.
func (n *testNode) raftOn(group uint32, conf raft.Configuration, stable *termStore) *testRaft {
	n.w.t.Helper()
	cfg := raftConfig(string(conf.Servers[0].ID))
	r := &testRaft{group: n.Group(group, conf.Servers[0].Address), fsm: &testFSM{}, store: stable.InmemStore, snaps: raft.NewInmemSnapshotStore()}
	if err := raft.BootstrapCluster(cfg, r.store, stable, r.snaps, r.group, conf); err != nil {
		n.w.t.Fatal(err)
	}
	var err error
	if r.Raft, err = raft.NewRaft(cfg, r.fsm, r.store, stable, r.snaps, r.group); err != nil {
		n.w.t.Fatal(err)
	}
	n.rafts[group] = r
	return r
}

// termStore takes half a second to write one of the terms.
type termStore struct {
	*raft.InmemStore
	slow  uint64
	begun chan struct{} // closed when it begins to
	once  sync.Once

	mu    sync.Mutex // guards terms
	terms []uint64   // in the order in which they were written
}

func (s *termStore) SetUint64(key []byte, v uint64) error {
	if string(key) != "CurrentTerm" {
		return s.InmemStore.SetUint64(key, v)
	}
	if v == s.slow {
		s.once.Do(func() { close(s.begun); time.Sleep(500 * time.Millisecond) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terms = append(s.terms, v)
	return s.InmemStore.SetUint64(key, v)
}

func (s *termStore) seen() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.terms)
}

// respond answers a group's requests with f.
func respond(g *Group, f func(raft.RPC) any) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-g.Consumer():
				rpc.Respond(f(rpc), nil)
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// Pre-vote is silently off in a raft whose transport does not offer it: a node
// that was cut off then comes back with a high term and unseats the leader.
func TestPreVoteIsOn(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) bool {
		w := newWorld(t, nil, "a", "b", "c")
		for _, name := range w.names {
			w.nodes[name].raft(1, servers(1, w.names...), nil, func(g *Group) raft.Transport {
				if contained {
					return g
				}
				return struct{ raft.Transport }{g} // hides RequestPreVote
			})
		}
		leader := w.elect(1, w.names...)
		term := leader.CurrentTerm()
		lost := w.others(mustNode(leader))[0]
		w.net.isolate(lost, true, w.others(lost)...)
		time.Sleep(30 * time.Second)
		w.net.isolate(lost, false, w.others(lost)...)
		time.Sleep(30 * time.Second)
		return w.elect(1, w.names...).CurrentTerm() > term
	})
}

func mustNode(r *testRaft) string {
	node, _, err := ParseAddress(r.group.local)
	if err != nil {
		panic(err)
	}
	return node
}

// A pipeline whose append is rejected wedges when Raft sends once more before it
// notices: heartbeats go on, entries never do.
func TestNoPipelines(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) bool {
		w := newWorld(t, nil, "a", "b", "c")
		var mu sync.Mutex // guards pipes
		var pipes []*pipe
		for _, name := range w.names {
			if !contained {
				w.nodes[name].faults.pipeline = func(g *Group, id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
					p := newPipe(g, id, target)
					mu.Lock()
					defer mu.Unlock()
					pipes = append(pipes, p)
					return p, nil
				}
			}
		}
		t.Cleanup(func() {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range pipes {
				_ = p.Close()
			}
		})
		flaky := &flakyStore{InmemStore: raft.NewInmemStore()}
		w.nodes["a"].raft(1, servers(1, w.names...), nil, nil)
		w.nodes["b"].raft(1, servers(1, w.names...), nil, nil)
		c := w.nodes["c"].raftLogs(1, servers(1, w.names...), 2, flaky)
		leader := w.elect(1, "a", "b")
		for i := range 400 {
			if i%10 == 9 {
				flaky.fail.Store(true) // the next append is rejected
			}
			leader.Apply([]byte{byte(i)}, 0)
			time.Sleep(300 * time.Microsecond)
		}
		if err := leader.Apply([]byte("last"), 10*time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if leader.State() != raft.Leader || c.State() != raft.Follower {
			t.Fatalf("the leader is now %s and the follower %s", leader.State(), c.State())
		}
		return c.fsm.last() != "last"
	})
}

// raftLogs starts replica i with a log store of its own. It will not campaign.
func (n *testNode) raftLogs(group uint32, conf raft.Configuration, i int, logs *flakyStore) *testRaft {
	n.w.t.Helper()
	cfg := raftConfig(string(conf.Servers[i].ID))
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = 20*time.Second, 20*time.Second
	r := &testRaft{group: n.Group(group, conf.Servers[i].Address), fsm: &testFSM{}, store: logs.InmemStore, snaps: raft.NewInmemSnapshotStore()}
	if err := raft.BootstrapCluster(cfg, logs, r.store, r.snaps, r.group, conf); err != nil {
		n.w.t.Fatal(err)
	}
	var err error
	if r.Raft, err = raft.NewRaft(cfg, r.fsm, logs, r.store, r.snaps, r.group); err != nil {
		n.w.t.Fatal(err)
	}
	n.rafts[group] = r
	return r
}

// flakyStore fails to store once whenever fail is set.
type flakyStore struct {
	*raft.InmemStore
	fail atomic.Bool
}

func (s *flakyStore) StoreLogs(logs []*raft.Log) error {
	if s.fail.Swap(false) {
		return errors.New("flaky")
	}
	return s.InmemStore.StoreLogs(logs)
}

// pipe is a pipeline as raft.NetworkTransport makes them at its default of two
// requests in flight.
type pipe struct {
	group      *Group
	id         raft.ServerID
	target     raft.ServerAddress
	inProgress chan *pipeFuture
	done       chan raft.AppendFuture
	shutdown   chan struct{}
	once       sync.Once
	wg         sync.WaitGroup
}

type pipeFuture struct {
	start time.Time
	args  *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	err   error
}

func (f *pipeFuture) Error() error                          { return f.err }
func (f *pipeFuture) Start() time.Time                      { return f.start }
func (f *pipeFuture) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *pipeFuture) Response() *raft.AppendEntriesResponse { return f.resp }

func newPipe(g *Group, id raft.ServerID, target raft.ServerAddress) *pipe {
	p := &pipe{
		group: g, id: id, target: target, inProgress: make(chan *pipeFuture),
		done: make(chan raft.AppendFuture), shutdown: make(chan struct{}),
	}
	p.wg.Go(p.run)
	return p
}

func (p *pipe) run() {
	for {
		select {
		case f := <-p.inProgress:
			f.err = p.group.AppendEntries(p.id, p.target, f.args, f.resp)
			select {
			case p.done <- f:
			case <-p.shutdown:
				return
			}
		case <-p.shutdown:
			return
		}
	}
}

func (p *pipe) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := &pipeFuture{start: time.Now(), args: args, resp: resp}
	select {
	case p.inProgress <- f:
		return f, nil
	case <-p.shutdown:
		return nil, raft.ErrPipelineShutdown
	}
}

func (p *pipe) Consumer() <-chan raft.AppendFuture { return p.done }

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.shutdown) })
	return nil
}

// hang makes a replica's main goroutine hang until release, without changing
// anything: it reads an old snapshot that does not come.
func (r *testRaft) hang() (release func()) {
	gone := make(chan struct{})
	r.group.consumer <- raft.RPC{
		Command:  &raft.InstallSnapshotRequest{RPCHeader: header("x", 1), SnapshotVersion: 1},
		Reader:   hangingReader(gone),
		RespChan: make(chan raft.RPCResponse, 1),
	}
	return sync.OnceFunc(func() { close(gone) })
}

type hangingReader chan struct{}

func (r hangingReader) Read([]byte) (int, error) {
	<-r
	return 0, io.EOF
}

// While a transfer's call hangs, a leader refuses every Apply.
func TestHungTransferEnds(t *testing.T) {
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind=%t", behind), func(t *testing.T) {
			bothWays(t, func(t *testing.T, contained bool) bool { return hungTransfer(t, contained, behind) })
		})
	}
}

func hungTransfer(t *testing.T, contained, behind bool) (struck bool) {
	w := newWorld(t, nil, "a", "b", "c")
	for _, name := range w.names {
		w.nodes[name].faults.noDeadlines = !contained
		w.nodes[name].raft(1, servers(1, w.names...), func(c *raft.Config) {
			if name != "a" { // a is elected, and no other node campaigns against it
				c.HeartbeatTimeout, c.ElectionTimeout = time.Minute, time.Minute
			}
		}, nil)
	}
	a, b := w.nodes["a"].rafts[1], w.nodes["b"].rafts[1]
	within(t, 10*time.Second, "a leads", func() bool { return a.State() == raft.Leader })
	if err := a.Apply([]byte("1"), time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "b has it", func() bool { return b.fsm.last() == "1" })
	release := b.hang()
	defer release()
	if behind {
		if err := a.Apply([]byte("2"), time.Second).Error(); err != nil { // c is enough
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond) // the append to b hangs
	for range 2 {
		if err := a.LeadershipTransferToServer("12", b.group.local).Error(); err == nil {
			t.Fatal("leadership went to a replica that hangs")
		}
		time.Sleep(100 * time.Millisecond) // the first is really over
	}
	time.Sleep(10 * time.Second)
	err := a.Apply([]byte("3"), time.Second).Error()
	release()
	time.Sleep(10 * time.Second) // a transfer that still hangs would outlive its raft
	return errors.Is(err, raft.ErrLeadershipTransferInProgress)
}

// A leader whose disk hangs sends heartbeats for ever, so no other node takes over.
func TestMuteUnseatsALeaderWhoseDiskHangs(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) bool {
		w := newWorld(t, nil, "a", "b", "c")
		w.rafts(1)
		leader := w.elect(1, w.names...)
		name := mustNode(leader)
		release := leader.hang() // it can no longer write
		defer release()
		if contained {
			w.nodes[name].Mute(true)
		}
		time.Sleep(10 * time.Second)
		if w.leader(1, w.others(name)...) == nil {
			return true
		}
		w.nodes[name].Mute(false)
		release()
		within(t, 10*time.Second, "the old leader follows", func() bool { return leader.State() == raft.Follower })
		return false
	})
}
