package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// world is a cluster without Raft: the real edges, routers and coordinators of each node over real shard states. There
// is one state of each shard. The test sets who leads it.
type world struct {
	t     tester
	nodes []*testNode
	table atomic.Pointer[cluster.Table]
	now   func() time.Time

	mu         sync.Mutex        // guards all below
	aliases    map[string]string // of hosts that are another name of a node
	shards     map[uint32]*testShard
	namespaces map[string]*ebbv1.Namespace
	tokens     []*ebbv1.TokenRecord
	// loseRevocations is how many answers to revocations are lost.
	loseRevocations int
	applies         int // commands that reached a leader
	// fault is asked about each command that a leader is about to apply. It may
	// refuse it, or say that it is applied and the answer lost.
	fault func(node string, cmd *ebbv1.ShardCommand) (refuse *proto.Error, loseAnswer bool)
	heard func(req any) // of each request, before it is answered
	// behaviour is the behaviour version that the storage version in force calls for.
	behaviour uint32
	// report is what is said of the replicas, where a test asks for it.
	report func(ctx context.Context, req *ebbv1.StatusRequest) *ebbv1.StatusResponse
}

// tester is what a world needs of a test. An example has none of its own.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Error(args ...any)
	Cleanup(f func())
}

type testShard struct {
	state  *shard.State
	index  uint64
	leader string
	term   uint64
}

type testNode struct {
	world    *world
	name     string
	listener net.Listener
	server   *grpc.Server
	leaders  *cluster.Leaders

	mu   sync.Mutex // guards all below
	dead bool
	hang chan struct{} // requests wait for it; nil: they do not
	conn []net.Conn
}

const testShards = 8

// newWorld starts a world of n nodes named ebb-0 and so on, at addresses of the
// same names.
func newWorld(t tester, n int) *world {
	return newWorldOn(t, n, func(name string) (net.Listener, string) { return bufconn.Listen(1 << 20), name + ":7070" })
}

// newWorldOn is newWorld with listeners, and the addresses that the table gives
// for them.
func newWorldOn(t tester, n int, listen func(name string) (net.Listener, string)) *world {
	w := &world{
		t: t, now: time.Now, behaviour: shard.BehaviourMax, shards: map[uint32]*testShard{},
		namespaces: map[string]*ebbv1.Namespace{},
	}
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("ebb-%d", i))
	}
	table, err := cluster.InitialTable(names, testShards, uint32(min(n, 3)))
	if err != nil {
		t.Fatal(err)
	}
	wire := protobuf.CloneOf(table.Wire())
	wire.ClusterId, wire.Epoch, wire.Version = "world", 1, proto.StorageVersion
	listeners := map[string]net.Listener{}
	for _, node := range wire.Nodes {
		listeners[node.Name], node.GrpcAddress = listen(node.Name)
	}
	w.adopt(wire)
	for id := uint32(1); id <= testShards; id++ {
		w.shards[id] = &testShard{state: shard.New(shard.ID(id), shard.Heap{}), leader: table.Preferred(id), term: 1}
	}
	w.setNamespace(&ebbv1.Namespace{Name: proto.DefaultNamespace})
	for _, name := range names {
		w.start(name, listeners[name])
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) setNamespace(ns *ebbv1.Namespace) *ebbv1.Namespace {
	w.mu.Lock()
	defer w.mu.Unlock()
	base := proto.DefaultNamespaceSettings()
	if old := w.namespaces[ns.Name]; old != nil {
		base = old
	}
	ns = proto.FillNamespace(protobuf.CloneOf(ns), base)
	ns.Version = base.Version + 1
	if ns.Dictionary != nil {
		ns.Dictionary = &ebbv1.Dictionary{Parts: testShards}
	}
	w.namespaces[ns.Name] = ns
	wire := protobuf.CloneOf(w.table.Load().Wire())
	wire.Namespaces = slices.Collect(maps.Values(w.namespaces))
	w.adopt(wire)
	return ns
}

func (w *world) adopt(wire *ebbv1.Table) {
	table, err := cluster.NewTable(wire)
	if err != nil {
		w.t.Fatal(err)
	}
	w.table.Store(table)
}

func (w *world) start(name string, listener net.Listener) {
	n := &testNode{
		world: w, name: name, listener: listener, leaders: cluster.NewLeaders(testShards),
	}
	table := w.table.Load
	local := testBackend{n}
	router := cluster.NewRouter(cluster.RouterConfig{
		Node: name, Table: table, Leaders: n.leaders, Local: local, Peers: w,
	})
	coordinator := cluster.NewCoordinator(cluster.CoordinatorConfig{
		Node: name, Table: table, Leaders: n.leaders, Local: local, Peers: w, Now: w.now,
	})
	door := cluster.NewKeys(router, coordinator)
	n.server = rpc.NewGRPC(rpc.Services{
		Router: router, Coordinator: coordinator, Keys: door, Queries: cluster.NewQueries(door),
		Local: local, Cluster: n, Node: name, Version: "test",
		Access: rpc.NewAccess(rpc.AccessConfig{Node: name, Tokens: func() *cluster.Tokens { return cluster.NewTokens(n.TokenRecords()) }}),
	}, grpc.ChainUnaryInterceptor(n.gate))
	go func() { _ = n.server.Serve(n.listener) }() // ends with Stop, in close
	w.nodes = append(w.nodes, n)
}

