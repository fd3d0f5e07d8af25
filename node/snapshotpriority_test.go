package node

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// A snapshot has priority if it goes to a voter without which the others are no majority. The first member leads. A
// capital letter is a voter, and one behind a dash does not keep up.
func TestQuorumCritical(t *testing.T) {
	for _, c := range []struct {
		group    string // the first member leads
		one      string
		critical bool
	}{
		{"A B C", "C", false},  // A and B are two of three
		{"A -B C", "C", true},  // A alone is not
		{"A -B -C", "C", true}, // nor is it if C is not heard: it is being sent the snapshot
		{"A B -C D E", "E", false},
		{"A -B -C D E", "E", true},
		{"A B", "B", true},
		{"A B C D", "D", false},
		{"A B -C D", "D", true}, // two of four are no majority
		{"A -B c", "c", false},  // a member without a vote does not help
		{"A b c", "c", false},
		{"A", "Z", false}, // not, or not any more, a member
	} {
		var servers []raft.Server
		lags := make(map[raft.ServerID]bool)
		for _, name := range strings.Fields(c.group) {
			id := raft.ServerID(strings.TrimPrefix(name, "-"))
			lags[id] = strings.HasPrefix(name, "-")
			s := raft.Server{ID: id, Suffrage: raft.Nonvoter}
			if id < "a" {
				s.Suffrage = raft.Voter
			}
			servers = append(servers, s)
		}
		got := noQuorumWithout(servers, servers[0].ID, raft.ServerID(c.one), func(id raft.ServerID) bool { return !lags[id] })
		if got != c.critical {
			t.Errorf("%s of %s: %v, want %v", c.one, c.group, got, c.critical)
		}
	}
}
