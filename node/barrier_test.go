package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// fakeGroup is a group as a barrier sees it.
type fakeGroup struct {
	mu      sync.Mutex // guards term, commit and size
	term    uint64     // 0: does not lead
	commit  uint64
	size    int
	applied watermark
	terms   watermark
}

func (g *fakeGroup) leading() (uint64, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term, g.term > 0
}

func (g *fakeGroup) notLeader() *proto.Error { return proto.ErrNotLeader.Errorf("not here") }

func (g *fakeGroup) committed() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.commit
}

func (g *fakeGroup) voters() ([]raft.ServerAddress, []string) {
	return make([]raft.ServerAddress, g.size), make([]string, g.size)
}

func (g *fakeGroup) awaitTerm(ctx context.Context, term uint64) error { return g.terms.Wait(ctx, term) }

func (g *fakeGroup) awaitIndex(ctx context.Context, index uint64) error {
	return g.applied.Wait(ctx, index)
}

func (g *fakeGroup) set(term, commit uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.term, g.commit = term, commit
}

// confirmations are the rounds that a barrier has asked for; the test answers them.
type confirmations struct {
	asked  chan uint64
	answer chan error
}

func barrierOf(g *fakeGroup) (*barrier, *confirmations) {
	c := &confirmations{asked: make(chan uint64, 100), answer: make(chan error)}
	b := newBarrier(1, g, func(ctx context.Context, _ uint32, term uint64, _ []raft.ServerAddress) error {
		c.asked <- term
		select {
		case err := <-c.answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, new(readMetrics))
	return b, c
}

// read passes the barrier on a goroutine of its own.
func read(b *barrier) <-chan error {
	out := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		out <- b.pass(ctx, b.join())
	}()
	synctest.Wait()
	return out
}

func reading(t *testing.T, f func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations)) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGroup{term: 3, commit: 10, size: 3}
		g.terms.Raise(3)
		g.applied.Raise(10)
		b, c := barrierOf(g)
		defer b.close()
		f(t, g, b, c)
	})
}

// Reads that come while a confirmation is on its way do not use it: it may
// have been asked before a write that they must see. They share the next one.
func TestReadsShareTheNextRound(t *testing.T) {
	reading(t, func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations) {
		first := read(b)
		var later []<-chan error
		for range 5 {
			later = append(later, read(b))
		}
		g.set(3, 12) // written after the first round began
		c.answer <- nil
		if err := <-first; err != nil {
			t.Error(err)
		}
		c.answer <- nil
		synctest.Wait()
		for _, l := range later {
			select {
			case err := <-l:
				t.Errorf("a later read passed (%v) before entry 12 was applied", err)
			default:
			}
		}
		g.applied.Raise(12)
		for _, l := range later {
			if err := <-l; err != nil {
				t.Error(err)
			}
		}
		if n := len(c.asked); n != 2 {
			t.Errorf("%d rounds for six reads, want 2", n)
		}
	})
}

func TestReadsOfWhoDoesNotLead(t *testing.T) {
	reading(t, func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations) {
		g.set(0, 10)
		if err := <-read(b); !errors.Is(err, proto.ErrNotLeader) {
			t.Errorf("a follower: %v", err)
		}
		g.set(3, 10)
		r := read(b)
		c.answer <- proto.ErrNotLeader.Errorf("a voter has left the term")
		if err := <-r; !errors.Is(err, proto.ErrNotLeader) {
			t.Errorf("a leader whom a voter denies: %v", err)
		}
		r = read(b)
		g.set(4, 10) // deposed and elected again while the voters were asked
		c.answer <- nil
		if err := <-r; !errors.Is(err, proto.ErrNotLeader) {
			t.Errorf("a leader of another term: %v", err)
		}
	})
}

// A new leader does not know what is committed until an entry of its own term is.
func TestReadsWaitForTheTermsFirstEntry(t *testing.T) {
	reading(t, func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations) {
		g.set(4, 10)
		r := read(b)
		if n := len(c.asked); n != 0 {
			t.Fatal("voters were asked before the term had an entry")
		}
		g.set(4, 11)
		g.terms.Raise(4)
		c.answer <- nil
		g.applied.Raise(11)
		if err := <-r; err != nil || len(c.asked) != 1 || <-c.asked != 4 {
			t.Errorf("read: %v", err)
		}
	})
}

func TestReadsWithoutMajorityFail(t *testing.T) {
	reading(t, func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations) {
		start := time.Now()
		if err := <-read(b); !errors.Is(err, proto.ErrNoLeader) || time.Since(start) > roundTimeout {
			t.Errorf("%v after %v, want NO_LEADER", err, time.Since(start))
		}
		r := read(b)
		b.close()
		if err := <-r; err == nil {
			t.Error("a read passed a closed barrier")
		}
		if err := <-read(b); !errors.Is(err, proto.ErrShuttingDown) {
			t.Errorf("after close: %v", err)
		}
	})
}

// In a group of one, the leader asks no other replica.
func TestReadsAlone(t *testing.T) {
	reading(t, func(t *testing.T, g *fakeGroup, b *barrier, c *confirmations) {
		g.size = 1
		if err := <-read(b); err != nil || len(c.asked) != 0 {
			t.Errorf("%v, %d rounds", err, len(c.asked))
		}
	})
}

func TestWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watermark
		w.Raise(5)
		w.Raise(3)
		if w.Load() != 5 || w.Wait(t.Context(), 5) != nil {
			t.Error("a mark fell")
		}
		got := make(chan error, 3)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { got <- w.Wait(t.Context(), 6) }()
		go func() { got <- w.Wait(t.Context(), 7) }()
		go func() { got <- w.Wait(short, 100) }()
		synctest.Wait()
		w.Raise(6)
		if err := <-got; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if err := <-got; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want a deadline", err)
		}
		w.Raise(8)
		if err := <-got; err != nil || len(w.waiting) != 0 {
			t.Errorf("%v, %d still wait", err, len(w.waiting))
		}
	})
}
