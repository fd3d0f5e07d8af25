package node

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What comes to a control group that has begun to stop is refused: else it
// would be added to what stop waits for while stop waits.
func TestStoppingControlTakesNothing(t *testing.T) {
	convene(t, 1, func(p *parliament) {
		leader := p.members[p.leader()]
		c := newControl(leader.seat, nil, proto.StorageVersion, slog.New(slog.DiscardHandler), func() {})
		c.stop()
		c.now.Store(leader.now.Load()) // one that leads to the last
		if _, leads := c.leading(); !leads {
			t.Fatal("it does not lead")
		}
		last := leader.now.Load().raft.LastIndex()
		_, err := c.propose(t.Context(), &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_InitCluster{InitCluster: &ebbv1.InitCluster{ClusterId: "id"}}})
		if !errors.Is(err, proto.ErrShuttingDown) {
			t.Errorf("a proposal got %v", err)
		}
		c.lead(1)
		if c.goFunc(func() { t.Error("it ran") }) {
			t.Error("a goroutine was started")
		}
		if now := leader.now.Load().raft.LastIndex(); now != last {
			t.Errorf("the log grew from %d to %d", last, now)
		}
	})
}
