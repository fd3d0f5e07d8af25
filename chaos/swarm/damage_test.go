package swarm

import (
	"errors"
	iofs "io/fs"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
)

// damagePlan is one fault of a disk, 10 s after the start.
func damagePlan(family string, dose Dose) Plan {
	dose.Shard = 1
	return Plan{Seed: 1, Nodes: 3, Shards: 5, Faults: []Fault{{
		Number: 1, Family: family, Wait: 10 * time.Second, Hold: 2 * time.Second, Dose: dose,
	}}}
}

// TestMisdirectedWriteIsNoticed: a node refuses a log when one of its writes has landed elsewhere. A write may also
// change nothing, so three are tried.
func TestMisdirectedWriteIsNoticed(t *testing.T) {
	judged := 0
	for pick := uint64(1); pick <= 3; pick++ {
		dose := Dose{Way: "log", Pick: pick, Time: 500 * time.Millisecond}
		v := Run(inBubble(t), damagePlan("misdirected-write", dose), Options{Workloads: []string{}})
		if v.Failed() {
			t.Errorf("pick %d: %v", pick, v.Breaches)
		}
		judged += v.Checks["damage-seen"]
	}
	if judged == 0 {
		t.Error("no node refused its log")
	}
}

// TestZeroedLogIsNoticed: a node refuses a log whose end was zeroed.
func TestZeroedLogIsNoticed(t *testing.T) {
	v := Run(inBubble(t), damagePlan("zeroed-log", Dose{Part: 0.05}), Options{Workloads: []string{}})
	if v.Failed() || v.Checks["damage-seen"] == 0 {
		t.Errorf("damage was judged %d times: %v", v.Checks["damage-seen"], v.Breaches)
	}
}

// TestZeroedLogThatIsNotNoticed: a node that does not remember where its log ended starts with a zeroed one, which the
// swarm holds against it.
func TestZeroedLogThatIsNotNoticed(t *testing.T) {
	forget := func(_ int, cfg *node.Config) {
		if err := cfg.FS.Remove("/data/log.end"); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			t.Error(err)
		}
	}
	v := Run(inBubble(t), damagePlan("zeroed-log", Dose{Part: 0.05}), Options{Workloads: []string{}, Configure: forget})
	for _, b := range v.Breaches {
		if b.Invariant == "damage-seen" {
			return
		}
	}
	t.Errorf("nodes that do not remember the ends of their logs break %v", v.Breaches)
}
