package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

// growShards is how many shards the fleets of these tests have.
const growShards = 8

// writeLoad writes to a fleet all the time, and records what was acknowledged and how long it took.
type writeLoad struct {
	t      *testing.T
	client *client.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup
	acked  []atomic.Int64 // by key

	mu   sync.Mutex // guards took
	took []time.Duration
}

// startWriteLoad starts writers that each add to batch keys, one batch every pace, until stop is called.
func startWriteLoad(ctx context.Context, t *testing.T, f *proc.Fleet, writers, batch int, pace time.Duration,
	options ...client.Option,
) *writeLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &writeLoad{t: t, client: dialFleet(ctx, t, f, options...), cancel: cancel, acked: make([]atomic.Int64,
		writers*batch)}
	for n := range writers {
		w.wg.Go(func() {
			ticker := time.NewTicker(pace)
			defer ticker.Stop()
			for ctx.Err() == nil {
				w.write(n*batch, batch)
				select {
				case <-ticker.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return w
}

// write adds 1 to each of batch keys from the one of number first on, under one identity however often it has to be
// sent.
func (w *writeLoad) write(first, batch int) {
	incs := make([]client.Increment, batch)
	for i := range incs {
		incs[i] = client.Increment{Key: writeLoadKey(first + i), Bin: "b", Amount: 1}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	if err := w.client.Increment(ctx, "ledger", incs...); err != nil {
		w.t.Errorf("a write failed: %v", err)
		return
	}
	for i := range incs {
		w.acked[first+i].Add(1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, time.Since(start))
}

// writeLoadKey is the name of a key that is written.
func writeLoadKey(i int) string { return "grow/" + strconv.Itoa(i) }

// lap returns the number of batches written since the last lap, and the p99 of how long they took.
func (w *writeLoad) lap() (n int, p99 time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.took)
	if n = len(w.took); n > 0 {
		p99 = w.took[n*99/100]
	}
	w.took = nil
	return n, p99
}

// stop ends the writers, and checks that each acknowledged increment counts, and once.
func (w *writeLoad) stop(ctx context.Context) {
	w.t.Helper()
	w.cancel()
	w.wg.Wait()
	total := int64(0)
	for i := range w.acked {
		want := w.acked[i].Load()
		total += want
		got, err := w.client.Count(ctx, "ledger", writeLoadKey(i))
		if err != nil || got.Value != float64(want) {
			w.t.Errorf("key %d: %v was counted, %d was acknowledged (%v)", i, got.Value, want, err)
		}
	}
	if total == 0 {
		w.t.Error("nothing was written")
	}
	w.t.Logf("%d increments were acknowledged, all counted once", total)
}

// members waits until the cluster consists of these nodes, each shard has so many replicas, and nothing is left to
// move.
func members(ctx context.Context, t *testing.T, c *client.Client, f *proc.Fleet, replicas int, nodes ...int) {
	t.Helper()
	var want []string
	for _, i := range nodes {
		want = append(want, f.Name(i))
	}
	for {
		have, whole, why := proc.AtRest(ctx, c, replicas)
		if whole && slices.Equal(have, want) {
			t.Logf("the cluster has %v", have)
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the cluster has %v and should have %v: %s", have, want, why)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ended waits until a process has ended by itself.
func ended(ctx context.Context, t *testing.T, f *proc.Fleet, i int) {
	t.Helper()
	for f.Runs(i) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s goes on", f.Name(i))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func mustVerify(ctx context.Context, t *testing.T, f *proc.Fleet) {
	t.Helper()
	var said struct {
		Equal  bool
		Shards []struct{ Replicas map[string]string }
	}
	if err := json.Unmarshal(mustEbb(ctx, t, f, "cluster", "verify", "--json"), &said); err != nil || !said.Equal {
		t.Errorf("ebb cluster verify: %v, %v", said, err)
	}
	for i, shard := range said.Shards {
		if len(shard.Replicas) != 3 {
			t.Errorf("shard %d: %d replicas were compared", i+1, len(shard.Replicas))
		}
	}
}

// fillDisks writes about so many MiB, in keys of 400 bytes.
func fillDisks(ctx context.Context, t *testing.T, c *client.Client, mib int) {
	t.Helper()
	const batch, keyBytes = 500, 400
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for first := next.Add(batch) - batch; first*keyBytes < int64(mib)<<20; first = next.Add(batch) - batch {
				incs := make([]client.Increment, batch)
				for i := range incs {
					incs[i] = client.Increment{Key: fmt.Sprintf("fill/%0*d", keyBytes-len("fill/"), first+int64(i)), Bin: "b", Amount: 1}
				}
				if err := c.Increment(ctx, "ledger", incs...); err != nil {
					t.Errorf("a write failed: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestFleetGrowsAndShrinks: three processes become five and three again, with only one founder left, while writes go
// on. Then a node's disk is wiped, and one is drained and removed. Nothing is lost, nothing counts twice, and all
// replicas are equal. EBB_WIPED_MIB is how much there is on the disk that is wiped, in addition to a few keys.
func TestFleetGrowsAndShrinks(t *testing.T) {
	if testing.Short() {
		t.Skip("runs five real processes")
	}
	mib, _ := strconv.Atoi(os.Getenv("EBB_WIPED_MIB")) // 0 if it is not set
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(mib)*time.Second/4)
	defer cancel()
	f := startFleet(t, "--shards", strconv.Itoa(growShards))
	mustEbb(ctx, t, f, "namespace", "create", "ledger", "--decay", "none")
	w := startWriteLoad(ctx, t, f, 2, 8, 50*time.Millisecond)
	for range 2 {
		if _, err := f.Join(); err != nil {
			t.Fatal(err)
		}
	}
	members(ctx, t, w.client, f, 3, 0, 1, 2, 3, 4)
	mustEbb(ctx, t, f, "cluster", "drain", f.Name(1), "--wait")
	for _, gone := range []struct {
		node int
		left []int
	}{{1, []int{0, 2, 3, 4}}, {2, []int{0, 3, 4}}} {
		mustEbb(ctx, t, f, "cluster", "remove", f.Name(gone.node))
		members(ctx, t, w.client, f, 3, gone.left...)
		ended(ctx, t, f, gone.node)
	}
	mustVerify(ctx, t, f)

	fillDisks(ctx, t, w.client, mib)
	before := memberOf(ctx, t, w.client, f, 3)
	f.Kill(3)
	if err := f.Wipe(3); err != nil {
		t.Fatal(err)
	}
	start, sentBefore := time.Now(), readSnapshotTraffic(ctx, w.client, time.Minute)
	if err := f.Launch(3); err != nil {
		t.Fatal(err)
	}
	for memberOf(ctx, t, w.client, f, 3) == before {
		time.Sleep(20 * time.Millisecond)
	}
	members(ctx, t, w.client, f, 3, 0, 3, 4)
	took, came := time.Since(start), readSnapshotTraffic(ctx, w.client, time.Minute).since(sentBefore)
	t.Logf("a node whose disk was wiped has all its %d replicas again %v after its start: %v (%.1f MB/s); it has %s on its disk", growShards, took.Round(time.Millisecond), came,
		float64(came.received)/1e6/took.Seconds(), sizes(t, f, []int{3})[0])
	if int64(came.received) < int64(mib)<<18 {
		t.Errorf("%d bytes of %d MiB were sent: what came in another way?", came.received, mib)
	}
	w.stop(ctx)
	mustVerify(ctx, t, f)
}

// memberOf returns the id of a node's newest replica of the control group.
func memberOf(ctx context.Context, t *testing.T, c *client.Client, f *proc.Fleet, i int) (id uint64) {
	t.Helper()
	table, err := c.Table(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table.GetPlacement()[0].GetReplicas() {
		if r.GetNode() == f.Name(i) {
			id = max(id, r.GetId())
		}
	}
	return id
}

// TestGrowthUnderLoad is the long form: 3 -> 5 -> 7 -> 3 nodes while EBB_GROW increments a second come in. It prints
// how long writes take, compared with the quiet p99, and how many bytes moved, compared with the ideal.
func TestGrowthUnderLoad(t *testing.T) {
	rate, err := strconv.Atoi(os.Getenv("EBB_GROW"))
	if err != nil {
		t.Skip("set EBB_GROW to a number of increments a second, such as 50000")
	}
	const writers, batch = 16, 500
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	f := startFleet(t)
	mustEbb(ctx, t, f, "namespace", "create", "ledger", "--decay", "none")
	w := startWriteLoad(ctx, t, f, writers, batch, time.Duration(writers*batch)*time.Second/time.Duration(rate))
	time.Sleep(5 * time.Second)
	w.lap()
	time.Sleep(15 * time.Second)
	n, quiet := w.lap()
	t.Logf("quiet: %d increments a second, p99 %v", n*batch/15, quiet.Round(time.Millisecond))
	all := []int{0, 1, 2}
	stage := func(what string, nodes []int, ideal float64, change func()) {
		start, before := time.Now(), givenOut(ctx, t, w.client)
		sentBefore := readSnapshotTraffic(ctx, w.client, time.Minute)
		change()
		members(ctx, t, w.client, f, 3, nodes...)
		took := time.Since(start)
		n, p99 := w.lap()
		t.Logf("%s: %v, %d increments a second, p99 %v, %.1f times the quiet one; %d replicas were made, %.2f times the ideal; %v",
			what, took.Round(time.Millisecond), int(float64(n*batch)/took.Seconds()), p99.Round(time.Millisecond), p99.Seconds()/quiet.Seconds(),
			givenOut(ctx, t, w.client)-before, float64(givenOut(ctx, t, w.client)-before)/ideal,
			readSnapshotTraffic(ctx, w.client, time.Minute).since(sentBefore))
		all = nodes
	}
	join := func() {
		for range 2 {
			if _, err := f.Join(); err != nil {
				t.Fatal(err)
			}
		}
	}
	stage("3 to 5", []int{0, 1, 2, 3, 4}, 192*2.0/5+2, join)
	stage("5 to 7", []int{0, 1, 2, 3, 4, 5, 6}, 192*2.0/7+2, join)
	held := 0.0
	table, err := w.client.Table(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range table.GetPlacement()[1:] {
		for _, r := range record.GetReplicas() {
			if slices.Contains([]string{f.Name(1), f.Name(2), f.Name(3), f.Name(4)}, r.GetNode()) {
				held++
			}
		}
	}
	stage("7 to 3", []int{0, 5, 6}, held, func() {
		for _, i := range []int{1, 2, 3, 4} {
			mustEbb(ctx, t, f, "cluster", "remove", f.Name(i))
		}
	})
	w.stop(ctx)
	mustVerify(ctx, t, f)
	t.Logf("disk of %v: %s", all, strings.Join(sizes(t, f, all), ", "))
}

// givenOut is how many replica ids there have been.
func givenOut(ctx context.Context, t *testing.T, c *client.Client) uint64 {
	t.Helper()
	table, err := c.Table(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return table.GetReplicasGiven()
}

func sizes(t *testing.T, f *proc.Fleet, nodes []int) (out []string) {
	t.Helper()
	for _, i := range nodes {
		var bytes int64
		_ = filepath.WalkDir(f.DataDir(i), func(_ string, d os.DirEntry, err error) error { // removed files do not count
			if err == nil && !d.IsDir() {
				if info, err := d.Info(); err == nil {
					bytes += info.Size()
				}
			}
			return nil
		})
		out = append(out, fmt.Sprintf("%d MiB", bytes>>20))
	}
	return out
}
