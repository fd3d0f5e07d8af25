package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

func TestAnEntryOverAFrameIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := pair(t, nil)
		if err := appendTo(g, "b/12", proto.EntryBytesHard); err != nil {
			t.Fatal(err)
		}
		isCode(t, appendTo(g, "b/12", FrameBytesMax), proto.ErrMessageTooLarge)
		if err := appendTo(g, "b/12", 10); err != nil {
			t.Fatal(err) // the stream has not suffered
		}
	})
}

func TestAppendsAreShortenedToAFrame(t *testing.T) {
	for _, bytes := range []int{0, 1, 100, 8 << 10, 60 << 10, 300 << 10} {
		args := appendOf("a", 11, 64, bytes)
		n := fitting(args.Entries)
		if n == 0 {
			t.Fatalf("no entry of %d bytes fits", bytes)
		}
		args.Entries = args.Entries[:n]
		if size := len(appendRequest(nil, "a", envelope{id: 1 << 60, group: 1 << 31, replica: 1 << 63, ttl: time.Hour}, args)); size > FrameBytesMax {
			t.Errorf("%d entries of %d bytes take %d", n, bytes, size)
		}
		if n < 64 && (n+1)*(bytes+logOverhead) <= FrameBytesMax-requestHead {
			t.Errorf("only %d entries of %d bytes", n, bytes)
		}
	}
}

// watched counts what crosses an outbox's stream.
type watched struct {
	frames, bytes, max int
}

func (w *watched) send(f *frame) error {
	w.frames++
	w.bytes += len(f.body)
	w.max = max(w.max, len(f.body))
	f.free()
	return nil
}

func messageOf(n int) *message {
	b := make([]byte, n)
	return &message{data: &b}
}

func TestFramesStayWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, seen, done := newOutbox(0), &watched{}, make(chan struct{})
		rng, total := rand.New(rand.NewPCG(1, 2)), 0
		for range 500 {
			n := 1 + rng.IntN(FrameBytesMax)
			if rng.IntN(2) == 0 {
				n = 1 + rng.IntN(100)
			}
			total += n
			o.put(messageOf(n), rng.IntN(2) == 0)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := o.run(done, seen.send); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(done)
		wg.Wait()
		if seen.max > FrameBytesMax || seen.bytes != total || o.size() != 0 {
			t.Errorf("the largest of %d frames has %d bytes; %d of %d bytes were sent, %d are left", seen.frames, seen.max, seen.bytes, total, o.size())
		}
	})
}

// Heartbeats of many groups share frames; a vote does not wait for them.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, seen, done := newOutbox(5*time.Millisecond), &watched{}, make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { _ = o.run(done, seen.send) })
		for range 200 { // 200 ms of ten heartbeats a millisecond
			for range 10 {
				o.put(messageOf(30), true)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if seen.bytes != 2000*30 || seen.frames > 41 || seen.frames < 30 {
			t.Errorf("2000 heartbeats went out as %d bytes in %d frames", seen.bytes, seen.frames)
		}
		before := seen.frames
		o.put(messageOf(30), true)
		o.put(messageOf(1), false)
		synctest.Wait() // no time passes
		if seen.frames != before+1 || seen.bytes != 2001*30+1 {
			t.Errorf("a vote waited, or left what waited behind: %d frames", seen.frames-before)
		}
		close(done)
		wg.Wait()
	})
}

// What is sent, or dropped at the end, is let go, once.
func TestOutboxLetsGo(t *testing.T) {
	o := newOutbox(0)
	for range 3 {
		o.put(messageOf(FrameBytesMax/2+1), true)
	}
	f, more := o.take()
	if f == nil || !more {
		t.Fatalf("the first frame of three: %v, more %v", f != nil, more)
	}
	f.free()
	if gone := o.queue[len(o.queue):cap(o.queue)]; slices.ContainsFunc(gone, func(m *message) bool { return m != nil }) {
		t.Error("the queue holds on to what was sent")
	}
	left := slices.Clone(o.queue)
	o.close()
	for _, p := range left {
		o.drop(p) // as a caller that gives up at this moment
	}
	if n := o.size(); n != 0 {
		t.Errorf("%d bytes wait in a queue that is closed", n)
	}
	late := messageOf(1)
	if o.put(late, false) || late.data != nil {
		t.Error("a queue that is closed takes a message, or leaves it its data")
	}
}

