package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// town is a few servers in memory, at addresses that nodes may move between.
type town struct {
	mu        sync.Mutex // guards what follows
	listeners map[string]*bufconn.Listener
	addresses map[string]string // of nodes
}

func newTown() *town {
	return &town{listeners: map[string]*bufconn.Listener{}, addresses: map[string]string{}}
}

// open serves f at an address until close is called.
func (w *town) open(t *testing.T, address string, f *fake) (srv *grpc.Server, close func()) {
	l := bufconn.Listen(1 << 16)
	w.mu.Lock()
	w.listeners[address] = l
	w.mu.Unlock()
	srv = NewGRPC(f.services())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	return srv, func() {
		srv.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it served
			t.Errorf("serve %s: %v", address, err)
		}
	}
}

func (w *town) move(node, address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addresses[node] = address
}

func (w *town) peers() *Peers {
	return NewPeers(PeersConfig{
		Address: func(node string) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if a := w.addresses[node]; a != "" {
				return a, nil
			}
			return "", errors.New("not in the table")
		},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			w.mu.Lock()
			l := w.listeners[address]
			w.mu.Unlock()
			if l == nil {
				return nil, errors.New("connection refused")
			}
			return l.DialContext(ctx)
		},
	})
}

// named is a fake whose status says who it is.
func named(name string) *fake {
	return &fake{setNamespace: func(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
		return &ebbv1.SetNamespaceResponse{Namespace: &ebbv1.Namespace{Name: name}}, nil
	}}
}

func whoAnswers(t *testing.T, ps *Peers, node string) string {
	t.Helper()
	p, err := ps.Peer(node)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // a dropped connection is noticed in the background
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := p.SetNamespace(ctx, &ebbv1.SetNamespaceRequest{Namespace: &ebbv1.Namespace{Name: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetNamespace().GetName()
}

// A pod comes back with another address, while its old address still answers, for another pod.
func TestPeerIsFollowedToItsNewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown()
		_, closeA := w.open(t, "a", named("first"))
		_, closeB := w.open(t, "b", named("second"))
		ps := w.peers()
		w.move("ebb-1", "a")
		if got := whoAnswers(t, ps, "ebb-1"); got != "first" {
			t.Errorf("at a: %s", got)
		}
		w.move("ebb-1", "b")
		if got := whoAnswers(t, ps, "ebb-1"); got != "second" {
			t.Errorf("at b: %s", got)
		}
		ps.Close()
		closeA()
		closeB()
	})
}

// A node that restarts at its address is reached again, without anybody's help.
func TestPeerIsRedialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown()
		_, closeOld := w.open(t, "a", named("old"))
		ps := w.peers()
		w.move("ebb-1", "a")
		whoAnswers(t, ps, "ebb-1")
		closeOld()
		_, closeNew := w.open(t, "a", named("new"))
		if got := whoAnswers(t, ps, "ebb-1"); got != "new" {
			t.Errorf("got %s", got)
		}
		ps.Close()
		closeNew()
	})
}

func TestPeerErrors(t *testing.T) {
	block := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	synctest.Test(t, func(t *testing.T) {
		w := newTown()
		started := make(chan struct{}, 8)
		f := &fake{
			apply: func(ctx context.Context, _ *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
				started <- struct{}{}
				return nil, block(ctx)
			},
			shardAsk: func(ctx context.Context, _ *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
				return nil, block(ctx)
			},
		}
		srv, closeSrv := w.open(t, "a", f)
		ps := w.peers()
		w.move("ebb-1", "a")
		w.move("ebb-2", "nobody listens")

		if _, err := ps.Backend("ebb-9"); !errors.Is(err, proto.ErrUnreachable) {
			t.Errorf("a node without an address: %v", err)
		}
		gone, _ := ps.Peer("ebb-2")
		if _, err := gone.Apply(t.Context(), oneCommand(t)); !errors.Is(err, proto.ErrUnreachable) {
			t.Errorf("connection refused, nothing sent: %v", err)
		}
		p, _ := ps.Peer("ebb-1")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := p.Apply(short, oneCommand(t)); !errors.Is(err, proto.ErrUnknownOutcome) {
			t.Errorf("a write whose deadline passed: %v", err)
		}
		cancel()
		<-started
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		if _, err := p.Ask(short, oneShardQuestion()); !errors.Is(err, proto.ErrDeadline) {
			t.Errorf("a question whose deadline passed: %v", err)
		}
		cancel()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Ask(canceled, oneShardQuestion()); !errors.Is(err, context.Canceled) {
			t.Errorf("a question that nobody waits for: %v", err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := p.Apply(t.Context(), oneCommand(t))
			result <- err
		}()
		<-started
		srv.Stop()
		if err := <-result; !errors.Is(err, proto.ErrUnknownOutcome) {
			t.Errorf("the node died under a write: %v", err)
		}
		ps.Close()
		closeSrv()
		if _, err := ps.Peer("ebb-1"); !errors.Is(err, proto.ErrShuttingDown) {
			t.Errorf("a closed pool: %v", err)
		}
	})
}

func oneCommand(t *testing.T) *ebbv1.ApplyRequest {
	return &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: 1, Command: command(t, "k", "b")}}}
}

