package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// faultyGroup is a Group that drops calls to some replicas, or returns late from appends: the answer has arrived, but
// its reader is not scheduled.
type faultyGroup struct {
	*Group
	mu      sync.Mutex // guards what follows
	dropped map[raft.ServerID]bool
	held    map[raft.ServerID]chan struct{}
	caught  chan raft.ServerID // gets the first append that is held
}

func newFaultyGroup(g *Group) *faultyGroup {
	return &faultyGroup{Group: g, dropped: map[raft.ServerID]bool{}, held: map[raft.ServerID]chan struct{}{}, caught: make(chan raft.ServerID, 1)}
}

func (g *faultyGroup) drop(ids ...raft.ServerID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		g.dropped[id] = true
	}
}

func (g *faultyGroup) hold(id raft.ServerID) (release func()) {
	c := make(chan struct{})
	g.mu.Lock()
	g.held[id] = c
	g.mu.Unlock()
	return sync.OnceFunc(func() { close(c) })
}

func (g *faultyGroup) look(id raft.ServerID) (dropped bool, held chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dropped[id], g.held[id]
}

var errDropped = errors.New("the call is dropped")

func (g *faultyGroup) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if dropped, _ := g.look(id); dropped {
		time.Sleep(50 * time.Millisecond)
		return errDropped
	}
	err := g.Group.AppendEntries(id, to, args, resp)
	if _, held := g.look(id); held != nil && err == nil {
		select {
		case g.caught <- id:
		default:
		}
		<-held
	}
	return err
}

func (g *faultyGroup) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if dropped, _ := g.look(id); dropped {
		time.Sleep(50 * time.Millisecond)
		return errDropped
	}
	return g.Group.RequestVote(id, to, args, resp)
}

