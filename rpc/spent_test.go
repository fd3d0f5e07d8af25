package rpc

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/tap"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// A write that was applied is answered, although the memory for answers is spent: a refusal would say that it was not.
func TestWritesAreAnsweredWithoutRoomForAnswers(t *testing.T) {
	refused := make([]*ebbv1.Refusal, 1000) // an answer that is too large to leave uncharged
	for i := range refused {
		refused[i] = &ebbv1.Refusal{Index: uint32(i), Error: proto.ErrBadRequest.Errorf("it is not a number").Wire()}
	}
	for name, want := range map[string]*ebbv1.IncrementResponse{
		"a small answer": {Applied: 1},
		"a large answer": {Applied: 1, Refused: refused},
	} {
		f := &fake{increment: func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) { return want, nil }}
		s := f.services()
		s.Answers = budget.New("answers", 64<<20)
		for range 2 {
			full := s.Answers.Begin(0)
			defer full.Close()
			if err := full.Charge(t.Context(), 32<<20); err != nil {
				t.Fatal(err)
			}
		}
		req := &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}}
		resp, err := ebbv1grpc.NewEbbClient(serve(t, s)).Increment(t.Context(), req)
		if err != nil || resp.GetApplied() != 1 || len(resp.GetRefused()) != len(want.GetRefused()) {
			t.Errorf("%s: %v, %v", name, resp.GetApplied(), err)
		}
	}
}

// Probes of health are answered when the memory for requests is spent. Requests of clients are refused.
func TestHealthIsAnsweredWhenRequestsAreNot(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(0, nil)
	s.Budget.used.Store(s.Budget.limit)
	conn := serve(t, s)
	_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Errorf("health: %v", err)
	}
	_, err = ebbv1grpc.NewEbbClient(conn).Increment(t.Context(), &ebbv1.IncrementRequest{})
	if e := proto.AsError(ebbv1grpc.FromStatus(err)); !e.Is(proto.ErrOverloaded) {
		t.Errorf("a write: %v", err)
	}
}

// What has no first message that a handler awaits holds nothing of the budget: streams between nodes, which never end,
// streams whose deadline is over, for which gRPC calls no handler, and reflection when it has ended.
func TestStreamsThatArriveWithoutEnd(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(0, nil)
	c := &meteredConn{budget: s.Budget}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: meteredAddr{nil, c}})
	got, err := s.receive(ctx, &tap.Info{FullMethodName: peerv1.Peer_Append_FullMethodName})
	if err != nil {
		t.Fatal(err)
	}
	r := got.(*receipt)
	defer r.ended()
	over, cancel := context.WithDeadline(ctx, time.Unix(1, 0))
	defer cancel()
	if _, err := s.receive(over, &tap.Info{FullMethodName: grpc_health_v1.Health_Check_FullMethodName}); err == nil {
		t.Error("a stream whose deadline is over begins")
	}
	if held, waiting := s.Budget.used.Load(), c.waiting.Load(); held != 0 || waiting != 0 {
		t.Errorf("%d bytes are charged for %d streams", held, waiting)
	}

	client := grpc_reflection_v1.NewServerReflectionClient(serve(t, s))
	stream, err := client.ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_, _ = stream.Recv()
	until(t, "reflection that has ended is charged", func() bool { return s.Budget.used.Load() == 0 })
}
