package bench

import (
	"slices"
	"sync"
	"time"
)

// Latencies collects how long things took. The zero value is ready.
type Latencies struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

// Add records one.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

// Quantiles are of a set of durations.
type Quantiles struct {
	N    int           `json:"n"`
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

// Quantiles summarises what was recorded so far.
func (l *Latencies) Quantiles() Quantiles {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	if len(all) == 0 {
		return Quantiles{}
	}
	slices.Sort(all)
	at := func(p float64) time.Duration { return all[min(int(p*float64(len(all))), len(all)-1)] }
	return Quantiles{N: len(all), P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: all[len(all)-1]}
}

// pace calls f at a rate per second for a duration, whether or not earlier
// calls have returned (an open loop: a slow answer neither slows the load down
// nor hides from it), and waits for all of them. f is given the moment at which
// it was let go: timers are up to a millisecond late, and that is not the
// cluster's doing.
func pace(perSecond int, d time.Duration, stop <-chan struct{}, f func(sent time.Time)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	start, interval := time.Now(), time.Second/time.Duration(perSecond)
	for i := range int(d / interval) {
		due := start.Add(time.Duration(i) * interval)
		if wait := time.Until(due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-stop:
				return
			}
		}
		sent := time.Now()
		wg.Go(func() { f(sent) })
	}
}
