// Package acked records how far the logs of other nodes' replicas reached, by what these replicas sent to this node.
//
// A replica may restart without an entry that it acknowledged: its data directory was restored from an older copy, or
// its disk lost what it had synced. It cannot detect that itself, and would vote with a log that lacks acknowledged
// entries. Its peers can detect it:
//
//	leader    receives   answers to AppendEntries and snapshots      the follower has that much
//	follower  receives   AppendEntries                               the leader has what it sends: it syncs first
//	voter     receives   RequestVote                                 the candidate has the log that it names
//
// A node that starts asks the others for what they recorded about its replicas, and compares.
package acked

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Position is the end of a log: the last entry. Of two positions, the one with the newer term is further, as in
// elections. An index alone is not enough: entries that were never committed may be replaced by fewer ones of a newer
// term.
type Position struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

// Before reports whether q is further than p.
func (p Position) Before(q Position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// Mark is the least that a replica has.
type Mark struct {
	Position
	Ballot uint64 `json:"ballot"` // the newest term in which it took part; it may have voted in it
}

// Join returns the least that a replica has, given two marks.
func (m Mark) Join(o Mark) Mark {
	if m.Before(o.Position) {
		m.Position = o.Position
	}
	m.Ballot = max(m.Ballot, o.Ballot)
	return m
}

// Replica identifies a replica of a node. Ids are never used twice in a group.
type Replica struct {
	Group uint32
	ID    uint64
}

// Memory is what a node has recorded about the replicas of other nodes.
type Memory struct {
	mu     sync.Mutex // guards groups
	groups map[uint32]*Group
}

// Group is what a node has recorded about the replicas of one group. It records each acknowledgement, so it has its own
// lock, which only replicas of the group take.
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

// Group returns the record of a group, and makes it if there is none.
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

// Saw records the least that a replica of another node has.
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

// Of returns what is recorded about the replicas of a node.
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

// Wire returns what is recorded about a node's replicas; about all nodes' if node is "".
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

// MarkOf returns the mark in a message.
func MarkOf(a *ebbv1.Acknowledged) Mark {
	return Mark{Position{a.GetTerm(), a.GetIndex()}, a.GetBallot()}
}

func (m *Memory) all() map[uint32]*Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.groups)
}
