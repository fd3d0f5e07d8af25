package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// pair is two nodes with a replica of group 1 each: a/11 asks, b/12 answers as echo does.
func pair(t *testing.T, change func(*Config)) (w *world, asks *Group) {
	w = newWorld(t, change, "a", "b")
	b := w.nodes["b"].Group(1, "b/12")
	t.Cleanup(echo(b))
	return w, w.nodes["a"].Group(1, "a/11")
}

func heartbeat(g *Group, to raft.ServerAddress) error {
	var resp raft.AppendEntriesResponse
	args := &raft.AppendEntriesRequest{RPCHeader: header("a", 11), Term: 3}
	return g.AppendEntries("", to, args, &resp)
}

func appendTo(g *Group, to raft.ServerAddress, bytes int) error {
	var resp raft.AppendEntriesResponse
	return g.AppendEntries("", to, appendOf("a", 11, 1, bytes), &resp)
}

func vote(g *Group, to raft.ServerAddress) error {
	var resp raft.RequestVoteResponse
	return g.RequestVote("", to, &raft.RequestVoteRequest{RPCHeader: header("a", 11), Term: 3}, &resp)
}

func TestEveryCallGetsItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		const groups = 40
		var wg sync.WaitGroup
		for i := range groups {
			id := uint32(i + 1)
			t.Cleanup(echo(w.nodes["b"].Group(id, Address("b", uint64(id)))))
			g := w.nodes["a"].Group(id, Address("a", uint64(id)))
			for entries := range 3 {
				wg.Go(func() {
					for n := range 50 {
						args := appendOf("a", int(id), entries, 10)
						args.Term, args.PrevLogEntry = uint64(id), uint64(1000*n)
						for j, l := range args.Entries {
							l.Index = uint64(1000*n + j + 1)
						}
						var resp raft.AppendEntriesResponse
						err := g.AppendEntries("", Address("b", uint64(id)), args, &resp)
						if err != nil || resp.Term != uint64(id) || resp.LastLog != uint64(1000*n+entries) {
							t.Errorf("group %d, %d entries: got %+v, error %v", id, entries, resp, err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

func TestRefusedGreetings(t *testing.T) {
	node := func(name, cluster string) func(*Config) {
		return func(c *Config) { c.ClusterID = func() string { return map[string]string{name: cluster}[c.Node] } }
	}
	both := func(a, b string) func(*Config) {
		return func(c *Config) { c.ClusterID = func() string { return map[string]string{"a": a, "b": b}[c.Node] } }
	}
	for _, c := range []struct {
		name     string
		change   func(*Config)
		versions [2]uint64
		want     error
		says     string
	}{
		{name: "same cluster", change: both("x", "x")},
		{name: "asker does not know its cluster", change: node("b", "x")},
		{name: "answerer does not know its cluster", change: node("a", "x")},
		{name: "another cluster", change: both("x", "y"), want: proto.ErrWrongCluster, says: "node a belongs to cluster x, node b to y"},
		{name: "asker is newer but understands", versions: [2]uint64{proto.WireVersion + 1, proto.WireVersion}},
		{name: "asker is too old", versions: [2]uint64{0, proto.WireVersion}, want: proto.ErrNewerVersion, says: "node a speaks peer protocol 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := pair(t, c.change)
				if c.versions != [2]uint64{} {
					w.nodes["a"].version, w.nodes["b"].version = c.versions[0], c.versions[1]
				}
				start := time.Now()
				for i := range 3 {
					err := vote(g, "b/12")
					if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
						t.Fatalf("try %d: got %v, want %v", i, err, c.want)
					}
				}
				if d := time.Since(start); d > 100*time.Millisecond {
					t.Errorf("it took %s to be sure", d)
				}
			})
		})
	}
}

func TestNewerProtocolIsRefused(t *testing.T) {
	m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
	defer m.Close()
	h := hello{version: 9, oldest: 9, stream: kindPing, from: "a", to: "b"}
	isCode(t, m.check(&h, kindPing), proto.ErrNewerVersion)
	h.oldest = proto.WireVersion
	if err := m.check(&h, kindPing); err != nil {
		t.Fatal(err)
	}
	h.from = "b"
	isCode(t, m.check(&h, kindPing), proto.ErrDuplicateNode)
	h.from, h.to = "a", "c"
	isCode(t, m.check(&h, kindPing), proto.ErrUnreachable)
	h.to = "b"
	if err := m.check(&h, kindAppend); err == nil {
		t.Fatal("a control stream passed for an append stream")
	}
}

// Nodes that did not know their cluster when they met part when they learn
// that it is not the same.
func TestClusterLearnedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known atomic.Bool
		_, g := pair(t, func(c *Config) {
			id := "cluster of " + c.Node
			c.ClusterID = func() string {
				if known.Load() {
					return id
				}
				return ""
			}
		})
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		known.Store(true)
		time.Sleep(2 * time.Second)
		isCode(t, vote(g, "b/12"), proto.ErrWrongCluster)
	})
}

