package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
)

// tally is the smallest machine: it counts entries, and remembers which.
type tally struct {
	mu      sync.Mutex // guards seen
	seen    []uint64
	applied watermark
	term    watermark
}

func (m *tally) index() uint64           { return m.applied.Load() }
func (m *tally) configured() *configured { return new(configured) }
func (m *tally) Apply(l *raft.Log) any   { return m.ApplyBatch([]*raft.Log{l})[0] }
func (m *tally) Restore(r io.ReadCloser) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (m *tally) Snapshot() (raft.FSMSnapshot, error) { return nopSnapshot{}, nil }

func (m *tally) ApplyBatch(entries []*raft.Log) []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		if e.Type == raft.LogCommand && e.Index > m.index() {
			m.seen = append(m.seen, e.Index)
		}
		m.term.Raise(e.Term)
		m.applied.Raise(e.Index)
	}
	return make([]any, len(entries))
}

func (m *tally) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

type nopSnapshot struct{}

func (nopSnapshot) Persist(sink raft.SnapshotSink) error {
	_, err := sink.Write([]byte("a tally remembers nothing of its snapshots"))
	return errors.Join(err, sink.Close())
}
func (nopSnapshot) Release() {}

// memLog is a log in memory.
type memLog struct{ *raft.InmemStore }

func (memLog) Bytes() int64          { return 0 }
func (memLog) Continues(uint64) bool { return true }

// wire is a transport in memory with faults: answers of a peer that are held
// back, and peers that cannot be reached.
type wire struct {
	*raft.InmemTransport
	self *raft.InmemTransport // reaches only this one, for Local

	mu   sync.Mutex // guards what follows
	hold map[raft.ServerID]chan struct{}
	cut  map[raft.ServerID]bool
	deaf raft.ServerID // answers, and takes no entries
}

var errCut = errors.New("cut")

func (w *wire) SetHeartbeatHandler(func(raft.RPC)) {}

func (w *wire) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (w *wire) isCut(id raft.ServerID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[id]
}

func (w *wire) AppendEntries(id raft.ServerID, a raft.ServerAddress, q *raft.AppendEntriesRequest, p *raft.AppendEntriesResponse) error {
	if w.isCut(id) {
		return errCut
	}
	w.mu.Lock()
	hold, deaf := w.hold[id], w.deaf == id
	w.mu.Unlock()
	if deaf && !isHeartbeat(q) {
		p.Term, p.LastLog, p.Success, p.NoRetryBackoff = q.Term, q.PrevLogEntry+1, false, false
		time.Sleep(100 * time.Millisecond)
		return nil
	}
	err := w.InmemTransport.AppendEntries(id, a, q, p)
	if hold != nil {
		<-hold
	}
	return err
}

func (w *wire) RequestVote(id raft.ServerID, a raft.ServerAddress, q *raft.RequestVoteRequest, p *raft.RequestVoteResponse) error {
	if w.isCut(id) {
		return errCut
	}
	return w.InmemTransport.RequestVote(id, a, q, p)
}

func (w *wire) RequestPreVote(id raft.ServerID, a raft.ServerAddress, q *raft.RequestPreVoteRequest, p *raft.RequestPreVoteResponse) error {
	if w.isCut(id) {
		return errCut
	}
	return w.InmemTransport.RequestPreVote(id, a, q, p)
}

// Local implements local.
func (w *wire) Local(request any) error {
	switch q := request.(type) {
	case *raft.AppendEntriesRequest:
		return w.self.AppendEntries("", w.LocalAddr(), q, new(raft.AppendEntriesResponse))
	case *raft.TimeoutNowRequest:
		return w.self.TimeoutNow("", w.LocalAddr(), q, new(raft.TimeoutNowResponse))
	}
	return fmt.Errorf("%T", request)
}

// Close leaves the in-memory transport open: the next incarnation has the same.
func (w *wire) Close() error { return nil }

