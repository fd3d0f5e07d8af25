package rpc

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Keys of other kinds than distributions, written as JSON, tell the same as JSON, by
// their path and over gRPC.
func TestKindsThroughTheDoors(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}), namespaceOf(&ebbv1.Namespace{Name: "plain", Decay: ebbv1.Decay_DECAY_NONE, WindowUs: new(int64(3600e6))}))
	client, h := ebbv1grpc.NewEbbClient(serve(t, s)), NewHTTP(s)
	for _, ns := range []string{"default", "plain"} {
		visit(t, h, "POST", "/v1/increment", fmt.Sprintf(`{"namespace":%q,"increments":[
			{"key":"visitors/monday","bin":"ann","kind":"distinct"},{"key":"visitors/monday","bin":"bob","kind":"distinct"},
			{"key":"visitors/tuesday","bin":"bob","kind":"distinct"},{"key":"visitors/tuesday","bin":"cid"},
			{"key":"hits","bin":"/a","amount":2.5,"kind":"countmin"},{"key":"hits","bin":"/b"},
			{"key":"latency","kind":"quantile","value":0.25},{"key":"latency","kind":"quantile","value":-4}]}`, ns))
	}
	as := fmt.Sprint(int64(fixtureNowUS) + 60e6)
	for _, c := range []struct {
		q    *ebbv1.SummaryQuestion
		path string // of the same question
		has  string // in the answer of the namespace that does not forget
	}{
		{&ebbv1.SummaryQuestion{Keys: asBytes("visitors/monday")}, "/summary/visitors/monday?as_of=" + as, `"kind":"distinct","total":{"value":2,`},
		{
			&ebbv1.SummaryQuestion{Keys: asBytes("visitors/monday", "visitors/tuesday"), Confidence: 0.9},
			"/summary?key=visitors/monday&key=visitors/tuesday&confidence=0.9&as_of=" + as, `"kind":"distinct","total":{"value":3`,
		},
		{&ebbv1.SummaryQuestion{Keys: asBytes("visitors/tuesday")}, "/summary/visitors/tuesday?as_of=" + as, `"kind":"distinct","total":{"value":2,`},
		{&ebbv1.SummaryQuestion{Keys: asBytes("hits"), Bins: asBytes("/a", "/z")}, "/summary/hits?bin=/a&bin=/z&as_of=" + as, `"total":{"value":3.5,`},
		{&ebbv1.SummaryQuestion{Keys: asBytes("latency"), Quantiles: []float64{0, 0.99}}, "/summary/latency?quantile=0&quantile=0.99&as_of=" + as, `"quantiles":[{"value":-4,`},
		{&ebbv1.SummaryQuestion{Keys: asBytes("nobody")}, "/summary/nobody?as_of=" + as, `"found":false`},
	} {
		for _, ns := range []string{"default", "plain"} {
			c.q.AsOfUs = fixtureNowUS + 60e6
			resp, err := client.Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{{Namespace: ns, Ask: &ebbv1.Question_Summary{Summary: c.q}}}})
			if err != nil {
				t.Fatal(err)
			}
			want := resp.GetAnswers()[0]
			page := visit(t, h, "GET", "/v1/ns/"+ns+c.path, "")
			got := &ebbv1.Answer{}
			if err := parseJSON(new(charge), page, got); err != nil {
				t.Fatal(err)
			}
			if !protobuf.Equal(want, got) || want.GetError() != nil {
				t.Errorf("%s: gRPC: %v\nHTTP: %s", c.path, want, page)
			}
			if ns == "plain" && !strings.Contains(string(page), c.has) {
				t.Errorf("%s: %s is not in\n%s", c.path, c.has, page)
			}
		}
	}
	// a window, written as a duration: what was there an hour ago is not in the last ten minutes
	later := fmt.Sprint(int64(fixtureNowUS) + 1800e6)
	for window, want := range map[string]string{"10m": `"total":{"value":0,`, "45m": `"total":{"value":2,`} {
		path := "/v1/ns/plain/summary/visitors/monday?window=" + window + "&as_of=" + later
		if page := visit(t, h, "GET", path, ""); !strings.Contains(string(page), want) {
			t.Errorf("%s: %s is not in\n%s", path, want, page)
		}
	}
}