// A refused peer is tried again, seldom; once it is right it is used.
func TestRefusalIsNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mended atomic.Bool
		w, g := pair(t, func(c *Config) {
			id := "cluster of " + c.Node
			c.ClusterID = func() string {
				if mended.Load() {
					return "one"
				}
				return id
			}
		})
		isCode(t, vote(g, "b/12"), proto.ErrWrongCluster)
		dials := w.net.count()
		time.Sleep(10 * time.Second)
		if n := w.net.count() - dials; n > 40 { // two connections a try
			t.Errorf("%d dials in ten seconds", n)
		}
		mended.Store(true)
		time.Sleep(2 * time.Second)
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
	})
}

func (n *network) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

func TestWrongReplicaIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		for _, to := range []raft.ServerAddress{"b/13", "b/1"} {
			for name, call := range map[string]func(*Group, raft.ServerAddress) error{"vote": vote, "heartbeat": heartbeat} {
				err := call(g, to)
				isCode(t, err, proto.ErrUnreachable)
				if !strings.Contains(err.Error(), "has replica 12 on node b, not") {
					t.Errorf("%s to %s: %v", name, to, err)
				}
			}
			isCode(t, appendTo(g, to, 10), proto.ErrUnreachable)
			isCode(t, install(g, to, strings.NewReader("snap"), 4), proto.ErrUnreachable)
		}
		isCode(t, vote(w.nodes["a"].Group(2, "a/21"), "b/22"), proto.ErrUnreachable)
		for _, bad := range []raft.ServerAddress{"b", "b/", "/12", "b/x", "b/-1", ""} {
			if err := vote(g, bad); err == nil {
				t.Errorf("%q is no address", bad)
			}
		}
		isCode(t, vote(g, "a/11"), proto.ErrUnreachable) // ourselves

		old := w.nodes["b"].group(1)
		t.Cleanup(echo(w.nodes["b"].Group(1, "b/99"))) // another incarnation takes over
		isCode(t, vote(g, "b/12"), proto.ErrUnreachable)
		if err := vote(g, "b/99"); err != nil {
			t.Fatal(err)
		}
		_ = old.Close() // must not close its successor
		if err := vote(g, "b/99"); err != nil {
			t.Fatal(err)
		}
	})
}

// silence makes node b's replica swallow everything.
func silence(t *testing.T, w *world) {
	b := w.nodes["b"].Group(1, "b/12")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-b.Consumer():
				<-done
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() { close(done); wg.Wait() })
}

func TestEveryCallHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		silence(t, w)
		cfg := w.nodes["a"].cfg
		var pre raft.RequestPreVoteResponse
		var now raft.TimeoutNowResponse
		for _, c := range []struct {
			name  string
			limit time.Duration
			call  func() error
		}{
			{"vote", cfg.ControlTimeout, func() error { return vote(g, "b/12") }},
			{"heartbeat", cfg.ControlTimeout, func() error { return heartbeat(g, "b/12") }},
			{"pre-vote", cfg.ControlTimeout, func() error {
				return g.RequestPreVote("", "b/12", &raft.RequestPreVoteRequest{RPCHeader: header("a", 11)}, &pre)
			}},
			{"timeout now", cfg.ControlTimeout, func() error {
				return g.TimeoutNow("", "b/12", &raft.TimeoutNowRequest{RPCHeader: header("a", 11)}, &now)
			}},
			{"append", cfg.AppendTimeout, func() error { return appendTo(g, "b/12", 10) }},
			{"snapshot", cfg.ChunkTimeout, func() error { return install(g, "b/12", strings.NewReader("snap"), 4) }},
		} {
			start := time.Now()
			err := c.call()
			if d := time.Since(start); err == nil || d > c.limit+50*time.Millisecond {
				t.Errorf("%s: %v after %s", c.name, err, d)
			}
		}
	})
}

