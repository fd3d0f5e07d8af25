package node_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func profile(t *testing.T) func() {
	path := os.Getenv("EBB_PROFILE")
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		t.Fatal(err)
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestWriteThroughput prints what three nodes and their client reach together
// on this machine. It asserts nothing about speed.
func TestWriteThroughput(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	ctx := context.Background()
	w := newWorld(t, 3, 64)
	c, err := ebb.Dial(ctx, w.nodes[0].Addresses().GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	writer := c.Writer(ebb.WriterOptions{NoAggregate: true, MaxBuffered: 400_000, Linger: 20 * time.Millisecond})
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("link/%05d", i)
	}
	bins := make([]string, 64)
	for i := range bins {
		bins[i] = fmt.Sprintf("c%02d", i)
	}
	stop := profile(t)
	start, cpu := time.Now(), cpuTime()
	var n atomic.Int64
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			i := uint64(g) * 7919
			for time.Since(start) < 10*time.Second {
				for range 1000 {
					i = i*6364136223846793005 + 1442695040888963407
					if err := writer.Add(ctx, keys[(i>>33)%uint64(len(keys))], bins[(i>>20)%uint64(len(bins))], 1); err != nil {
						t.Error(err)
						return
					}
				}
				n.Add(1000)
			}
		})
	}
	wg.Wait()
	if err := writer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	stop()
	t.Logf("%d increments in %v: %.0f/s, %.0f a CPU second, client included; %+v", n.Load(), took, float64(n.Load())/took.Seconds(), float64(n.Load())/(cpuTime()-cpu).Seconds(), writer.Stats())
}

func TestReadThroughput(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	ctx := context.Background()
	w := newWorld(t, 3, 64)
	c, err := ebb.Dial(ctx, w.nodes[0].Addresses().GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	writer := c.Writer(ebb.WriterOptions{})
	for k := range 1000 {
		for b := range 260 {
			if err := writer.Add(ctx, fmt.Sprintf("k%d", k), fmt.Sprintf("bin%d", b), float64(1+b%7)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	stopSDK := profile(t)
	for _, workers := range []int{1, 4, 16, 64} {
		for _, opts := range [][]ebb.AskOption{nil, {ebb.Any()}} {
			start, cpu := time.Now(), cpuTime()
			var n atomic.Int64
			var wg sync.WaitGroup
			for g := range workers {
				wg.Go(func() {
					for i := g * 101; time.Since(start) < 3*time.Second; i++ {
						if _, err := c.Top(ctx, "", fmt.Sprintf("k%d", i%1000), 10, opts...); err != nil {
							t.Error(err)
							return
						}
						n.Add(1)
					}
				})
			}
			wg.Wait()
			t.Logf("SDK, %d workers, %d options: %.0f requests/s; %.0f a CPU second, client included", workers, len(opts), float64(n.Load())/time.Since(start).Seconds(), float64(n.Load())/(cpuTime()-cpu).Seconds())
		}
	}
	stopSDK()
	if os.Getenv("EBB_PROFILE") != "" {
		return
	}
	for _, batch := range []int{1, 32} {
		for _, workers := range []int{1, 16, 64} {
			stop := profile(t)
			start, cpu := time.Now(), cpuTime()
			var n atomic.Int64
			var wg sync.WaitGroup
			for g := range workers {
				conn := w.ebb(g % 3)
				wg.Go(func() {
					i := g * 101
					for time.Since(start) < 4*time.Second {
						req := &ebbv1.AskRequest{}
						for range batch {
							i = (i*31 + 7) % 1000
							req.Questions = append(req.Questions, &ebbv1.Question{Ask: &ebbv1.Question_Distribution{
								Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{fmt.Appendf(nil, "k%d", i)}, Select: &ebbv1.DistributionQuestion_Top{Top: 10}},
							}})
						}
						resp, err := conn.Ask(ctx, req)
						if err != nil {
							t.Error(err)
							return
						}
						for _, a := range resp.Answers {
							if a.GetError() != nil || len(a.GetDistribution().GetBins()) != 10 {
								t.Errorf("answer %v", a)
								return
							}
						}
						n.Add(1)
					}
				})
			}
			wg.Wait()
			took := time.Since(start)
			stop()
			rate := float64(n.Load()) / took.Seconds()
			t.Logf("batch %d, %d workers: %.0f requests/s, %.0f answers/s, mean latency %v; %.0f answers a CPU second, client included", batch, workers, rate, rate*float64(batch),
				took*time.Duration(workers)/time.Duration(max(n.Load(), 1)), float64(n.Load())*float64(batch)/(cpuTime()-cpu).Seconds())
		}
	}
}

// TestIncrementLatency prints how long single increments take at 1,000 a second.
func TestIncrementLatency(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	ctx := context.Background()
	w := newWorld(t, 3, 64)
	c, err := ebb.Dial(ctx, w.nodes[0].Addresses().GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for i := range 10_000 {
		<-ticker.C
		wg.Go(func() {
			start := time.Now()
			if err := c.Increment(ctx, "", ebb.One(fmt.Sprintf("k%d", i%5000), "x")); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(start))
		})
	}
	wg.Wait()
	slices.Sort(took)
	t.Logf("p50 %v, p99 %v, max %v", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// TestRestart prints how long a node takes to serve again that holds so many
// distributions.
func TestRestart(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	ctx := context.Background()
	w := newWorld(t, 3, 64)
	c, err := ebb.Dial(ctx, w.nodes[0].Addresses().GRPC, w.nodes[1].Addresses().GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	writer := c.Writer(ebb.WriterOptions{NoAggregate: true, MaxBuffered: 400_000, Linger: 20 * time.Millisecond})
	const distributions = 1_000_000
	start := time.Now()
	for b := range 9 {
		bin := fmt.Sprintf("country-%d", b)
		for k := range distributions {
			if err := writer.Add(ctx, fmt.Sprintf("links/%07d", k), bin, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := writer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d distributions of 9 bins written in %v", distributions, time.Since(start))
	for _, graceful := range []bool{false, true} {
		if graceful {
			if err := w.nodes[2].Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			w.nodes[2].Kill()
		}
		time.Sleep(2 * time.Second)
		start, cpu := time.Now(), cpuTime()
		w.open(2)
		opened := time.Since(start)
		select {
		case <-w.nodes[2].Ready():
		case <-time.After(2 * time.Minute):
			t.Fatal(w.nodes[2].Status())
		}
		t.Logf("closed in good order: %v; open after %v, serving after %v, %v of CPU, %d MiB of log", graceful, opened, time.Since(start), cpuTime()-cpu, w.nodes[2].Status().LogBytes>>20)
	}
}

// TestIdle prints what three nodes use when no client talks to them.
func TestIdle(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	for _, shards := range []uint32{64, 1024} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) {
			start := time.Now()
			newWorld(t, 3, shards)
			t.Logf("ready after %v", time.Since(start))
			time.Sleep(15 * time.Second)
			stop := profile(t)
			start, cpu := time.Now(), cpuTime()
			time.Sleep(10 * time.Second)
			stop()
			t.Logf("%.3f of a core a node, %d goroutines a node", (cpuTime()-cpu).Seconds()/time.Since(start).Seconds()/3, runtime.NumGoroutine()/3)
		})
	}
}
