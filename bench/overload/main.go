//go:build linux

// Command overload gives a cluster of three processes ten times the load that it can serve, and prints the goodput that
// remains. The servers share one core; the load generator has another. Each writer sends a batch, waits for its
// outcome, and sends the next one. The SDK retries a batch until its deadline.
//
//	go run ./bench/overload [-batch 100] [-writers 32] [-factor 10] [-for 60s] [BINARY]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

const (
	// serverCore and generatorCore are the cores of the servers and of the load.
	serverCore, generatorCore = 0, 1
	// connections is how many clients the writers share.
	connections = 16
	// keys is how many keys are written to, each with the same probability.
	keys = 10_000
	// deadline of a batch.
	deadline = 2 * time.Second
	// quietWriters is how many writers measure the cluster without overload.
	quietWriters = 2
)

func main() {
	log.SetFlags(0)
	batch := flag.Int("batch", 100, "increments in a batch")
	writers := flag.Int("writers", 32, "writers whose load the cluster holds")
	factor := flag.Int("factor", 10, "how many times as many writers are too many")
	span := flag.Duration("for", 60*time.Second, "how long there are too many")
	flag.Parse()
	if err := run(context.Background(), flag.Arg(0), *batch, *writers, *factor, *span); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, binary string, batch, writers, factor int, span time.Duration) error {
	dir, err := os.MkdirTemp("", "overload")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	if binary == "" {
		binary = filepath.Join(dir, "ebb")
		out, err := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", binary, "./cmd/ebb").CombinedOutput()
		if err != nil {
			return fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	fleet, err := startOn(ctx, serverCore, proc.Options{Binary: binary, Dir: dir})
	if err != nil {
		return err
	}
	defer fleet.Close()
	if err := moveTo(generatorCore); err != nil {
		return err
	}
	l := &load{batch: batch, fleet: fleet}
	for range connections {
		c, err := client.Dial(ctx, fleet.Addrs()...)
		if err != nil {
			return err
		}
		defer c.Close()
		l.clients = append(l.clients, c)
	}
	l.run(ctx, writers, 3*time.Second) // warm up
	quiet := l.run(ctx, quietWriters, 5*time.Second)
	peak := l.run(ctx, writers, 10*time.Second)
	over := l.run(ctx, factor*writers, span)
	fmt.Printf("%-12s %8s %12s %10s %10s %10s %8s %7s %6s\n",
		"", "writers", "goodput/s", "p50", "p99", "longest", "failed", "servers", "load")
	show("quiet", quietWriters, batch, quiet)
	show("peak", writers, batch, peak)
	show("too much", factor*writers, batch, over)
	after := time.Now()
	for range 10 {
		back := l.run(ctx, quietWriters, time.Second)
		show(fmt.Sprintf("%.0f s after", time.Since(after).Seconds()), quietWriters, batch, back)
	}
	fmt.Printf("goodput %.0f%% of the peak; p99 %.1f x that of quiet\n",
		100*over.perSecond()/peak.perSecond(), float64(over.quantile(0.99))/float64(quiet.quantile(0.99)))
	return nil
}

func show(what string, writers, batch int, r result) {
	fmt.Printf("%-12s %8d %12.0f %10v %10v %10v %7.1f%% %7.2f %6.2f\n", what, writers, float64(batch)*r.perSecond(),
		r.quantile(0.5).Round(10*time.Microsecond), r.quantile(0.99).Round(10*time.Microsecond),
		r.quantile(1).Round(10*time.Microsecond), 100*float64(r.failed)/float64(max(1, r.failed+len(r.took))), r.server, r.own)
}

// load is what the writers share.
type load struct {
	clients []*client.Client
	batch   int
	fleet   *proc.Fleet
}

// result is the outcome of the batches of a run.
type result struct {
	took    []time.Duration // latencies of the acknowledged batches, sorted
	failed  int
	seconds float64
	server  float64 // cores that the servers used
	own     float64 // cores that the load generator used
}

func (r result) perSecond() float64 { return float64(len(r.took)) / r.seconds }

func (r result) quantile(q float64) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	return r.took[min(len(r.took)-1, int(q*float64(len(r.took))))]
}

// run lets writers write for span. Batches that end later do not count.
func (l *load) run(ctx context.Context, writers int, span time.Duration) result {
	end := time.Now().Add(span)
	var mu sync.Mutex // guards all
	all := result{seconds: span.Seconds()}
	server, own := l.serverCPU(ctx), ownCPU()
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			r := l.write(ctx, l.clients[i%len(l.clients)], uint64(i), end)
			mu.Lock()
			defer mu.Unlock()
			all.took = append(all.took, r.took...)
			all.failed += r.failed
		})
	}
	wg.Wait()
	took := time.Since(end.Add(-span)).Seconds()
	all.server, all.own = (l.serverCPU(ctx)-server).Seconds()/took, (ownCPU()-own).Seconds()/took
	slices.Sort(all.took)
	return all
}

func (l *load) write(ctx context.Context, c *client.Client, seed uint64, end time.Time) (r result) {
	rng := rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano())))
	batch := make([]client.Increment, l.batch)
	for time.Now().Before(end) {
		for i := range batch {
			batch[i] = client.One("key-"+strconv.Itoa(rng.IntN(keys)), "bin-"+strconv.Itoa(rng.IntN(8)))
		}
		began := time.Now()
		short, cancel := context.WithTimeout(ctx, deadline)
		err := c.Increment(short, "default", batch...)
		cancel()
		switch {
		case time.Now().After(end):
		case err != nil:
			r.failed++
		default:
			r.took = append(r.took, time.Since(began))
		}
	}
	return r
}

// serverCPU returns the CPU time that the servers have used; 0 if one of them does not report it.
func (l *load) serverCPU(ctx context.Context) time.Duration {
	used, err := l.fleet.CPU(ctx)
	if err != nil {
		log.Printf("the servers do not say how long they computed: %v", err)
	}
	return used
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startOn starts a cluster on one core. Processes inherit the cores of the thread that starts them.
func startOn(ctx context.Context, core int, o proc.Options) (*proc.Fleet, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, err
	}
	fleet, err := proc.Start(ctx, o)
	if undo := unix.SchedSetaffinity(0, &before); err == nil && undo != nil {
		fleet.Close()
		return nil, undo
	}
	return fleet, err
}

// moveTo moves this process to one core.
func moveTo(core int) error {
	runtime.GOMAXPROCS(1)
	var one unix.CPUSet
	one.Set(core)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &one); err != nil {
			return err
		}
	}
	return nil
}