// parliament is a group of members in one bubble.
type parliament struct {
	t       *testing.T
	members []*member
	wires   []*wire
	states  []*tally
	events  []*events
	seen    []atomic.Pointer[func()] // called with each change of leadership
	timeout time.Duration            // of elections
}

// convene runs f with a group of n members in a bubble.
func convene(t *testing.T, n int, f func(p *parliament)) {
	synctest.Test(t, func(t *testing.T) {
		conveneNow(t, n, time.Second, f)
		time.Sleep(time.Minute) // Raft's own loose goroutines end by themselves
	})
}

// conveneNow does so in real time.
func conveneNow(t *testing.T, n int, timeout time.Duration, f func(p *parliament)) {
	p := &parliament{t: t, seen: make([]atomic.Pointer[func()], n), timeout: timeout}
	var c raft.Configuration
	for i := range n {
		address := transport.Address(fmt.Sprintf("n%d", i), uint64(i+1))
		_, in := raft.NewInmemTransportWithTimeout(address, 500*time.Millisecond)
		_, self := raft.NewInmemTransportWithTimeout("", 500*time.Millisecond)
		self.Connect(address, in)
		p.wires = append(p.wires, &wire{InmemTransport: in, self: self, hold: map[raft.ServerID]chan struct{}{}, cut: map[raft.ServerID]bool{}})
		c.Servers = append(c.Servers, raft.Server{ID: serverID(uint64(i + 1)), Address: address})
	}
	for i := range n {
		for j := range n {
			if i != j {
				p.wires[i].Connect(c.Servers[j].Address, p.wires[j].InmemTransport)
			}
		}
		p.add(i, c)
	}
	f(p)
	for i, m := range p.members {
		m.stop()
		p.events[i].close()
	}
}

func (p *parliament) add(i int, c raft.Configuration) {
	state, e := new(tally), newEvents()
	m := newMember(memberConfig{
		group: 1, replica: uint64(i + 1), node: fmt.Sprintf("n%d", i), timeout: p.timeout,
		machine: state, wal: memLog{raft.NewInmemStore()}, snaps: raft.NewInmemSnapshotStore(),
		carrier: func() carrier { return p.wires[i] }, events: e, stall: newDiskStall(),
		logger: newRaftLogger(slog.New(slog.DiscardHandler), newRepeats(), 1),
		led:    func(uint64) {},
		seen: func(string, uint64) {
			if f := p.seen[i].Load(); f != nil {
				(*f)()
			}
		},
	})
	if err := m.bootstrap(c); err != nil {
		p.t.Fatal(err)
	}
	if err := m.start(); err != nil {
		p.t.Fatal(err)
	}
	p.members, p.states, p.events = append(p.members, m), append(p.states, state), append(p.events, e)
}

// leader waits for one of these to lead; of all when none is named.
func (p *parliament) leader(among ...int) int {
	p.t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
		for i, m := range p.members {
			if _, leads := m.leading(); leads && (len(among) == 0 || among[0] == i) {
				return i
			}
		}
	}
	p.t.Fatal("no leader")
	return -1
}

func (p *parliament) propose(i int) error {
	m := p.members[i]
	future := m.propose([]byte("x"))
	err := future.Error()
	m.refused.note(err)
	return err
}

// Two leadership transfers that hang make a leader refuse every proposal for
// ever (hashicorp/raft #696). The watchdog restarts its Raft in place; nothing
// is applied twice. The two goroutines of the stuck transfer never end, so this
// is not for a bubble, and a slow machine may need several attempts until both hang.
func TestStuckTransferIsRestartedInPlace(t *testing.T) {
	t.Parallel()
	for range 10 {
		if restartStuck(t) > 0 {
			return
		}
	}
	t.Error("nothing was refused: the fault is gone, and with it the reason for this watchdog")
}