// gate holds requests while the node hangs.
func (n *testNode) gate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	n.world.mu.Lock()
	heard := n.world.heard
	n.world.mu.Unlock()
	if heard != nil {
		heard(req)
	}
	n.mu.Lock()
	hang := n.hang
	n.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return next(ctx, req)
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.server.Stop()
		_ = n.listener.Close()
	}
}

func (w *world) node(name string) *testNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// dial is the client's dialer: a dead node refuses, an unknown one is not found.
func (w *world) dial(ctx context.Context, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(addr)
	w.mu.Lock()
	if node := w.aliases[host]; node != "" {
		host = node
	}
	w.mu.Unlock()
	n := w.node(host)
	if n == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := n.listener.(*bufconn.Listener).DialContext(ctx)
	if err == nil {
		n.conn = append(n.conn, conn)
	}
	return conn, err
}

// kill makes a node unreachable, and cuts what is connected to it.
func (n *testNode) kill() {
	n.mu.Lock()
	n.dead = true
	conns := n.conn
	n.conn = nil
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (n *testNode) revive() {
	n.mu.Lock()
	n.dead = false
	n.mu.Unlock()
}

// freeze makes a node hang until the returned function is called.
func (n *testNode) freeze() (thaw func()) {
	hang := make(chan struct{})
	n.mu.Lock()
	n.hang = hang
	n.mu.Unlock()
	return sync.OnceFunc(func() {
		n.mu.Lock()
		n.hang = nil
		n.mu.Unlock()
		close(hang)
	})
}

func (n *testNode) isDead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

// move gives a node another address.
func (w *world) move(name, host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aliases = map[string]string{host: name, name: "nobody"}
	wire := protobuf.CloneOf(w.table.Load().Wire())
	wire.Epoch++
	for _, n := range wire.Nodes {
		if n.Name == name {
			n.GrpcAddress = host + ":7070"
		}
	}
	w.adopt(wire)
}

// lead makes a node the leader of a shard ("" for none).
func (w *world) lead(id uint32, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[id].leader = node
	w.shards[id].term++
	for _, n := range w.nodes {
		if node == n.name {
			n.leaders.Observe(id, node, w.shards[id].term)
		}
	}
}

// leadAll makes the next node after its leader lead each shard that node leads.
func (w *world) handOver(from string) {
	for id := uint32(1); id <= testShards; id++ {
		w.mu.Lock()
		leader := w.shards[id].leader
		w.mu.Unlock()
		if leader != from {
			continue
		}
		for _, r := range w.table.Load().Replicas(id) {
			if r.Node != from {
				w.lead(id, r.Node)
				break
			}
		}
	}
}

func (w *world) setFault(f func(node string, cmd *ebbv1.ShardCommand) (*proto.Error, bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// Backend makes the world cluster.Peers.
func (w *world) Backend(node string) (cluster.Backend, error) {
	n := w.node(node)
	if n == nil || n.isDead() {
		return nil, errors.New("connection refused")
	}
	return testBackend{n}, nil
}

// testBackend is the shards of one node.
type testBackend struct{ *testNode }

func (b testBackend) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	resp := &ebbv1.ApplyResponse{}
	lose := false
	for _, cmd := range req.GetCommands() {
		result, lost := b.world.apply(b.name, cmd)
		resp.Results = append(resp.Results, result)
		lose = lose || lost
	}
	if lose {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return resp, nil
}

func (w *world) apply(node string, cmd *ebbv1.ShardCommand) (*ebbv1.CommandResult, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.shards[cmd.GetShard()]
	if s.leader == "" {
		return &ebbv1.CommandResult{Error: proto.ErrNoLeader.Errorf("shard %d has no leader", cmd.GetShard()).Wire()}, false
	}
	if s.leader != node {
		e := proto.ErrNotLeader.Errorf("%s does not lead shard %d", node, cmd.GetShard())
		e.Leader = s.leader
		return &ebbv1.CommandResult{Error: e.Wire()}, false
	}
	if err := proto.CheckCommandSize(cmd.GetCommand()); err != nil { // as a node does
		return &ebbv1.CommandResult{Error: err.Wire()}, false
	}
	lose := false
	if w.fault != nil {
		var refuse *proto.Error
		if refuse, lose = w.fault(node, cmd); refuse != nil {
			return &ebbv1.CommandResult{Error: refuse.Wire()}, false
		}
	}
	w.applies++
	commands := [][]byte{cmd.GetCommand()}
	name := string(proto.CommandNamespace(cmd.GetCommand()))
	if name == "" {
		name = proto.DefaultNamespace
	}
	defined := 0
	if ns := w.namespaces[name]; ns != nil && s.state.NamespaceVersion(name) < ns.Version {
		define, err := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
		if err != nil {
			panic(err)
		}
		commands = append([][]byte{define}, commands...)
		defined = 1
	}
	if s.state.Behaviour() < w.behaviour {
		behave, err := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: w.behaviour}}})
		if err != nil {
			panic(err)
		}
		commands = append([][]byte{behave}, commands...)
		defined++
	}
	s.index++
	results := s.state.Apply(s.index, entryOf(w.now(), commands), nil)
	return results[defined], lose
}