// When a stream breaks its callers know at once, not at their deadline.
func TestBrokenStreamFailsItsCallers(t *testing.T) {
	for name, breakIt := range map[string]func(w *world){
		"connection reset": func(w *world) { w.net.reset("b") },
		"peer closes":      func(w *world) { w.nodes["b"].Close() },
		"server stops":     func(w *world) { w.nodes["b"].server.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := pair(t, nil)
				if err := vote(g, "b/12"); err != nil {
					t.Fatal(err)
				}
				silence(t, w)
				errs := make(chan error, 3)
				go func() { errs <- vote(g, "b/12") }()
				go func() { errs <- appendTo(g, "b/12", 10) }()
				go func() { errs <- install(g, "b/12", io.LimitReader(zeros{}, 1<<20), 1<<20) }()
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				start := time.Now()
				breakIt(w)
				for range cap(errs) {
					if err := <-errs; !errors.Is(err, proto.ErrUnreachable) && !errors.Is(err, proto.ErrShuttingDown) {
						t.Errorf("got %v", err)
					}
				}
				if d := time.Since(start); d > 20*time.Millisecond {
					t.Errorf("they knew after %s", d)
				}
			})
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A connection that is half open is given up after PingTimeout, and a cut that
// heals is bridged soon after, though no byte of the old connections comes through.
func TestHalfOpenConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		for _, cut := range [][2]string{{"a", "b"}, {"b", "a"}} {
			w.net.cut(cut[0], cut[1], true)
			cfg := w.nodes["a"].cfg
			start := time.Now()
			within(t, time.Minute, "the session is given up", func() bool { return !w.nodes["a"].Peers()[0].Connected })
			if d := time.Since(start); d > cfg.PingTimeout+2*cfg.PingInterval {
				t.Errorf("cut %v was noticed after %s", cut, d)
			}
			time.Sleep(20 * time.Second)
			if p := w.nodes["a"].Peers()[0]; p.Connected || p.Err == nil {
				t.Errorf("a peer that is cut off has the status %+v", p)
			}
			w.net.cut(cut[0], cut[1], false)
			start = time.Now()
			within(t, 10*time.Second, "a session again", func() bool { return w.nodes["a"].Peers()[0].Connected })
			if d := time.Since(start); d > cfg.DialTimeout+cfg.BackoffMax {
				t.Errorf("healing took %s", d)
			}
			if err := vote(g, "b/12"); err != nil {
				t.Fatal(err)
			}
		}
		within(t, 30*time.Second, "the answering side lets old sessions go", func() bool {
			b := w.nodes["b"]
			b.mu.RLock()
			defer b.mu.RUnlock()
			return len(b.sessions) == 1
		})
	})
}

// A call made while there is no session goes out as soon as there is one.
func TestCallsWaitForASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a")
		g := w.nodes["a"].Group(1, "a/11")
		start := time.Now()
		isCode(t, vote(g, "b/12"), proto.ErrUnreachable)
		if d := time.Since(start); d != w.nodes["a"].cfg.ControlTimeout {
			t.Errorf("it gave up after %s", d)
		}
		errs := make(chan error, 1)
		go func() { errs <- appendTo(g, "b/12", 10) }()
		time.Sleep(1500 * time.Millisecond)
		t.Cleanup(echo(w.start("b", nil).Group(1, "b/12")))
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		if n := w.net.count(); n > 40 {
			t.Errorf("%d dials to a node that was away for 2.5 s", n)
		}
	})
}

