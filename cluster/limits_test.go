package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TestSmallControlLimits: the control group accepts as many changes of a half-life as its limits say, and remembers as
// many changes of clients.
func TestSmallControlLimits(t *testing.T) {
	s := keyedCluster(t)
	s.c.SetLimits(ControlLimits{HalfLifeChanges: 2, ClientChanges: 3})
	for i := range uint64(5) {
		result := s.apply(withKey(setCommand(false, &ebbv1.Namespace{Name: "default", HalfLifeUs: int64(i+2) * 1e6}), i))
		if refused := result.GetError() != nil; refused != (i >= 2) {
			t.Errorf("change %d of the half-life: %v", i, result.GetError())
		}
	}
	if n := len(s.c.clients); n != 3 {
		t.Errorf("%d changes are remembered, want 3", n)
	}
}

// TestSmallLimits: a node remembers as many strings as its limits say.
func TestSmallLimits(t *testing.T) {
	c := NewCoordinator(CoordinatorConfig{
		Node: "a", Table: NewControl().Table, Leaders: NewLeaders(1), Local: replica{new(fakeCluster), "a"}, Peers: new(fakeCluster),
		Limits: Limits{RecentNames: 2},
	})
	if want := (Limits{RecentNames: 2, PageIDs: 200_000, PositionIDs: 1024}); c.cfg.Limits != want {
		t.Errorf("limits are %+v, want %+v", c.cfg.Limits, want)
	}
	for id := range uint64(10) {
		c.dictionaries.learn(dictionary{"people", 1}, []byte{byte(id)}, id)
	}
	if n := len(c.dictionaries.ids.young) + len(c.dictionaries.ids.old); n > 4 {
		t.Errorf("%d strings are remembered, want 4 at most", n)
	}
}
