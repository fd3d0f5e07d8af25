// Package acked remembers how far the logs of other nodes' replicas reached, by what they told this node.
//
// A replica that acknowledged an entry may come back without it: its data directory was put back from an older copy, or
// its disk lost what it had synced. It cannot know that itself, and would vote by a log that lacks what it promised to
// have. Its peers know:
//
//	leader    hears     AppendEntries answered, snapshot installed   the follower has that much
//	follower  receives  AppendEntries                                the leader has what it sends: it syncs first
//	voter     receives  RequestVote                                  the candidate has the log that it names
//
// A node that starts asks the others for what they remember of its replicas, and compares.
package acked

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Position is the end of a log: the last entry. Of two, the one with the newer term is further, as in elections. An
// index alone does not tell: entries that were never committed are replaced by fewer ones of a newer term.
type Position struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

// Before reports whether p is less far than q.
func (p Position) Before(q Position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// Mark is what a replica has at least.
type Mark struct {
	Position
	Ballot uint64 `json:"ballot"` // the newest term that it took part in; it may have voted there
}

// Join returns what a replica has at least by either of two marks.
func (m Mark) Join(o Mark) Mark {
	if m.Before(o.Position) {
		m.Position = o.Position
	}
	m.Ballot = max(m.Ballot, o.Ballot)
	return m
}

// Replica names a replica of a node. Ids are never used twice in a group.
type Replica struct {
	Group uint32
	ID    uint64
}

// Memory is what a node remembers of the replicas of others.
type Memory struct {
	mu     sync.Mutex // guards groups
	groups map[uint32]*Group
}

// Group is what a node remembers of the replicas of one group. It records each acknowledgement, so it has a lock of its
// own, which only replicas of the group take.
type Group struct {
	mu    sync.Mutex // guards known and dirty
	known []known    // a few
	dirty bool       // known has changed since it was saved
}

type known struct {
	node    string
	replica uint64
	mark    Mark
}

// Group returns what is remembered of a group.
func (m *Memory) Group(id uint32) *Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[id]
	if g == nil {
		g = new(Group)
		if m.groups == nil {
			m.groups = make(map[uint32]*Group)
		}
		m.groups[id] = g
	}
	return g
}

// Saw notes what a replica of another node has at least.
func (g *Group) Saw(node string, replica uint64, mark Mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.known {
		if k := &g.known[i]; k.replica == replica && k.node == node {
			if joined := k.mark.Join(mark); joined != k.mark {
				k.mark, g.dirty = joined, true
			}
			return
		}
	}
	g.known = append(g.known, known{node, replica, mark})
	g.dirty = true
}

// Of returns what is remembered of the replicas of a node.
func (m *Memory) Of(node string) map[Replica]Mark {
	all := make(map[Replica]Mark)
	for id, g := range m.all() {
		g.mu.Lock()
		for _, k := range g.known {
			if k.node == node {
				all[Replica{id, k.replica}] = k.mark
			}
		}
		g.mu.Unlock()
	}
	return all
}

// Wire returns all that is remembered of a node, or of all if that is "".
func (m *Memory) Wire(node string) []*ebbv1.Acknowledged {
	var all []*ebbv1.Acknowledged
	for id, g := range m.all() {
		g.mu.Lock()
		for _, k := range g.known {
			if node == "" || k.node == node {
				all = append(all, &ebbv1.Acknowledged{
					Node: k.node, Shard: id, Replica: k.replica,
					Term: k.mark.Term, Index: k.mark.Index, Ballot: k.mark.Ballot,
				})
			}
		}
		g.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b *ebbv1.Acknowledged) int {
		return cmp.Or(cmp.Compare(a.GetShard(), b.GetShard()), cmp.Compare(a.GetReplica(), b.GetReplica()))
	})
	return all
}

// MarkOf reads a mark.
func MarkOf(a *ebbv1.Acknowledged) Mark {
	return Mark{Position{a.GetTerm(), a.GetIndex()}, a.GetBallot()}
}

func (m *Memory) all() map[uint32]*Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.groups)
}