func TestCloseEndsCalls(t *testing.T) {
	for name, end := range map[string]func(w *world, g *Group){
		"the replica": func(_ *world, g *Group) { _ = g.Close() },
		"the node":    func(w *world, _ *Group) { w.nodes["a"].Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := pair(t, nil)
				if err := vote(g, "b/12"); err != nil {
					t.Fatal(err)
				}
				silence(t, w)
				calls := []func() error{
					func() error { return vote(g, "b/12") },
					func() error { return appendTo(g, "b/12", 10) },
					func() error { return install(g, "b/12", zeros{}, 1<<40) },
					func() error { return vote(g, "nobody/1") },
				}
				errs := make(chan error, len(calls))
				for _, c := range calls {
					go func() { errs <- c() }()
				}
				time.Sleep(100 * time.Millisecond)
				start := time.Now()
				end(w, g)
				for range calls {
					if err := <-errs; !errors.Is(err, raft.ErrTransportShutdown) {
						t.Errorf("got %v", err)
					}
				}
				for _, c := range calls {
					if err := c(); !errors.Is(err, raft.ErrTransportShutdown) {
						t.Errorf("after the end: %v", err)
					}
				}
				if d := time.Since(start); d > 0 {
					t.Errorf("it took %s", d)
				}
				end(w, g) // twice is fine
			})
		})
	}
}

// What waits for a replica that closes is refused, not left to its deadline.
func TestClosedReplicaRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		g, b := w.nodes["a"].Group(1, "a/11"), w.nodes["b"].Group(1, "b/12") // b's raft takes nothing
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() { errs <- vote(g, "b/12") }()
		}
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		_ = b.Close()
		for range cap(errs) {
			isCode(t, <-errs, proto.ErrUnreachable)
		}
		err := vote(g, "b/12")
		isCode(t, err, proto.ErrUnreachable)
		if !strings.Contains(err.Error(), "group 1 has no replica on node b") {
			t.Errorf("a replica that is closed is still known: %v", err)
		}
		if d := time.Since(start); d > 20*time.Millisecond {
			t.Errorf("it took %s", d)
		}
	})
}

// A replica that is closed confirms no read, whatever its Raft still says.
func TestClosedReplicaConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		b := w.nodes["b"]
		b.SetReadIndexHandler(func(uint32, uint64, uint64) bool { return true })
		if got := b.confirm(ask{group: 1, replica: 12, term: 3}); got != confirmed {
			t.Fatalf("a replica that is open: %v", got)
		}
		_ = b.group(1).Close()
		if got := b.confirm(ask{group: 1, replica: 12, term: 3}); got != denied {
			t.Errorf("a replica that is closed: %v", got)
		}
		isCode(t, vote(g, "b/12"), proto.ErrUnreachable)
	})
}

// A call after the end says so at once, whatever is known of the peer.
func TestCallsAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(m *Mux, g *Group) (to raft.ServerAddress){
		"a replica that is closed, to a peer that refuses this node": func(_ *Mux, g *Group) raft.ServerAddress {
			_ = g.Close()
			return "b/12"
		},
		"a node that is just being closed, to a new peer": func(m *Mux, _ *Group) raft.ServerAddress {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.closed = true // as Close does before it ends the groups
			return "c/13"
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := pair(t, func(c *Config) {
					id := "cluster of " + c.Node
					c.ClusterID = func() string { return id }
				})
				isCode(t, vote(g, "b/12"), proto.ErrWrongCluster)
				to := end(w.nodes["a"].Mux, g)
				for call, f := range map[string]func(*Group, raft.ServerAddress) error{
					"vote": vote, "heartbeat": heartbeat,
					"entries":  func(g *Group, to raft.ServerAddress) error { return appendTo(g, to, 10) },
					"snapshot": func(g *Group, to raft.ServerAddress) error { return install(g, to, zeros{}, 1) },
				} {
					start := time.Now()
					err := f(g, to)
					if took := time.Since(start); !errors.Is(err, raft.ErrTransportShutdown) || took > 0 {
						t.Errorf("%s: got %v after %s", call, err, took)
					}
				}
			})
		})
	}
}

