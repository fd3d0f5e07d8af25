package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fakeLog is a shard's Raft, as a proposer sees it, whose entries the test commits.
type fakeLog struct {
	mu       sync.Mutex // guards what follows
	term     uint64     // 0: does not lead
	now      int64
	clockErr error
	entries  []*fakeFuture
	table    map[string]*ebbv1.Namespace
	applied  map[string]uint64 // namespace versions
	shardNow int64
	clocks   map[string]*ebbv1.EventClock
	skews    int
	refuses  map[string]bool // namespaces whose definitions the shard refuses
	rejected []string        // versions that were reported as rejected

	behaves, wants uint32 // behaviour versions: applied, and called for by the storage version in force
}

// fakeFuture is one entry on its way.
type fakeFuture struct {
	raft.ApplyFuture
	entry *ebbv1.Entry
	size  int
	done  chan struct{}
	err   error
	got   any
}

func (f *fakeFuture) Error() error  { <-f.done; return f.err }
func (f *fakeFuture) Response() any { return f.got }

func (l *fakeLog) propose(raw []byte) raft.ApplyFuture {
	f := &fakeFuture{entry: new(ebbv1.Entry), size: len(raw), done: make(chan struct{})}
	if err := protobuf.Unmarshal(raw, f.entry); err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, f)
	return f
}

func (l *fakeLog) leading() (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.term > 0
}

func (l *fakeLog) notLeader() *proto.Error { return proto.ErrNotLeader.Errorf("not here") }

func (l *fakeLog) stamp() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.clockErr
}

func (l *fakeLog) clockUS() int64 { return l.shardNow }

func (l *fakeLog) eventClock(ns *ebbv1.Namespace, told *ebbv1.EventClock, _ bool) *ebbv1.EventClock {
	if clock := l.clocks[ns.GetName()]; proto.Later(clock, told) {
		return clock
	}
	return nil
}

func (l *fakeLog) namespace(name []byte) *ebbv1.Namespace { return l.table[string(name)] }

func (l *fakeLog) version(name string) uint64 { return l.applied[name] }

func (l *fakeLog) behaviour() (has, wants uint32) { return l.behaves, l.wants }

func (l *fakeLog) undefinable(ns *ebbv1.Namespace, err *ebbv1.Error) {
	l.rejected = append(l.rejected, fmt.Sprintf("%s=%d: %s", ns.GetName(), ns.GetVersion(), err.GetMessage()))
}

func (l *fakeLog) settled(error) {}

func (l *fakeLog) unfit() { l.skews++ }

func (l *fakeLog) sent() []*fakeFuture {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// commit answers an entry: with one result a command, or with err.
func (l *fakeLog) commit(i int, err error) {
	l.answer(i, err)
	synctest.Wait()
}

// answer is commit for one of several goroutines.
func (l *fakeLog) answer(i int, err error) {
	f := l.sent()[i]
	f.err = err
	var results []*ebbv1.CommandResult
	for _, raw := range f.entry.Commands {
		var cmd ebbv1.Command
		r := &ebbv1.CommandResult{Applied: 1}
		if protobuf.Unmarshal(raw, &cmd) == nil && l.refuses[cmd.GetDefineNamespace().GetName()] {
			r = &ebbv1.CommandResult{Error: proto.ErrBadNamespace.Errorf("no").Wire()}
		}
		results = append(results, r)
	}
	f.got = results
	close(f.done)
}

func newFakeLog() *fakeLog {
	return &fakeLog{term: 1, now: 1000, table: map[string]*ebbv1.Namespace{}, applied: map[string]uint64{}}
}

// add enqueues commands of so many bytes and returns their call.
func add(p *proposer, sizes ...int) *call {
	c := newCall(len(sizes))
	for i, size := range sizes {
		p.enqueue(c, i, make([]byte, size))
	}
	p.kick()
	synctest.Wait()
	return c
}

func codes(results []*ebbv1.CommandResult) []ebbv1.Code {
	var out []ebbv1.Code
	for _, r := range results {
		out = append(out, r.GetError().GetCode())
	}
	return out
}

func proposing(t *testing.T, f func(t *testing.T, p *proposer, l *fakeLog)) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeLog()
		f(t, newProposer(1, l, new(proposeMetrics), Limits{}.filled()), l)
	})
}

