package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// wire is a node at the other end of a coalescer: it answers each question with
// the name of its key, after a time.
type wire struct {
	*coalescer
	end  context.CancelCauseFunc
	work sync.WaitGroup

	mu       sync.Mutex
	takes    []time.Duration // of the requests, in order; 10 ms for the rest
	ill      string          // a request with this key takes an hour
	refuse   func(questions int) error
	requests [][]string // the keys of each
	ended    int        // requests whose context was over first
}

func newWire(t *testing.T, takes ...time.Duration) *wire {
	w := &wire{takes: takes}
	ctx, cancel := context.WithCancelCause(t.Context())
	w.end = cancel
	w.coalescer = &coalescer{life: ctx, send: w.carry, most: coalescedMax, spawn: func(f func()) bool {
		if ctx.Err() == nil {
			w.work.Go(f)
		}
		return ctx.Err() == nil
	}}
	return w
}

func (w *wire) carry(ctx context.Context, _ requestOptions, questions []*ebbv1.Question) ([]*ebbv1.Answer, error) {
	w.mu.Lock()
	keys := make([]string, len(questions))
	answers := make([]*ebbv1.Answer, len(questions))
	for i, q := range questions {
		keys[i] = keyOf(q)
		answers[i] = &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: &ebbv1.Distribution{Keys: q.GetDistribution().GetKeys()}}}
	}
	w.requests = append(w.requests, keys)
	took := 10 * time.Millisecond
	if len(w.takes) > 0 {
		took, w.takes = w.takes[0], w.takes[1:]
	}
	if w.ill != "" && slices.Contains(keys, w.ill) {
		took = time.Hour
	}
	refuse := w.refuse
	w.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		w.mu.Lock()
		w.ended++
		w.mu.Unlock()
		return nil, context.Cause(ctx)
	}
	if refuse != nil {
		if err := refuse(len(questions)); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// sent returns the keys of each request, each sorted.
func (w *wire) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		slices.Sort(r)
	}
	return fmt.Sprint(w.requests)
}

func about(key string) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_Top{Top: 3},
	}}}
}

// answered asks and checks that the answer is to this question; it returns how long it took.
func (w *wire) answered(t *testing.T, key string) time.Duration {
	start := time.Now()
	a, _, err := w.ask(t.Context(), 1, requestOptions{}, about(key))
	if got := fmt.Sprintf("%s", a.GetDistribution().GetKeys()); err != nil || got != "["+key+"]" {
		t.Errorf("%s is answered with %q, %v", key, got, err)
	}
	return time.Since(start)
}

// askConcurrently asks from goroutines, one after the other.
func (w *wire) askConcurrently(t *testing.T, keys ...string) {
	for _, k := range keys {
		w.work.Go(func() { w.answered(t, k) })
		synctest.Wait()
	}
}

// A question is sent at once, each time, if no request is in flight.
func TestCoalescerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		for _, key := range []string{"a", "b", "c"} {
			if took := w.answered(t, key); took != 10*time.Millisecond {
				t.Errorf("%s took %v", key, took)
			}
		}
		if got := w.sent(); got != "[[a] [b] [c]]" {
			t.Error(got)
		}
	})
}

// Those that come while a request is on its way leave together when it is back,
// and each gets its own answer.
func TestCoalescerShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Millisecond, time.Millisecond)
		w.askConcurrently(t, "a", "b", "c", "d")
		time.Sleep(1500 * time.Microsecond) // the second is on its way
		w.askConcurrently(t, "e", "f")
		w.work.Wait()
		if got := w.sent(); got != "[[a] [b c d] [e f]]" {
			t.Error(got)
		}
		if w.inFlight != 0 || len(w.forming) != 0 {
			t.Errorf("%d on their way, %d forming", w.inFlight, len(w.forming))
		}
	})
}

// A request that takes long delays those behind it by coalesceWaitMax, no more.
func TestCoalescerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Hour, time.Millisecond)
		w.work.Go(func() { w.answered(t, "slow") })
		synctest.Wait()
		start := time.Now()
		w.askConcurrently(t, "a", "b")
		for w.sent() != "[[slow] [a b]]" && time.Since(start) < time.Second {
			time.Sleep(100 * time.Microsecond)
		}
		if took := time.Since(start); took > coalesceWaitMax+100*time.Microsecond {
			t.Errorf("they left after %v: %s", took, w.sent())
		}
		w.work.Wait()
	})
}

// Questions with other options travel in other requests.
func TestCoalescerTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Millisecond)
		w.askConcurrently(t, "a", "b")
		w.work.Go(func() {
			if _, _, err := w.ask(t.Context(), 1, requestOptions{consistency: ebbv1.Consistency_CONSISTENCY_ANY}, about("c")); err != nil {
				t.Error(err)
			}
		})
		w.work.Wait()
		got := w.sent()
		if got != "[[a] [b] [c]]" && got != "[[a] [c] [b]]" {
			t.Error(got)
		}
	})
}

// A request that is full leaves at once.
func TestCoalescerFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Hour)
		w.work.Go(func() { w.answered(t, "slow") })
		synctest.Wait()
		start := time.Now()
		for i := range coalescedMax + 1 {
			w.work.Go(func() { w.answered(t, fmt.Sprint(i)) })
		}
		synctest.Wait()
		w.mu.Lock()
		if n := len(w.requests); n != 2 || len(w.requests[1]) != coalescedMax || time.Since(start) != 0 {
			t.Errorf("%d requests, after %v", n, time.Since(start))
		}
		w.mu.Unlock()
		w.work.Wait()
	})
}