// Entries go on their own streams, heartbeats and votes never behind them.
func TestStreamsOfCalls(t *testing.T) {
	for name, c := range map[string]struct {
		call             func(*Group, raft.ServerAddress) error
		control, appends int // calls that wait there
	}{
		"vote":      {vote, 1, 0},
		"heartbeat": {heartbeat, 1, 0},
		"entries":   {func(g *Group, to raft.ServerAddress) error { return appendTo(g, to, 10) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil, "a", "b")
				w.nodes["b"].Group(1, "b/12") // whose Raft takes nothing
				g := w.nodes["a"].Group(1, "a/11")
				err := make(chan error, 1)
				go func() { err <- c.call(g, "b/12") }()
				time.Sleep(500 * time.Millisecond)
				s, _ := w.nodes["a"].peer("b").session(nil, nil)
				appends := 0
				for _, l := range s.appends {
					appends += l.waiting()
				}
				if n := s.control.waiting(); n != c.control || appends != c.appends {
					t.Errorf("%d calls wait on the control stream, %d on the others", n, appends)
				}
				isCode(t, <-err, proto.ErrDeadline)
			})
		})
	}
}

func (l *link) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

// A stream takes what belongs on it, and nothing else.
func TestMessagesOnTheWrongStream(t *testing.T) {
	m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
	defer m.Close()
	var p ping
	payloads := map[kind][]byte{
		kindPing: only(t, p.append(nil), kindPing),
		kindAsk:  only(t, appendAsks(nil, 1, []ask{{group: 1, replica: 12}}), kindAsk),
	}
	for _, c := range commands() {
		k := commandOf(c)
		payloads[k] = only(t, appendRequest(nil, "a", envelope{group: 1, replica: 12}, c), k)
	}
	for of, takes := range map[kind][]kind{
		kindPing:   {kindPing, kindAsk, kindAppend, kindVote, kindPreVote, kindTimeoutNow},
		kindAppend: {kindAppend},
	} {
		for k, payload := range payloads {
			in := &inbound{mux: m, of: of, peer: "a", out: newOutbox(0)}
			if err := in.receive(k, payload); (err == nil) != slices.Contains(takes, k) {
				t.Errorf("kind %d on a stream of %d: %v", k, of, err)
			}
		}
	}
}

// A session is known until the last of its streams has ended.
func TestSessionsEndWithTheirStreams(t *testing.T) {
	m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
	defer m.Close()
	key := sessionKey{node: "a", id: 7}
	in := m.join(key)
	if m.join(key) != in || m.join(sessionKey{node: "a", id: 8}) == in {
		t.Fatal("streams of one session have two, or those of two have one")
	}
	m.leave(key, in)
	if m.sessions[key] != in {
		t.Error("a session has ended that still has a stream")
	}
	m.leave(key, in)
	if m.sessions[key] != nil {
		t.Error("a session without a stream is still known")
	}
}

// A connection that breaks after it has held is made again soon, however long it could not be made before.
func TestReconnectionIsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a")
		g := w.nodes["a"].Group(1, "a/11")
		isCode(t, vote(g, "b/12"), proto.ErrUnreachable)
		time.Sleep(time.Minute)
		t.Cleanup(echo(w.start("b", nil).Group(1, "b/12")))
		time.Sleep(time.Minute)
		for range 3 {
			w.net.reset("b")
			synctest.Wait()
			start := time.Now()
			if err := vote(g, "b/12"); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 2*g.mux.cfg.BackoffMin {
				t.Errorf("it took %s", d)
			}
			time.Sleep(time.Minute)
		}
	})
}

// Those that ask for a new peer at the same time are given the same.
func TestOnePeerForAll(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
	defer m.Close()
	for i := range 20 {
		node := fmt.Sprint("b", i)
		peers := make(chan *peer, 8)
		m.mu.Lock()
		for range cap(peers) {
			go func() { peers <- m.peer(node) }()
		}
		for range 100 {
			runtime.Gosched() // all are likely to wait for the lock then
		}
		m.mu.Unlock()
		first := <-peers
		for range cap(peers) - 1 {
			if p := <-peers; p != first {
				t.Fatal("two peers of one node")
			}
		}
	}
}

// A request that has found its replica before it was closed is refused as well.
func TestClosedReplicaQueuesNothing(t *testing.T) {
	m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
	defer m.Close()
	g := m.Group(1, "b/12")
	_ = g.Close()
	isCode(t, g.deliver(&request{}), proto.ErrUnreachable)
}

// silent is a server that takes streams, and says nothing on them.
type silent struct{ peerv1.UnimplementedPeerServer }

func (silent) Control(stream grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	<-stream.Context().Done()
	return nil
}

func (s silent) Append(stream grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	return s.Control(stream)
}

