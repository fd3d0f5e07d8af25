package transport

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
)

// world is a few nodes on a network, each with a server and a Mux.
type world struct {
	t     *testing.T
	net   *network
	nodes map[string]*testNode
	names []string

	server []grpc.ServerOption
}

type testNode struct {
	*Mux
	w      *world
	name   string
	server *grpc.Server
	served sync.WaitGroup
	rafts  map[uint32]*testRaft
}

// newWorld makes nodes; change, if set, sees each Config before it is used.
func newWorld(t *testing.T, change func(*Config), names ...string) *world {
	w := &world{t: t, net: newNetwork(), nodes: map[string]*testNode{}, names: names}
	for _, name := range names {
		w.start(name, change)
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) start(name string, change func(*Config)) *testNode {
	cfg := Config{Node: name, Dial: w.net.dialer(name)}
	if change != nil {
		change(&cfg)
	}
	n := &testNode{Mux: New(cfg), w: w, name: name, server: grpc.NewServer(w.server...), rafts: map[uint32]*testRaft{}}
	n.Register(n.server)
	l := w.net.listen(name)
	n.served.Go(func() { _ = n.server.Serve(l) })
	n.SetReadIndexHandler(func(group uint32, _ uint64, term uint64) bool {
		r := n.rafts[group]
		return r != nil && r.CurrentTerm() == term
	})
	w.nodes[name] = n
	return n
}

func (n *testNode) stop() {
	for _, r := range n.rafts {
		r.stop()
	}
	n.Close()
	n.server.Stop()
	n.served.Wait()
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.stop()
	}
	w.nodes = nil
}

func (w *world) others(name string) []string {
	return slices.DeleteFunc(slices.Clone(w.names), func(o string) bool { return o == name })
}

// echo answers a group's requests as a follower that likes everything would.
func echo(g *Group) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-g.Consumer():
				rpc.Respond(echoed(rpc), nil)
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func echoed(rpc raft.RPC) any {
	switch c := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		return &raft.AppendEntriesResponse{RPCHeader: c.RPCHeader, Term: c.Term, LastLog: c.PrevLogEntry + uint64(len(c.Entries)), Success: true}
	case *raft.RequestVoteRequest:
		return &raft.RequestVoteResponse{Term: c.Term, Granted: true}
	case *raft.RequestPreVoteRequest:
		return &raft.RequestPreVoteResponse{Term: c.Term, Granted: true}
	case *raft.TimeoutNowRequest:
		return &raft.TimeoutNowResponse{}
	case *raft.InstallSnapshotRequest:
		n, err := io.Copy(io.Discard, rpc.Reader)
		return &raft.InstallSnapshotResponse{Term: c.Term, Success: err == nil && n == c.Size}
	}
	panic("no such command")
}

// testRaft is a real raft over the Mux.
type testRaft struct {
	*raft.Raft
	group *Group
	fsm   *testFSM
	store *raft.InmemStore
	snaps *raft.InmemSnapshotStore
}

func (r *testRaft) stop() {
	f := r.Shutdown()
	_ = r.group.Close()
	_ = f.Error()
}

type testFSM struct {
	mu   sync.Mutex
	list []string
}

func (f *testFSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, string(l.Data))
	return nil
}

func (f *testFSM) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == 0 {
		return ""
	}
	return f.list[len(f.list)-1]
}

func (f *testFSM) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

func (f *testFSM) Snapshot() (raft.FSMSnapshot, error) { return testSnapshot(f.all()), nil }

func (f *testFSM) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var list []string
	for len(b) > 0 {
		d := fields{b: b}
		list = append(list, d.string())
		b = d.b
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = list
	return nil
}

type testSnapshot []string

func (s testSnapshot) Persist(sink raft.SnapshotSink) error {
	var b []byte
	for _, v := range s {
		b = appendBytes(b, v)
	}
	if _, err := sink.Write(b); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (testSnapshot) Release() {}

func raftConfig(id string) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.Logger = hclog.NewNullLogger()
	c.CommitTimeout = time.Second
	c.NoLegacyTelemetry = true
	c.TrailingLogs = 8
	return c
}

// servers is a group's configuration: replica i on node i. The replica ids of
// a group are unlike those of the others.
func servers(group uint32, nodes ...string) (c raft.Configuration) {
	for i, n := range nodes {
		id := uint64(group)*10 + uint64(i) + 1
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(id)), Address: Address(n, id)})
	}
	return c
}

func addresses(c raft.Configuration) (out []raft.ServerAddress) {
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			out = append(out, s.Address)
		}
	}
	return out
}

// raft starts a replica of a group on a node, over wrap(group transport).
func (n *testNode) raft(group uint32, conf raft.Configuration, tune func(*raft.Config), wrap func(*Group) raft.Transport) *testRaft {
	i := slices.IndexFunc(conf.Servers, func(s raft.Server) bool { node, _, _ := ParseAddress(s.Address); return node == n.name })
	cfg := raftConfig(string(conf.Servers[i].ID))
	if tune != nil {
		tune(cfg)
	}
	r := &testRaft{group: n.Group(group, conf.Servers[i].Address), fsm: &testFSM{}, store: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore()}
	var trans raft.Transport = r.group
	if wrap != nil {
		trans = wrap(r.group)
	}
	if err := raft.BootstrapCluster(cfg, r.store, r.store, r.snaps, trans, conf); err != nil {
		n.w.t.Fatal(err)
	}
	var err error
	if r.Raft, err = raft.NewRaft(cfg, r.fsm, r.store, r.store, r.snaps, trans); err != nil {
		n.w.t.Fatal(err)
	}
	n.rafts[group] = r
	return r
}

// rafts starts groups 1 to n on all nodes.
func (w *world) rafts(n uint32) {
	for group := uint32(1); group <= n; group++ {
		for _, name := range w.names {
			w.nodes[name].raft(group, servers(group, w.names...), nil, nil)
		}
	}
}

// leader returns the leader of a group among nodes, nil if there is none or two.
func (w *world) leader(group uint32, nodes ...string) (found *testRaft) {
	for _, name := range nodes {
		if r := w.nodes[name].rafts[group]; r.State() == raft.Leader {
			if found != nil {
				return nil
			}
			found = r
		}
	}
	return found
}

// within advances virtual time until ok holds, or fails the test.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(limit); !ok(); {
		if time.Now().After(until) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond) // of virtual time
		synctest.Wait()
	}
}

func (w *world) elect(group uint32, nodes ...string) *testRaft {
	w.t.Helper()
	within(w.t, 30*time.Second, fmt.Sprintf("a leader of group %d", group), func() bool { return w.leader(group, nodes...) != nil })
	return w.leader(group, nodes...)
}

func isCode(t *testing.T, err error, want *proto.Error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want one like %v", err, want)
	}
}
