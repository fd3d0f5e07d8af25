package bench

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// refuser is a node that answers every question with an error.
type refuser struct {
	ebbv1grpc.UnimplementedEbbServer
	table *ebbv1.Table
}

func (r *refuser) Table(context.Context, *ebbv1.TableRequest) (*ebbv1.TableResponse, error) {
	return &ebbv1.TableResponse{Table: r.table}, nil
}

func (r *refuser) Ask(_ context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	resp := &ebbv1.AskResponse{}
	for range req.GetQuestions() {
		resp.Answers = append(resp.Answers, &ebbv1.Answer{Error: proto.ErrWrongKind.Wire()})
	}
	return resp, nil
}

// A question that is refused fast is not a fast answer.
func TestReadFailsWithItsAnswers(t *testing.T) {
	table, err := cluster.InitialTable([]string{"ebb-0"}, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wire := table.Wire()
	wire.Nodes[0].GrpcAddress = listener.Addr().String()
	srv := grpc.NewServer()
	ebbv1grpc.RegisterEbbServer(srv, &refuser{table: wire})
	go func() { _ = srv.Serve(listener) }() // ends with Stop
	t.Cleanup(srv.Stop)
	target := Target{
		Addrs: []string{listener.Addr().String()},
		CPU:   func(context.Context) (time.Duration, error) { return 0, nil },
	}
	for _, alone := range []bool{false, true} {
		r := Read{Duration: 20 * time.Millisecond, Workers: 4, Alone: alone}
		if _, err := r.Run(t.Context(), target); !errors.Is(err, proto.ErrWrongKind) {
			t.Errorf("in a loop: %v", err)
		}
		if _, err := r.Paced(t.Context(), target, 1_000); !errors.Is(err, proto.ErrWrongKind) {
			t.Errorf("at a rate: %v", err)
		}
	}
}