// withFaultyGroups starts group 1 on all nodes of a world, with a faultyGroup for each. Node a is elected
// and has "old" applied everywhere.
func withFaultyGroups(t *testing.T, conf raft.Configuration, tune func(name string, c *raft.Config)) (*world, map[string]*faultyGroup) {
	names, groups := []string{}, map[string]*faultyGroup{}
	for _, s := range conf.Servers {
		node, _, _ := ParseAddress(s.Address)
		names = append(names, node)
	}
	w := newWorld(t, nil, names...)
	for _, name := range names {
		w.nodes[name].raft(1, conf, func(c *raft.Config) {
			c.CommitTimeout = time.Hour // the stories below have one append each
			tune(name, c)
		}, func(g *Group) raft.Transport { groups[name] = newFaultyGroup(g); return groups[name] })
	}
	a := w.nodes["a"].rafts[1]
	within(t, 20*time.Second, "a leads", func() bool { return a.State() == raft.Leader })
	if err := a.Apply([]byte("old"), time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	if err := a.Apply([]byte("old"), time.Second).Error(); err != nil { // tells that the first is committed
		t.Fatal(err)
	}
	within(t, 5*time.Second, "all have it", func() bool {
		for _, name := range names {
			if w.nodes[name].rafts[1].fsm.last() != "old" {
				return false
			}
		}
		return true
	})
	return w, groups
}

// confirmation asks node a whether it still leads.
type confirmation func(w *world, conf raft.Configuration) error

func byVerifyLeader(w *world, _ raft.Configuration) error {
	return w.nodes["a"].rafts[1].VerifyLeader().Error()
}

func byReadIndex(w *world, conf raft.Configuration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return w.nodes["a"].ReadIndex(ctx, 1, w.nodes["a"].rafts[1].CurrentTerm(), addresses(conf))
}

// stale is what both stories end with: b has committed "new", and node a, which
// does not know, asks for confirmation and reads.
func stale(t *testing.T, w *world, err error) bool {
	a, b := w.nodes["a"].rafts[1], w.nodes["b"].rafts[1]
	if b.fsm.last() != "new" {
		t.Fatal("b has not committed")
	}
	return err == nil && a.fsm.last() == "old"
}

func confirmations(t *testing.T, story func(t *testing.T, confirm confirmation) bool) {
	bothWays(t, func(t *testing.T, contained bool) bool {
		if contained {
			return story(t, byReadIndex)
		}
		return story(t, byVerifyLeader)
	})
}

// VerifyLeader counts an answer to a heartbeat that was sent before the call.
func TestStaleReadByALateAck(t *testing.T) {
	confirmations(t, func(t *testing.T, confirm confirmation) bool {
		conf := servers(1, "a", "b", "c")
		w, groups := withFaultyGroups(t, conf, func(name string, c *raft.Config) {
			d := 5 * time.Second
			if name == "a" {
				d = time.Second
			}
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = d, d, d
		})
		release := groups["a"].hold("13") // from now on c's answers are late
		defer release()
		<-groups["a"].caught
		groups["b"].drop("11")
		w.transferToB(t)
		groups["a"].drop("12")
		if err := w.nodes["b"].rafts[1].Apply([]byte("new"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		w.net.isolate("a", true, "b")
		w.awaitNew(t)
		done := make(chan error, 1)
		go func() { done <- confirm(w, conf) }()
		time.Sleep(5 * time.Millisecond)
		release()
		return stale(t, w, <-done)
	})
}

// VerifyLeader counts the answers of learners.
func TestStaleReadByALearnersAck(t *testing.T) {
	confirmations(t, func(t *testing.T, confirm confirmation) bool {
		conf := servers(1, "a", "b", "c", "d")
		conf.Servers[3].Suffrage = raft.Nonvoter
		w, groups := withFaultyGroups(t, conf, func(name string, c *raft.Config) {
			if name != "a" {
				c.HeartbeatTimeout, c.ElectionTimeout = 5*time.Second, 5*time.Second
			}
		})
		groups["b"].drop("11", "14")
		w.transferToB(t)
		groups["a"].drop("12", "13")
		w.net.isolate("a", true, "b", "c")
		if err := w.nodes["b"].rafts[1].Apply([]byte("new"), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		w.awaitNew(t)
		time.Sleep(150 * time.Millisecond) // any answer of b or c is long gone
		return stale(t, w, confirm(w, conf))
	})
}

func (w *world) transferToB(t *testing.T) {
	b := w.nodes["b"].rafts[1]
	w.nodes["a"].rafts[1].LeadershipTransferToServer("12", b.group.local)
	within(t, 2*time.Second, "b leads", func() bool { return b.State() == raft.Leader })
}

func (w *world) awaitNew(t *testing.T) {
	within(t, time.Second, "b has applied", func() bool { return w.nodes["b"].rafts[1].fsm.last() == "new" })
	if a := w.nodes["a"].rafts[1]; a.State() != raft.Leader {
		t.Fatalf("a knows already: it is %s", a.State())
	}
}

// terms is a voter side for tests without rafts.
type terms struct {
	mu    sync.Mutex // guards what follows
	of    map[uint32]uint64
	asked int
}

func (s *terms) handler(group uint32, _ uint64, term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.of[group] == term
}

func (s *terms) set(group uint32, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[group] = term
}

func (s *terms) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = 0
}

func (s *terms) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// voters is a world of nodes a, b, c where each has a replica of the groups, all in term 7.
func voters(t *testing.T, groups uint32) (*world, map[string]*terms) {
	return votersOn(t, groups, "a", "b", "c")
}

func votersOn(t *testing.T, groups uint32, names ...string) (*world, map[string]*terms) {
	w, of := newWorld(t, nil, names...), map[string]*terms{}
	for _, name := range w.names {
		of[name] = &terms{of: map[uint32]uint64{}}
		w.nodes[name].SetReadIndexHandler(of[name].handler)
		for g := uint32(1); g <= groups; g++ {
			of[name].set(g, 7)
			for _, s := range servers(g, w.names...).Servers {
				if node, _, _ := ParseAddress(s.Address); node == name {
					w.nodes[name].Group(g, s.Address)
				}
			}
		}
	}
	return w, of
}

func TestReadIndexNeedsAMajorityInExactlyTheTerm(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, b, c uint64 // the nodes' terms; 0: cut off
		want    error
	}{
		{"all", 7, 7, 7, nil},
		{"one behind", 7, 6, 7, nil},
		{"one ahead", 7, 7, 8, nil},
		{"both ahead", 7, 8, 8, proto.ErrNotLeader},
		{"both behind", 7, 6, 6, proto.ErrNotLeader},
		{"self ahead, others not", 8, 7, 7, nil},
		{"self and one ahead", 8, 8, 7, proto.ErrNotLeader},
		{"one cut off", 7, 7, 0, nil},
		{"both cut off", 7, 0, 0, proto.ErrNoLeader},
		{"one ahead, one cut off", 7, 8, 0, proto.ErrNotLeader},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, of := voters(t, 1)
				for name, term := range map[string]uint64{"a": c.a, "b": c.b, "c": c.c} {
					of[name].set(1, term)
					if term == 0 {
						w.net.isolate(name, true, w.others(name)...)
					}
				}
				err := w.nodes["a"].ReadIndex(t.Context(), 1, 7, addresses(servers(1, w.names...)))
				if !errors.Is(err, c.want) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}

func TestReadIndexOddities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, of := voters(t, 1)
		a := w.nodes["a"]
		read := func(vs ...raft.ServerAddress) error { return a.ReadIndex(t.Context(), 1, 7, vs) }
		isCode(t, read(), proto.ErrNoLeader)
		isCode(t, read("a/11", "b/12", "b/12"), proto.ErrInternal) // would count twice
		isCode(t, read("a/11", "b", "c/13"), proto.ErrInternal)
		isCode(t, read("a/11", "b/92", "c/93"), proto.ErrNotLeader) // other incarnations
		isCode(t, read("b/12", "c/93"), proto.ErrNotLeader)
		if err := errors.Join(read("a/11"), read("b/12"), read("b/12", "c/13"), read("a/11", "b/12", "c/93")); err != nil {
			t.Fatal(err)
		}
		asked := of["a"].questions()
		if err := read("b/12", "c/13"); err != nil || of["a"].questions() != asked {
			t.Fatalf("a leader that is no voter was asked: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		w.net.isolate("a", true, "b", "c")
		if err := a.ReadIndex(ctx, 1, 7, []raft.ServerAddress{"a/11", "b/12", "c/13"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	})
}

// Voters are asked from this node on, by name, so that not all leaders ask the same.
func TestReadIndexOrder(t *testing.T) {
	for self, want := range map[string]string{"a": "abcd", "b": "bcda", "d": "dabc", "bb": "cdab"} {
		m := New(Config{Node: self, Dial: newNetwork().dialer(self)})
		all, err := m.orderOf(1, []raft.ServerAddress{"c/3", "a/1", "d/4", "b/2"})
		got := ""
		for _, e := range all {
			got += e.node
		}
		if err != nil || got != want {
			t.Errorf("%s asks %s, want %s: %v", self, got, want, err)
		}
		if known, err := m.order(1, []raft.ServerAddress{"a/1"}); err != nil || len(known) != 1 {
			t.Errorf("of a group without a replica here %d voters are known: %v", len(known), err)
		}
		m.Close()
	}
}

// A read barrier does not wait for voters whose peers are gone, or are just being forgotten.
func TestReadIndexOfForgottenPeers(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
	defer m.Close()
	forgotten := newPeer(m, "b")
	forgotten.reads.close()
	for name, p := range map[string]*peer{"gone": nil, "forgotten": forgotten} {
		b := newBarrier(2)
		m.poll(b, []elector{{node: "b", peer: p, ask: ask{group: 1, replica: 12, term: 7}}})
		select {
		case <-b.done:
			isCode(t, b.err(1, 7, 2), proto.ErrNoLeader)
		default:
			t.Errorf("%s: it waits", name)
		}
	}
}

// What waits for a peer goes there in one message, whatever its groups, and what
// comes while that is on its way goes in the next.
func TestReadIndexBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const groups, each = 50, 20
		w, of := voters(t, groups)
		a := w.nodes["a"]
		if err := a.ReadIndex(t.Context(), 1, 7, addresses(servers(1, w.names...))); err != nil {
			t.Fatal(err) // the sessions stand now
		}
		rounds, asked := a.peers["b"].reads.ids, of["b"].questions()
		var wg sync.WaitGroup
		for g := uint32(1); g <= groups; g++ {
			for range each {
				wg.Go(func() {
					if err := a.ReadIndex(t.Context(), g, 7, addresses(servers(g, w.names...))); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		synctest.Wait()
		if got := a.peers["b"].reads.ids - rounds; got > 3 {
			t.Errorf("%d reads took %d messages to b", groups*each, got)
		}
		if got := of["b"].questions() - asked; got > 3*groups {
			t.Errorf("b was asked %d questions about %d groups", got, groups)
		}
	})
}

// A read must not join a round that has left: the voter may have answered it
// before the read began.
func TestReadIndexDoesNotJoinARoundThatHasLeft(t *testing.T) {
	q := newReadQueue()
	one, two := newBarrier(2), newBarrier(2)
	question := ask{group: 1, replica: 2, term: 7}
	q.add(question, one)
	left := q.take()
	q.add(question, two)
	yes := &askReply{round: left.id, n: 1, bits: []byte{1}}
	q.deliver(yes)
	left.end(<-left.reply)
	if one.need != 1 || two.need != 2 {
		t.Fatalf("the read that came later was confirmed by the earlier round: %d %d", one.need, two.need)
	}
}

// An answer that comes after its round was given up must not confirm the next.
func TestReadIndexIgnoresLateAnswers(t *testing.T) {
	q := newReadQueue()
	question := ask{group: 1, replica: 2, term: 7}
	q.add(question, newBarrier(2))
	late := q.take()
	q.giveUp()
	q.add(question, newBarrier(2))
	next := q.take()
	q.deliver(&askReply{round: late.id, n: 1, bits: []byte{1}})
	q.deliver(&askReply{round: next.id, n: 2, bits: []byte{3}}) // answers another number of asks
	select {
	case <-next.reply:
		t.Fatal("a late answer was taken for the round's own")
	default:
	}
	q.deliver(&askReply{round: next.id, n: 1, bits: []byte{0}})
	if got := <-next.reply; got[0] != denied {
		t.Fatalf("got %v", got)
	}
}

// A peer that hangs does not hold reads up when the others are a majority, and
// costs at most a timeout when they are not.
func TestReadIndexWithASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := voters(t, 1)
		a, vs := w.nodes["a"], addresses(servers(1, w.names...))
		for range 2 {
			if err := a.ReadIndex(t.Context(), 1, 7, vs); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // both sessions stand
		w.net.cut("a", "b", true)
		start := time.Now()
		for range 10 {
			if err := a.ReadIndex(t.Context(), 1, 7, vs); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d > 50*time.Millisecond {
			t.Errorf("ten reads took %s", d)
		}
		w.net.cut("a", "c", true)
		start = time.Now()
		isCode(t, a.ReadIndex(t.Context(), 1, 7, vs), proto.ErrNoLeader)
		if d := time.Since(start); d > 2500*time.Millisecond { // the round before, and its own
			t.Errorf("the refusal took %s", d)
		}
	})
}

// As few voters are asked as make a majority; the others when one of those does not
// confirm or is late, and then at once, until it is prompt again.
func TestReadIndexAsksNoMoreThanItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, of := voters(t, 1)
		a, vs := w.nodes["a"], addresses(servers(1, w.names...))
		// read returns how long a read took, and how often b and c were asked.
		read := func() (took time.Duration, b, c int) {
			t.Helper()
			b, c = of["b"].questions(), of["c"].questions()
			start := time.Now()
			if err := a.ReadIndex(t.Context(), 1, 7, vs); err != nil {
				t.Fatal(err)
			}
			took = time.Since(start)
			synctest.Wait()
			return took, of["b"].questions() - b, of["c"].questions() - c
		}
		read()
		time.Sleep(time.Second) // the sessions stand
		if _, b, c := read(); b != 1 || c != 0 {
			t.Fatalf("b was asked %d times and c %d", b, c)
		}
		of["b"].set(1, 6) // does not confirm
		if took, b, c := read(); b != 1 || c != 1 || took >= a.cfg.ReadIndexHedge {
			t.Fatalf("b denies: it was asked %d times and c %d, in %s", b, c, took)
		}
		of["b"].set(1, 7)
		w.net.cut("a", "b", true)
		if took, _, c := read(); c != 1 || took < a.cfg.ReadIndexHedge || took > 2*a.cfg.ReadIndexHedge {
			t.Fatalf("b is cut off: c was asked %d times, in %s", c, took)
		}
		if took, _, c := read(); c != 1 || took >= a.cfg.ReadIndexHedge {
			t.Fatalf("b is known to be late: c was asked %d times, in %s", c, took)
		}
		w.net.cut("a", "b", false)
		time.Sleep(10 * time.Second)
		read() // b answers in time again
		if _, b, c := read(); b != 1 || c != 0 {
			t.Fatalf("b is back: it was asked %d times and c %d", b, c)
		}
	})
}

// Those who wait behind a round that is late ask the others together with those
// who are in it.
func TestReadIndexBehindALateRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := voters(t, 1)
		a, vs := w.nodes["a"], addresses(servers(1, w.names...))
		read := func() {
			start := time.Now()
			if err := a.ReadIndex(t.Context(), 1, 7, vs); err != nil || time.Since(start) > a.cfg.ReadIndexHedge+5*time.Millisecond {
				t.Errorf("%v, in %s", err, time.Since(start))
			}
		}
		read()
		time.Sleep(time.Second) // the sessions stand
		w.net.cut("a", "b", true)
		var reading sync.WaitGroup
		for range 2 {
			reading.Go(read)
			time.Sleep(a.cfg.ReadIndexHedge / 4)
		}
		reading.Wait()
	})
}

