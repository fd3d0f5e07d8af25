package swarm

import (
	"testing"
	"time"
)

// Without faults every duty finds all right, and evaluates what it is there for.
func TestDutiesWithoutFaults(t *testing.T) {
	for _, d := range duties {
		t.Run(d.name, func(t *testing.T) {
			v := Run(inBubble(t), quiet(1), Options{Crew: []string{d.name}})
			if v.Failed() {
				t.Fatal(v.Tell())
			}
			t.Logf("%v %v", v.Tally, v.Checks)
		})
	}
}

// quiet is a plan without faults, which goes on for a while.
func quiet(seed uint64) Plan {
	return Plan{Seed: seed, Nodes: 3, Shards: 5, Acts: []Act{{Number: 1, Family: "snapshots", Wait: 1, Hold: 5 * time.Second, Mend: true, Dose: Dose{Shard: 2}}}}
}