// An attempt to open a session ends in time, also at a peer that is there and does not answer.
func TestOpeningEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a")
		s := grpc.NewServer()
		peerv1.RegisterPeerServer(s, silent{})
		l := w.net.listen("b")
		var served sync.WaitGroup
		served.Go(func() { _ = s.Serve(l) })
		defer served.Wait()
		defer s.Stop()
		p := newPeer(w.nodes["a"].Mux, "b")
		time.AfterFunc(time.Minute, p.cancel)
		start := time.Now()
		_, err := p.open()
		isCode(t, err, proto.ErrUnreachable)
		if d := time.Since(start); d != p.mux.cfg.DialTimeout || !strings.Contains(err.Error(), "did not answer") {
			t.Errorf("after %s: %v", d, err)
		}
	})
}

// The node that asks looks at the welcome, as the other does at the greeting.
func TestWelcomesAreLookedAt(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a"), ClusterID: func() string { return "x" }})
	defer m.Close()
	said := func(oldest uint64, cluster string) []byte {
		w := welcome{version: oldest, oldest: oldest, cluster: cluster}
		return w.append(nil)
	}
	good := said(proto.WireVersion, "x")
	for name, c := range map[string]struct {
		said []byte
		want error
	}{
		"the same cluster":  {good, nil},
		"none yet":          {said(proto.WireVersion, ""), nil},
		"another cluster":   {said(proto.WireVersion, "y"), proto.ErrWrongCluster},
		"a newer version":   {said(proto.WireVersion+1, "x"), proto.ErrNewerVersion},
		"half of it":        {finish(append([]byte{}, good[:wordBytes+1]...), 0, kindWelcome), proto.ErrInternal},
		"another message":   {appendEnd(nil, 1), proto.ErrInternal},
		"less than a word":  {[]byte{1}, proto.ErrInternal},
		"the end of it all": {nil, proto.ErrUnreachable},
	} {
		s, stream := &session{peer: &peer{mux: m, node: "b"}}, &spoken{}
		if c.said != nil {
			stream.messages = [][]byte{c.said}
		}
		if err := s.welcomed(stream); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

// Whatever a stream fails with has a code.
func TestErrorsOfStreamsHaveCodes(t *testing.T) {
	s := &session{peer: &peer{node: "b"}}
	for name, c := range map[string]struct{ err, want error }{
		"the end":              {s.explain(io.EOF), proto.ErrUnreachable},
		"an end of our own":    {s.explain(status.FromContextError(context.Canceled).Err()), proto.ErrUnreachable},
		"a lost connection":    {s.explain(status.Error(codes.Unavailable, "gone")), proto.ErrUnreachable},
		"without a code":       {s.explain(errors.New("gone")), proto.ErrUnreachable},
		"with a code":          {s.explain(ebbv1grpc.Status(proto.ErrWrongCluster.Errorf("y"))), proto.ErrWrongCluster},
		"a send that failed":   {s.explainSend(nil, errors.New("gone")), proto.ErrUnreachable},
		"a send after the end": {s.explainSend(&spoken{messages: [][]byte{{1}}}, io.EOF), proto.ErrUnreachable},
		"a send":               {s.explainSend(nil, nil), nil},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.err, c.want)
		}
	}
	err := s.explainSend(&spoken{messages: [][]byte{{1}, {2}}}, io.EOF)
	if !strings.Contains(fmt.Sprint(err), "ended the session") {
		t.Errorf("a send after the end is explained by what came before: %v", err)
	}
}

// A stream that is gone takes nothing more, and an answer to no call is none.
func TestEndOfALink(t *testing.T) {
	l, gone := newLink(nil, 0), errors.New("gone")
	if err := l.answered(nil); !errors.Is(err, errMalformed) {
		t.Errorf("an answer of nothing: %v", err)
	}
	if err := l.answered([]byte{7}); err != nil {
		t.Errorf("an answer that comes too late: %v", err)
	}
	l.fail(gone)
	if err := l.send(&call{message: *messageOf(1)}, false); !errors.Is(err, gone) {
		t.Errorf("a call: %v", err)
	}
	if l.out.put(messageOf(1), false) {
		t.Error("a message is queued for a stream that is gone")
	}
}