// A peer that answers, but late, stays known to be late.
func TestReadIndexSlowVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, of := voters(t, 1)
		a, vs := w.nodes["a"], addresses(servers(1, w.names...))
		w.nodes["b"].SetReadIndexHandler(func(group uint32, replica, term uint64) bool {
			time.Sleep(2 * a.cfg.ReadIndexHedge)
			return of["b"].handler(group, replica, term)
		})
		for i := range 5 {
			start := time.Now()
			if err := a.ReadIndex(t.Context(), 1, 7, vs); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); i > 0 && took >= a.cfg.ReadIndexHedge {
				t.Errorf("read %d took %s", i, took)
			}
			time.Sleep(time.Second)
		}
	})
}

// A barrier that took a peer for prompt just before it was found late asks the others.
func TestReadIndexJoinsALateQueue(t *testing.T) {
	q, b := newReadQueue(), newBarrier(3)
	q.delay()
	if !q.add(ask{group: 1, term: 7}, b) {
		t.Fatal("the queue is closed")
	}
	select {
	case <-b.more:
	default:
		t.Error("it waits for the peer alone")
	}
}

// A majority is asked whatever the number of voters, and the leader counts only
// where it is one of them.
func TestReadIndexAsksAMajority(t *testing.T) {
	for _, c := range []struct{ nodes, voters, asked string }{
		{"a", "a", "a"},
		{"ab", "ab", "ab"},
		{"abc", "bc", "bc"},
		{"abcd", "abcd", "abc"},
		{"abcd", "bcd", "bc"},
		{"abcde", "abcde", "abc"},
	} {
		t.Run(c.voters+" of "+c.nodes, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, of := votersOn(t, 1, strings.Split(c.nodes, "")...)
				vs := addresses(servers(1, w.names...))
				vs = slices.DeleteFunc(vs, func(v raft.ServerAddress) bool { return !strings.Contains(c.voters, string(v[:1])) })
				for range 2 { // the sessions stand at the second
					for _, s := range of {
						s.forget()
					}
					if err := w.nodes["a"].ReadIndex(t.Context(), 1, 7, vs); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				asked := ""
				for _, name := range w.names {
					if of[name].questions() > 0 {
						asked += name
					}
				}
				if asked != c.asked {
					t.Errorf("asked %s, want %s", asked, c.asked)
				}
			})
		})
	}
}

func BenchmarkReadIndex(b *testing.B) {
	for _, readers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			nodes := loopback(b, "a", "b", "c")
			const groups = 64
			for name, m := range nodes {
				m.SetReadIndexHandler(func(uint32, uint64, uint64) bool { return true })
				for g := uint32(1); g <= groups; g++ {
					m.Group(g, Address(name, uint64(g)*10+uint64(name[0]-'a')+1))
				}
			}
			read := func(g uint32) {
				if err := nodes["a"].ReadIndex(context.Background(), g, 7, addresses(servers(g, "a", "b", "c"))); err != nil {
					b.Error(err)
				}
			}
			read(1)
			cpu := cpuTime()
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range readers {
				wg.Go(func() {
					for n := i; n < b.N; n += readers {
						read(uint32(n%groups) + 1)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
		})
	}
}