// restartStuck has two transfers hang, unless the machine is too slow for it, and returns how many
// proposals were refused until the watchdog had restarted Raft.
func restartStuck(t *testing.T) (refused int) {
	conveneNow(t, 3, 200*time.Millisecond, func(p *parliament) {
		a := p.leader()
		b, c := (a+1)%3, (a+2)%3
		bID, cID := serverID(uint64(b+1)), serverID(uint64(c+1))
		if err := p.propose(a); err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		p.wires[a].mu.Lock()
		p.wires[a].hold[bID] = hold // replication to b hangs, entries commit through c
		p.wires[a].mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		if err := p.propose(a); err != nil { // a slow machine has not heard from c in time
			close(hold)
			return
		}
		r := p.members[a].now.Load().raft
		to := func() raft.Future { return r.LeadershipTransferToServer(bID, p.wires[b].LocalAddr()) }
		_ = to().Error()
		time.Sleep(100 * time.Millisecond)
		second := to()
		time.Sleep(200 * time.Millisecond)
		p.wires[a].mu.Lock()
		p.wires[a].cut[cID] = true // and the lease runs out
		p.wires[a].mu.Unlock()
		for _, leads := p.members[a].leading(); leads; _, leads = p.members[a].leading() {
			time.Sleep(10 * time.Millisecond)
		}
		_ = second.Error()
		p.wires[a].mu.Lock()
		p.wires[a].cut[cID] = false
		delete(p.wires[a].hold, bID)
		p.wires[a].mu.Unlock()
		close(hold)
		p.lead(a)
		var fatal error
		w := newGroupWatch(func() []*member { return p.members[a : a+1] }, func(err error) { fatal = err }, slog.New(slog.DiscardHandler))
		p.members[a].refused.after = 500 * time.Millisecond
		const acknowledged = 3 // two, and the one that ends the loop
		unknown := 0
		for start := time.Now(); ; time.Sleep(watchEvery / 10) {
			err := p.propose(a)
			if err == nil {
				break
			}
			switch {
			case errors.Is(err, raft.ErrLeadershipTransferInProgress):
				refused++
			case !errors.Is(err, raft.ErrNotLeader):
				unknown++
			}
			w.look()
			w.wg.Wait()
			if time.Since(start) > 30*time.Second {
				t.Fatalf("still refused after 30 s: %v", err)
			}
			p.lead(a)
		}
		if fatal != nil {
			t.Errorf("fatal: %v", fatal)
		}
		for i, s := range p.states {
			for until := time.Now().Add(time.Minute); s.count() < acknowledged && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
				p.lead(a) // or a member that lags may wait for a leader
			}
			if n := s.count(); n < acknowledged || n > acknowledged+unknown {
				t.Errorf("member %d has applied %d entries %v, of %d acknowledged and %d unknown", i, n, s.seen, acknowledged, unknown)
			}
		}
	})
	return refused
}

// lead makes a member the leader, whoever was.
func (p *parliament) lead(a int) {
	p.t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if _, leads := p.members[a].leading(); leads {
			return
		}
		p.members[a].campaign()
		time.Sleep(p.timeout / 2)
	}
	p.t.Fatalf("member %d does not come to lead", a)
}

// A restart in place keeps the machine: entries that it has are not applied
// again, and new ones are.
func TestRestartInPlace(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		for range 5 {
			if err := p.propose(a); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.members[a].restart(); err != nil {
			t.Fatal(err)
		}
		p.lead(a)
		if err := p.propose(a); err != nil {
			t.Fatal(err)
		}
		if n := p.states[a].count(); n != 6 {
			t.Errorf("%d entries applied, want 6: %v", n, p.states[a].seen)
		}
	})
}

// Pre-vote is on only if the transport offers it; Raft says nothing otherwise.
func TestPreVoteIsOn(t *testing.T) {
	var l any = newLink((*transport.Group)(nil))
	if _, ok := l.(raft.WithPreVote); !ok {
		t.Error("the transport hides pre-vote from Raft")
	}
	if raftConfig(1, time.Second, nil).PreVoteDisabled {
		t.Error("pre-vote is off")
	}
}

