package proc

import (
	"testing"

	"github.com/ebbdb/ebb/chaos/swarm"
)

// What an interrupted run has not waited for is no breach; a key that was compared with the ledger is one.
func TestInterruptedIsNotJudged(t *testing.T) {
	over := false
	w := &world{t: &Trial{}, over: func() bool { return over }, verdict: &swarm.Verdict{Checks: map[string]int{}}}
	if w.hold("replicas-equal", false, "shard 1"); len(w.verdict.Breaches) != 1 || w.verdict.Checks["replicas-equal"] != 1 {
		t.Fatalf("before it is interrupted: %+v", w.verdict)
	}
	over = true
	for _, i := range Invariants {
		if w.hold(i.Name, false, "cut short") {
			t.Errorf("%s holds", i.Name)
		}
	}
	if len(w.verdict.Breaches) != 1 || w.verdict.Checks["replicas-equal"] != 1 || w.verdict.Checks["members-as-asked"] != 0 {
		t.Errorf("when it is interrupted: %+v", w.verdict)
	}
	if w.found("acked-kept", false, "a: 1 is counted, 2 was acknowledged"); len(w.verdict.Breaches) != 2 {
		t.Errorf("what is lost is lost: %+v", w.verdict)
	}
}
