package rpc

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

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
					if late := r.late.Load(); late != (due && !came[r]) {
						t.Fatalf("seed %d: a stream of %v is late: %v; its message came: %v", seed, time.Since(r.since), late, came[r])
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
					if r := all[random.IntN(len(all))]; !r.late.Load() {
						r.ended()
						r.ended()
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
