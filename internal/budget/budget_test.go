package budget

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// A request gives back what it does not take, and all of it at its end.
func TestRequest(t *testing.T) {
	p := New("answers", 1000)
	r := p.Begin(0)
	if err := r.Charge(t.Context(), 300); err != nil || p.Used() != 300 || r.Left() != 200 {
		t.Fatal(err, p.Used(), r.Left())
	}
	if err := r.Charge(t.Context(), 201); !errors.Is(err, proto.ErrResponseTooLarge) {
		t.Errorf("%v: one request may have half of the pool", err)
	}
	r.Refund(100)
	stage := r.Nested()
	if err := stage.Charge(t.Context(), 150); err != nil || r.Held() != 350 || stage.Held() != 150 {
		t.Error(err, r.Held(), stage.Held())
	}
	if stage.Try(151) || !stage.Try(150) {
		t.Error("a stage may have what the request has left")
	}
	stage.Close()
	if r.Held() != 200 || p.Used() != 200 {
		t.Error("a stage gives back what it was charged:", r.Held(), p.Used())
	}
	if err := stage.Charge(t.Context(), 1); err == nil {
		t.Error("a stage that has ended takes memory")
	}
	r.Close()
	r.Close()
	if err := r.Charge(t.Context(), 1); err == nil || p.Used() != 0 {
		t.Error("a request that has ended takes memory:", p.Used())
	}
}

// Without a pool nothing is counted, and nothing is refused.
func TestNoBudget(t *testing.T) {
	var p *Pool
	r := p.Begin(10)
	ctx := With(t.Context(), r)
	if From(ctx) != nil {
		t.Error("a context carries no budget when there is none")
	}
	_, stage := Stage(ctx)
	if err := stage.Charge(ctx, 1<<40); err != nil || !stage.Try(1<<40) || stage.Finished(1<<40) != nil || stage.Full() != nil {
		t.Error("nothing is refused without a budget")
	}
	stage.Limit(r)
	stage.Refund(1)
	stage.Close()
	if p.Size() != 0 || p.Used() != 0 || r.Held() != 0 {
		t.Error("nothing is counted without a budget")
	}
}

// When one finished answer did not fit, none is built any more that may not fit; smaller ones are.
func TestFinishedAnswers(t *testing.T) {
	p := New("answers", 10_000)
	r := p.Begin(1000)
	if err := r.Finished(600); err != nil {
		t.Fatal(err)
	}
	if err := r.Charge(t.Context(), 900); err != nil {
		t.Error("a bound is no answer before one did not fit:", err)
	}
	if err := r.Finished(500); !errors.Is(err, proto.ErrResponseTooLarge) {
		t.Error(err)
	}
	if err := r.Charge(t.Context(), 401); !errors.Is(err, proto.ErrResponseTooLarge) {
		t.Error(err)
	}
	if err := r.Charge(t.Context(), 400); err != nil || r.Full() != nil {
		t.Error(err)
	}
	stage := r.Nested()
	stage.Limit(r)
	if err := stage.Finished(401); !errors.Is(err, proto.ErrResponseTooLarge) {
		t.Error("a stage has what the request has left:", err)
	}
	if err := stage.Finished(400); err != nil || stage.Full() == nil {
		t.Error(err)
	}
}

// A request that finds no room waits, in order, for a second at most and no longer than its context. Then it is refused
// with a retry time.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New("answers", 1000)
		a, b := p.Begin(0), p.Begin(0)
		if a.Charge(t.Context(), 500) != nil || b.Charge(t.Context(), 500) != nil {
			t.Fatal("there is room for both")
		}
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				r := p.Begin(0)
				if err := r.Charge(t.Context(), 400); err != nil {
					t.Errorf("%d: %v", i, err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				r.Close()
			})
		}
		time.Sleep(100 * time.Millisecond)
		if len(order) != 0 {
			t.Error("there is no room yet")
		}
		a.Close()
		wg.Wait()
		if len(order) != 3 || order[0] != 0 || order[1] != 1 || order[2] != 2 {
			t.Errorf("served in the order %v", order)
		}
		a = p.Begin(0)
		if err := a.Charge(t.Context(), 500); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := p.Begin(0).Charge(t.Context(), 1)
		if !errors.Is(err, proto.ErrOverloaded) || err.RetryAfterUS == 0 || time.Since(began) != waitMax {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began = time.Now()
		if err := p.Begin(0).Charge(ctx, 1); !errors.Is(err, proto.ErrOverloaded) || time.Since(began) != 50*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		a.Refund(400)
		c := p.Begin(0)
		began = time.Now()
		if err := errors.Join(asError(c.Charge(t.Context(), 300)), asError(c.Charge(t.Context(), 150))); !errors.Is(err, proto.ErrOverloaded) || time.Since(began) != heldWaitMax {
			t.Errorf("who holds something waits less: after %v: %v", time.Since(began), err)
		}
		if p.Used() != 900 || p.Waits() != 6 || p.Refusals() != 3 {
			t.Errorf("%d bytes used, %d waits, %d refusals", p.Used(), p.Waits(), p.Refusals())
		}
	})
}

