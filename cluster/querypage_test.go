package cluster

import (
	"os"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// twice gives the default namespace two half-lives, of 10 minutes and 6 hours, and a window of an hour.
func (e *fakeCluster) twice() {
	ns := e.table.Namespace("default")
	ns.Version, ns.HalfLifeUs, ns.SlowHalfLifeUs, ns.WindowUs = ns.Version+1, 600e6, new(int64(6*3600e6)), new(int64(3600e6))
	define, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
	if err != nil {
		e.t.Fatal(err)
	}
	for number := range e.states {
		e.enter(number, define)
	}
}

// The examples of docs/query.md are answered.
func TestQueryPage(t *testing.T) {
	page, err := os.ReadFile("../docs/query.md")
	if err != nil {
		t.Fatal(err)
	}
	e := newFakeCluster(t, 4)
	e.twice()
	resp, err := e.router("ebb-0").Increment(t.Context(), &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{
		{Key: []byte("clicks/country"), Bin: []byte("US")},
		{Key: []byte("clicks/a"), Bin: []byte("US")},
		{Key: []byte("clicks/link/A6qOVH"), Bin: []byte("MY")},
		{Key: []byte("link/a"), Bin: []byte("US")},
		{Key: []byte("visits/a"), Bin: []byte("ann"), Kind: ebbv1.Kind_KIND_DISTINCT},
		{Key: []byte("latency/api"), Value: new(0.25), Kind: ebbv1.Kind_KIND_QUANTILE},
		{Key: []byte("hits"), Bin: []byte("/index.html"), Kind: ebbv1.Kind_KIND_COUNTMIN},
		{Key: []byte("seen"), Bin: []byte("x"), Kind: ebbv1.Kind_KIND_BLOOM},
		{Key: []byte("set/a"), Bin: []byte("ann"), Kind: ebbv1.Kind_KIND_SET},
		{Key: []byte("set/b"), Bin: []byte("ann"), Kind: ebbv1.Kind_KIND_SET},
		{Key: []byte("phrases/places"), Bin: []byte("New York"), Kind: ebbv1.Kind_KIND_PHRASES},
		{Key: []byte("config/banner"), Text: []byte("hello"), Kind: ebbv1.Kind_KIND_STRING},
	}})
	if err != nil || len(resp.GetRefused()) > 0 {
		t.Fatalf("%v %v", resp, err)
	}
	// what the page asks for that is not there, or not yet: keys in a namespace that this cluster lacks, and what
	// stores
	excused := []string{"namespace sales does not exist", "does not store"}
	inside, answered := false, 0
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			inside = line == "```ebbq"
			continue
		}
		if !inside || line == "" {
			continue
		}
		got, err := e.query(line)
		if err == nil {
			answered++
			found := got.GetAnswer().GetValue() != nil && got.GetAnswer().GetCoverage() != nil
			for _, known := range []bool{
				got.GetAnswer().GetDistribution() != nil && !got.GetAnswer().GetDistribution().GetFound(),
				got.GetAnswer().GetSummary() != nil && !got.GetAnswer().GetSummary().GetFound(),
				got.GetAnswer().GetSurprise() != nil && !got.GetAnswer().GetSurprise().GetFound(),
				got.GetAnswer().GetTrend() != nil && !got.GetAnswer().GetTrend().GetFound(),
			} {
				found = found && !known
			}
			if !found {
				t.Errorf("%s: nothing is found: %v", line, got.GetAnswer())
			}
			continue
		}
		expected := false
		for _, excuse := range excused {
			expected = expected || strings.Contains(err.Error(), excuse)
		}
		if !expected {
			t.Errorf("%s: %v", line, err)
		}
	}
	if answered < 36 {
		t.Errorf("%d examples are answered", answered)
	}
}