// Commands that wait leave at once when no entry is on its way. Commands that come while one is on its way share the
// next entry.
func TestCommandsShareEntries(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		first := add(p, 10)
		add(p, 20)
		last := add(p, 30, 40)
		if n := len(l.sent()); n != 1 {
			t.Fatalf("%d entries on their way, want the first alone", n)
		}
		l.commit(0, nil)
		if n := len(l.sent()); n != 2 || len(l.sent()[1].entry.Commands) != 3 {
			t.Fatalf("%d entries, the second of %d commands; want 2 and 3", n, len(l.sent()[1].entry.Commands))
		}
		l.commit(1, nil)
		for _, c := range []*call{first, last} {
			for _, r := range c.wait(t.Context(), nil) {
				if r.GetApplied() != 1 {
					t.Errorf("result %v", r)
				}
			}
		}
		if p.flushers != 0 {
			t.Errorf("%d goroutines are left", p.flushers)
		}
	})
}

// An entry holds 64 KiB, or a single command that is longer; some are on
// their way at once.
func TestEntriesAreBounded(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		add(p, 10)
		for range 20 {
			add(p, 30<<10)
		}
		add(p, 200<<10)
		if n, want := len(l.sent()), p.limits.EntriesInFlight; n != want {
			t.Fatalf("%d entries on their way, want %d", n, want)
		}
		for i := 0; i < len(l.sent()); i++ {
			l.commit(i, nil)
		}
		for i, f := range l.sent() {
			if f.size > proto.EntryBytesHard || f.size > proto.EntryBytesSoft+100 && len(f.entry.Commands) > 1 {
				t.Errorf("entry %d has %d bytes in %d commands", i, f.size, len(f.entry.Commands))
			}
		}
	})
}

// The stamp is the clock's, and grows by one at least.
func TestStampsGrow(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		l.shardNow = 1500 // an earlier leader's clock was ahead of ours
		var stamps []int64
		for i, now := range []int64{1000, 3000, 2000, 2000, 5000} {
			l.now = now
			add(p, 1)
			l.commit(i, nil)
			stamps = append(stamps, l.sent()[i].entry.StampUs)
		}
		if want := []int64{1501, 3000, 3001, 3002, 5000}; !slices.Equal(stamps, want) {
			t.Errorf("stamps %v, want %v", stamps, want)
		}
	})
}

// Only what never reached the log may be tried elsewhere without an identity.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want ebbv1.Code
	}{
		{nil, 0},
		{raft.ErrNotLeader, ebbv1.Code_CODE_NOT_LEADER},
		{raft.ErrLeadershipTransferInProgress, ebbv1.Code_CODE_NOT_LEADER},
		{raft.ErrLeadershipLost, ebbv1.Code_CODE_UNKNOWN_OUTCOME},
		{raft.ErrAbortedByRestore, ebbv1.Code_CODE_UNKNOWN_OUTCOME},
		{raft.ErrRaftShutdown, ebbv1.Code_CODE_UNKNOWN_OUTCOME},
		{errors.New("disk"), ebbv1.Code_CODE_UNKNOWN_OUTCOME},
	} {
		proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
			call := add(p, 1, 1)
			l.commit(0, c.err)
			if got := codes(call.wait(t.Context(), nil)); got[0] != c.want || got[1] != c.want {
				t.Errorf("%v becomes %v, want %v", c.err, got, c.want)
			}
		})
	}
}

// A caller whose deadline passes does not learn the outcome, and no longer waits for it.
func TestDeadlineLeavesTheOutcomeUnknown(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		call := add(p, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := codes(call.wait(ctx, nil)); got[0] != ebbv1.Code_CODE_UNKNOWN_OUTCOME {
			t.Errorf("%v, want UNKNOWN_OUTCOME", got)
		}
		l.commit(0, nil)
	})
}

