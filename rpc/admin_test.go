package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

func TestAdmin(t *testing.T) {
	ready, started := errors.New("shard 3 has no leader"), errors.New("restoring: 3 of 65 groups")
	s := fixture().services()
	s.Ready = func() error { return ready }
	s.Started = func() error { return started }
	h := NewAdmin(s)
	visit := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	probes := func(when string, want map[string]string) {
		for path, body := range want {
			code := 200
			if strings.HasPrefix(body, "not ") {
				code = 503
			}
			if gotCode, got := visit(path); gotCode != code || got != body+"\n" {
				t.Errorf("%s %s: %d %q, want %d %q", path, when, gotCode, got, code, body)
			}
		}
	}
	probes("at first", map[string]string{
		"/livez": "alive", "/startupz": "not started: restoring: 3 of 65 groups", "/readyz": "not ready: shard 3 has no leader",
	})
	started = nil
	probes("when it has started", map[string]string{"/livez": "alive", "/startupz": "started", "/readyz": "not ready: shard 3 has no leader"})
	ready = nil
	probes("when it serves", map[string]string{"/livez": "alive", "/startupz": "started", "/readyz": "ready"})
	_, body := visit("/version")
	var v struct{ Version, Go, Node string }
	if err := json.Unmarshal([]byte(body), &v); err != nil || v.Version != "test" || v.Go == "" || v.Node != "ebb-0" {
		t.Errorf("version: %s", body)
	}
	if code, body := visit("/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("pprof: %d", code)
	}
}

// One registry serves all the doors of a node.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := fixture().services()
	s.Registerer, s.Gatherer = registry, registry
	c := ebbv1grpc.NewEbbClient(serve(t, s))
	h := NewHTTP(s)
	for _, n := range []uint32{1, 2, 0} {
		_, _ = c.Ask(t.Context(), topQuestion("colors", n))
	}
	for _, target := range []string{"/v1/status", "/v1/ns/nowhere/keys", "/dist?distribution=colors", "/dist"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, target, nil))
	}
	s.Router = &fake{increment: func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
		return &ebbv1.IncrementResponse{Refused: []*ebbv1.Refusal{{Error: proto.ErrNegativeAmount.Wire()}}}, nil
	}}
	h = NewHTTP(s)
	h.ServeHTTP(httptest.NewRecorder(), jsonRequest(http.MethodPost, "/v1/increment", strings.NewReader(`{"increments":[{"key":"k","bin":"b"}]}`)))
	w := httptest.NewRecorder()
	NewAdmin(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`ebb_rpc_requests_total{code="ok",door="grpc",method="/ebb.v1.Ebb/Ask"} 2`,
		`ebb_rpc_requests_total{code="EBB-2007",door="grpc",method="/ebb.v1.Ebb/Ask"} 1`,
		`ebb_rpc_seconds_count{door="grpc",method="/ebb.v1.Ebb/Ask"} 3`,
		`ebb_rpc_requests_total{code="ok",door="http",method="GET /v1/status"} 1`,
		`ebb_rpc_requests_total{code="EBB-2013",door="http",method="GET /v1/ns/{ns}/keys"} 1`,
		`ebb_rpc_requests_total{code="EBB-2017",door="http",method="POST /v1/increment"} 1`,
		`ebb_rpc_requests_total{code="ok",door="forgettable",method="/dist"} 1`,
		`ebb_rpc_requests_total{code="EBB-2002",door="forgettable",method="/dist"} 1`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if t.Failed() {
		t.Log(w.Body.String())
	}
}
