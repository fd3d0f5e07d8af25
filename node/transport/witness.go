package transport

import (
	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/acked"
)

// Witness records the log positions and terms that replicas of other nodes have at least, from their own messages. Saw
// must not block.
type Witness interface {
	Saw(node string, replica uint64, mark acked.Mark)
}

// appended sends an AppendEntries, and records the follower's position from its answer.
func (g *Group) appended(
	target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, how manner,
) error {
	if err := g.ask(target, args, resp, how); err != nil {
		return err
	}
	mark := acked.Mark{Ballot: resp.Term}
	if resp.Success {
		mark.Position = reaches(args)
	}
	g.saw(target, mark)
	return nil
}

// reaches returns the last entry that both sides of an AppendEntries have if it succeeds; zero for a heartbeat.
func reaches(args *raft.AppendEntriesRequest) acked.Position {
	if n := len(args.Entries); n > 0 {
		return acked.Position{Term: args.Entries[n-1].Term, Index: args.Entries[n-1].Index}
	}
	return acked.Position{Term: args.PrevLogTerm, Index: args.PrevLogEntry}
}

// recordSender records the position and term of a request's sender, after Raft has answered. A leader stores entries
// before it sends them, and a candidate its term. A pre-vote request names a term that its sender has not entered.
func (g *Group) recordSender(command any) {
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		g.saw(g.sender(c.Addr), acked.Mark{Position: reaches(c), Ballot: c.Term})
	case *raft.RequestVoteRequest:
		at := acked.Position{Term: c.LastLogTerm, Index: c.LastLogIndex}
		g.saw(g.sender(c.Addr), acked.Mark{Position: at, Ballot: c.Term})
	}
}

// sender converts bytes to an address. It is nearly always the leader's, and then there is no allocation.
func (g *Group) sender(addr []byte) raft.ServerAddress {
	if string(g.leader) != string(addr) {
		g.leader = raft.ServerAddress(addr)
	}
	return g.leader
}

func (g *Group) saw(who raft.ServerAddress, mark acked.Mark) {
	w := g.witness.Load()
	if w == nil {
		return
	}
	if node, replica, err := ParseAddress(who); err == nil && node != g.mux.cfg.Node {
		(*w).Saw(node, replica, mark)
	}
}