// What a leader has been given ends with its Raft, though Raft itself would
// leave it waiting in a channel for ever.
func TestFuturesEndWithRaft(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		for _, w := range p.wires {
			w.mu.Lock()
			for i := range 3 {
				w.cut[serverID(uint64(i+1))] = true
			}
			w.mu.Unlock()
		}
		var futures []raft.ApplyFuture
		for range 20 {
			futures = append(futures, p.members[a].propose([]byte("x")))
		}
		late := p.members[a].now.Load()
		p.members[a].stop()
		for range 50 { // about half of them get into the channel that is read no more
			futures = append(futures, late.propose([]byte("x")))
		}
		for _, f := range futures {
			ended := make(chan error, 1)
			go func() { ended <- f.Error() }()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("an entry without a majority is said to be applied")
				}
			case <-time.After(time.Minute):
				t.Fatal("what waits for a Raft that has ended waits for ever")
			}
		}
	})
}

// A leader that gets the call to leave steps down at once, and what was on its way gets its answer.
func TestLeave(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		p.wires[a].mu.Lock()
		for i := range 3 {
			p.wires[a].cut[serverID(uint64(i+1))] = true
		}
		p.wires[a].mu.Unlock()
		future := p.members[a].propose([]byte("x"))
		start := time.Now()
		p.members[a].leave()
		if err := future.Error(); !errors.Is(err, raft.ErrLeadershipLost) {
			t.Errorf("the entry on its way: %v, want leadership lost", err)
		}
		if took := time.Since(start); took > 50*time.Millisecond {
			t.Errorf("stepping down took %v: that is the lease", took)
		}
	})
}

// A campaign spares a new group the wait for a heartbeat.
func TestCampaign(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		start := time.Now()
		p.members[1].campaign()
		p.leader(1)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("elected after %v", took)
		}
	})
}

// Raft waits for whoever it notifies; ours never keeps it waiting, however long
// what it does with the news takes.
func TestEventsNeverBlockRaft(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		release := make(chan struct{})
		slow := p.events[0]
		wait := func() { <-release }
		p.seen[0].Store(&wait)
		for i := range 200 { // more changes than the channel holds
			p.lead(i % 3)
		}
		if len(slow.observed) == cap(slow.observed) {
			t.Error("nobody listens to Raft")
		}
		close(release)
	})
}

// This happens with a NotifyCh that no goroutine reads: the leader never gets as far as its first entry.
func TestRaftBlocksOnNotifyCh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, in := raft.NewInmemTransport("n0/1")
		conf := raftConfig(1, time.Second, newRaftLogger(slog.New(slog.DiscardHandler), newRepeats(), 1))
		conf.NotifyCh = make(chan bool)
		log, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		if err := raft.BootstrapCluster(conf, log, log, snaps, in, raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: address}}}); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(conf, new(tally), log, log, snaps, in)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r.State() != raft.Leader || r.CommitIndex() != 0 {
			t.Errorf("%v with commit index %d: NotifyCh no longer blocks", r.State(), r.CommitIndex())
		}
		_ = r.Shutdown().Error()
		time.Sleep(time.Minute)
	})
}

// committing is a log store that tracks the commit index, as RestoreCommittedLogs wants.
type committing struct {
	*raft.InmemStore
	commit uint64
}

func (c *committing) StageCommitIndex(uint64) error   { return nil }
func (c *committing) GetCommitIndex() (uint64, error) { return c.commit, nil }