// What is closed begins nothing, and has ended what it began.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
		ended := false
		m.goFunc(func() {
			<-m.ctx.Done()
			time.Sleep(time.Second)
			ended = true
		})
		m.Close()
		if !ended {
			t.Error("Close does not wait for what was begun")
		}
		if m.goFunc(func() {}) || m.peer("b") != nil {
			t.Error("something begins after Close")
		}
	})
}

// The first reason for which a session breaks stands, unless the node itself ends it.
func TestReasonOfASession(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
	defer m.Close()
	first, second := errors.New("first"), errors.New("second")
	for name, c := range map[string]struct {
		ended bool
		want  error
	}{"a session that breaks": {false, first}, "one that is ended": {true, raft.ErrTransportShutdown}} {
		p := newPeer(m, "b")
		s := &session{peer: p, broken: make(chan struct{}), cancel: func() {}}
		if c.ended {
			p.cancel()
		}
		s.fail(first)
		s.fail(second)
		if err := s.reason(); !errors.Is(err, c.want) || !errors.Is(s.err, c.want) {
			t.Errorf("%s: got %v, and %v, want %v", name, err, s.err, c.want)
		}
		p.cancel()
	}
}

// A request that waits for a busy Raft is given to it as long as its caller waits.
func TestRequestsWaitForABusyRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		g := w.nodes["a"].Group(1, "a/11")
		t.Cleanup(respond(w.nodes["b"].Group(1, "b/12"), func(rpc raft.RPC) any {
			time.Sleep(g.mux.cfg.ControlTimeout * 2 / 5)
			return echoed(rpc)
		}))
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- vote(g, "b/12") }()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// A request whose caller has given up is not worth Raft's time.
func TestExpiredRequestsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		g, b := w.nodes["a"].Group(1, "a/11"), w.nodes["b"].Group(1, "b/12")
		isCode(t, vote(g, "b/12"), proto.ErrDeadline) // taken off the queue, then no consumer
		isCode(t, vote(g, "b/12"), proto.ErrDeadline) // stays in the queue
		time.Sleep(10 * time.Millisecond)             // the way here counts
		var taken int
		stop := respond(b, func(rpc raft.RPC) any { taken++; return echoed(rpc) })
		time.Sleep(time.Second)
		stop()
		if taken != 1 {
			t.Errorf("raft was given %d of the two requests, want the one that it was being handed", taken)
		}
	})
}

func TestFailpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		points := map[string]*fail.Points{"a": {}, "b": {}}
		w, g := pair(t, func(c *Config) { c.Fail = points[c.Node] })
		boom := errors.New("boom")
		points["a"].Arm("transport.open", 1, fail.Error(boom))
		points["a"].Arm("transport.ask", 2, fail.Error(boom))
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err) // the second try to open a session is in time
		}
		if err := vote(g, "b/12"); !errors.Is(err, boom) {
			t.Fatalf("got %v", err)
		}
		points["b"].Arm("transport.answer", 1, fail.Error(boom))
		isCode(t, vote(g, "b/12"), proto.ErrDeadline)
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		_ = w
	})
}

// A stranger that talks nonsense is turned away and harms no node.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := pair(t, nil)
		c, err := w.net.dial(t.Context(), "x", "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))); err != nil {
			t.Fatal(err)
		}
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()

		// A peer that greets and then sends what no node understands.
		x := New(Config{Node: "x", Dial: w.net.dialer("x")})
		defer x.Close()
		p := newPeer(x, "b")
		s, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		s.control.out.put(&message{data: new([]byte)}, false)
		junk := []byte{9, 9, 9, 9, 9}
		s.appends[0].out.put(&message{data: &junk}, false)
		<-s.broken
		isCode(t, s.err, proto.ErrInternal)
		s.close()
		if err := vote(g, "b/12"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	dial := func(context.Context, string) (net.Conn, error) { return nil, errors.New("no") }
	for _, c := range []Config{{}, {Node: "a"}, {Dial: dial}, {Node: "a/b", Dial: dial}, {Node: "a", Dial: dial, InFlightBytesMax: 5}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", c)
				}
			}()
			New(c)
		}()
	}
}

func ExampleAddress() {
	a := Address("ebb-1", 42)
	node, replica, err := ParseAddress(a)
	fmt.Println(a, node, replica, err)
	// Output: ebb-1/42 ebb-1 42 <nil>
}
