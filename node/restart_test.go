package node

import (
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// A replica that moves away while its group is to be restarted in place is no reason to end the node.
func TestRestartOfAReplicaThatMovedAway(t *testing.T) {
	m := newMember(memberConfig{group: 1, node: "a", logger: hclog.NewNullLogger(), machine: new(tally)})
	m.stop()
	w := newGroupWatch(nil, func(err error) { t.Errorf("the node ends: %v", err) }, slog.New(slog.DiscardHandler))
	w.restart(m, "it is stuck")
	w.wg.Wait()
}
