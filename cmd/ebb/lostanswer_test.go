package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// unresponsiveServer answers requests for the table, and accepts other calls without an answer.
type unresponsiveServer struct {
	ebbv1grpc.UnimplementedEbbServer
	table *ebbv1.Table
	asked chan<- struct{}
}

func (s unresponsiveServer) Table(context.Context, *ebbv1.TableRequest) (*ebbv1.TableResponse, error) {
	return &ebbv1.TableResponse{Table: s.table, Node: "ebb-0"}, nil
}

func (s unresponsiveServer) CreateToken(
	ctx context.Context, _ *ebbv1.CreateTokenRequest,
) (*ebbv1.CreateTokenResponse, error) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// If it is unknown whether a token was made, the command hands out its text. If the token was made, it is in force, and
// the first token of a cluster is all that lets anybody in. The command also does so when the user interrupts it.
func TestTextOfATokenThatMayBeThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	table, err := cluster.InitialTable([]string{"ebb-0"}, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	asked := make(chan struct{}, 1)
	ebbv1grpc.RegisterEbbServer(server, unresponsiveServer{table: table.Wire(), asked: asked})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	create := func(ctx context.Context, more ...string) (status int, out, said string) {
		var stdout, stderr bytes.Buffer
		args := append([]string{"--addr", listener.Addr().String(), "token", "create", "ops", "--role", "operator"}, more...)
		status = run(ctx, args, terminal{in: strings.NewReader(""), out: &stdout, err: &stderr})
		return status, stdout.String(), stderr.String()
	}
	file := filepath.Join(t.TempDir(), "ops.token")
	status, _, said := create(t.Context(), "--out", file, "--timeout", "200ms")
	text, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(text), "ebb_") || status != exitUnknown || !strings.Contains(said, "keep its text") {
		t.Errorf("exit %d, the file holds %q (%v)\n%s", status, text, err, said)
	}
	if status, out, said := create(t.Context(), "--timeout", "200ms", "--json"); !strings.Contains(out, `"token":"ebb_`) && !strings.Contains(out, `"token": "ebb_`) || status != exitUnknown {
		t.Errorf("exit %d\n%s%s", status, out, said)
	}
	select {
	case <-asked:
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-asked; cancel() }()
	if _, out, said := create(ctx); !strings.HasPrefix(out, "ebb_") {
		t.Errorf("interrupted: %s%s", out, said)
	}
}
