package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template/parse"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// PrometheusRule is of the Prometheus operator, as far as we use it.
type PrometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ServiceMonitor is of the Prometheus operator, as far as we use it.
type ServiceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Selector  *metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			ScrapeTimeout string `json:"scrapeTimeout"`
			Scheme        string `json:"scheme,omitempty"`
			TLSConfig     *struct {
				InsecureSkipVerify bool `json:"insecureSkipVerify"`
			} `json:"tlsConfig,omitempty"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (r *PrometheusRule) DeepCopyObject() runtime.Object {
	out := *r
	out.ObjectMeta = *r.ObjectMeta.DeepCopy()
	return &out // nothing changes its rules
}

// DeepCopyObject implements runtime.Object.
func (m *ServiceMonitor) DeepCopyObject() runtime.Object {
	out := *m
	out.ObjectMeta = *m.ObjectMeta.DeepCopy()
	return &out
}

func addMonitoring(s *runtime.Scheme) error {
	s.AddKnownTypes(schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}, &PrometheusRule{}, &ServiceMonitor{})
	return nil
}

func newReader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

func alerts(t *testing.T) []rule {
	t.Helper()
	raw, err := os.ReadFile("monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r PrometheusRule
	if err := yaml.UnmarshalStrict(raw, &r); err != nil {
		t.Fatal(err)
	}
	var out []rule
	for _, g := range r.Spec.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

// dashboard returns the expressions of the dashboard, by title of their panel.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.Type != "row" && len(p.Targets) == 0 || out[p.Title] != nil {
			t.Errorf("panel %d %q: its id or title is taken, it is too wide or shows nothing", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			out[p.Title] = append(out[p.Title], target.Expr)
		}
	}
	return out
}

// selectors parses an expression and returns what it selects.
func selectors(t *testing.T, where, expr string) []*parser.VectorSelector {
	t.Helper()
	expr = strings.NewReplacer("$__rate_interval", "1m", "$job", "ebb").Replace(expr)
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %q: %v", where, expr, err)
		return nil
	}
	var out []*parser.VectorSelector
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			out = append(out, s)
		}
		return nil
	})
	if len(out) == 0 {
		t.Errorf("%s: %q selects nothing", where, expr)
	}
	return out
}

// Every metric and label that an alert or a panel asks for is in testdata/metrics.json,
// and a test of cmd/ebb finds all of those at nodes that run.
func TestMetricsAreCommitted(t *testing.T) {
	prometheus := []string{"job", "pod", "instance", "namespace", "le"} // labels that a scrape adds, and those of buckets
	used := map[string][]string{}
	note := func(where, expr string) {
		for _, s := range selectors(t, where, expr) {
			if s.Name == "up" {
				continue // Prometheus' own
			}
			labels := used[s.Name]
			for _, m := range s.LabelMatchers {
				if m.Name != model.MetricNameLabel && !slices.Contains(prometheus, m.Name) {
					labels = append(labels, m.Name)
				}
			}
			slices.Sort(labels)
			used[s.Name] = slices.Compact(labels)
		}
	}
	for _, a := range alerts(t) {
		note(a.Alert, a.Expr)
	}
	for title, exprs := range dashboard(t) {
		for _, expr := range exprs {
			note(title, expr)
		}
	}
	committed(t, "testdata/metrics.json", used)
}

// A metric that is not there is found out.
func TestMissingMetricIsFound(t *testing.T) {
	found := selectors(t, "here", `rate(ebb_node_nonsense_total{job="x"}[5m]) / on (pod) up`)
	names := []string{found[0].Name, found[1].Name}
	slices.Sort(names)
	if !slices.Equal(names, []string{"ebb_node_nonsense_total", "up"}) {
		t.Errorf("%v", names)
	}
}

var (
	durations = regexp.MustCompile(`^[0-9]+[smh]$`)
	runbooks  = "https://github.com/ebbdb/ebb/blob/main/docs/runbooks/"
	sections  = []string{"## What you see", "## What it means", "## Look", "## Mend"}
)

// Each alert has a severity, a summary that is a template, and a page that says what to do.
func TestAlertsHaveRunbooks(t *testing.T) {
	used, names := map[string]bool{}, map[string]bool{}
	for _, a := range alerts(t) {
		if names[a.Alert] || !durations.MatchString(a.For) || a.Labels["severity"] != "critical" && a.Labels["severity"] != "warning" {
			t.Errorf("%s: its name is taken, or its time or severity is none: %q %v", a.Alert, a.For, a.Labels)
		}
		names[a.Alert] = true
		trees := map[string]*parse.Tree{}
		tree := parse.New(a.Alert)
		tree.Mode = parse.SkipFuncCheck
		if _, err := tree.Parse(`{{$labels := .}}{{$value := .}}`+a.Annotations["summary"], "", "", trees); err != nil || a.Annotations["summary"] == "" {
			t.Errorf("%s: summary: %v", a.Alert, err)
		}
		page, ok := strings.CutPrefix(a.Annotations["runbook_url"], runbooks)
		if !ok {
			t.Errorf("%s: its page is at %q", a.Alert, a.Annotations["runbook_url"])
			continue
		}
		used[page] = true
		text, err := os.ReadFile(filepath.Join("../docs/runbooks", page))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, s := range append([]string{a.Alert}, sections...) {
			if !bytes.Contains(text, []byte(s)) {
				t.Errorf("%s does not have %q", page, s)
			}
		}
	}
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if !used[filepath.Base(p)] {
			t.Errorf("%s is no alert's page", p)
		}
	}
}