// RestoreCommittedLogs loses the group's configuration on restart: Raft looks
// for it only behind the entries that it restores. (Above 8,192 entries it
// hangs as well.) It stays off.
func TestRestoreCommittedLogsLosesTheConfiguration(t *testing.T) {
	for _, on := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			address, in := raft.NewInmemTransport("n0/1")
			conf := raftConfig(1, time.Second, newRaftLogger(slog.New(slog.DiscardHandler), newRepeats(), 1))
			if conf.RestoreCommittedLogs {
				t.Error("RestoreCommittedLogs is on")
			}
			log, snaps := &committing{InmemStore: raft.NewInmemStore(), commit: 3}, raft.NewInmemSnapshotStore()
			if err := raft.BootstrapCluster(conf, log, log, snaps, in, raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: address}}}); err != nil {
				t.Fatal(err)
			}
			for i := range uint64(3) {
				if err := log.StoreLog(&raft.Log{Index: i + 2, Term: 1, Data: []byte("x")}); err != nil {
					t.Fatal(err)
				}
			}
			conf.RestoreCommittedLogs = on
			r, err := raft.NewRaft(conf, new(tally), log, log, snaps, in)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(r.GetConfiguration().Configuration().Servers); (got == 0) != on {
				t.Errorf("RestoreCommittedLogs %v: %d servers in the configuration", on, got)
			}
			_ = r.Shutdown().Error()
			time.Sleep(time.Minute)
		})
	}
}

// Leadership goes to a follower that has the whole log, or nowhere: Raft would
// first have to send the rest, and two transfers that hang there are the end of
// the group (hashicorp/raft #696).
func TestHeirHasTheWholeLog(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		b, c := (a+1)%3, (a+2)%3
		bID, cID := serverID(uint64(b+1)), serverID(uint64(c+1))
		if err := p.propose(a); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for _, id := range []raft.ServerID{bID, cID} {
			if missing, heard := p.members[a].behind(id); missing != 0 || !heard {
				t.Errorf("%s lacks %d entries, heard: %v; want none, and heard", id, missing, heard)
			}
		}
		p.wires[a].mu.Lock()
		p.wires[a].cut[bID] = true
		p.wires[a].mu.Unlock()
		for range 5 {
			if err := p.propose(a); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		if missing, heard := p.members[a].behind(bID); missing != 5 || heard {
			t.Errorf("the one cut off lacks %d entries, heard: %v; want 5, and not heard", missing, heard)
		}
		if missing, heard := p.members[a].behind(cID); missing != 0 || !heard {
			t.Errorf("the other lacks %d entries, heard: %v", missing, heard)
		}
		if _, leads := p.members[c].leading(); leads {
			t.Error("a follower believes to lead")
		}
		if _, heard := p.members[c].behind(bID); heard {
			t.Error("a follower believes to hear others")
		}
	})
}

// A follower that answers heartbeats and takes no entries has its leader
// restarted in place; one that is silent, slow or complete has not.
func TestStalledReplication(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		b := (a + 1) % 3
		if err := p.propose(a); err != nil {
			t.Fatal(err)
		}
		before := p.members[a].now.Load()
		w := newGroupWatch(func() []*member { return p.members }, func(err error) { t.Errorf("fatal: %v", err) }, slog.New(slog.DiscardHandler))
		look := func(d time.Duration) {
			for range d / watchEvery {
				time.Sleep(watchEvery)
				w.look()
				w.wg.Wait()
			}
		}
		look(2 * stallAfter)
		if p.members[a].now.Load() != before {
			t.Fatal("a healthy group was restarted")
		}
		p.wires[a].mu.Lock()
		p.wires[a].deaf = serverID(uint64(b + 1))
		p.wires[a].mu.Unlock()
		for range 3 {
			if err := p.propose(a); err != nil {
				t.Fatal(err)
			}
		}
		look(stallAfter / 2)
		if p.members[a].now.Load() != before {
			t.Fatal("restarted too early")
		}
		look(stallAfter)
		if p.members[a].now.Load() == before {
			t.Error("not restarted though a follower makes no progress")
		}
	})
}

// A restart in place that does not help is followed by the end of the node.
func TestRestartThatDoesNotHelp(t *testing.T) {
	convene(t, 1, func(p *parliament) {
		p.leader()
		var fatal error
		w := newGroupWatch(func() []*member { return p.members }, func(err error) { fatal = err }, slog.New(slog.DiscardHandler))
		for range 3 * restartMax / watchEvery {
			p.members[0].refused.note(raft.ErrLeadershipTransferInProgress)
			w.look()
			w.wg.Wait()
			time.Sleep(watchEvery)
		}
		if fatal == nil {
			t.Error("the node goes on")
		}
	})
}

