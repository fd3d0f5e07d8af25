package transport

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// ofRaft is what a replica of a test has applied.
type ofRaft struct{ *raft.Raft }

func (r ofRaft) Applied() uint64 { return r.AppliedIndex() }

// pupil is a follower, and a leader that says what it likes.
type pupil struct {
	t        *testing.T
	follower *testRaft
	leader   *Group
	to       raft.ServerAddress
}

// newPupil starts a follower that has applied entries 2 to 6: entry 1 is its configuration.
func newPupil(t *testing.T, contained bool) *pupil {
	w := newWorld(t, nil, "f", "l", "x")
	conf := servers(1, w.names...)
	p := &pupil{t: t, leader: w.nodes["l"].Group(1, conf.Servers[1].Address), to: conf.Servers[0].Address}
	t.Cleanup(respond(p.leader, echoed))
	p.follower = w.nodes["f"].raft(1, conf, func(c *raft.Config) { c.TrailingLogs = 0 }, nil)
	if contained {
		p.follower.group.Past(ofRaft{p.follower.Raft})
	}
	if r := p.append(1, 1, 6, 6); !r.Success {
		t.Fatalf("the follower answers %+v", r)
	}
	p.applied("2 3 4 5 6")
	return p
}

// append sends the entries behind prev up to last, in the leader's term 5; prev and all before it are of a term of their own.
func (p *pupil) append(prev, prevTerm, last, commit uint64) (resp raft.AppendEntriesResponse) {
	p.t.Helper()
	args := &raft.AppendEntriesRequest{
		RPCHeader: header("l", 12), Term: 5, PrevLogEntry: prev, PrevLogTerm: prevTerm, LeaderCommitIndex: commit,
	}
	for i := prev + 1; i <= last; i++ {
		args.Entries = append(args.Entries, &raft.Log{Index: i, Term: 5, Type: raft.LogCommand, Data: fmt.Append(nil, i)})
	}
	if err := p.leader.AppendEntries("", p.to, args, &resp); err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// install sends a snapshot of the entries up to last.
func (p *pupil) install(last uint64) (resp raft.InstallSnapshotResponse) {
	p.t.Helper()
	var b []byte
	for i := uint64(2); i <= last; i++ {
		b = appendBytes(b, fmt.Sprint(i))
	}
	args := &raft.InstallSnapshotRequest{
		RPCHeader: header("l", 12), SnapshotVersion: 1, Term: 5, LastLogIndex: last, LastLogTerm: 5, Size: int64(len(b)),
		Configuration: raft.EncodeConfiguration(servers(1, "f", "l", "x")), ConfigurationIndex: 1,
	}
	if err := p.leader.InstallSnapshot("", p.to, args, &resp, bytes.NewReader(b)); err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// has is what the follower's state holds, in a moment.
func (p *pupil) has() string {
	time.Sleep(10 * time.Millisecond)
	return strings.Join(p.follower.fsm.all(), " ")
}

func (p *pupil) applied(want string) {
	p.t.Helper()
	if got := p.has(); got != want {
		p.t.Fatalf("the follower has applied %s: want %s", got, want)
	}
}

// A follower whose log begins behind its snapshot refuses entries that follow upon an older one, although it has that.
func TestEntriesBeforeTheSnapshot(t *testing.T) {
	for name, at := range map[string]struct{ prev, last uint64 }{
		"within the snapshot": {3, 8}, "at its end": {6, 8}, "before its end": {5, 8}, "nothing new": {3, 5}, "nothing": {4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, contained bool) (struck bool) {
				p := newPupil(t, contained)
				if r := p.append(6, 5, 7, 6); !r.Success { // which keeps the log from ending with the snapshot
					t.Fatalf("the follower answers %+v", r)
				}
				if err := p.follower.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
				r := p.append(at.prev, 5, at.last, at.last)
				if !r.Success {
					return true
				}
				want := "2 3 4 5 6"
				if at.last > 6 {
					want += " 7 8"
				}
				p.applied(want)
				return false
			})
		})
	}
}

