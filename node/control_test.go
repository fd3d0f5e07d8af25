package node

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What comes to a control group that has begun to stop is refused: else it
// would be added to what stop waits for while stop waits.
func TestStoppingControlTakesNothing(t *testing.T) {
	convene(t, 1, func(p *parliament) {
		leader := p.members[p.leader()]
		c := newControl(leader.memberConfig, nil, nil, slog.New(slog.DiscardHandler), func() {})
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

// A new cluster is born under the newest storage version that its founders know; one that does not answer yet is taken
// to be of this build.
func TestInitialTableVersion(t *testing.T) {
	knows := func(newest uint32) proto.Versions { return proto.Versions{Oldest: 1, Newest: newest} }
	birth, err := cluster.InitialTable([]string{"a", "b", "c"}, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		known map[string]proto.Versions
		want  uint32
	}{
		{"all of one build", map[string]proto.Versions{"a": knows(13), "b": knows(13), "c": knows(13)}, 13},
		{"one is away", map[string]proto.Versions{"a": knows(13), "b": knows(13)}, 13},
		{"one is older", map[string]proto.Versions{"a": knows(13), "b": knows(11), "c": knows(13)}, 11},
		{"one is older, and one away", map[string]proto.Versions{"a": knows(13), "c": knows(9)}, 9},
		{"alone", map[string]proto.Versions{"a": knows(13)}, 13},
	} {
		it := &control{member: &member{memberConfig: memberConfig{node: "a"}}, birth: birth}
		if got := it.initialTable(c.known).Version(); got != c.want {
			t.Errorf("%s: born at version %d, not %d", c.name, got, c.want)
		}
	}
}
