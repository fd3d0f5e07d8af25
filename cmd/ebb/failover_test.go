package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// resumeMax is how long after kill -9 of a leader every one of its shards takes
// writes again, at default settings.
const resumeMax = 5 * time.Second

// kill -9 of the process that leads most shards: a client that was connected all
// the time has written to every one of them within resumeMax, nothing is lost and
// nothing counts twice. EBB_FAILOVER_RUNS says how often (the acceptance run: 20).
func TestWritesResumeAfterKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills real processes")
	}
	rounds := 2
	if v := os.Getenv("EBB_FAILOVER_RUNS"); v != "" {
		var err error
		if rounds, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(rounds)*time.Minute)
	defer cancel()
	f := startFleet(t)
	mustEbb(ctx, t, f, "namespace", "create", "ledger", "--decay", "none")
	c := dialFleet(ctx, t, f)
	keys := keyOfEachShard("ledger", proto.ShardsDefault)
	written := make([]int, len(keys))
	for shard := range keys { // everything is warm before the first kill
		mustCount(ctx, t, c, keys[shard])
		written[shard]++
	}
	var took []time.Duration
	for round := range rounds {
		victim, shards := busiest(ctx, t, f, c)
		d := failover(ctx, t, f, c, victim, shards, keys, written)
		t.Logf("round %d: %s led %d of %d shards; all take writes %v after its kill", round, f.Name(victim), len(shards), len(keys), d.Round(time.Millisecond))
		if took = append(took, d); d > resumeMax {
			t.Errorf("round %d: writes resumed after %v: the limit is %v", round, d, resumeMax)
		}
		if err := f.Launch(victim); err != nil {
			t.Fatal(err)
		}
		if err := f.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("%d rounds: fastest %v, median %v, slowest %v", rounds, took[0].Round(time.Millisecond), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	for shard, key := range keys {
		got, err := c.Count(ctx, "ledger", key)
		if err != nil || got.Value != float64(written[shard]) {
			t.Errorf("shard %d: %v was counted, %d was acknowledged (%v)", shard+1, got.Value, written[shard], err)
		}
	}
}

// keyOfEachShard finds a key for every shard; shard s has the one at s-1.
func keyOfEachShard(ns string, shards uint32) []string {
	keys := make([]string, shards)
	for i, missing := 0, shards; missing > 0; i++ {
		key := "key/" + strconv.Itoa(i)
		if at := &keys[proto.ShardOf(ns, []byte(key), shards)-1]; *at == "" {
			*at = key
			missing--
		}
	}
	return keys
}

func mustCount(ctx context.Context, t *testing.T, c *client.Client, key string) {
	t.Helper()
	if err := c.Increment(ctx, "ledger", client.Increment{Key: key, Bin: "b", Amount: 1}); err != nil {
		t.Fatal(err)
	}
}

// busiest returns the node that leads most shards, and which. It waits until
// every shard has a leader.
func busiest(ctx context.Context, t *testing.T, f *proc.Fleet, c *client.Client) (node int, shards []uint32) {
	t.Helper()
	for {
		led := map[string][]uint32{}
		leaders := 0
		st, err := c.Status(ctx)
		for _, sh := range digest(st).Shards {
			if sh.Shard > 0 && sh.Leader != "" {
				led[sh.Leader] = append(led[sh.Leader], sh.Shard)
				leaders++
			}
		}
		if err == nil && leaders == proto.ShardsDefault {
			for i := range f.Nodes() {
				if len(led[f.Name(i)]) > len(shards) {
					node, shards = i, led[f.Name(i)]
				}
			}
			return node, shards
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not every shard has a leader: %v, %v", led, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// failover kills a node and returns how long after that the last of its shards
// acknowledged a write that was begun after the kill.
func failover(ctx context.Context, t *testing.T, f *proc.Fleet, c *client.Client, victim int, shards []uint32, keys []string, written []int) time.Duration {
	t.Helper()
	f.Kill(victim)
	start := time.Now()
	writeCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards slowest
	var slowest time.Duration
	for _, shard := range shards {
		wg.Go(func() {
			in := client.Increment{Key: keys[shard-1], Bin: "b", Amount: 1}
			if err := c.Increment(writeCtx, "ledger", in); err != nil {
				t.Errorf("shard %d: %v", shard, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			written[shard-1]++
			slowest = max(slowest, time.Since(start))
		})
	}
	wg.Wait()
	return slowest
}

const (
	restartDistributions = 1_000_000
	// restartMax is how long after its start a node with that many serves again.
	restartMax = 10 * time.Second
)

// Nodes with a million distributions, killed and started again, serve within restartMax, and say until then what they
// are doing.
func TestRestartWithAMillionDistributions(t *testing.T) {
	if os.Getenv("EBB_LONG") == "" {
		t.Skip("writes a million distributions: set EBB_LONG=1 (make acceptance)")
	}
	for name, c := range map[string]struct{ nodes, passes int }{
		"one node, from its log":       {1, 1},
		"three nodes, from their logs": {3, 1},
		"three nodes, from snapshots":  {3, 5}, // the log of a shard is cut at 4 MiB
	} {
		t.Run(name, func(t *testing.T) { restartMillion(t, c.nodes, c.passes) })
	}
}

func restartMillion(t *testing.T, nodes, passes int) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: t.TempDir(), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	c := dialFleet(ctx, t, f)
	start := time.Now()
	for range passes {
		writeMillion(ctx, t, c)
	}
	snapshots, err := filepath.Glob(filepath.Join(f.DataDir(0), "snap", "*", "*"))
	if err != nil || passes > 1 && len(snapshots) == 0 {
		t.Fatalf("no snapshots were taken: %v", err)
	}
	t.Logf("wrote %d distributions %d times in %v; %d snapshots on a node", restartDistributions, passes, time.Since(start).Round(time.Millisecond), len(snapshots))

	told := make([]int64, nodes)
	for i := range nodes {
		f.Kill(i)
		told[i] = int64(len(logOf(t, f, i)))
	}
	start = time.Now()
	for i := range nodes {
		if err := f.Launch(i); err != nil {
			t.Fatal(err)
		}
	}
	// the first answer as a new client sees it, counted from the start of the process
	answered := make(chan time.Duration, 1)
	go func() { answered <- firstAnswer(ctx, t, f, start) }()
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	ready := time.Since(start)
	answer := <-answered
	t.Logf("%d nodes: ready %v after their start, first linearizable answer after %v", nodes, ready.Round(time.Millisecond), answer.Round(time.Millisecond))
	for i := range nodes {
		said := logOf(t, f, i)[told[i]:]
		t.Logf("%s said:\n%s", f.Name(i), said)
		for _, phase := range []string{"restoring", "replaying", "serving"} {
			if !bytes.Contains(said, []byte(phase)) {
				t.Errorf("%s did not say that it is %s", f.Name(i), phase)
			}
		}
	}
	if max(ready, answer) > restartMax {
		t.Errorf("it took %v to serve again: the limit is %v", max(ready, answer), restartMax)
	}
	count, err := c.CountKeys(ctx, "default")
	if err != nil || count.Value != restartDistributions {
		t.Errorf("%v distributions are there of %d: %v", count.Value, restartDistributions, err)
	}
}

// writeMillion writes distributions of three bins.
func writeMillion(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	w := c.Writer(client.WriterOptions{OnError: func(err error) { t.Errorf("write: %v", err) }})
	for i := range restartDistributions {
		for b := range 3 {
			bin := fmt.Sprintf("country-%d", (i+b*b)%50)
			if err := w.Add(ctx, fmt.Sprintf("clicks/link/%07d", i), bin, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func logOf(t *testing.T, f *proc.Fleet, i int) []byte {
	t.Helper()
	b, err := os.ReadFile(f.LogFile(i))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// firstAnswer dials until a node answers a linearizable question.
func firstAnswer(ctx context.Context, t *testing.T, f *proc.Fleet, start time.Time) time.Duration {
	for {
		c, err := client.Dial(ctx, f.Addrs()...)
		if err == nil {
			d, err := c.Distribution(ctx, "default", "clicks/link/0123456")
			c.Close()
			if err == nil && len(d.Bins) == 3 {
				return time.Since(start)
			}
		}
		select {
		case <-ctx.Done():
			t.Errorf("no answer: %v", err)
			return time.Since(start)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
