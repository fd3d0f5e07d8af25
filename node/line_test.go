package node

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A command whose caller has gone before it was proposed is not: it is known not to be applied.
func TestExpiredCommandsAreNotProposed(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		add(p, 10) // is on its way
		gone, cancel := context.WithCancel(t.Context())
		late := newCall(1)
		late.until = time.Now().Add(time.Second)
		left := newCall(1)
		for _, c := range []*call{left, late} {
			p.enqueue(c, 0, make([]byte, 20))
		}
		cancel()
		results := codes(left.wait(gone, nil))
		time.Sleep(time.Second)
		stays := add(p, 30)
		l.commit(0, nil)
		if n := len(l.sent()); n != 2 || len(l.sent()[1].entry.Commands) != 1 {
			t.Fatalf("%d entries, the second of %d commands; want 2, and 1", n, len(l.sent()[1].entry.Commands))
		}
		l.commit(1, nil)
		results = append(results, codes(late.wait(t.Context(), nil))...)
		results = append(results, codes(stays.wait(t.Context(), nil))...)
		for i, want := range []ebbv1.Code{proto.ErrOverloaded.Code, proto.ErrOverloaded.Code, 0} {
			if results[i] != want {
				t.Errorf("result %d: %v, want %v", i, results[i], want)
			}
		}
		if n := p.count.expired.Load(); n != 2 || p.count.waiting.Load() != 0 {
			t.Errorf("%d commands expired, %d bytes wait; want 2, and none", n, p.count.waiting.Load())
		}
	})
}

// A command that was proposed may be applied, whenever its caller goes.
func TestProposedCommandsMayBeApplied(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		c := add(p, 10)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if got := codes(c.wait(gone, nil)); got[0] != proto.ErrUnknownOutcome.Code {
			t.Errorf("%v, want that its outcome is unknown", got)
		}
		l.commit(0, nil)
	})
}

// busy is a shard whose log takes an entry in so long, one after the other.
type busy struct {
	p *proposer
	l *fakeLog
}

// commitFor commits entries for a while.
func (b busy) commitFor(span time.Duration, took func(entry int) time.Duration) {
	for end, i := time.Now().Add(span), 0; time.Now().Before(end); {
		if i = b.done(); i == len(b.l.sent()) {
			time.Sleep(time.Millisecond)
			continue
		}
		time.Sleep(took(i))
		b.l.answer(i, nil)
	}
}

// done returns how many entries are committed.
func (b busy) done() (n int) {
	for _, f := range b.l.sent() {
		select {
		case <-f.done:
			n++
		default:
		}
	}
	return n
}

// offered is what became of commands.
type offered struct {
	mu             sync.Mutex     // guards what follows while callers wait
	callers        sync.WaitGroup // who wait
	taken, refused int
	longest        time.Duration
}

// offer sends commands of 1 KiB, so many a second, for a while.
func offer(t *testing.T, p *proposer, rate int, span time.Duration) *offered {
	out := new(offered)
	for range int(span.Seconds() * float64(rate)) {
		time.Sleep(time.Second / time.Duration(rate))
		began, c := time.Now(), newCall(1)
		p.enqueue(c, 0, make([]byte, 1<<10))
		p.kick()
		out.callers.Go(func() {
			err := proto.FromWire(c.wait(t.Context(), nil)[0].GetError())
			out.mu.Lock()
			defer out.mu.Unlock()
			switch {
			case err == nil:
				out.taken++
				out.longest = max(out.longest, time.Since(began))
			case err.Code != proto.ErrOverloaded.Code || err.RetryAfterUS == 0:
				t.Errorf("refused with %v", err)
			default:
				out.refused++
			}
		})
		synctest.Wait()
	}
	return out
}

// Ten times as much comes as the log takes, for a minute. As much is applied as ever, what is taken waits for a bounded
// time, and a second later nothing is refused any more.
func TestOverloadIsShed(t *testing.T) {
	proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
		const entry = 50 * time.Millisecond // for up to 63 commands of 1 KiB: 1,260 a second
		const span = time.Minute
		log := busy{p, l}
		over := make(chan struct{})
		go func() {
			defer close(over)
			log.commitFor(span+10*time.Second, func(int) time.Duration { return entry })
		}()
		much := offer(t, p, 12_600, span)
		time.Sleep(time.Second)
		little := offer(t, p, 600, 5*time.Second)
		<-over
		much.callers.Wait()
		little.callers.Wait()
		if least := int(0.9 * 1260 * span.Seconds()); much.taken < least {
			t.Errorf("%d commands were applied, want %d at least", much.taken, least)
		}
		t.Logf("%d applied, %d refused, the longest after %v", much.taken, much.refused, much.longest)
		if most := 2 * time.Second; much.longest > most {
			t.Errorf("a command waited for %v, want %v at most", much.longest, most)
		}
		if little.refused > 0 || little.taken != 3000 {
			t.Errorf("%d of 3000 commands were applied afterwards, and %d refused", little.taken, little.refused)
		}
	})
}

// A sync that takes 800 ms, and a disk on which each takes that long, refuse nothing that is not too much.
func TestSlowSyncsAreNoOverload(t *testing.T) {
	for what, took := range map[string]func(entry int) time.Duration{
		"one slow sync": func(i int) time.Duration {
			if i == 20 {
				return 800 * time.Millisecond
			}
			return 2 * time.Millisecond
		},
		"a slow disk": func(int) time.Duration { return 800 * time.Millisecond },
	} {
		proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
			over := make(chan struct{})
			go func() {
				defer close(over)
				busy{p, l}.commitFor(25*time.Second, took)
			}()
			got := offer(t, p, 50, 20*time.Second)
			<-over
			got.callers.Wait()
			if got.refused > 0 || got.taken != 1000 {
				t.Errorf("%s: %d of 1000 commands were applied, and %d refused", what, got.taken, got.refused)
			}
		})
	}
}