func TestRefusalsBeforeTheLog(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		if got := codes(add(p, proto.CommandBytesMax+1).wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_BATCH_TOO_LARGE {
			t.Errorf("too large: %v", got)
		}
		l.term = 0
		if got := codes(add(p, 1).wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_NOT_LEADER {
			t.Errorf("no leader: %v", got)
		}
		l.term = 1
		add(p, 1)
		for range p.limits.QueueBytes / (64 << 10) {
			add(p, 64<<10)
		}
		var over *call
		for range 10 {
			over = add(p, 1<<17)
		}
		got := over.wait(t.Context(), nil)
		if got[0].GetError().GetCode() != ebbv1.Code_CODE_OVERLOADED || got[0].GetError().GetRetryAfterUs() == 0 {
			t.Errorf("full queue: %v", got)
		}
		p.close()
		if got := codes(add(p, 1).wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_SHUTTING_DOWN {
			t.Errorf("closed: %v", got)
		}
		for i := 0; i < len(l.sent()); i++ {
			l.commit(i, nil)
		}
		if !p.drained(time.Second) {
			t.Error("something is still on its way")
		}
		if n := p.count.waiting.Load(); n != 0 {
			t.Errorf("%d bytes are said to wait, and nothing does", n)
		}
	})
}

// A queue that holds less than a command holds one of them, or it would never leave.
func TestQueueHoldsOneCommand(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		p.limits.QueueBytes, p.paused = 10, true
		one, two := add(p, 1000), add(p, 1)
		if got := codes(two.wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_OVERLOADED {
			t.Errorf("beside a command that fills the queue: %v", got)
		}
		p.resume()
		synctest.Wait()
		l.commit(0, nil)
		if got := codes(one.wait(t.Context(), nil)); got[0] != 0 {
			t.Errorf("a command that is larger than the queue: %v", got)
		}
	})
}

// What all shards of a node hold back is bounded too.
func TestNodeIsOverloaded(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		p.count.waiting.Store(nodeBytesMax)
		if got := codes(add(p, 1).wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_OVERLOADED {
			t.Errorf("%v, want OVERLOADED", got)
		}
		p.count.waiting.Store(0)
	})
}

// While leadership changes hands, writes wait; nothing is on its way.
func TestPause(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		add(p, 1)
		if p.pause(time.Second) {
			t.Error("paused with an entry on its way")
		}
		l.commit(0, nil)
		if !p.pause(time.Second) {
			t.Error("not paused though nothing is on its way")
		}
		call := add(p, 1)
		if n := len(l.sent()); n != 1 {
			t.Errorf("%d entries sent, one of them while paused", n)
		}
		p.resume()
		synctest.Wait()
		l.commit(1, nil)
		if got := codes(call.wait(t.Context(), nil)); got[0] != 0 {
			t.Errorf("after the pause: %v", got)
		}
	})
}

func command(ns string) []byte {
	raw, err := protobuf.Marshal(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if err != nil {
		panic(err)
	}
	return raw
}

// The behaviour version that the storage version in force calls for is switched on before the first command, once
// a term, and again if that entry was lost.
func TestBehaviourGoesFirst(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		for i, c := range []struct {
			what           string
			behaves, wants uint32
			term           uint64
			err            error
			want           []uint32 // of the commands of the entry: the version switched on, 0 of another command
		}{
			{what: "the older storage version", term: 1, want: []uint32{0}},
			{what: "the newer one, in an entry that is lost", wants: 2, term: 1, err: raft.ErrNotLeader, want: []uint32{2, 0}},
			{what: "again", wants: 2, term: 1, want: []uint32{2, 0}},
			{what: "on its way", wants: 2, term: 1, want: []uint32{0}},
			{what: "another term", wants: 2, term: 2, want: []uint32{2, 0}},
			{what: "applied", behaves: 2, wants: 2, term: 3, want: []uint32{0}},
			{what: "applied by a restore, before this node knows why", behaves: 2, wants: 0, term: 4, want: []uint32{0}},
		} {
			l.mu.Lock()
			l.behaves, l.wants, l.term = c.behaves, c.wants, c.term
			l.mu.Unlock()
			call := newCall(1)
			p.enqueue(call, 0, command("a"))
			p.kick()
			synctest.Wait()
			l.commit(i, c.err)
			var got []uint32
			for _, raw := range l.sent()[i].entry.Commands {
				var cmd ebbv1.Command
				if err := protobuf.Unmarshal(raw, &cmd); err != nil {
					t.Fatal(err)
				}
				got = append(got, cmd.GetBehaviour().GetVersion())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: the entry has %v, want %v", c.what, got, c.want)
			}
			if r := call.wait(t.Context(), nil); c.err == nil && r[0].GetApplied() != 1 {
				t.Errorf("%s: result %v", c.what, r[0])
			}
		}
	})
}

