package transport

import (
	"io"

	"github.com/hashicorp/raft"
)

// Applied says up to which entry a replica has applied its group's log. These entries are committed, and every leader
// has them, so that a leader which sends them, or a snapshot of them, sends what the replica has: also where its log
// does not hold them any more. Raft does not see that in two cases (hashicorp/raft v1.8.0):
//
//	log of the follower      [ snapshot up to 135 ]          it refuses whatever follows upon an entry before 135
//	the leader sends             ... 122 | 123 124 ...       and upon 135 itself, if its log begins behind that
//
//	state of the follower    ............ 95                 it goes back to 33, keeps that 95 is committed, and
//	the leader's snapshot    .... 33                         applies nothing until something else is committed
//
// The first brings about the second: a leader that is refused sends ever older entries, and then its snapshot.
type Applied interface{ Applied() uint64 }

// Past sets what the replica has applied.
func (g *Group) Past(of Applied) { g.past.Store(&of) }

// applied returns the last entry that the replica has applied; 0 if that is not known.
func (g *Group) applied() uint64 {
	if of := g.past.Load(); of != nil {
		return (*of).Applied()
	}
	return 0
}

// beyond returns what of a request is behind the entries that the replica has applied, if Raft has refused it for what
// came before; nil of any other. In what it returns nothing stands before the first entry, so Raft does not look for
// it.
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
	if r.PrevLogEntry > has || has > a.LastLog { // the latter: Raft knows of less than was applied
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
	// Raft takes all that its log holds up to the leader's commit index for committed: what is behind last was not
	// compared.
	rest.LeaderCommitIndex = min(r.LeaderCommitIndex, last)
	return &rest
}

// hasAll reports whether a snapshot brings nothing new, and returns the answer to its sender. Raft hears of a leader,
// and of its term, as by an append of nothing.
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

// refuse wants nothing of a snapshot, and reads it to its end.
func (a *arriving) refuse(st *started) error {
	if st.listed {
		if err := a.ask(len(st.items), func(int) bool { return true }); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, a)
	return err
}
