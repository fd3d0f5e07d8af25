package bench

import (
	"slices"
	"sync"
	"time"
)

// Latencies collects durations. The zero value is ready to use. Several goroutines may use it.
type Latencies struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

// Add adds one duration.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

// Quantiles are the quantiles of a set of durations.
type Quantiles struct {
	N    int           `json:"n"`
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

// Quantiles returns the quantiles of the durations added so far.
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

// pace calls f perSecond times a second for a duration, and waits for all calls. It is an open loop: it does not wait
// for earlier calls, so a slow answer neither reduces the load nor stays out of the result. f gets the time at which it
// was started, because timers may be a millisecond late, and that is not the cluster's latency.
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
