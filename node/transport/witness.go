package transport

import (
	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/acked"
)

// Witness learns what replicas of other nodes have at least, by their own words. It must not wait.
type Witness interface {
	Saw(node string, replica uint64, mark acked.Mark)
}

// appended sends an AppendEntries, and notes how far the follower is by its answer.
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

// reaches returns the last entry that both sides of an AppendEntries have when it succeeds; zero of a heartbeat.
func reaches(args *raft.AppendEntriesRequest) acked.Position {
	if n := len(args.Entries); n > 0 {
		return acked.Position{Term: args.Entries[n-1].Term, Index: args.Entries[n-1].Index}
	}
	return acked.Position{Term: args.PrevLogTerm, Index: args.PrevLogEntry}
}

// recordSender records what a request that Raft has answered says of its sender. A leader stores entries before it
// sends them, and a candidate its term. A request for a pre-vote names a term that its sender has not entered.
func (g *Group) recordSender(command any) {
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		g.saw(g.sender(c.Addr), acked.Mark{Position: reaches(c), Ballot: c.Term})
	case *raft.RequestVoteRequest:
		at := acked.Position{Term: c.LastLogTerm, Index: c.LastLogIndex}
		g.saw(g.sender(c.Addr), acked.Mark{Position: at, Ballot: c.Term})
	}
}

// sender makes an address of bytes. It is that of the leader nearly always, and costs nothing then.
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
