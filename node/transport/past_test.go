package transport

import (
	"bytes"
	"cmp"
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

// append sends the entries behind prev up to last, in the leader's term 5; prev and all before it are of a term of
// their own.
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

// Nothing is committed that was not compared: what a leader has committed behind the entries that it sends is not what
// the follower has there.
func TestCommitEndsWithWhatWasCompared(t *testing.T) {
	bothWays(t, func(t *testing.T, contained bool) (struck bool) {
		p := newPupil(t, contained)
		if r := p.append(6, 5, 9, 6); !r.Success { // entries 7 to 9 are not committed
			t.Fatalf("the follower answers %+v", r)
		}
		if err := p.follower.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		if r := p.append(3, 5, 5, 9); !r.Success {
			return true
		}
		p.applied("2 3 4 5 6")
		return false
	})
}

// What is given to Raft again is behind what was applied, and only where Raft refused for what came before.
func TestBeyond(t *testing.T) {
	m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
	defer m.Close()
	g := m.Group(1, "b/12")
	g.Past(appliedUpTo(6))
	answer := func(term, last uint64, success, noRetryBackoff bool) any {
		return &raft.AppendEntriesResponse{Term: term, LastLog: last, Success: success, NoRetryBackoff: noRetryBackoff}
	}
	refusal := answer(5, 9, false, true)
	for name, c := range map[string]struct {
		prev, last, commit uint64
		answer             any
		entries            int // that are given; -1: nothing is
		committed          uint64
	}{
		"before what was applied":  {3, 8, 8, refusal, 2, 8},
		"at its end":               {6, 8, 7, refusal, 2, 7},
		"behind it":                {7, 8, 8, refusal, -1, 0},
		"nothing behind it":        {3, 6, 9, refusal, 0, 6},
		"less than was applied":    {3, 5, 9, refusal, 0, 6},
		"from the first entry on":  {0, 8, 8, refusal, -1, 0},
		"commits less":             {3, 8, 4, refusal, 2, 4},
		"commits more":             {3, 8, 20, refusal, 2, 8},
		"Raft has that much":       {3, 8, 8, answer(5, 6, false, true), 2, 8},
		"Raft knows of less":       {3, 8, 8, answer(5, 5, false, true), -1, 0},
		"Raft has taken it":        {3, 8, 8, answer(5, 9, true, true), -1, 0},
		"refused for something":    {3, 8, 8, answer(5, 9, false, false), -1, 0},
		"refused in another term":  {3, 8, 8, answer(6, 9, false, true), -1, 0},
		"an answer to another ask": {3, 8, 8, &raft.RequestVoteResponse{Term: 5}, -1, 0},
	} {
		args := &raft.AppendEntriesRequest{Term: 5, PrevLogEntry: c.prev, PrevLogTerm: 5, LeaderCommitIndex: c.commit}
		for i := c.prev + 1; i <= c.last; i++ {
			args.Entries = append(args.Entries, &raft.Log{Index: i, Term: 5})
		}
		sent := len(args.Entries)
		rest := g.beyond(args, c.answer)
		if rest == nil || c.entries < 0 {
			if rest != nil || c.entries >= 0 {
				t.Errorf("%s: got %+v", name, rest)
			}
			continue
		}
		if len(rest.Entries) != c.entries || c.entries > 0 && rest.Entries[0].Index != 7 ||
			rest.PrevLogEntry != 0 || rest.PrevLogTerm != 0 || rest.LeaderCommitIndex != c.committed {
			t.Errorf("%s: got %+v", name, rest)
		}
		if len(args.Entries) != sent || args.PrevLogEntry != c.prev || args.LeaderCommitIndex != c.commit {
			t.Errorf("%s: the request has become %+v", name, args)
		}
	}
	if rest := g.beyond(&raft.RequestVoteRequest{Term: 5}, refusal); rest != nil {
		t.Errorf("of a vote: got %+v", rest)
	}
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
		last     uint64 // entry of the snapshot; 0: 3
	}{
		"the log reaches behind it":    {answer(5, 9, true), false, true, 5, 0},
		"the log ends with it":         {answer(5, 3, true), false, true, 5, 0},
		"the log ends before it":       {answer(5, 2, true), true, true, 6, 0},
		"all that was applied":         {answer(5, 9, true), false, true, 5, 6},
		"one more than was applied":    {answer(5, 9, true), true, true, 6, 7},
		"a newer term":                 {answer(7, 9, false), false, false, 7, 0},
		"a newer term, a shorter log":  {answer(7, 2, false), false, false, 7, 0},
		"no answer to the append":      {nil, true, true, 6, 0},
		"an answer to something other": {&raft.RequestVoteResponse{Term: 7}, true, true, 6, 0},
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
					RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 5,
					LastLogIndex: cmp.Or(c.last, 3), LastLogTerm: 5, Size: 4, Configuration: configuration(3),
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

// Of a listed snapshot that brings nothing new no chunk is wanted.
func TestListedSnapshotOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		to := openStore(t)
		b := w.nodes["b"].Group(1, "b/12")
		b.Past(appliedUpTo(11))
		b.Receive(place{to, func() {}})
		t.Cleanup(respond(b, func(raft.RPC) any {
			return &raft.AppendEntriesResponse{Term: 3, LastLog: 11, Success: true}
		}))
		if err := w.send(w.nodes["a"].Group(1, "a/11"), 10, snapshotOf(t, openStore(t), 10)); err != nil {
			t.Fatal(err)
		}
		size := uint64(len(bytes.Join(chunked(10), nil)))
		if i := w.nodes["a"].Installs(); i.Sent != 0 || i.Skipped != size {
			t.Errorf("%d bytes were sent, %d of %d left out", i.Sent, i.Skipped, size)
		}
		if l, err := to.List(); len(l) > 0 || err != nil {
			t.Errorf("%d snapshots have arrived: %v", len(l), err)
		}
	})
}

// appliedUpTo is what a replica says that it has applied.
type appliedUpTo uint64

func (a appliedUpTo) Applied() uint64 { return uint64(a) }

// What a follower has not applied may differ from what a leader has: it is compared as ever, and not committed
// untested.
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