// A caller that gives up leaves the others their answers; the request ends with the last.
func TestCoalescerAbandoned(t *testing.T) {
	for _, stay := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(t, time.Millisecond, time.Minute)
			w.askConcurrently(t, "first")
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			for _, key := range []string{"a", "b"} {
				w.work.Go(func() {
					q := about(key)
					if _, _, err := w.ask(ctx, 1, requestOptions{}, q); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v", key, err)
					}
					q.Namespace = "changed" // it is the caller's again
				})
			}
			if stay {
				w.askConcurrently(t, "c")
			}
			time.Sleep(30 * time.Millisecond)
			if w.mu.Lock(); (w.ended == 0) != stay {
				t.Errorf("%d requests ended early; somebody waits: %v", w.ended, stay)
			}
			w.mu.Unlock()
			w.work.Wait()
		})
	}
}

// When a shared request as a whole is refused, each question is asked alone: it
// may not have been its fault. When the node is not to be reached, none is.
func TestCoalescerRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Millisecond)
		w.refuse = func(questions int) error {
			if questions > 1 {
				return proto.ErrBatchTooLarge.Errorf("too many")
			}
			return nil
		}
		w.askConcurrently(t, "a", "b", "c")
		w.work.Wait()
		if got := w.sent(); len(w.requests) != 4 {
			t.Error(got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Millisecond)
		w.askConcurrently(t, "a")
		w.refuse = func(int) error { return proto.ErrUnreachable.Errorf("nobody there") }
		for _, key := range []string{"b", "c"} {
			w.work.Go(func() {
				if _, _, err := w.ask(t.Context(), 1, requestOptions{}, about(key)); !errors.Is(err, ErrUnreachable) {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		w.work.Wait()
		if len(w.requests) != 2 {
			t.Error(w.sent())
		}
	})
}

// When the client closes, the questions that wait fail with ErrClosed.
func TestCoalescerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, time.Millisecond)
		var told sync.WaitGroup
		told.Go(func() { w.answered(t, "a") })
		synctest.Wait()
		for _, key := range []string{"b", "c"} {
			told.Go(func() {
				if _, _, err := w.ask(t.Context(), 1, requestOptions{}, about(key)); !errors.Is(err, ErrClosed) {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		synctest.Wait()
		w.end(ErrClosed)
		told.Wait()
	})
}

// What is large, or brings more than a deadline, goes alone.
func TestCoalescible(t *testing.T) {
	of := func(change func(*ebbv1.DistributionQuestion)) *ebbv1.Question {
		q := about("k")
		change(q.GetDistribution())
		return q
	}
	plain := t.Context()
	for _, c := range []struct {
		name string
		ctx  context.Context
		q    *ebbv1.Question
		want bool
	}{
		{"one key, few bins", plain, about("k"), true},
		{"some bins", plain, of(func(d *ebbv1.DistributionQuestion) {
			d.Select = &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: make([][]byte, coalescedBins)}}
		}), true},
		{"many bins", plain, of(func(d *ebbv1.DistributionQuestion) {
			d.Select = &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: make([][]byte, coalescedBins+1)}}
		}), false},
		{"a long top", plain, of(func(d *ebbv1.DistributionQuestion) { d.Select = &ebbv1.DistributionQuestion_Top{Top: coalescedTop + 1} }), false},
		{"all bins", plain, of(func(d *ebbv1.DistributionQuestion) { d.Select = &ebbv1.DistributionQuestion_All{All: true} }), false},
		{"no selection, which is all bins", plain, of(func(d *ebbv1.DistributionQuestion) { d.Select = nil }), false},
		{"all bins, said otherwise", plain, of(func(d *ebbv1.DistributionQuestion) { d.Select = &ebbv1.DistributionQuestion_All{} }), false},
		{"two keys", plain, of(func(d *ebbv1.DistributionQuestion) { d.Keys = append(d.Keys, []byte("l")) }), false},
		{"the whole namespace", plain, &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}, false},
		{"metadata", metadata.AppendToOutgoingContext(plain, "trace", "1"), about("k"), false},
	} {
		if got := coalescible(c.ctx, c.q); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// All callers of a request that is being formed have given up. A question that comes then does not fail for that
// reason.
func TestCoalescerForsaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, 10*time.Millisecond, time.Millisecond)
		w.askConcurrently(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		w.work.Go(func() {
			if _, _, err := w.ask(ctx, 1, requestOptions{}, about("a")); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		w.askConcurrently(t, "b")
		w.work.Wait()
		if got := w.sent(); got != "[[first] [b]]" {
			t.Error(got)
		}
	})
}

// A question that hangs delays others in its request for a moment, and only once. While it is asked alone, others about
// its shard go alone as well.
func TestCoalescerSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		w.ill = "ill"
		ctx, cancel := context.WithCancel(t.Context())
		hang := func() {
			w.work.Go(func() {
				if _, _, err := w.ask(ctx, 2, requestOptions{}, about("ill")); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		w.askConcurrently(t, "first")
		hang()
		if took := w.answered(t, "a"); took < sharedWaitMax || took > sharedWaitMax+20*time.Millisecond {
			t.Errorf("beside it: %v", took)
		}
		for range 3 {
			w.askConcurrently(t, "b")
			hang()
			if took := w.answered(t, "c"); took > 20*time.Millisecond {
				t.Errorf("after it: %v", took)
			}
			time.Sleep(time.Second)
		}
		cancel()
		w.work.Wait()
		if len(w.slow) != 0 || w.inFlight != 0 || w.ended != 5 { // 4 alone, 1 shared
			t.Errorf("%d shards are suspect, %d requests on their way, %d ended", len(w.slow), w.inFlight, w.ended)
		}
	})
}
