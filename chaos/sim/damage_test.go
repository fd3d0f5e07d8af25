package sim

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
)

// While one in a hundred segments between nodes is damaged, what is acknowledged is counted once, and nothing else is;
// and nodes count the connections which that has ended.
func TestDamageBetweenNodesIsNoticed(t *testing.T) {
	registry := make([]*prometheus.Registry, 3)
	configure := func(i int, c *node.Config) {
		registry[i] = prometheus.NewRegistry()
		c.Registry = registry[i]
	}
	inBubble(t, Options{Configure: configure}, func(t *testing.T, c *Cluster) {
		client := dial(t, c)
		defer client.Close()
		if _, err := client.SetNamespace(t.Context(), ebb.Namespace{Name: "n", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		spoilt := UsualLink
		spoilt.Spoil = 0.01
		c.Net.SetUsual(spoilt)
		damaged := func() (n float64) {
			for _, r := range registry {
				n += total(t, r, "ebb_node_connections_damaged_total")
			}
			return n
		}
		acknowledged, unknown := 0, 0
		for i := 0; i < 200 || damaged() < 3 && i < 20_000; i++ {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err := client.Increment(ctx, "n", ebb.One("k", "b")); err != nil {
				unknown++
			} else {
				acknowledged++
			}
			cancel()
		}
		c.Net.SetUsual(UsualLink)
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		d, err := client.Distribution(t.Context(), "n", "k")
		if err != nil {
			t.Fatal(err)
		}
		if got := int(d.Z); got < acknowledged || got > acknowledged+unknown || acknowledged == 0 {
			t.Errorf("%d were counted; %d were acknowledged, of %d nobody knows", got, acknowledged, unknown)
		}
		t.Logf("%d acknowledged, %d unknown; %v connections were damaged", acknowledged, unknown, damaged())
		if damaged() == 0 {
			t.Error("no damage was noticed")
		}
	})
}

// total is what a counter without labels stands at.
func total(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