// A frame is due when something in it must not wait, whatever is put before or behind that.
func TestWhenAFrameIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		lazy []bool
		due  bool
	}{
		"a heartbeat": {[]bool{true}, false}, "two": {[]bool{true, true}, false}, "a vote": {[]bool{false}, true},
		"a vote, a heartbeat": {[]bool{false, true}, true}, "a heartbeat, a vote": {[]bool{true, false}, true},
	} {
		o := newOutbox(time.Second)
		for _, lazy := range c.lazy {
			o.put(messageOf(1), lazy)
		}
		if o.due() != c.due {
			t.Errorf("%s: due %v", name, o.due())
		}
	}
}

// A call that is given up is not sent any more, and what it took in the queue is given back.
func TestCallsThatAreGivenUp(t *testing.T) {
	m := New(Config{Node: "a", Dial: newNetwork().dialer("a")})
	defer m.Close()
	l := newLink(nil, 0)
	c := m.newCall(time.Hour)
	c.data = messageOf(100).data
	if err := l.send(c, false); err != nil || l.out.size() != 100 {
		t.Fatalf("%d bytes wait: %v", l.out.size(), err)
	}
	if !l.forget(c) || c.data != nil || l.out.size() != 0 {
		t.Errorf("%d bytes wait", l.out.size())
	}
	if l.forget(c) {
		t.Error("a call is given up twice")
	}
	if f, more := l.out.take(); f != nil || more {
		t.Error("a call that was given up is sent")
	}
}

// A call whose time is over may still be in a queue: no other call takes its place.
func TestLateCallsAreNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		w.nodes["b"].Group(1, "b/12") // whose Raft takes nothing
		isCode(t, vote(w.nodes["a"].Group(1, "a/11"), "b/12"), proto.ErrDeadline)
		if c := w.nodes["a"].calls.Get(); c != nil {
			t.Error("a call that was not answered is taken for the next one")
		}
	})
}

// A call that waits for its bytes ends with its replica, and takes none.
func TestClosedReplicaLeavesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.InFlightBytesMax = FrameBytesMax }, "a", "b")
		for id := range uint32(2) {
			w.nodes["b"].Group(id+1, Address("b", uint64(id)+21)) // whose Raft takes nothing
		}
		first, second := w.nodes["a"].Group(1, "a/11"), w.nodes["a"].Group(2, "a/12")
		errs := make(chan error, 2)
		go func() { errs <- appendTo(first, "b/21", 300<<10) }()
		time.Sleep(time.Second)
		go func() { errs <- appendTo(second, "b/22", 300<<10) }()
		time.Sleep(time.Second)
		inFlight := func() int { return w.nodes["a"].Peers()[0].InFlight }
		before := inFlight()
		_ = second.Close()
		if err := <-errs; !errors.Is(err, raft.ErrTransportShutdown) {
			t.Errorf("got %v", err)
		}
		if now := inFlight(); now != before || now < 300<<10 {
			t.Errorf("%d bytes are in flight, %d before a call was given up that had none", now, before)
		}
		isCode(t, <-errs, proto.ErrDeadline)
		if now := inFlight(); now != 0 {
			t.Errorf("%d bytes are in flight at the end", now)
		}
	})
}

// The bytes that a node works on for a peer are bounded. Requests that no caller waits for any more do not count.
func TestBytesAtWorkAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) {
			if c.Node == "b" {
				c.InFlightBytesMax = FrameBytesMax
			}
		}, "a", "b")
		g, b := w.nodes["a"].Group(1, "a/11"), w.nodes["b"].Group(1, "b/12")
		errs := make(chan error, 7)
		for range cap(errs) {
			go func() { errs <- appendTo(g, "b/12", 170<<10) }() // Raft takes none of them
		}
		isCode(t, <-errs, proto.ErrOverloaded) // they are more than 1 MiB
		for range cap(errs) - 1 {
			isCode(t, <-errs, proto.ErrDeadline)
		}
		time.Sleep(10 * time.Millisecond) // the way here counts
		t.Cleanup(echo(b))
		synctest.Wait()
		for range 3 {
			if err := appendTo(g, "b/12", 400<<10); err != nil {
				t.Error(err)
			}
		}
	})
}

