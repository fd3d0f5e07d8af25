package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

func TestErrorsKeepTheirCode(t *testing.T) {
	f := &fake{ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
		return nil, proto.ErrNoLeader.Errorf("shard 7 has no leader").WithShard(7).WithHint("ebb status")
	}}
	_, err := ebbv1grpc.NewEbbClient(serve(t, f.services())).Ask(t.Context(), topQuestion("k", 10))
	err = ebbv1grpc.FromStatus(err)
	if !errors.Is(err, proto.ErrNoLeader) {
		t.Fatalf("got %v", err)
	}
	if e := proto.AsError(err); e.Shard != 7 || e.Hint != "ebb status" {
		t.Errorf("lost on the way: %+v", e)
	}
}

func TestPanicEndsItsRequestOnly(t *testing.T) {
	f := &fake{ask: func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error) { panic("boom") }}
	c := ebbv1grpc.NewEbbClient(serve(t, f.services()))
	_, err := c.Ask(t.Context(), topQuestion("k", 10))
	if err := ebbv1grpc.FromStatus(err); !errors.Is(err, proto.ErrInternal) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Status(t.Context(), &ebbv1.StatusRequest{}); err != nil {
		t.Fatalf("the server did not survive: %v", err)
	}
}

// A request without a deadline gets one. Of a question the coordinator sees to that, for itself.
func TestDefaultDeadline(t *testing.T) {
	var left time.Duration
	f := &fake{increment: func(ctx context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
		d, _ := ctx.Deadline()
		left = time.Until(d)
		return &ebbv1.IncrementResponse{Applied: 1}, nil
	}}
	c := ebbv1grpc.NewEbbClient(serve(t, f.services()))
	req := &ebbv1.IncrementRequest{Increments: increment("k", "b", 1, 0)}
	if _, err := c.Increment(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if left <= 0 || left > DefaultTimeout {
		t.Errorf("the handler had %v left", left)
	}
}

// A message that never becomes whole ends with its stream, also when the caller
// has time: else its bytes would be held for as long as the connection lives.
func TestIncompleteMessagesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 24
		raw := rawHTTP2(t, (&fake{}).services())
		start := time.Now()
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				body, send := io.Pipe()
				defer send.Close()
				go func() {
					announced := binary.BigEndian.AppendUint32([]byte{0}, recvBytesMax)
					_, _ = send.Write(append(announced, make([]byte, 256<<10)...)) // the server may be quicker
				}()
				path := []string{"/ebb.v1.Ebb/Ask", "/ebb.v1.Shards/Apply", "/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}[i%4]
				resp, err := raw.Do(grpcRequest(t, path, body))
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return
				}
				defer resp.Body.Close()
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				status := cmp.Or(resp.Trailer.Get("Grpc-Status"), resp.Header.Get("Grpc-Status"))
				said := cmp.Or(resp.Trailer.Get("Grpc-Message"), resp.Header.Get("Grpc-Message"))
				late := status == "4" && strings.Contains(said, "was not whole")
				if took := time.Since(start); !late || took > receiveTimeout {
					t.Errorf("%s: status %q, %q after %v: want DEADLINE_EXCEEDED after %v",
						path, status, said, took, receiveTimeout)
				}
			})
		}
		wg.Wait()
	})
}

// rawHTTP2 is a client without gRPC's manners.
func rawHTTP2(t *testing.T, s Services) *http.Client {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	srv := NewGRPC(s)
	go func() { _ = srv.Serve(l) }()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{
		Protocols:   &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) },
	}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Stop()
	})
	return &http.Client{Transport: tr}
}

func grpcRequest(t *testing.T, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://ebb-0"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("Grpc-Timeout", "1H")
	return req
}

// Only what arrives is hurried: an answer may take as long as its caller waits, and a
// stream of many lasts.
func TestWholeMessagesHaveTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{ask: func(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
			time.Sleep(2 * receiveTimeout)
			return (&fake{}).Ask(ctx, req)
		}}
		services := f.services()
		var stopping atomic.Bool
		services.Ready = func() error {
			if stopping.Load() {
				return proto.ErrStarting
			}
			return nil
		}
		conn := serve(t, services)
		watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*receiveTimeout)
		defer cancel()
		if _, err := ebbv1grpc.NewEbbClient(conn).Ask(ctx, topQuestion("k", 10)); err != nil {
			t.Error(err)
		}
		stopping.Store(true)
		for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING} {
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Errorf("health is %v, %v: want %v", got, err, want)
			}
		}
	})
}

func TestHealthFollowsReadiness(t *testing.T) {
	ready := error(nil)
	s := (&fake{}).services()
	s.Ready = func() error { return ready }
	h := grpc_health_v1.NewHealthClient(serve(t, s))
	for _, service := range []string{"", "ebb.v1.Ebb", "ebb.v1.Shards"} {
		resp, err := h.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, resp, err)
		}
	}
	if _, err := h.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "nobody"}); err == nil {
		t.Error("an unknown service is healthy")
	}
	ready = errors.New("shard 3 has no leader")
	resp, err := h.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("not ready: %v, %v", resp, err)
	}
}

// A command that is refused does not take the others of its request with it.
func TestApplyRefusesCommandByCommand(t *testing.T) {
	good := command(t, "k", "b")
	f := &fake{apply: func(_ context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
		resp := &ebbv1.ApplyResponse{}
		for _, c := range req.GetCommands() {
			resp.Results = append(resp.Results, &ebbv1.CommandResult{Applied: uint64(c.GetShard())})
		}
		return resp, nil
	}}
	p := NewPeer("ebb-0", serve(t, f.services()))
	resp, err := p.Apply(t.Context(), &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{
		{Shard: 1, Command: good},
		{Shard: 2, Command: command(t, "", "b")},
		{Shard: 0, Command: good},
		{Shard: 4, Command: good},
	}})
	if err != nil {
		t.Fatal(err)
	}
	codes := []ebbv1.Code{0, ebbv1.Code_CODE_BAD_KEY, ebbv1.Code_CODE_WRONG_SHARD, 0}
	applied := []uint64{1, 0, 0, 4}
	for i, r := range resp.GetResults() {
		if r.GetError().GetCode() != codes[i] || r.GetApplied() != applied[i] {
			t.Errorf("command %d: %v", i, r)
		}
	}
}

func command(t testing.TB, key, bin string) []byte {
	t.Helper()
	return marshal(t, &ebbv1.Command{
		Namespace: "default",
		Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
			Increments: []*ebbv1.Increment{{Key: []byte(key), Bin: []byte(bin)}},
		}},
	})
}

func topQuestion(key string, n uint32) *ebbv1.AskRequest {
	return &ebbv1.AskRequest{Questions: []*ebbv1.Question{{Ask: &ebbv1.Question_Distribution{
		Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: n}},
	}}}}
}