// One refusal now and one much later are no sign of a stuck leader.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := refusals{after: refuseAfter}
		r.note(raft.ErrLeadershipTransferInProgress)
		time.Sleep(time.Hour)
		if r.lasting() {
			t.Error("a single refusal counts as lasting")
		}
		r.note(nil)
		for range 10 {
			r.note(raft.ErrLeadershipTransferInProgress)
			time.Sleep(time.Second)
		}
		if !r.lasting() {
			t.Error("refusals for ten seconds do not count as lasting")
		}
		r.note(nil)
		if r.lasting() {
			t.Error("a success does not end it")
		}
	})
}

// A disk that stalls silences this node's leaders after two seconds, and ends the
// node after twenty.
func TestDiskWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var since time.Time // of the sync; zero: none is under way
		var log []string
		tell := func(what string) { log = append(log, fmt.Sprintf("%s after %v", what, time.Since(since))) }
		w := &diskWatch{
			oldest: func() time.Duration {
				if since.IsZero() {
					return 0
				}
				return time.Since(since)
			},
			mute: func(on bool) {
				if on {
					tell("silent")
				} else {
					log = append(log, "speaks")
				}
			},
			fatal: func(error) {
				tell("ends")
				since = time.Time{}
			},
			logger: slog.New(slog.DiscardHandler),
		}
		look := func(d time.Duration) {
			for range d / watchEvery {
				time.Sleep(watchEvery)
				w.look()
			}
		}
		hung := func(d time.Duration) {
			since = time.Now()
			look(d)
		}
		look(time.Minute)
		hung(muteAfter)
		hung(muteAfter + watchEvery)
		since = time.Time{}
		look(time.Minute)
		hung(fatalAfter + watchEvery)
		want := []string{"silent after 2.25s", "speaks", "silent after 2.25s", "ends after 20.25s"}
		if !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}

		// Time in which the process stood still does not count against the disk, even if it happens more than once. A
		// stalled disk is noticed all the same.
		since = time.Time{}
		look(time.Minute)
		log = nil
		for range 5 {
			since = time.Now()
			time.Sleep(40 * time.Second)
			w.look()
			since = time.Time{}
			look(time.Second)
		}
		if len(log) > 0 {
			t.Errorf("%q of a process that stood still", log)
		}
		hung(time.Second)
		time.Sleep(40 * time.Second)
		look(fatalAfter - stoodAfter - time.Second + 2*watchEvery)
		want = []string{"silent after 41.5s", "ends after 59.5s"}
		if !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
	})
}

// damagedFrom is a log whose entries cannot be read from an index on; 0: all can.
type damagedFrom struct {
	groupLog
	at atomic.Uint64
}

func (d *damagedFrom) GetLog(index uint64, to *raft.Log) error {
	if at := d.at.Load(); at != 0 && index >= at {
		return proto.ErrCorrupt.Errorf("entry %d is damaged", index)
	}
	return d.groupLog.GetLog(index, to)
}

// A follower that cannot read an entry which it is to apply ends its node in order: Raft does not panic.
func TestDamagedEntryEndsTheNode(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.leader()
		m := p.members[(a+1)%3]
		log := &damagedFrom{groupLog: m.wal}
		var ends atomic.Pointer[error]
		if err := m.restartAs(func() error {
			m.wal, m.fatal = log, func(err error) { ends.Store(&err) }
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := p.propose(p.leader()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // it hears later that it is committed
		if ends.Load() != nil {
			t.Fatalf("it ends: %v", *ends.Load())
		}
		last, err := m.wal.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		log.at.Store(last + 1)
		if err := p.propose(p.leader()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // it hears later that it is committed
		err = nil
		if e := ends.Load(); e != nil {
			err = *e
		}
		if !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), "group 1: entry") {
			t.Errorf("it ends: %v", err)
		}
	})
}
