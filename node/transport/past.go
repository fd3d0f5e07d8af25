package transport

import (
	"io"

	"github.com/hashicorp/raft"
)

// Applied returns the last entry of its group's log that a replica has applied. Applied entries are committed, so every
// leader has the same ones. The replica thus already has such entries when a leader sends them, or a snapshot of them,
// even if its log does not hold them any more. Raft misses that in two cases (hashicorp/raft v1.8.0):
//
//	log of the follower      [ snapshot up to 135 ]          it refuses all that follows an entry before 135
//	the leader sends             ... 122 | 123 124 ...       and after 135 itself, if its log begins behind that
//
//	state of the follower    ............ 95                 it goes back to 33, keeps 95 as the commit index, and
//	the leader's snapshot    .... 33                         applies nothing until something else is committed
//
// The first case leads to the second: a leader that is refused sends ever older entries, and then its snapshot.
type Applied interface{ Applied() uint64 }

// Past sets the source of the replica's applied index.
func (g *Group) Past(of Applied) { g.past.Store(&of) }

// applied returns the index of the last entry that the replica has applied; 0 if that is not known.
func (g *Group) applied() uint64 {
	if of := g.past.Load(); of != nil {
		return (*of).Applied()
	}
	return 0
}

// beyond returns the part of a request behind the entries that the replica has applied, if Raft refused the request
// because of the entry before. Otherwise it returns nil. The returned request names no entry before its first, so Raft
// does not check one.
func (g *Group) beyond(command, answer any) *raft.AppendEntriesRequest {
	r, ok := command.(*raft.AppendEntriesRequest)
	if !ok || r.PrevLogEntry == 0 {
		return nil
	}
	a, ok := answer.(*raft.AppendEntriesResponse)
	if !ok || a.Success || !a.NoRetryBackoff || a.Term != r.Term {
		return nil
	}
	has := g.applied()
	if r.PrevLogEntry > has || has > a.LastLog { // in the latter case, Raft knows less than was applied
		return nil
	}
	rest := *r
	rest.PrevLogEntry, rest.PrevLogTerm = 0, 0
	last := has
	for rest.Entries = r.Entries; len(rest.Entries) > 0 && rest.Entries[0].Index <= has; {
		rest.Entries = rest.Entries[1:]
	}
	if n := len(rest.Entries); n > 0 {
		last = rest.Entries[n-1].Index
	}
	// Raft takes all of its log up to the leader's commit index as committed, but entries behind last were not
	// compared.
	rest.LeaderCommitIndex = min(r.LeaderCommitIndex, last)
	return &rest
}

// hasAll reports whether the replica has applied all of a snapshot, and returns the answer for the sender. Raft learns
// of the leader and its term by an append without entries.
func (g *Group) hasAll(r *raft.InstallSnapshotRequest) (*raft.InstallSnapshotResponse, bool) {
	if r.LastLogIndex == 0 || r.LastLogIndex > g.applied() {
		return nil, false
	}
	nothing := &raft.AppendEntriesRequest{RPCHeader: r.RPCHeader, Term: r.Term, Leader: r.Leader}
	resp, _ := g.ownRaft(nothing, g.mux.cfg.ChunkTimeout) // without an answer it is nil
	a, ok := resp.(*raft.AppendEntriesResponse)
	if !ok || a.Success && a.LastLog < r.LastLogIndex {
		return nil, false
	}
	return &raft.InstallSnapshotResponse{RPCHeader: a.RPCHeader, Term: a.Term, Success: a.Success}, true
}

// refuse requests no chunk of a snapshot, and reads the stream to its end.
func (a *arriving) refuse(st *started) error {
	if st.listed {
		if err := a.ask(len(st.items), func(int) bool { return true }); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, a)
	return err
}
