package node

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// carrier is what a link needs of a group's transport.
type carrier interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// link is the transport of one incarnation of a replica. It records how far each peer has come. Raft does not expose
// that, and transfers of leadership and the watchdog need it.
type link struct {
	carrier
	unsound func() bool // nil: never
	voter   *member     // its pre-votes are staggered; nil: they are not
	ended   *ending

	mu    sync.Mutex // guards peers
	peers map[raft.ServerID]*progress
}

// progress is what a leader knows of one follower in one term.
type progress struct {
	term        uint64    // the term of the fields below
	match       uint64    // the follower's log agrees with ours up to here
	sentCommit  uint64    // the newest commit index that it has received, up to match
	lastContact time.Time // its last answer of any kind
	install     bool      // a snapshot is being sent
}

var _ carrier = (*link)(nil)

func newLink(c carrier) *link {
	return &link{carrier: c, ended: newEnding(), peers: make(map[raft.ServerID]*progress)}
}

// RequestPreVote implements raft.WithPreVote.
func (l *link) RequestPreVote(id raft.ServerID, target raft.ServerAddress, q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error {
	if l.voter == nil {
		return l.carrier.RequestPreVote(id, target, q, a)
	}
	s := &electionStagger{
		timeout: l.voter.timeout, rank: l.voter.rank, campaigning: l.voter.campaigning, ended: l.ended.ch,
		ask: func(q *raft.RequestPreVoteRequest, a *raft.RequestPreVoteResponse) error {
			return l.carrier.RequestPreVote(id, target, q, a)
		},
	}
	return s.preVote(q, a)
}

// Close implements raft.WithClose.
func (l *link) Close() error {
	l.ended.end()
	return l.carrier.Close()
}

// AppendEntries implements raft.Transport.
func (l *link) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := l.carrier.AppendEntries(id, target, args, resp); err != nil {
		return err
	}
	l.note(id, args, resp) // the transport may have shortened args
	return nil
}

// note records an answer in the peer's progress.
func (l *link) note(id raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peer(id, args.Term)
	p.lastContact = now
	if !resp.Success || isHeartbeat(args) {
		return
	}
	match := args.PrevLogEntry + uint64(len(args.Entries))
	p.match = max(p.match, match)
	p.sentCommit = max(p.sentCommit, min(args.LeaderCommitIndex, match))
}

// peer returns a peer's progress in a term. l.mu is held.
func (l *link) peer(id raft.ServerID, term uint64) *progress {
	p := l.peers[id]
	if p == nil || p.term < term {
		p = &progress{term: term}
		l.peers[id] = p
	}
	return p
}

// isHeartbeat recognises the messages of Raft's heartbeat loop, which carry nothing about the log.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return len(args.Entries) == 0 && args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0
}

// errUnsound keeps a replica whose state differs from sending that state. Its log and its votes are sound.
var errUnsound = errors.New("this replica differs from the others: another has to send its state")

// InstallSnapshot implements raft.Transport.
func (l *link) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if l.unsound != nil && l.unsound() {
		return errUnsound
	}
	l.installing(id, args.Term, true)
	defer l.installing(id, args.Term, false)
	err := l.carrier.InstallSnapshot(id, target, args, resp, data)
	if err == nil && resp.Success {
		l.mu.Lock()
		defer l.mu.Unlock()
		p := l.peer(id, args.Term)
		p.match = max(p.match, args.LastLogIndex)
		p.sentCommit = max(p.sentCommit, args.LastLogIndex)
	}
	return err
}

func (l *link) installing(id raft.ServerID, term uint64, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peer(id, term).install = on
}

// progressOf returns the progress of a peer in a term; the zero value if none is known.
func (l *link) progressOf(id raft.ServerID, term uint64) progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.peers[id]; p != nil && p.term == term {
		return *p
	}
	return progress{}
}
