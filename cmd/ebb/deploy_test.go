package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
)

// Every metric, with its labels, that an alert or a panel of deploy/monitoring asks
// for is one that nodes have which served a request.
func TestMonitoredMetricsExist(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	raw, err := os.ReadFile("../../deploy/testdata/metrics.json")
	if err != nil {
		t.Fatal(err)
	}
	var wanted map[string][]string
	if err := json.Unmarshal(raw, &wanted); err != nil || len(wanted) == 0 {
		t.Fatalf("%d metrics, %v", len(wanted), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	files := newTLSFiles(t)
	f := startFleet(t, append(files.serveArgs(), "--shards", "3")...)
	c := files.dial(ctx, f)
	if err := c.Increment(ctx, "default", client.Increment{Key: "clicks", Bin: "US", Amount: 1}); err != nil {
		t.Fatal(err)
	}
	have := map[string][]string{}
	sample := regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `)
	label := regexp.MustCompile(`([a-z_]+)="`)
	for i := range f.Nodes() {
		resp, err := http.Get("http://" + f.Admin(i) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sample.FindAllStringSubmatch(string(page), -1) {
			have[s[1]] = append(have[s[1]], "")
			for _, l := range label.FindAllStringSubmatch(s[2], -1) {
				have[s[1]] = append(have[s[1]], l[1])
			}
		}
	}
	for name, labels := range wanted {
		if len(have[name]) == 0 {
			t.Errorf("no node has %s", name)
		}
		for _, l := range labels {
			if !slices.Contains(have[name], l) {
				t.Errorf("%s has no label %s", name, l)
			}
		}
	}
}
