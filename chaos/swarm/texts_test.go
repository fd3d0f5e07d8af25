package swarm

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/history"
)

// A history that porcupine can neither explain nor refuse in its time is a failure. Here all writes overlap, and then a
// read returns what was never written: porcupine must try all orders of the writes.
func TestUndecidedHistoryFails(t *testing.T) {
	w := &world{begun: time.Now(), verdict: &Verdict{Checks: map[string]int{}}}
	texts := &texts{w: w, key: "text-0", history: history.New(w.now)}
	var writes []*history.Operation
	for client := range 60 {
		writes = append(writes, texts.history.Write(client, "ebb-0", texts.key))
	}
	for _, op := range writes {
		op.Done("")
	}
	texts.history.Read(99, "ebb-1", texts.key).Done("nobody's")
	texts.judge(time.Millisecond)
	v := w.verdict
	if len(v.Breaches) != 1 || v.Breaches[0].Invariant != "linearizable" || v.Checks["linearizable"] != 1 || v.Tally.Ordered != 0 {
		t.Errorf("%+v, %v, %v", v.Breaches, v.Checks, v.Tally)
	}
}
