package deploy

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

var update = flag.Bool("update", false, "write testdata anew")

// testdata/pod.json is what chaos/proc's stand-in for a StatefulSet goes by: the
// processes of its tests are started, probed and stopped as the manifest says.
func TestPodIsCommitted(t *testing.T) {
	set := statefulSet(t, kustomize(t, "kustomize/overlays/production"), "ebb")
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	type variable struct{ Name, Value string }
	type probe struct {
		Path                       string
		Period, Timeout, Threshold int32
	}
	of := func(p *corev1.Probe) probe {
		return probe{p.HTTPGet.Path, p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold}
	}
	said := struct {
		Name, Service        string
		Replicas             int32
		Env                  []variable
		Startup, Live, Ready probe
		PreStop, Grace       int64
	}{
		Name: set.Name, Service: set.Spec.ServiceName, Replicas: *set.Spec.Replicas,
		Startup: of(c.StartupProbe), Live: of(c.LivenessProbe), Ready: of(c.ReadinessProbe),
		PreStop: c.Lifecycle.PreStop.Sleep.Seconds, Grace: *pod.TerminationGracePeriodSeconds,
	}
	for _, e := range c.Env {
		said.Env = append(said.Env, variable{e.Name, e.Value})
	}
	committed(t, "testdata/pod.json", said)
}

// committed holds a file to what it is made from.
func committed(t *testing.T, path string, v any) {
	t.Helper()
	want, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("go test ./... -run Committed -update\n%s", diff)
	}
}
