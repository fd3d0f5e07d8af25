package node

import (
	"testing"

	"github.com/hashicorp/raft"
)

// A configuration that differs from the one before by two servers is counted; one that follows upon a snapshot may
// differ by any number.
func TestMembershipLeaps(t *testing.T) {
	voters := func(ids ...raft.ServerID) (c raft.Configuration) {
		for _, id := range ids {
			c.Servers = append(c.Servers, raft.Server{ID: id, Address: raft.ServerAddress("a/" + id)})
		}
		return c
	}
	waits := voters("1", "2", "3", "4")
	waits.Servers[3].Suffrage = raft.Nonvoter
	for _, c := range []struct {
		name          string
		before, after raft.Configuration
		restored      bool
		leaps         uint64
	}{
		{name: "the same", before: voters("1", "2", "3"), after: voters("3", "2", "1")},
		{name: "one more", before: voters("1", "2", "3"), after: waits},
		{name: "a vote", before: waits, after: voters("1", "2", "3", "4")},
		{name: "one less", before: voters("1", "2", "3", "4"), after: voters("1", "2", "4")},
		{name: "one for another", before: voters("1", "2", "3"), after: voters("1", "2", "4"), leaps: 1},
		{name: "two more", before: voters("1"), after: voters("1", "2", "3"), leaps: 1},
		{name: "one more and a vote", before: waits, after: voters("1", "2", "3", "4", "5"), leaps: 1},
		{name: "after a snapshot", before: voters("1", "2", "3"), after: voters("1", "4", "5"), restored: true},
	} {
		var m configured
		m.note([]*raft.Log{{Index: 7, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c.before)}})
		if c.restored {
			m.restored()
		}
		m.note([]*raft.Log{
			{Index: 8, Type: raft.LogCommand},
			{Index: 9, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c.after)},
		})
		m.note([]*raft.Log{{Index: 7, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c.before)}}) // again
		if got := m.leaps.Load(); got != c.leaps || m.at.Load() != 9 {
			t.Errorf("%s: %d leaps, configured at %d", c.name, got, m.at.Load())
		}
	}
}
