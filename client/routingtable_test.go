package client

import (
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A leader that was lost does not count as the leader only because others have not noticed. It does at once if it is
// elected again.
func TestLostLeader(t *testing.T) {
	now := time.Unix(1000, 0)
	tells := func(leader string, term uint64) *ebbv1.Table {
		return &ebbv1.Table{Shards: 1, Placement: []*ebbv1.ShardRecord{{
			Shard: 1, Preferred: "a", Leader: leader, Term: term, Replicas: []*ebbv1.ReplicaRecord{{Node: "a"}, {Node: "b"}, {Node: "c"}},
		}}}
	}
	for _, c := range []struct {
		name    string
		heard   bool // that a leads, of a node that did not say in which term
		tables  []*ebbv1.Table
		after   time.Duration
		leading string
	}{
		{name: "others have not noticed", tables: []*ebbv1.Table{tells("a", 5)}},
		{name: "nor have those who know no term", tables: []*ebbv1.Table{tells("a", 0)}},
		{name: "an older leader is better than none", tables: []*ebbv1.Table{tells("b", 4)}, leading: "b"},
		{name: "elected again", tables: []*ebbv1.Table{tells("a", 6)}, leading: "a"},
		{name: "another is elected", tables: []*ebbv1.Table{tells("b", 6)}, leading: "b"},
		{name: "another is elected, and one has not noticed", tables: []*ebbv1.Table{tells("b", 6), tells("a", 5)}, leading: "b"},
		{name: "an older leader, and one who is elected", tables: []*ebbv1.Table{tells("b", 4), tells("c", 6), tells("b", 5)}, leading: "c"},
		{name: "it is believed again", tables: []*ebbv1.Table{tells("a", 5)}, after: lostFor, leading: "a"},
		{name: "lost in a term that was not known", heard: true, tables: []*ebbv1.Table{tells("a", 6)}},
		{name: "lost in a term that was not known, and elected again", heard: true, tables: []*ebbv1.Table{tells("a", 6), tells("a", 7)}, leading: "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rt routingTable
			if c.heard {
				rt.adopt(tells("b", 5), now)
				rt.learn(1, "b", "a")
			} else {
				rt.adopt(tells("a", 5), now)
			}
			rt.lost(1, "a", now)
			for _, table := range c.tables {
				rt.adopt(table, now.Add(c.after))
			}
			if leader, _, _ := rt.candidates(1, now); leader != c.leading {
				t.Errorf("%q leads, and not %q", leader, c.leading)
			}
		})
	}
}

// A table may name no leader, or one that the client does not believe. Then the client asks for it again, but not all
// the time.
func TestLeaderlessShardsAreAskedAbout(t *testing.T) {
	start := time.Unix(1000, 0)
	var rt routingTable
	table := &ebbv1.Table{Shards: 1, Placement: []*ebbv1.ShardRecord{{Shard: 1, Leader: "a", Term: 5}}}
	rt.adopt(table, start)
	if rt.leaderless(1, start.Add(time.Hour)) {
		t.Error("there is a leader")
	}
	rt.lost(1, "a", start)
	rt.adopt(table, start.Add(lostFor/2))
	for after, want := range map[time.Duration]bool{lostFor / 2: false, lostFor - 1: false, lostFor: true} {
		if got := rt.leaderless(1, start.Add(after)); got != want {
			t.Errorf("%s after: %v", after, got)
		}
	}
	table.Placement[0].Leader = ""
	rt.adopt(table, start.Add(lostFor))
	for after, want := range map[time.Duration]bool{lostFor: false, 2 * lostFor: false, 2*lostFor + 1: true} {
		if got := rt.leaderless(1, start.Add(after)); got != want {
			t.Errorf("%s after: %v", after, got)
		}
	}
}
