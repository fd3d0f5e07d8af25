package node_test

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// caller is a trace that was begun outside.
const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// traced opens three nodes whose spans all go to one place, and waits until each
// leads its share of six shards, so that a request about all of them has a part for each.
func traced(t *testing.T) (*world, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	w := newWorldWith(t, 3, 6, func(c *node.Config) {
		c.Traces = sdktrace.NewTracerProvider(
			sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())),
			sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.instance.id", c.Name))),
		)
	})
	for c, start := w.ebb(0), time.Now(); !spread(t, c); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 2*time.Minute {
			t.Fatal("shards are not led where the table prefers")
		}
	}
	return w, spans
}

// spread reports whether a node knows every shard to be led where the table prefers. The control group stays with
// whoever was elected.
func spread(t *testing.T, c ebbv1grpc.EbbClient) bool {
	t.Helper()
	resp, err := c.Table(t.Context(), &ebbv1.TableRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range resp.GetTable().GetPlacement() {
		if s.GetShard() != cluster.ControlShard && s.GetLeader() != s.GetPreferred() {
			return false
		}
	}
	return true
}

// ofCaller returns the spans of the caller's trace, by name, as the nodes that made them.
func ofCaller(t *testing.T, spans *tracetest.InMemoryExporter) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	seen := map[trace.SpanID]bool{}
	all := spans.GetSpans()
	for _, s := range all {
		seen[s.SpanContext.SpanID()] = true
	}
	for _, s := range all {
		if got := s.SpanContext.TraceID().String(); got != strings.Split(caller, "-")[1] {
			t.Errorf("span %s is of trace %s: only callers begin traces here", s.Name, got)
		}
		if s.Parent.SpanID().String() != strings.Split(caller, "-")[2] && !seen[s.Parent.SpanID()] {
			t.Errorf("span %s hangs below none", s.Name)
		}
		made, _ := s.Resource.Set().Value("service.instance.id")
		out[s.Name] = append(out[s.Name], made.AsString())
	}
	for _, nodes := range out {
		slices.Sort(nodes)
	}
	return out
}

// A question over all shards is one trace: the caller's, with a plan, a call to each
// node, and on each node a barrier and the reading of its shards. So is a write over
// HTTP, down to the wait for the logs of its shards. Nothing else is traced.
func TestTraces(t *testing.T) {
	w, spans := traced(t)
	var keys, increments []string
	for i := range 40 {
		keys = append(keys, "links/"+strconv.Itoa(i))
		increments = append(increments, `{"key":"links/`+strconv.Itoa(i)+`","bin":"US"}`)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", caller)
	if _, err := w.ebb(0).Ask(ctx, question(keys...)); err != nil {
		t.Fatal(err)
	}
	body := strings.NewReader(`{"increments":[` + strings.Join(increments, ",") + `]}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.nodes[0].Addresses().HTTP+"/v1/increment", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("traceparent", caller)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	w.close() // all spans have ended
	w.nodes = nil
	got := ofCaller(t, spans)
	one, three, all := []string{"ebb-0"}, []string{"ebb-0", "ebb-0", "ebb-0"}, []string{"ebb-0", "ebb-1", "ebb-2"}
	called := []string{"ebb-0", "ebb-0", "ebb-1", "ebb-2"} // two calls, and the two nodes that were called
	want := map[string][]string{
		"ebb.v1.Ebb/Ask": one, "plan": one, "ask node": three, "ebb.v1.Shards/Ask": called, "ask shards": all, "read barrier": all, "fold": one,
		"POST /v1/increment": one, "send to node": three, "ebb.v1.Shards/Apply": called, "wait for apply": all,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