func asError(err *proto.Error) error {
	if err == nil {
		return nil
	}
	return err
}

// Many at a time never hold more than there is, and in the end hold nothing.
func TestManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New("answers", 10_000)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for range 50 {
					one := p.Begin(0)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(300))*time.Millisecond)
					stage := one.Nested()
					if stage.Charge(ctx, 1+r.IntN(4000)) == nil {
						time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
						stage.Refund(r.IntN(4000))
						stage.Try(r.IntN(1000))
					}
					if used := p.Used(); used > p.Size() || used < 0 {
						t.Errorf("%d bytes of %d are used", used, p.Size())
					}
					if r.IntN(2) == 0 {
						stage.Close()
					}
					one.Close()
					cancel()
				}
			})
		}
		wg.Wait()
		if p.Used() != 0 || p.waiting.Load() != 0 || len(p.queue) != 0 {
			t.Errorf("%d bytes are used, %d wait", p.Used(), p.waiting.Load())
		}
	})
}

func TestSizeFor(t *testing.T) {
	for limit, want := range map[int64]int64{0: poolDefault, 64 << 20: poolLeast, 512 << 20: 128 << 20, 16 << 30: 4 << 30} {
		if got := SizeFor(limit); got != want {
			t.Errorf("%d of %d, want %d", got, limit, want)
		}
	}
}

// Small charges that fit pass a large one that waits, and those that wait behind it too. From half of its time on
// nothing passes it, so that it has its turn while small ones come without end.
func TestSmallChargesPassALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New("answers", 64_000)
		most, rest, large := p.Begin(0), p.Begin(0), p.Begin(0)
		if most.Charge(t.Context(), 32_000) != nil || rest.Charge(t.Context(), 31_000) != nil {
			t.Fatal("there is room for both")
		}
		var wg sync.WaitGroup
		start, passed := time.Now(), 0
		wg.Go(func() {
			if err := large.Charge(t.Context(), 30_000); err != nil {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			if took := time.Since(start); took < waitMax/2 || took >= waitMax {
				t.Errorf("the large one had its turn after %v", took)
			}
		})
		synctest.Wait()
		behind, wide := p.Begin(0), p.Begin(0)
		wg.Go(func() {
			time.Sleep(10 * time.Millisecond) // when all is taken
			if err := behind.Charge(t.Context(), 900); err != nil || time.Since(start) > 20*time.Millisecond {
				t.Errorf("a small one behind it: after %v: %v", time.Since(start), err)
			}
			behind.Close()
		})
		small := p.Begin(0)
		if !small.Try(1000) {
			t.Fatal("a small one that fits does not pass")
		}
		if wide.Try(1001) {
			t.Error("one that is not small passes")
		}
		time.Sleep(15 * time.Millisecond)
		small.Close()
		synctest.Wait()
		for time.Since(start) < waitMax*3/4 { // each gives back what the next one could take
			r := p.Begin(0)
			if r.Try(1000) {
				passed++
				if time.Since(start) >= waitMax/2 {
					t.Errorf("one passes after %v", time.Since(start))
				}
			}
			time.Sleep(5 * time.Millisecond)
			r.Close()
		}
		if passed < 50 {
			t.Errorf("%d passed", passed)
		}
		most.Refund(30_000)
		wg.Wait()
		for _, r := range []*Request{most, rest, large, wide} {
			r.Close()
		}
		if p.Used() != 0 {
			t.Errorf("%d bytes are left", p.Used())
		}
	})
}

// A caller that keeps count itself waits as others do, and gives back what it took.
func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New("slots", 2)
		for range 2 {
			if err := p.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		err := p.Acquire(t.Context(), 1)
		if !errors.Is(err, proto.ErrOverloaded) || time.Since(began) != waitMax {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.AfterFunc(50*time.Millisecond, func() { p.Release(1) })
		began = time.Now()
		if err := p.Acquire(t.Context(), 1); err != nil || time.Since(began) != 50*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		p.Release(2)
		if p.Used() != 0 {
			t.Errorf("%d are left", p.Used())
		}
	})
	var none *Pool
	if err := none.Acquire(t.Context(), 1); err != nil {
		t.Error(err)
	}
	none.Release(1)
}
