package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// service is a cluster that acknowledges increments one after the other.
type service struct {
	mu   sync.Mutex
	base time.Duration // that a call takes when nothing waits
	each time.Duration // that an increment takes
	free time.Time     // when it is done with what it has
}

// serve takes a call, and returns when it is done.
func (s *service) serve(weight int) {
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(weight) * s.each)
	wait := s.free.Sub(now) + s.base
	s.mu.Unlock()
	time.Sleep(wait)
}

// loadResult counts what became of calls.
type loadResult struct {
	mu      sync.Mutex
	good    int             // acknowledged before the caller's deadline
	late    int             // served after it
	refused int             // never sent
	took    []time.Duration // of the good ones
}

// drive has writers call through a limiter, each with the next call when it knows the outcome of the last.
func (l *loadResult) drive(limiter *writeLimiter, s *service, writers, weight int, deadline, span time.Duration) {
	end := time.Now().Add(span)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				ctx, cancel := context.WithDeadline(context.Background(), began.Add(deadline))
				var p *permit
				var err error
				if limiter != nil {
					p, _, err = limiter.acquire(ctx, weight)
				}
				if err == nil {
					s.serve(weight)
				}
				if p != nil {
					limiter.release(p)
				}
				took := time.Since(began)
				l.mu.Lock()
				switch {
				case err != nil:
					l.refused++
				case took > deadline:
					l.late++
				default:
					l.good++
					l.took = append(l.took, took)
				}
				l.mu.Unlock()
				cancel()
			}
		})
	}
	wg.Wait()
}

// A cluster that is given ten times what it holds does as much as before, and what it does is in time.
func TestGateUnderOverload(t *testing.T) {
	for _, c := range []struct {
		base, each time.Duration
		writers    int
		weight     int
	}{
		{5 * time.Millisecond, 50 * time.Microsecond, 500, 100}, // 20,000 increments a second
		{5 * time.Millisecond, 500 * time.Microsecond, 1000, 10},
		{2 * time.Millisecond, 2 * time.Millisecond, 2000, 1},
		{80 * time.Millisecond, 100 * time.Microsecond, 500, 100}, // in another region
	} {
		t.Run(fmt.Sprintf("%d writers of %d, %v away", c.writers, c.weight, c.base), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const span, deadline = 60 * time.Second, 2 * time.Second
				s := &service{base: c.base, each: c.each}
				l := new(loadResult)
				l.drive(newWriteLimiter(time.Now), s, c.writers, c.weight, deadline, span)
				most := int(span/c.each) / c.weight
				if l.good < most*9/10 {
					t.Errorf("%d calls in time, want 90%% of %d; %d too late, %d not sent",
						l.good, most, l.late, l.refused)
				}
				quick, limit := 0, 5*max(fastWriteMin, slowWriteFactor*c.base)
				for _, took := range l.took {
					if took <= limit {
						quick++
					}
				}
				if quick < len(l.took)*95/100 {
					t.Errorf("%d of %d calls took less than %v", quick, len(l.took), limit)
				}
			})
		})
	}
}

// Without the limiter the same load leaves nothing in time: the test above shows something.
func TestOverloadWithoutAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(loadResult)
		s := &service{base: 5 * time.Millisecond, each: 50 * time.Microsecond}
		l.drive(nil, s, 500, 100, 2*time.Second, 20*time.Second)
		if l.good > 10*l.late {
			t.Errorf("%d calls in time and %d late", l.good, l.late)
		}
	})
}

// A load that the cluster holds does not wait at the limiter.
func TestGateLetsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newWriteLimiter(time.Now)
		l := new(loadResult)
		// 20 calls in 5 to 7 ms each
		s := &service{base: 5 * time.Millisecond, each: time.Microsecond}
		l.drive(limiter, s, 20, 10, time.Second, 10*time.Second)
		if l.refused+l.late > 0 {
			t.Errorf("%d not sent, %d late", l.refused, l.late)
		}
		for _, took := range l.took {
			if took > 8*time.Millisecond {
				t.Fatalf("a call took %v", took)
			}
		}
	})
}

// Calls to a shard without a leader hold the others back for a moment only.
func TestGateWithStuckCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newWriteLimiter(time.Now)
		s := &service{base: 5 * time.Millisecond, each: 10 * time.Microsecond}
		before := new(loadResult)
		before.drive(limiter, s, 100, 10, time.Second, 5*time.Second)
		stop := make(chan struct{})
		var stuck sync.WaitGroup
		for range 1000 {
			stuck.Go(func() {
				for {
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
					p, _, err := limiter.acquire(ctx, 50)
					select {
					case <-ctx.Done():
					case <-stop:
					}
					if err == nil {
						limiter.release(p)
					}
					cancel()
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		during := new(loadResult)
		during.drive(limiter, s, 100, 10, time.Second, 20*time.Second)
		close(stop)
		stuck.Wait()
		if perSecond, was := during.good/20, before.good/5; perSecond < was/4 {
			t.Errorf("%d calls a second, and %d before", perSecond, was)
		}
		after := new(loadResult)
		time.Sleep(time.Second)
		after.drive(limiter, s, 100, 10, time.Second, 5*time.Second)
		if after.good < before.good*9/10 || limiter.open != 0 || limiter.first != nil || len(limiter.queue) > 0 {
			t.Errorf("%d calls afterwards, %d before; %d open", after.good, before.good, limiter.open)
		}
	})
}

// A caller that gives up leaves no trace, and its error says why.
func TestGateGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newWriteLimiter(time.Now)
		first, _, err := limiter.acquire(context.Background(), writeLimitStart)
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
		if _, waited, err := limiter.acquire(ctx, 1); !waited || !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
		limiter.release(first)
		if limiter.open != 0 || len(limiter.queue) > 0 {
			t.Errorf("%d open, %d wait", limiter.open, len(limiter.queue))
		}
		time.Sleep(time.Second) // its timer ends
	})
}

func BenchmarkGate(b *testing.B) {
	limiter := newWriteLimiter(time.Now)
	ctx := context.Background()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, _, err := limiter.acquire(ctx, 1)
			if err != nil {
				b.Fatal(err)
			}
			limiter.release(p)
		}
	})
}

// A cluster that becomes slow while too much is written, because a disk does, is used nearly as much as before.
func TestGateWhenTheClusterBecomesSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newWriteLimiter(time.Now)
		s := &service{base: 5 * time.Millisecond, each: 50 * time.Microsecond}
		new(loadResult).drive(limiter, s, 500, 100, 2*time.Second, 20*time.Second)
		s.base = 300 * time.Millisecond
		new(loadResult).drive(limiter, s, 500, 100, 2*time.Second, 60*time.Second)
		l := new(loadResult)
		l.drive(limiter, s, 500, 100, 2*time.Second, 60*time.Second)
		if most := 60 * 200; l.good < most*8/10 {
			t.Errorf("%d calls in time, want 80%% of %d", l.good, most)
		}
	})
}
