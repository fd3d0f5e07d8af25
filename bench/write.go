package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ebbdb/ebb/client"
)

// Write measures acknowledged increments of (key, bin) pairs drawn at random. The pairs of a batch are not aggregated
// first.
type Write struct {
	Duration      time.Duration
	Distributions int // 100,000 if 0
	Bins          int // number of different bins; 10 if 0
	Batch         int // most increments of a command; 1,000 if 0
	Workers       int // goroutines that add; 2 if 0
}

// WriteResult is what a run of Write measured.
type WriteResult struct {
	Acknowledged int64         `json:"acknowledged"`
	Seconds      float64       `json:"seconds"`
	PerSecond    float64       `json:"per_second"`
	ServerCPU    time.Duration `json:"server_cpu_ns"`
	Commands     int64         `json:"commands"`
}

func (w Write) withDefaults() Write {
	or(&w.Duration, 10*time.Second)
	or(&w.Distributions, 100_000)
	or(&w.Bins, 10)
	or(&w.Batch, 1_000)
	or(&w.Workers, 2)
	return w
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Run adds increments for the duration, and waits until all are acknowledged.
func (w Write) Run(ctx context.Context, t Target) (WriteResult, error) {
	w = w.withDefaults()
	c, err := t.dial(ctx)
	if err != nil {
		return WriteResult{}, err
	}
	defer c.Close()
	var failures sync.Map
	writer := c.Writer(client.WriterOptions{
		MaxBatch: w.Batch, NoAggregate: true, MaxBuffered: 200_000,
		OnError: func(err error) { failures.Store(err.Error(), true) },
	})
	before, err := t.CPU(ctx)
	if err != nil {
		return WriteResult{}, err
	}
	start := time.Now()
	until := start.Add(w.Duration)
	var wg sync.WaitGroup
	for worker := range w.Workers {
		p := newPairs(uint64(worker), w.Distributions, w.Bins)
		wg.Go(func() {
			for n := 0; n&255 != 0 || time.Now().Before(until); n++ {
				key, bin := p.next()
				if writer.Add(ctx, key, bin, 1) != nil {
					return // the context has ended
				}
			}
		})
	}
	wg.Wait()
	closeErr := writer.Close(ctx)
	took := time.Since(start)
	after, err := t.CPU(ctx)
	if err != nil {
		return WriteResult{}, err
	}
	st := writer.Stats()
	if closeErr != nil || st.Applied+st.Duplicates != st.Added {
		var first string
		failures.Range(func(k, _ any) bool { first = k.(string); return false })
		return WriteResult{}, fmt.Errorf("%d of %d increments were not acknowledged (%s): %w", st.Added-st.Applied-st.Duplicates, st.Added, first, closeErr)
	}
	return WriteResult{
		Acknowledged: st.Applied, Seconds: took.Seconds(), PerSecond: float64(st.Applied) / took.Seconds(),
		ServerCPU: after - before, Commands: st.Commands,
	}, nil
}

// Single measures the latency of single increments, at a fixed rate.
type Single struct {
	Duration  time.Duration
	PerSecond int // 1,000 if 0
}

// Run sends single increments in an open loop, and returns their latencies.
func (s Single) Run(ctx context.Context, t Target) (Quantiles, error) {
	or(&s.Duration, 10*time.Second)
	or(&s.PerSecond, 1_000)
	c, err := t.dial(ctx)
	if err != nil {
		return Quantiles{}, err
	}
	defer c.Close()
	p := newPairs(1, 10_000, 10)
	for range 2_000 { // open the sessions and connections first
		key, bin := p.next()
		if err := c.Increment(ctx, "", client.Increment{Key: key, Bin: bin, Amount: 1}); err != nil {
			return Quantiles{}, err
		}
	}
	var all Latencies
	var mu sync.Mutex // guards first and p
	var first error
	pace(s.PerSecond, s.Duration, ctx.Done(), func(sent time.Time) {
		mu.Lock()
		key, bin := p.next()
		mu.Unlock()
		err := c.Increment(ctx, "", client.Increment{Key: key, Bin: bin, Amount: 1})
		all.Add(time.Since(sent))
		if err != nil {
			mu.Lock()
			first = err
			mu.Unlock()
		}
	})
	return all.Quantiles(), first
}