func oneShardQuestion() *ebbv1.ShardAskRequest {
	return &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 1, Question: topQuestion("k", 10).GetQuestions()[0]}}}
}

// The parts of very many shards may be more than a peer receives: it gets as many as fit, and of the others that they
// are to be asked for again.
func TestPeerGetsWhatFits(t *testing.T) {
	large := make([]byte, proto.MessageBytesMax-100)
	w := newTown()
	_, closeServer := w.open(t, "a", &fake{shardAsk: func(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
		resp := &ebbv1.ShardAskResponse{}
		for range req.GetQuestions() {
			resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: large}})
		}
		return resp, nil
	}})
	defer closeServer()
	w.move("ebb-1", "a")
	peers := w.peers()
	defer peers.Close()
	peer, err := peers.Backend("ebb-1")
	if err != nil {
		t.Fatal(err)
	}
	req := &ebbv1.ShardAskRequest{}
	for i := range 40 {
		req.Questions = append(req.Questions, &ebbv1.ShardQuestion{Shard: uint32(i + 1), Partial: true, Question: &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}})
	}
	resp, err := peer.Ask(t.Context(), req)
	if err != nil || len(resp.GetAnswers()) != 40 {
		t.Fatalf("%d answers, %v", len(resp.GetAnswers()), err)
	}
	whole := 0
	for i, a := range resp.GetAnswers() {
		switch {
		case len(a.GetPart()) == len(large):
			whole++
		case a.GetError().GetCode() != ebbv1.Code_CODE_OVERLOADED:
			t.Fatalf("answer %d: %v", i, a.GetError())
		}
	}
	if whole < 10 || whole > 16 {
		t.Errorf("%d of 40 parts of %d bytes", whole, len(large))
	}
}

// A peer says how far other replicas must be, and what its own found, for the shards that it is asked about, and
// refuses what is no question.
func TestPeerOfReplicas(t *testing.T) {
	w := newTown()
	_, stop := w.open(t, "a:1", &fake{})
	defer stop()
	w.move("ebb-1", "a:1")
	peers := w.peers()
	defer peers.Close()
	p, err := peers.Peer("ebb-1")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.ReadIndex(t.Context(), &ebbv1.ReadIndexRequest{Shards: []uint32{3, 1}, Applied: []uint64{7, 0}})
	if err != nil || resp.GetResults()[0].GetIndex() != 107 || resp.GetResults()[1].GetIndex() != 100 {
		t.Errorf("%v, %v", resp, err)
	}
	for index, known := range map[uint64]bool{7: false, 107: true} {
		if a, err := p.Audited(t.Context(), &ebbv1.AuditedRequest{Shard: 1, Index: index}); err != nil || a.GetKnown() != known {
			t.Errorf("audited at %d: %v, %v", index, a, err)
		}
	}
	if err := p.Repair(t.Context(), &ebbv1.RepairRequest{Shard: 1}); err != nil {
		t.Error(err)
	}
	if err := p.Repair(t.Context(), &ebbv1.RepairRequest{Shard: 2}); !errors.Is(err, proto.ErrNotLeader) {
		t.Errorf("another shard: %v", err)
	}
	for _, bad := range []*ebbv1.ReadIndexRequest{{}, {Shards: []uint32{1}}, {Shards: make([]uint32, proto.ShardsMax+1), Applied: make([]uint64, proto.ShardsMax+1)}} {
		if _, err := p.ReadIndex(t.Context(), bad); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%d shards: %v", len(bad.GetShards()), err)
		}
	}
}

// A connection to a node that is not known is closed when the node was not asked for within a minute. When it is asked
// for again, there is another connection.
func TestPeersThatWentAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown()
		_, stop := w.open(t, "here", &fake{})
		defer stop()
		w.move("b", "here")
		peers := w.peers()
		defer peers.Close()
		all, none := func(string) bool { return true }, func(string) bool { return false }
		for range 2 {
			peer, err := peers.Peer("b")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := peer.NodeStatus(t.Context(), &ebbv1.StatusRequest{}); err != nil {
				t.Fatal(err)
			}
			for _, step := range []struct {
				after time.Duration
				known func(string) bool
				left  int
			}{{forgetAfter - time.Second, none, 1}, {2 * time.Second, all, 1}, {0, none, 0}} {
				time.Sleep(step.after)
				peers.Forget(step.known)
				if left := len(peers.peers); left != step.left {
					t.Errorf("%d connections are left, want %d", left, step.left)
				}
			}
		}
	})
}
