package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// oneNode is real shards behind the real router and coordinator; only the logs
// are missing between them.
type oneNode struct {
	mu     sync.Mutex // guards what follows
	states []*shard.State
	nowUS  int64
}

const oneNodeShards = 8

func newOneNode(t testing.TB, namespaces ...*ebbv1.Namespace) Services {
	t.Helper()
	table, err := cluster.InitialTable([]string{"ebb-0"}, oneNodeShards, 1)
	if err != nil {
		t.Fatal(err)
	}
	wire := protobuf.CloneOf(table.Wire())
	wire.ClusterId, wire.Namespaces = "c", namespaces
	if table, err = cluster.NewTable(wire); err != nil {
		t.Fatal(err)
	}
	n := &oneNode{nowUS: fixtureNowUS}
	for i := range oneNodeShards {
		n.states = append(n.states, shard.New(shard.ID(i+1), shard.Heap{}))
		for _, ns := range namespaces {
			n.apply(t, i, &ebbv1.Command{Namespace: ns.GetName(), Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
		}
	}
	return n.services(table)
}

// services are those of a node with these shards and this table.
func (n *oneNode) services(table *cluster.Table) Services {
	leaders := cluster.NewLeaders(oneNodeShards)
	nobody := NewPeers(PeersConfig{})
	tableFunc := func() *cluster.Table { return table }
	s := (&fake{table: table.Wire()}).services()
	s.Router = cluster.NewRouter(cluster.RouterConfig{Node: "ebb-0", Table: tableFunc, Leaders: leaders, Local: n, Peers: nobody})
	s.Coordinator = cluster.NewCoordinator(cluster.CoordinatorConfig{
		Node: "ebb-0", Table: tableFunc, Leaders: leaders, Local: n, Peers: nobody,
		Now: func() time.Time { return time.UnixMicro(n.nowUS) },
	})
	s.Local = n
	if r, ok := s.Router.(*cluster.Router); ok {
		if c, ok := s.Coordinator.(*cluster.Coordinator); ok {
			s.Keys = cluster.NewKeys(r, c)
		}
	}
	return s
}

func (n *oneNode) apply(t testing.TB, i int, c *ebbv1.Command) {
	t.Helper()
	raw := marshal(t, &ebbv1.Entry{StampUs: n.nowUS, Commands: [][]byte{marshal(t, c)}})
	for _, r := range n.states[i].Apply(n.states[i].Applied()+1, raw, nil) {
		if r.GetError() != nil {
			t.Fatal(r.GetError())
		}
	}
}

func (n *oneNode) Apply(_ context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	resp := &ebbv1.ApplyResponse{}
	for _, c := range req.GetCommands() {
		st := n.states[c.GetShard()-1]
		raw, err := protobuf.Marshal(&ebbv1.Entry{StampUs: n.nowUS, Commands: [][]byte{c.GetCommand()}})
		if err != nil {
			return nil, err
		}
		resp.Results = st.Apply(st.Applied()+1, raw, resp.Results)
	}
	return resp, nil
}

func (n *oneNode) Audited(ctx context.Context, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	return local{}.Audited(ctx, req)
}

func (n *oneNode) Repair(ctx context.Context, req *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error) {
	return local{}.Repair(ctx, req)
}

func (n *oneNode) ReadIndex(ctx context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	return local{}.ReadIndex(ctx, req)
}

func (n *oneNode) Ask(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	resp := &ebbv1.ShardAskResponse{}
	for _, q := range req.GetQuestions() {
		resp.Answers = append(resp.Answers, n.states[q.GetShard()-1].Ask(q, sketch.Tick(req.GetNowUs())))
	}
	return resp, nil
}

func namespaceOf(ns *ebbv1.Namespace) *ebbv1.Namespace {
	ns.Version = 1
	return proto.FillNamespace(ns, proto.DefaultNamespaceSettings())
}

// The same distribution asked at the same time through every door gives the
// same numbers, whatever door its events came through.
func TestDoorsAgree(t *testing.T) {
	namespaces := []*ebbv1.Namespace{
		namespaceOf(&ebbv1.Namespace{Name: "default"}),
		namespaceOf(&ebbv1.Namespace{Name: "slow", HalfLifeUs: 30 * 24 * 3600e6}),
		namespaceOf(&ebbv1.Namespace{Name: "linear", Decay: ebbv1.Decay_DECAY_LINEAR}),
		namespaceOf(&ebbv1.Namespace{Name: "plain", Decay: ebbv1.Decay_DECAY_NONE, Floor: ebbv1.Floor_FLOOR_CLAMP}),
		namespaceOf(&ebbv1.Namespace{Name: "prior", Floor: ebbv1.Floor_FLOOR_PRIOR}),
	}
	s := newOneNode(t, namespaces...)
	client, h := ebbv1grpc.NewEbbClient(serve(t, s)), NewHTTP(s)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 600 {
		ns := namespaces[r.IntN(len(namespaces))].GetName()
		writeSomehow(t, r, i, client, h, ns, fmt.Sprintf("k/%d", r.IntN(3)), fmt.Sprintf("bin %d", r.IntN(30)))
	}
	for range 100 {
		ns, key := namespaces[r.IntN(len(namespaces))], fmt.Sprintf("k/%d", r.IntN(4))
		asOf := int64(fixtureNowUS) + r.Int64N(3*3600e6)
		compareDoors(t, client, h, ns, key, asOf, uint32(1+r.IntN(40)))
	}
}

func writeSomehow(t *testing.T, r *rand.Rand, i int, c ebbv1grpc.EbbClient, h http.Handler, ns, key, bin string) {
	t.Helper()
	amount := float64(1 + r.IntN(9))
	switch i % 3 {
	case 0:
		in := increment(key, bin, amount, fixtureNowUS-r.Int64N(3600e6))
		resp, err := c.Increment(t.Context(), &ebbv1.IncrementRequest{Namespace: ns, Increments: in})
		if err != nil || len(resp.GetRefused()) > 0 {
			t.Fatal(resp, err)
		}
	case 1:
		body := fmt.Sprintf(`{"namespace":%q,"increments":[{"key":%q,"bin":%q,"amount":%v}]}`, ns, key, bin, amount)
		visit(t, h, "POST", "/v1/increment", body)
	default:
		args := url.Values{"distribution": {key}, "field": {bin}, "N": {fmt.Sprint(amount)}}
		visit(t, h, "GET", "/ns/"+ns+"/incr?"+args.Encode(), "")
	}
}

func visit(t *testing.T, h http.Handler, method, target, body string) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, jsonRequest(method, target, strings.NewReader(body)))
	if w.Code != 200 {
		t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

func compareDoors(t *testing.T, c ebbv1grpc.EbbClient, h http.Handler, ns *ebbv1.Namespace, key string, asOf int64, n uint32) {
	t.Helper()
	req := topQuestion(key, n)
	req.Questions[0].Namespace = ns.GetName()
	req.Questions[0].GetDistribution().AsOfUs = asOf
	resp, err := c.Ask(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	want := resp.GetAnswers()[0]

	got := &ebbv1.Answer{}
	target := fmt.Sprintf("/v1/ns/%s/distribution/%s?top=%d&as_of=%d", ns.GetName(), key, n, asOf)
	if err := parseJSON(new(charge), visit(t, h, "GET", target, ""), got); err != nil {
		t.Fatal(err)
	}
	if !protobuf.Equal(want, got) {
		t.Fatalf("gRPC: %v\nHTTP: %v", want, got)
	}
	compareForgettable(t, h, ns, want.GetDistribution(), key, asOf, n)
}

// envelope is what a forgettable client reads.
type envelope struct {
	Data struct {
		Distribution string
		Z, T         int64
		Data         []struct {
			Bin   string
			Count int64
			P     float64
		}
		Rate         float64
		Prune        bool
		LastSyncTime int64 `json:"last_sync_time"`
	}
}

func compareForgettable(t *testing.T, h http.Handler, ns *ebbv1.Namespace, want *ebbv1.Distribution, key string, asOf int64, n uint32) {
	t.Helper()
	args := url.Values{"distribution": {key}, "N": {fmt.Sprint(n)}, "as_of": {fmt.Sprint(asOf)}}
	var got envelope
	if err := json.Unmarshal(visit(t, h, "GET", "/ns/"+ns.GetName()+"/nmostprobable?"+args.Encode(), ""), &got); err != nil {
		t.Fatal(err)
	}
	d := got.Data
	if d.Distribution != key || d.Z != int64(math.Round(want.GetZ())) || d.T != want.GetAsOfUs()/1e6 || d.LastSyncTime != want.GetLastEventUs()/1e6 {
		t.Fatalf("%+v\nis not %v", d, want)
	}
	rate := math.Ln2 / (float64(ns.GetHalfLifeUs()) / 1e6)
	if ns.GetDecay() == ebbv1.Decay_DECAY_NONE {
		rate = 0
	}
	if d.Rate != rate || d.Prune != (ns.GetFloor() == ebbv1.Floor_FLOOR_PRUNE) || len(d.Data) != len(want.GetBins()) {
		t.Fatalf("%+v\nis not %v", d, want)
	}
	for i, b := range want.GetBins() {
		if g := d.Data[i]; g.Bin != string(b.GetBin()) || g.Count != int64(math.Round(b.GetCount())) || g.P != b.GetP() {
			t.Fatalf("bin %d: %+v is not %v", i, g, b)
		}
	}
}

// A rate of the caller's own changes the answer and nothing else.
func TestRateOnlyChangesTheAnswer(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}))
	h := NewHTTP(s)
	visit(t, h, "GET", "/incr?distribution=k&field=a&N=1000", "")
	asOf := fmt.Sprint(int64(fixtureNowUS) + 10e6)
	before := visit(t, h, "GET", "/dist?distribution=k&as_of="+asOf, "")
	var faded envelope
	if err := json.Unmarshal(visit(t, h, "GET", "/dist?distribution=k&rate=0.1&as_of="+asOf, ""), &faded); err != nil {
		t.Fatal(err)
	}
	if want := int64(math.Round(1000 * math.Exp(-1))); faded.Data.Z != want {
		t.Errorf("Z = %d after 10 s at a rate of 0.1 per second, not %d", faded.Data.Z, want)
	}
	if after := visit(t, h, "GET", "/dist?distribution=k&as_of="+asOf, ""); string(after) != string(before) {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

// /dbsize counts over all shards.
func TestDBSize(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}))
	h := NewHTTP(s)
	for i := range 40 {
		visit(t, h, "GET", fmt.Sprintf("/incr?distribution=k%d&field=a", i), "")
	}
	if got := string(visit(t, h, "GET", "/dbsize", "")); got != `{"status_code":200,"status_txt":"","data":40}` {
		t.Error(got)
	}
}

// An event at the very beginning of 1970 is as old as that at every door that
// takes times, and not one that happens now, which is what 0 says on the wire.
func TestTheBeginningOf1970(t *testing.T) {
	for _, written := range []string{`0`, `"0"`, `0.0`, `"1970-01-01T00:00:00Z"`} {
		var got int64
		f := &fake{increment: func(_ context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
			got = req.GetIncrements()[0].GetTimeUs()
			return &ebbv1.IncrementResponse{Applied: 1}, nil
		}}
		w := httptest.NewRecorder()
		body := `{"increments":[{"key":"k","bin":"b","time_us":` + written + `}]}`
		NewHTTP(f.services()).ServeHTTP(w, jsonRequest(http.MethodPost, "/v1/increment", strings.NewReader(body)))
		if w.Code != http.StatusOK || got != 1 {
			t.Errorf("%s arrives as %d µs: %d %s", written, got, w.Code, w.Body)
		}
	}
}
