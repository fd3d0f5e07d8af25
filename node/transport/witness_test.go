package transport

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/proto"
)

// sighting is what a witness learns of a replica.
type sighting struct {
	node    string
	replica uint64
	mark    acked.Mark
}

// testWitness keeps what it learns.
type testWitness struct {
	mu   sync.Mutex // guards seen
	seen []sighting
}

func (w *testWitness) Saw(node string, replica uint64, mark acked.Mark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, sighting{node, replica, mark})
}

// take returns what the witness was told since the last call.
func (w *testWitness) take() []sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// refused answers a group's requests as a follower of a newer term would.
func refused(rpc raft.RPC) any {
	switch rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		return &raft.AppendEntriesResponse{Term: 9, LastLog: 5}
	case *raft.RequestVoteRequest:
		return &raft.RequestVoteResponse{Term: 9}
	case *raft.InstallSnapshotRequest:
		return &raft.InstallSnapshotResponse{Term: 9}
	}
	return echoed(rpc)
}

// Each side learns what the other has at least. A vote or an entry counts if a request or its answer names it. Nothing
// counts of a call that failed.
func TestWhatAWitnessIsTold(t *testing.T) {
	at := func(term, index, ballot uint64) acked.Mark {
		return acked.Mark{Position: acked.Position{Term: term, Index: index}, Ballot: ballot}
	}
	of := func(node string, replica uint64, mark acked.Mark) []sighting {
		return []sighting{{node, replica, mark}}
	}
	appends := func(to raft.ServerAddress) func(*Group) error {
		return func(g *Group) error {
			return g.AppendEntries("", to, appendOf("a", 11, 2, 10), &raft.AppendEntriesResponse{})
		}
	}
	heartbeats := func(g *Group) error { return heartbeat(g, "b/12") }
	votes := func(to raft.ServerAddress) func(*Group) error {
		args := &raft.RequestVoteRequest{RPCHeader: header("a", 11), Term: 3, LastLogIndex: 6, LastLogTerm: 2}
		return func(g *Group) error { return g.RequestVote("", to, args, &raft.RequestVoteResponse{}) }
	}
	installs := func(to raft.ServerAddress) func(*Group) error {
		args := &raft.InstallSnapshotRequest{
			RPCHeader: header("a", 11), SnapshotVersion: 1, Term: 4, LastLogIndex: 8, LastLogTerm: 2, Size: 4,
			Configuration: configuration(3),
		}
		return func(g *Group) error {
			return g.InstallSnapshot("", to, args, &raft.InstallSnapshotResponse{}, strings.NewReader("snap"))
		}
	}
	for _, c := range []struct {
		name            string
		answer          func(raft.RPC) any
		call            func(*Group) error
		fails           bool
		asker, answerer []sighting // what their witnesses learn
	}{
		{"entries", echoed, appends("b/12"), false, of("b", 12, at(7, 1002, 7)), of("a", 11, at(7, 1002, 7))},
		{"refused entries", refused, appends("b/12"), false, of("b", 12, at(0, 0, 9)), of("a", 11, at(7, 1002, 7))},
		{"entries to another", echoed, appends("b/13"), true, nil, nil},
		{"heartbeat", echoed, heartbeats, false, of("b", 12, at(0, 0, 3)), of("a", 11, at(0, 0, 3))},
		{"vote", echoed, votes("b/12"), false, of("b", 12, at(0, 0, 3)), of("a", 11, at(2, 6, 3))},
		{"refused vote", refused, votes("b/12"), false, of("b", 12, at(0, 0, 9)), of("a", 11, at(2, 6, 3))},
		{"vote of another", echoed, votes("b/13"), true, nil, nil},
		{"pre-vote", echoed, func(g *Group) error { return preVote(g, "b/12") }, false, nil, nil},
		{"snapshot", echoed, installs("b/12"), false, of("b", 12, at(2, 8, 4)), nil},
		{"refused snapshot", refused, installs("b/12"), false, of("b", 12, at(0, 0, 9)), nil},
		{"snapshot to another", echoed, installs("b/13"), true, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil, "a", "b")
				a, b := w.nodes["a"].Group(1, "a/11"), w.nodes["b"].Group(1, "b/12")
				t.Cleanup(respond(b, c.answer))
				var asker, answerer testWitness
				a.Remember(&asker)
				b.Remember(&answerer)
				if err := c.call(a); (err != nil) != c.fails {
					t.Fatalf("got error %v", err)
				}
				if seen := asker.take(); !slices.Equal(seen, c.asker) {
					t.Errorf("the asker's witness is told %v, want %v", seen, c.asker)
				}
				if seen := answerer.take(); !slices.Equal(seen, c.answerer) {
					t.Errorf("the answerer's witness is told %v, want %v", seen, c.answerer)
				}
			})
		})
	}
}

