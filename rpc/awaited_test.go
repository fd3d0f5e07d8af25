package rpc

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// A request that was answered while it arrived is not carried out, though its message is here all the same. One whose
// message is here is not answered by others.
func TestAnsweredRequestsAreNotCarriedOut(t *testing.T) {
	s := (&fake{}).services()
	s.Budget = NewBudget(0, nil)
	m := newMetrics("grpc", nil)
	for name, c := range map[string]struct {
		end  func(*receipt)
		want *proto.Error // nil: it is carried out
	}{
		"refused": {end: (*receipt).refuse, want: proto.ErrOverloaded},
		"late":    {end: (*receipt).expire, want: proto.ErrDeadline},
		"neither": {end: func(*receipt) {}},
	} {
		r := &receipt{Context: t.Context(), budget: s.Budget}
		s.Budget.awaited.add(r)
		c.end(r)
		in := s.receivingOf(r, m, ebbv1grpc.Ebb_Increment_FullMethodName)
		err := in.receive(func(any) error { return nil }, &ebbv1.IncrementRequest{})
		switch {
		case c.want == nil && (err != nil || r.finish(errLate) || r.Err() != nil):
			t.Errorf("%s: %v", name, errors.Join(err, r.Err()))
		case c.want != nil && !proto.AsError(ebbv1grpc.FromStatus(err)).Is(c.want):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		in.end()
	}
	if b := s.Budget; b.awaited.first != nil || b.used.Load() != 0 {
		t.Errorf("%d bytes are charged for nothing", b.used.Load())
	}
}

// wasLate reports whether a stream was answered because its time was over.
func wasLate(r *receipt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over == error(errLate)
}

// Whatever streams begin, and whichever of their messages come, each of the others ends when its time is over, and not
// before: one timer serves them all.
func TestAwaitedStreamsEndInTime(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			b := NewBudget(0, nil)
			var all []*receipt
			came := make(map[*receipt]bool)
			check := func() {
				synctest.Wait()
				for _, r := range all {
					due := time.Since(r.since) >= receiveTimeout
					if late := wasLate(r); late != (due && !came[r]) {
						age := time.Since(r.since)
						t.Fatalf("seed %d: a stream of %v is late: %v; its message came: %v", seed, age, late, came[r])
					}
				}
			}
			for range 200 {
				switch {
				case random.IntN(3) > 0:
					r := &receipt{budget: b}
					b.awaited.add(r)
					all = append(all, r)
				case len(all) > 0:
					if r := all[random.IntN(len(all))]; !wasLate(r) {
						if err := r.arrived(); err != nil || r.arrived() != nil {
							t.Fatalf("seed %d: the stream was answered before: %v", seed, err)
						}
						came[r] = true
					}
				}
				time.Sleep(time.Duration(random.IntN(4)) * receiveTimeout / 10)
				check()
			}
			time.Sleep(receiveTimeout)
			check()
			if b.awaited.first != nil || b.awaited.last != nil || b.awaited.armed {
				t.Errorf("seed %d: streams are awaited that have ended", seed)
			}
			time.Sleep(receiveTimeout) // nothing is due, and the next begins anew
			r := &receipt{budget: b}
			b.awaited.add(r)
			all = append(all, r)
			time.Sleep(receiveTimeout)
			check()
		})
	}
}
