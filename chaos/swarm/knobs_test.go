package swarm

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/shard"
)

// TestLimitsAreHeld has nodes use the limits of production where the plan says smaller ones: the clients that come to a
// limit must notice.
func TestLimitsAreHeld(t *testing.T) {
	for _, c := range []struct{ knob, with, workload, breaks string }{
		{knobSessions, knobSessionExpiry, retries, "room-kept"},
		{knobKeys, knobKeyWindow, repeats, "room-kept"},
		{knobHalfLives, "", halfLives, "changes-counted"},
	} {
		t.Run(c.knob, func(t *testing.T) {
			plan := Plan{
				Seed: 1, Nodes: 3, Shards: 5, Knobs: map[string]int64{c.knob: knobNamed(c.knob).Values[0]},
				Faults: []Fault{{Number: 1, Family: "snapshots", Hold: 40 * time.Second, Dose: Dose{Shard: 1}}},
			}
			if c.with != "" {
				plan.Knobs[c.with] = knobNamed(c.with).Values[0]
			}
			v := Run(inBubble(t), plan, Options{Workloads: []string{c.workload}, Configure: func(_ int, cfg *node.Config) {
				cfg.ShardLimits.Sessions = shard.DefaultLimits().Sessions
				cfg.ShardLimits.IdempotencyKeys = shard.DefaultLimits().IdempotencyKeys
				cfg.ControlLimits = cluster.DefaultControlLimits()
			}})
			if len(v.Breaches) == 0 || v.Breaches[0].Invariant != c.breaks {
				t.Errorf("nodes without the limit break %v, want %s", v.Breaches, c.breaks)
			}
		})
	}
}

// TestKnobsNeedOthers: what would never become free again in a run is only short of room where it becomes free soon.
func TestKnobsNeedOthers(t *testing.T) {
	for seed := range uint64(400) {
		p := Draw(seed)
		for i := range Knobs {
			if k := &Knobs[i]; k.with != "" && p.turned(k.Name) && p.knob(k.with) != knobNamed(k.with).Values[0] {
				t.Errorf("seed %d has %s %d with %s %d", seed, k.Name, p.knob(k.Name), k.with, p.knob(k.with))
			}
		}
	}
}