// A follower that is sent a snapshot of less than it has applied goes back to that.
func TestSnapshotOfThePast(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) (struck bool) {
		p := newPupil(t, contained)
		if r := p.install(3); !r.Success || r.Term != 5 {
			t.Fatalf("the follower answers %+v", r)
		}
		if p.has() != "2 3 4 5 6" {
			return true
		}
		if r := p.append(3, 5, 7, 7); !r.Success { // as the leader sends next
			return true
		}
		p.applied("2 3 4 5 6 7")
		if r := p.install(9); !r.Success {
			t.Fatalf("a newer snapshot: %+v", r)
		}
		p.applied("2 3 4 5 6 7 8 9")
		return false
	})
}

// That a snapshot brings nothing new is Raft's word as well: it is sent whole to one whose log ends before it, and a
// leader of an older term hears that it is one.
func TestSnapshotOfThePastByRaftsWord(t *testing.T) {
	answer := func(term, last uint64, success bool) any {
		return &raft.AppendEntriesResponse{Term: term, LastLog: last, Success: success}
	}
	for name, c := range map[string]struct {
		nothing  any  // Raft's answer to an append of nothing
		given    bool // Raft is given the snapshot
		succeeds bool // by the answer to the sender
		term     uint64
	}{
		"the log reaches behind it":    {answer(5, 9, true), false, true, 5},
		"the log ends with it":         {answer(5, 3, true), false, true, 5},
		"the log ends before it":       {answer(5, 2, true), true, true, 6},
		"a newer term":                 {answer(7, 9, false), false, false, 7},
		"a newer term, a shorter log":  {answer(7, 2, false), false, false, 7},
		"no answer to the append":      {nil, true, true, 6},
		"an answer to something other": {&raft.RequestVoteResponse{Term: 7}, true, true, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil, "a", "b")
				b := w.nodes["b"].Group(1, "b/12")
				b.Past(appliedUpTo(6))
				given := false
				t.Cleanup(respond(b, func(rpc raft.RPC) any {
					if rpc.Reader == nil {
						return c.nothing
					}
					given = true
					_, err := io.Copy(io.Discard, rpc.Reader)
					return &raft.InstallSnapshotResponse{Term: 6, Success: err == nil}
				}))
				args := &raft.InstallSnapshotRequest{
					RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 5, LastLogIndex: 3, LastLogTerm: 5, Size: 4,
					Configuration: configuration(3),
				}
				var resp raft.InstallSnapshotResponse
				err := w.nodes["a"].Group(1, "a/11").InstallSnapshot("", "b/12", args, &resp, strings.NewReader("snap"))
				if err != nil || given != c.given || resp.Success != c.succeeds || resp.Term != c.term {
					t.Errorf("Raft was given it: %v; the answer is %+v, %v", given, resp, err)
				}
			})
		})
	}
}

// appliedUpTo is what a replica says that it has applied.
type appliedUpTo uint64

func (a appliedUpTo) Applied() uint64 { return uint64(a) }

// What a follower has not applied may differ from what a leader has: it is compared as ever, and not committed untested.
func TestEntriesBehindTheSnapshotAreCompared(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) (struck bool) {
		p := newPupil(t, contained)
		if r := p.append(6, 5, 9, 6); !r.Success {
			t.Fatalf("the follower answers %+v", r)
		}
		if err := p.follower.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		args := &raft.AppendEntriesRequest{
			RPCHeader: header("l", 12), Term: 6, PrevLogEntry: 4, PrevLogTerm: 5, LeaderCommitIndex: 9,
			Entries: []*raft.Log{
				{Index: 5, Term: 5, Data: []byte("5")},
				{Index: 6, Term: 5, Data: []byte("6")},
				{Index: 7, Term: 6, Data: []byte("other")},
			},
		}
		var resp raft.AppendEntriesResponse
		if err := p.leader.AppendEntries("", p.to, args, &resp); err != nil {
			t.Fatal(err)
		}
		if !resp.Success {
			return true
		}
		p.applied("2 3 4 5 6 other")
		return false
	})
}