// A shard's namespaces are defined in its log before the first command under a version that it does not have. That
// happens once a term, and again if that entry was lost or the shard refused. If it refused, undefinable is called.
func TestDefinitions(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		l.table["a"] = &ebbv1.Namespace{Name: "a", Version: 1}
		l.table["b"] = &ebbv1.Namespace{Name: "b", Version: 7}
		l.applied["b"] = 7
		send := func(i int, err error, names ...string) string {
			c := newCall(len(names))
			for at, n := range names {
				p.enqueue(c, at, command(n))
			}
			p.kick()
			synctest.Wait()
			l.commit(i, err)
			out := ""
			for _, raw := range l.sent()[i].entry.Commands {
				var cmd ebbv1.Command
				if err := protobuf.Unmarshal(raw, &cmd); err != nil {
					t.Fatal(err)
				}
				if d := cmd.GetDefineNamespace(); d != nil {
					out += fmt.Sprintf("%s=%d ", d.Name, d.Version)
				} else if clock := cmd.GetEventClock(); clock != nil {
					out += fmt.Sprintf("%s@%d ", cmd.Namespace, clock.NowUs)
				} else {
					out += cmd.Namespace + " "
				}
			}
			for _, r := range c.wait(t.Context(), nil) {
				if err == nil && r.GetApplied() != 1 {
					t.Errorf("result %v", r)
				}
			}
			return out
		}
		for i, c := range []struct {
			err    error
			names  []string
			want   string
			before func()
		}{
			{names: []string{"a", "b", "a"}, want: "a=1 a b a "},
			{names: []string{"a"}, want: "a "},
			{names: []string{"a"}, want: "a=2 a ", before: func() { l.table["a"] = &ebbv1.Namespace{Name: "a", Version: 2} }, err: raft.ErrNotLeader},
			{names: []string{"a"}, want: "a=2 a "},
			{names: []string{"a"}, want: "a=2 a ", before: func() { l.term = 2 }},
			{names: []string{"c"}, want: "c "}, // unknown: the shard will say so
			{names: []string{"b", "a"}, want: "a=3 b a ", before: func() {
				l.table["a"], l.refuses = &ebbv1.Namespace{Name: "a", Version: 3}, map[string]bool{"a": true}
			}},
			{names: []string{"a"}, want: "a=3 a "}, // refused, so not defined
			{names: []string{"a"}, want: "a=3 a ", before: func() { l.refuses = nil }},
			{names: []string{"a"}, want: "a "},
			// the log says once, behind the definition, how far an event clock has come elsewhere, and again if that
			// may be lost
			{names: []string{"a", "e", "e"}, want: "e=1 e@50 a e e ", before: func() {
				l.table["e"] = &ebbv1.Namespace{Name: "e", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT}
				l.clocks = map[string]*ebbv1.EventClock{"a": {NowUs: 7}, "e": {NowUs: 50}}
			}},
			{names: []string{"e"}, want: "e "},
			{
				names: []string{"e"}, want: "e@60 e ", err: raft.ErrNotLeader,
				before: func() { l.clocks["e"] = &ebbv1.EventClock{NowUs: 60} },
			},
			{names: []string{"e"}, want: "e=1 e@60 e "},
			{names: []string{"e"}, want: "e@5 e ", before: func() { l.clocks["e"] = &ebbv1.EventClock{Epoch: 1, NowUs: 5} }},
		} {
			if c.before != nil {
				c.before()
			}
			if got := send(i, c.err, c.names...); got != c.want {
				t.Errorf("entry %d: %q, want %q", i, got, c.want)
			}
		}
		if want := []string{"a=3: no", "a=3: no"}; !slices.Equal(l.rejected, want) {
			t.Errorf("told of %q, want %q", l.rejected, want)
		}
	})
}

// A clock that cannot be judged yet delays writes a little; one that is wrong
// refuses them and asks for another leader.
func TestUnfitClock(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		l.clockErr = errClockUnknown
		call := add(p, 1)
		time.Sleep(clockWait / 2)
		l.mu.Lock()
		l.clockErr = nil
		l.mu.Unlock()
		time.Sleep(clockWait / 2)
		synctest.Wait()
		l.commit(0, nil)
		if got := codes(call.wait(t.Context(), nil)); got[0] != 0 || l.skews != 0 {
			t.Errorf("after a delay: %v, %d skews", got, l.skews)
		}
		l.clockErr = proto.ErrClockSkew.Errorf("ten years ahead")
		if got := codes(add(p, 1).wait(t.Context(), nil)); got[0] != ebbv1.Code_CODE_CLOCK_SKEW || l.skews != 1 {
			t.Errorf("wrong clock: %v, %d skews", got, l.skews)
		}
	})
}