// Sets, their overlaps and their graph say the same by path as over gRPC.
func TestSetsThroughTheDoors(t *testing.T) {
	s := newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"}), namespaceOf(&ebbv1.Namespace{Name: "plain", Decay: ebbv1.Decay_DECAY_NONE}))
	client, h := ebbv1grpc.NewEbbClient(serve(t, s)), NewHTTP(s)
	for _, ns := range []string{"default", "plain"} {
		visit(t, h, "POST", "/v1/increment", fmt.Sprintf(`{"namespace":%q,"increments":[
			{"key":"go","bin":"ann","kind":"set"},{"key":"go","bin":"bob","kind":"set"},{"key":"go","bin":"cid","kind":"set"},
			{"key":"rust","bin":"bob","kind":"set"},{"key":"rust","bin":"cid"},{"key":"rust","bin":"dan"},{"key":"php","bin":"eve","kind":"set"}]}`, ns))
	}
	const later = fixtureNowUS + 60e6
	as := fmt.Sprint(int64(later))
	for _, c := range []struct {
		q    *ebbv1.Question
		path string // of the same question
		has  string // in the answer of the namespace that does not forget
	}{
		{
			&ebbv1.Question{Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Keys: asBytes("go", "rust"), AsOfUs: later, Confidence: 0.9}}},
			"/overlap?key=go&key=rust&confidence=0.9&as_of=" + as, `"jaccard":{"value":0.5,"std_error":0,"low":0.5,"high":0.5,"confidence":1}`,
		},
		{
			&ebbv1.Question{Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Keys: asBytes("go", "rust", "php"), Links: 1, MinJaccard: 0.25, AsOfUs: later}}},
			"/graph?key=go&key=rust&key=php&links=1&min_jaccard=0.25&as_of=" + as, `"links":[{"to":1,"jaccard":{"value":0.5,`,
		},
		{
			&ebbv1.Question{Ask: &ebbv1.Question_Graph{Graph: &ebbv1.GraphQuestion{Patterns: asBytes("*s*", "go"), AsOfUs: later}}},
			"/graph?pattern=*s*&pattern=go&as_of=" + as, `"links":[{"to":1,"jaccard":{"value":0.5,`,
		},
		{
			&ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: asBytes("go", "rust", "php"), Members: true, Limit: 10, AsOfUs: later}}},
			"/summary?key=go&key=rust&key=php&members=true&limit=10&as_of=" + as, `"members":["ann","bob","cid","dan","eve"]`,
		},
	} {
		for _, ns := range []string{"default", "plain"} {
			c.q.Namespace = ns
			resp, err := client.Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{c.q}})
			if err != nil {
				t.Fatal(err)
			}
			want, got := resp.GetAnswers()[0], &ebbv1.Answer{}
			page := visit(t, h, "GET", "/v1/ns/"+ns+c.path, "")
			if err := parseJSON(new(charge), page, got); err != nil || !protobuf.Equal(want, got) || want.GetError() != nil {
				t.Errorf("%s: gRPC: %v\nHTTP: %s, %v", c.path, want, page, err)
			}
			if ns == "plain" && !strings.Contains(string(page), c.has) {
				t.Errorf("%s: %s is not in\n%s", c.path, c.has, page)
			}
		}
	}
}

func asBytes(words ...string) (out [][]byte) {
	for _, w := range words {
		out = append(out, []byte(w))
	}
	return out
}

// What does not go with a kind is refused at the door, with the reason.
func TestKindsRefusedAtTheDoor(t *testing.T) {
	h := NewHTTP(newOneNode(t, namespaceOf(&ebbv1.Namespace{Name: "default"})))
	visit(t, h, "POST", "/v1/increment", `{"increments":[{"key":"v","bin":"ann","kind":"distinct"},{"key":"c","bin":"US"}]}`)
	for _, c := range []struct {
		method, target, body string
		status               int
		says                 string
	}{
		{"POST", "/v1/increment", `{"increments":[{"key":"v","bin":"x","kind":"countmin"}]}`, 409, `"EBB-2015"`},
		{"POST", "/v1/increment", `{"increments":[{"key":"v","bin":"x","kind":"distinkt"}]}`, 400, "distinct"},
		{"POST", "/v1/increment", `{"increments":[{"key":"l","kind":"quantile"}]}`, 400, "a quantile wants what was measured"},
		{"POST", "/v1/increment", `{"increments":[{"key":"l","kind":"distinct"}]}`, 400, "empty bin"},
		{"GET", "/v1/ns/default/summary/c", "", 409, "EBB-2015"},
		{"GET", "/v1/ns/default/distribution/v", "", 409, "EBB-2015"},
		{"GET", "/v1/ns/default/summary/v?quantile=0.5", "", 409, "knows no quantiles"},
		{"GET", "/v1/ns/default/summary/v?quantile=half", "", 400, "not a number"},
		{"GET", "/v1/ns/default/summary/v?quantile=2", "", 400, "from 0 to 1"},
		{"GET", "/v1/ns/default/summary/v?top=3", "", 400, "unknown parameter"},
		{"GET", "/dist?distribution=v", "", 500, "COULD_NOT_RETRIEVE_DISTRIBUTION"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, jsonRequest(c.method, c.target, strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s %s %s:\n%d %s, want %d with %q", c.method, c.target, c.body, w.Code, w.Body, c.status, c.says)
		}
	}
}