func entryOf(stamp time.Time, commands [][]byte) []byte {
	b := protowire.AppendTag(nil, 1, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, uint64(stamp.UnixMicro()))
	for _, c := range commands {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendBytes(b, c)
	}
	return b
}

// behave sets the behaviour version that shards have from their next command on.
func (w *world) behave(version uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.behaviour = version
}

// expireSessions lets more than an hour of shard time pass in all shards.
func (w *world) expireSessions() {
	w.mu.Lock()
	defer w.mu.Unlock()
	tick, err := protobuf.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if err != nil {
		panic(err)
	}
	for _, s := range w.shards {
		s.index++
		s.state.Apply(s.index, entryOf(time.UnixMicro(int64(s.state.Now())).Add(61*time.Minute), [][]byte{tick}), nil)
	}
}

// Audited and Repair implement rpc.Local: no replica ever differs.
func (b testBackend) Audited(context.Context, *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	return &ebbv1.AuditedResponse{}, nil
}

func (b testBackend) Repair(context.Context, *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error) {
	return &ebbv1.RepairResponse{}, nil
}

// ReadIndex implements rpc.Local: the states of all replicas are one.
func (b testBackend) ReadIndex(_ context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	resp := &ebbv1.ReadIndexResponse{}
	for range req.GetShards() {
		resp.Results = append(resp.Results, &ebbv1.ReadIndex{Index: 1})
	}
	return resp, nil
}

func (b testBackend) Ask(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	w := b.world
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &ebbv1.ShardAskResponse{}
	for _, q := range req.GetQuestions() {
		s := w.shards[q.GetShard()]
		if s.leader != b.name && req.GetConsistency() != ebbv1.Consistency_CONSISTENCY_ANY {
			e := proto.ErrNotLeader.Errorf("%s does not lead shard %d", b.name, q.GetShard())
			e.Leader = s.leader
			resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{Error: e.Wire()})
			continue
		}
		resp.Answers = append(resp.Answers, s.state.Ask(q, sketch.Tick(req.GetNowUs())))
	}
	return resp, nil
}

// Table, SetNamespace, Status and NodeStatus make a node an rpc.Cluster.
func (n *testNode) Table() *ebbv1.Table {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	t := protobuf.CloneOf(w.table.Load().Wire())
	for _, r := range t.Placement {
		s := w.shards[r.Shard]
		switch {
		case s == nil:
		case slices.ContainsFunc(r.GetReplicas(), func(rep *ebbv1.ReplicaRecord) bool { return rep.GetNode() == n.name }):
			r.Leader, r.Term = s.leader, s.term
		default: // it hears of nothing that happens in the group, and has guessed at first
			r.Leader, r.Term = r.GetPreferred(), 0
		}
	}
	return t
}

func (n *testNode) DeleteNamespace(_ context.Context, req *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error) {
	return &ebbv1.DeleteNamespaceResponse{Namespace: &ebbv1.Namespace{
		Name: req.GetName(), Deletion: &ebbv1.NamespaceDeletion{DeletedUs: 5e6, PurgeUs: 5e6 + req.GetGraceUs(), Purging: req.GetGraceUs() == 0},
	}}, nil
}

func (n *testNode) UndeleteNamespace(_ context.Context, req *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error) {
	return &ebbv1.UndeleteNamespaceResponse{Namespace: proto.FillNamespace(&ebbv1.Namespace{Name: req.GetName()}, proto.DefaultNamespaceSettings())}, nil
}

func (n *testNode) SetNamespace(_ context.Context, req *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	w := n.world
	w.mu.Lock()
	exists := w.namespaces[req.GetNamespace().GetName()] != nil
	w.mu.Unlock()
	if exists && req.GetCreate() {
		return nil, proto.ErrNamespaceExists.Errorf("namespace %q exists", req.GetNamespace().GetName())
	}
	return &ebbv1.SetNamespaceResponse{Namespace: w.setNamespace(req.GetNamespace())}, nil
}

