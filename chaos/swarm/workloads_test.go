package swarm

import (
	"testing"
	"time"
)

// Without faults every workload finds no violation, and evaluates its invariants.
func TestWorkloadsWithoutFaults(t *testing.T) {
	for _, l := range workloads {
		t.Run(l.name, func(t *testing.T) {
			v := Run(inBubble(t), quiet(1), Options{Workloads: []string{l.name}})
			if v.Failed() {
				t.Fatal(v.Tell())
			}
			t.Logf("%v %v", v.Tally, v.Checks)
		})
	}
}

// quiet is a plan without faults, which lasts for a while.
func quiet(seed uint64) Plan {
	return Plan{Seed: seed, Nodes: 3, Shards: 5, Faults: []Fault{{Number: 1, Family: "snapshots", Wait: 1, Hold: 5 * time.Second, Mend: true, Dose: Dose{Shard: 2}}}}
}