// Bytes in flight to a peer that hangs are bounded, whatever the groups try; its
// heartbeats are not held up by them, and all is given back.
func TestBytesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, groups = 2 << 20, 60
		w := newWorld(t, func(c *Config) { c.InFlightBytesMax = limit }, "a", "b")
		a := w.nodes["a"]
		release := make(chan struct{})
		var most atomic.Int64
		var wg sync.WaitGroup
		for id := uint32(1); id <= groups; id++ {
			b := w.nodes["b"].Group(id, Address("b", uint64(id)))
			t.Cleanup(respond(b, func(rpc raft.RPC) any {
				if r := rpc.Command.(*raft.AppendEntriesRequest); len(r.Entries) > 0 {
					<-release
				}
				return echoed(rpc)
			}))
			g := a.Group(id, Address("a", uint64(id)))
			for range 3 {
				wg.Go(func() {
					err := appendTo(g, Address("b", uint64(id)), 100<<10)
					if err != nil && !errors.Is(err, proto.ErrOverloaded) && !errors.Is(err, proto.ErrDeadline) {
						t.Error(err)
					}
					most.Store(max(most.Load(), int64(a.Peers()[0].InFlight)))
				})
			}
		}
		quiet := w.nodes["b"].Group(1000, "b/1000")
		t.Cleanup(echo(quiet))
		g := a.Group(1000, "a/1001")
		time.Sleep(time.Second)
		for range 20 {
			if err := heartbeat(g, "b/1000"); err != nil {
				t.Error(err)
			}
		}
		if n := a.Peers()[0].InFlight; n > limit || n < limit/2 {
			t.Errorf("%d bytes are in flight, the limit is %d", n, limit)
		}
		time.Sleep(10 * time.Second) // all have given up
		close(release)
		wg.Wait()
		if most.Load() > limit {
			t.Errorf("%d bytes were in flight", most.Load())
		}
		if n := a.Peers()[0].InFlight; n != 0 {
			t.Errorf("%d bytes were never given back", n)
		}
		synctest.Wait()
		if err := appendTo(g, "b/1000", 100<<10); err != nil {
			t.Error(err)
		}
	})
}

func TestBudgetIsFairAndExact(t *testing.T) {
	b := budget{free: 10}
	if b.acquire(6) != nil {
		t.Fatal("six of ten must be free")
	}
	large, small := b.acquire(8), b.acquire(1)
	if large == nil || small == nil {
		t.Fatal("a small claim overtook a large one")
	}
	b.cancel(large) // now the small one is first
	<-small.given
	if b.left() != 3 {
		t.Fatalf("%d left", b.left())
	}
	exact := b.acquire(4)
	b.release(1) // of the six
	select {
	case <-exact.given:
	default:
		t.Fatal("a claim of all that is free waits")
	}
	b.release(4)
	late := b.acquire(5)
	b.release(5)
	<-late.given
	b.cancel(late) // given in the meantime: must come back
	b.release(1)
	if b.left() != 10 {
		t.Fatalf("%d left of 10", b.left())
	}
}

// A peer whose Raft takes nothing gets a bounded queue, and a clear refusal then.
func TestInboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		w.nodes["b"].Group(1, "b/12")
		g := w.nodes["a"].Group(1, "a/11")
		errs := make(chan error, 2*inboxMax)
		for range cap(errs) {
			go func() { errs <- vote(g, "b/12") }()
		}
		refused := 0
		for range cap(errs) {
			if errors.Is(<-errs, proto.ErrOverloaded) {
				refused++
			}
		}
		if refused < inboxMax-2 {
			t.Errorf("%d of %d were refused", refused, cap(errs))
		}
	})
}

// A receiver keeps receiving while its own sends block: the two directions of a pair, both full, must not wait for each
// other.
func TestFullDirectionsDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "a", "b")
		var wg sync.WaitGroup
		for _, ends := range [][2]string{{"a", "b"}, {"b", "a"}} {
			for i := range 8 {
				id := uint32(i + 1)
				if ends[0] == "b" {
					id += 100
				}
				t.Cleanup(echo(w.nodes[ends[1]].Group(id, Address(ends[1], uint64(id)))))
				g := w.nodes[ends[0]].Group(id, Address(ends[0], uint64(id)+1))
				wg.Go(func() {
					for range 40 {
						if err := appendTo(g, Address(ends[1], uint64(id)), 250<<10); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

// A node's memory stays bounded even if its peer reads no answers.
func TestAnswersThatAreNotReadEndTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Node: "b", Dial: newNetwork().dialer("b")})
		defer m.Close()
		in := &inbound{mux: m, of: kindPing, peer: "a", out: newOutbox(0)}
		var p ping
		body := p.append(nil)
		for in.out.size() <= answersBytesMax {
			if err := in.frame(body); err != nil {
				t.Fatal(err)
			}
		}
		in.stream = fakeStream{body: body}
		isCode(t, in.read(), proto.ErrOverloaded)
	})
}

// fakeStream receives the same frame for ever.
type fakeStream struct {
	inertStream
	body []byte
}

func (s fakeStream) RecvMsg(m any) error {
	f := m.(*frame)
	f.free()
	*f = *frameOf(s.body)
	return nil
}

func (s fakeStream) Context() context.Context { return context.Background() }