func (n *testNode) Status(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	if n.world.report != nil {
		return n.world.report(ctx, req), nil
	}
	return n.NodeStatus(ctx, req)
}

func (n *testNode) NamespaceUsage(
	_ context.Context, req *ebbv1.NamespaceUsageRequest,
) (*ebbv1.NamespaceUsageResponse, error) {
	return &ebbv1.NamespaceUsageResponse{
		Namespaces: []*ebbv1.NamespaceUsage{{
			Name: req.GetName(), Keys: 2, Bytes: 300, Budget: &ebbv1.NamespaceBudget{Bytes: new(uint64(400))},
			Share: 0.25, Node: n.name,
		}},
		Unreachable: []string{"ebb-9"},
	}, nil
}

func (n *testNode) Acknowledged(context.Context, *ebbv1.AcknowledgedRequest) (*ebbv1.AcknowledgedResponse, error) {
	return &ebbv1.AcknowledgedResponse{}, nil
}

func (n *testNode) NodeUsage(context.Context, *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error) {
	return &ebbv1.NodeUsageResponse{Node: n.name}, nil
}

func (n *testNode) ChangeCluster(context.Context, *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	return &ebbv1.ChangeClusterResponse{Epoch: 7}, nil
}

func (n *testNode) Manage(context.Context, *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	return &ebbv1.ManageResponse{}, nil
}

func (n *testNode) NodeStatus(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	return &ebbv1.StatusResponse{ClusterId: "world", Nodes: []*ebbv1.NodeStatus{{
		Node: n.world.table.Load().Node(n.name), Phase: "serving",
	}}}, nil
}

// connect dials the world's nodes.
func (w *world) connect(opts ...ebb.Option) *ebb.Client {
	w.t.Helper()
	c, err := ebb.DialOptions(context.Background(), w.addrs(), append([]ebb.Option{ebb.WithDialer(w.dial)}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, ebb.ErrClosed) {
			w.t.Error(err)
		}
	})
	return c
}

func (w *world) addrs() []string {
	var out []string
	for _, n := range w.nodes {
		out = append(out, n.name)
	}
	return out
}

// count returns what a key holds, straight from the states.
func (w *world) count(ns, key string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.shards[proto.ShardOf(ns, []byte(key), testShards)]
	a := s.state.Ask(&ebbv1.ShardQuestion{Shard: uint32(1), Question: &ebbv1.Question{
		Namespace: ns,
		Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 1},
		}},
	}}, s.state.Now())
	return a.GetAnswer().GetDistribution().GetZ()
}

// plain is a namespace that does not forget, so that counts can be compared.
func (w *world) plain() string {
	w.setNamespace(&ebbv1.Namespace{Name: "plain", Decay: ebbv1.Decay_DECAY_NONE})
	return "plain"
}

// keysOf returns n keys of a namespace, all in one shard.
func keysOf(ns string, id uint32, n int) []string {
	var out []string
	for i := 0; len(out) < n; i++ {
		key := fmt.Sprintf("key-%d", i)
		if proto.ShardOf(ns, []byte(key), testShards) == id {
			out = append(out, key)
		}
	}
	return out
}

// ledBy returns a shard that a node leads.
func (w *world) ledBy(node string) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := []uint32{}
	for id, s := range w.shards {
		if s.leader == node {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		w.t.Fatalf("%s leads no shard", node)
	}
	return ids[0]
}

func unmarshal(raw []byte, m protobuf.Message) error { return protobuf.Unmarshal(raw, m) }

// eventually waits, for something that another goroutine does, until the test's
// own time is over.
func (w *world) eventually(done func() bool) {
	w.t.Helper()
	for start := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			w.t.Fatal("it never happened")
		}
	}
}

func (n *testNode) CreateToken(_ context.Context, _ *ebbv1.CreateTokenRequest, record *ebbv1.TokenRecord) (*ebbv1.CreateTokenResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	n.world.tokens = append(n.world.tokens, record)
	return &ebbv1.CreateTokenResponse{Token: rpc.Shown(record)}, nil
}

func (n *testNode) RevokeToken(_ context.Context, req *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	had := len(n.world.tokens)
	n.world.tokens = slices.DeleteFunc(n.world.tokens, func(r *ebbv1.TokenRecord) bool { return r.GetName() == req.GetName() })
	if n.world.loseRevocations > 0 {
		n.world.loseRevocations--
		return nil, proto.ErrUnknownOutcome.Errorf("the deadline passed")
	}
	return &ebbv1.RevokeTokenResponse{Absent: len(n.world.tokens) == had}, nil
}

func (n *testNode) TokenRecords() []*ebbv1.TokenRecord {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return slices.Clone(n.world.tokens)
}