// A witness learns of replicas of other nodes, by addresses that name one.
func TestWhoAWitnessIsToldOf(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
	defer m.Close()
	g := m.Group(1, "a/11")
	g.saw("b/12", acked.Mark{Ballot: 1}) // there is no witness yet
	var w testWitness
	g.Remember(&w)
	for who, want := range map[raft.ServerAddress]int{"b/12": 1, "a/13": 0, "b": 0, "": 0} {
		g.saw(who, acked.Mark{Ballot: 3})
		if seen := w.take(); len(seen) != want {
			t.Errorf("of %q it is told %v", who, seen)
		}
	}
}

func preVote(g *Group, to raft.ServerAddress) error {
	args := &raft.RequestPreVoteRequest{RPCHeader: header("a", 11), Term: 3}
	return g.RequestPreVote("", to, args, &raft.RequestPreVoteResponse{})
}

func timeoutNow(g *Group, to raft.ServerAddress) error {
	return g.TimeoutNow("", to, &raft.TimeoutNowRequest{RPCHeader: header("a", 11)}, &raft.TimeoutNowResponse{})
}

// A replica that abstains neither votes, nor asks for votes, nor is asked to stand; it follows as ever.
func TestAbstain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		a, b := w.nodes["a"].Group(1, "a/11"), w.nodes["b"].Group(1, "b/12")
		asked := 0 // of b's Raft
		stop := respond(b, func(rpc raft.RPC) any { asked++; return echoed(rpc) })
		t.Cleanup(stop)
		for _, c := range []struct {
			name               string
			call               func(*Group, raft.ServerAddress) error
			answered, mayAsked bool // while b abstains, and while a does
		}{
			{"vote", vote, false, false},
			{"pre-vote", preVote, false, false},
			{"timeout now", timeoutNow, false, true},
			{"heartbeat", heartbeat, true, true},
			{"entries", func(g *Group, to raft.ServerAddress) error { return appendTo(g, to, 10) }, true, true},
		} {
			try := func(who string, allowed bool) {
				t.Helper()
				before := asked
				err := c.call(a, "b/12")
				synctest.Wait()
				if allowed {
					if err != nil || asked != before+1 {
						t.Errorf("%s while %s: error %v, Raft was asked %d times", c.name, who, err, asked-before)
					}
					return
				}
				isCode(t, err, proto.ErrUnreachable)
				if !strings.Contains(err.Error(), "does not vote") || asked != before {
					t.Errorf("%s while %s: error %v, Raft was asked %d times", c.name, who, err, asked-before)
				}
			}
			b.Abstain(true)
			try("b abstains", c.answered)
			b.Abstain(false)
			a.Abstain(true)
			try("a abstains", c.mayAsked)
			a.Abstain(false)
			try("both vote", true)
		}
	})
}

// A request to which Raft gives neither an answer nor an error fails at its caller.
func TestRaftWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		t.Cleanup(respond(w.nodes["b"].Group(1, "b/12"), func(raft.RPC) any { return nil }))
		g := w.nodes["a"].Group(1, "a/11")
		for range 2 { // the session has not suffered
			isCode(t, vote(g, "b/12"), proto.ErrInternal)
			isCode(t, appendTo(g, "b/12", 10), proto.ErrInternal)
		}
	})
}
