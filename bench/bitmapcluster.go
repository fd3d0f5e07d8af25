package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// BitmapCluster asks a cluster the question of Bitmaps. The bitmaps are placed by slice, loaded through the log of each
// shard, and counted on all nodes. The keys have no periods in their names, so that no unions of periods are kept.
// Other data fills the CPU caches before each question.
type BitmapCluster struct {
	Bitmaps
}

// BitmapClusterResult is the result of a run.
type BitmapClusterResult struct {
	Shape         BitmapShape    `json:"shape"`
	IDs           int64          `json:"ids"`
	LoadPerSecond float64        `json:"load_ids_per_second"` // acknowledged ids of one client
	Windows       []BitmapWindow `json:"windows"`
}

// loadersMax is how many days are loaded at a time.
const loadersMax = 3

// Run loads the bitmaps into a namespace of its own, and asks.
func (b BitmapCluster) Run(ctx context.Context, t Target) (r BitmapClusterResult, err error) {
	or(&b.IDs, 128_000_000)
	or(&b.Rounds, 9)
	if b.Say == nil {
		b.Say = func(string) {}
	}
	c, err := t.dial(ctx)
	if err != nil {
		return r, err
	}
	defer c.Close()
	ns := strings.NewReplacer("%", "-percent").Replace("users-" + string(b.Shape))
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: ns, BitmapPlacement: client.PlaceBySlice}); err != nil {
		return r, err
	}
	w := &bitmapWorld{Bitmaps: b.Bitmaps, days: bitmapDays[len(bitmapDays)-1], other: make([]uint64, 64<<20/8)}
	r.Shape = b.Shape
	b.Say(fmt.Sprintf("%d days of %d users, %s, into the cluster", w.days, b.IDs, b.Shape))
	start := time.Now()
	if r.IDs, err = w.loadCluster(ctx, c, ns); err != nil {
		return r, err
	}
	r.LoadPerSecond = float64(r.IDs) / time.Since(start).Seconds()
	b.Say("asking the cluster")
	for _, days := range bitmapDays {
		window := BitmapWindow{Days: days}
		window.Took, window.Least, err = w.timed(ctx, func(ctx context.Context) error {
			n, err := c.Bitmap(ns, w.clusterDays(days)).Count(ctx)
			window.Count = n.Count
			return err
		})
		if err != nil {
			return r, err
		}
		r.Windows = append(r.Windows, window)
	}
	return r, nil
}

// timed measures a question several times, with other data in the CPU caches, and returns the median and the least
// time.
func (w *bitmapWorld) timed(ctx context.Context, ask func(ctx context.Context) error) (median, least time.Duration, err error) {
	var took []time.Duration
	for range w.Rounds + 1 {
		w.fillCaches()
		start := time.Now()
		if err := ask(ctx); err != nil {
			return 0, 0, err
		}
		took = append(took, time.Since(start))
	}
	took = took[1:] // the first question also has to locate the shards
	slices.Sort(took)
	return took[len(took)/2], took[0], nil
}

func clusterDay(day int) string { return fmt.Sprintf("day/%02d", day) }

// clusterDays is the union of the bitmaps of the first days. The directories know the count of a single bitmap. So the
// expression takes out an id that no bitmap has, and the bitmap is counted like the others.
func (w *bitmapWorld) clusterDays(days int) client.BitmapExpr {
	var all []client.BitmapExpr
	for day := range days {
		all = append(all, client.Bits(clusterDay(day)))
	}
	if days == 1 {
		return all[0].Without(client.BitRange(w.IDs, w.IDs))
	}
	return client.AnyOf(all...)
}

// loadCluster loads the bitmaps, loadersMax days at a time.
func (w *bitmapWorld) loadCluster(ctx context.Context, c *client.Client, ns string) (ids int64, err error) {
	var total atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, loadersMax)
	for loader := range loadersMax {
		wg.Go(func() {
			out := c.BitWriter(client.BitWriterOptions{Namespace: ns, MaxBatch: proto.BitIDsMax, Linger: -1, Timeout: 2 * time.Minute})
			for day := loader; day < w.days && errs[loader] == nil; day += loadersMax {
				errs[loader] = w.eachSlice(day, 0, 1, func(some []uint64) error {
					total.Add(int64(len(some)))
					return out.Set(ctx, clusterDay(day), some...)
				})
			}
			errs[loader] = cmp.Or(errs[loader], out.Close(ctx))
		})
	}
	wg.Wait()
	for _, e := range errs {
		err = cmp.Or(err, e)
	}
	return total.Load(), err
}

// BitWrites measures writes of single random ids into several bitmaps. Each write is a call of a BitWriter. The bitmaps
// are on the shards of their keys.
type BitWrites struct {
	Duration time.Duration
	Keys     int    // number of bitmaps; 1,000 if 0
	IDs      uint64 // all ids are below it; 1,000,000 if 0
	Workers  int    // goroutines that write; 2 if 0
}

// BitWritesResult is the result of a run.
type BitWritesResult struct {
	Acknowledged int64         `json:"acknowledged"`
	Changed      int64         `json:"changed"`
	Seconds      float64       `json:"seconds"`
	PerSecond    float64       `json:"per_second"`
	ServerCPU    time.Duration `json:"server_cpu_ns"`
}

// Run writes for the duration, and waits until all ids are acknowledged.
func (b BitWrites) Run(ctx context.Context, t Target) (r BitWritesResult, err error) {
	or(&b.Keys, 1000)
	or(&b.IDs, 1_000_000)
	or(&b.Workers, 2)
	c, err := t.dial(ctx)
	if err != nil {
		return r, err
	}
	defer c.Close()
	keys := make([]string, b.Keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("group/%d", i)
	}
	before, err := t.CPU(ctx)
	if err != nil {
		return r, err
	}
	out := c.BitWriter(client.BitWriterOptions{MaxBatch: proto.BitIDsMax, MaxBuffered: 4 << 20, Linger: 50 * time.Millisecond, Timeout: time.Minute})
	start := time.Now()
	errs := make([]error, b.Workers)
	var wg sync.WaitGroup
	for worker := range b.Workers {
		wg.Go(func() {
			rng := rand.NewPCG(uint64(worker), 1)
			for n := 0; errs[worker] == nil && (n%1024 != 0 || time.Since(start) < b.Duration); n++ {
				word := rng.Uint64()
				id, _ := bits.Mul64(word, b.IDs)
				key, _ := bits.Mul64(word<<32, uint64(len(keys)))
				errs[worker] = out.Set(ctx, keys[key], id)
			}
		})
	}
	wg.Wait()
	err = out.Close(ctx)
	for _, e := range errs {
		err = cmp.Or(err, e)
	}
	if err != nil {
		return r, err
	}
	r.Seconds = time.Since(start).Seconds()
	after, err := t.CPU(ctx)
	stats := out.Stats()
	r.Acknowledged, r.Changed, r.ServerCPU = stats.Added, stats.Changed, after-before
	r.PerSecond = float64(r.Acknowledged) / r.Seconds
	return r, err
}
