package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// burden writes to the only shard of a node as fast as its log takes it, through Raft and the disk.
type burden struct {
	t    *testing.T
	n    *Node
	r    *replica
	keys int
}

// write proposes one entry: ten bins of each of some keys.
func (b *burden) write(keys []int) raft.ApplyFuture {
	batch := &ebbv1.Increments{}
	for _, key := range keys {
		for bin := range 10 {
			batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "clicks/link/%08d", key), Bin: fmt.Appendf(nil, "bin %d", (key+bin)%50), Amount: new(1.0)})
		}
	}
	return b.propose(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}})
}

func (b *burden) propose(c *ebbv1.Command) raft.ApplyFuture {
	raw, err := pb.Marshal(c)
	must(b.t, err)
	entry := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(time.Now().UnixMicro()))
	return b.r.propose(protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), raw))
}

// keep writes batches from next, several on their way at a time, until it returns nil.
func (b *burden) keep(next func() []int) {
	var wg sync.WaitGroup
	var turn sync.Mutex
	limits := Limits{}.filled()
	for range limits.EntriesInFlight {
		wg.Go(func() {
			for {
				turn.Lock()
				keys := next()
				turn.Unlock()
				if keys == nil {
					return
				}
				if err := b.write(keys).Error(); err != nil {
					b.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// writesDuring writes to random keys while f runs.
func (b *burden) writesDuring(f func()) (took counted) {
	var over atomic.Bool
	before := b.n.counts.apply.took.counted()
	var wg sync.WaitGroup
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	wg.Go(func() {
		b.keep(func() []int {
			if over.Load() {
				return nil
			}
			return b.random(rng, 50)
		})
	})
	start, waited := time.Now(), coreWait()
	f()
	b.t.Logf("in %v threads waited %v for a core", time.Since(start).Round(time.Millisecond), (coreWait() - waited).Round(time.Millisecond))
	took = b.n.counts.apply.took.counted().since(before)
	over.Store(true)
	wg.Wait()
	return took
}

func (b *burden) random(rng *rand.Rand, n int) []int {
	keys := make([]int, n)
	for i := range keys {
		keys[i] = rng.IntN(b.keys)
	}
	return keys
}

// coreWait is how long the threads of this process have waited for a core that others had; 0 where Linux does not say.
func coreWait() (sum time.Duration) {
	tasks, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, name := range tasks {
		var ran, waited int64
		if raw, err := os.ReadFile(name); err == nil {
			_, _ = fmt.Sscan(string(raw), &ran, &waited)
		}
		sum += time.Duration(waited)
	}
	return sum
}

// growth is what comes on top, at most, while f runs: pages, and live objects of Go's.
func growth(f func()) (pages, heap int64) {
	inHeap := func() int64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64())
	}
	usedBefore, heapBefore := mapped.Used(), inHeap()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pages, heap = max(pages, mapped.Used()-usedBefore), max(heap, inHeap()-heapBefore)
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	f()
	close(done)
	wg.Wait()
	return pages, heap
}

// TestSnapshotUnderLoad prints what snapshots of a large shard cost on a node of one replica, on a disk, while as much
// is written as it takes. It prints how long an entry takes to apply during a snapshot. It prints what memory a
// snapshot takes besides the pages that are written at that time. It prints what an incremental one writes besides the
// pages written since the one before. EBB_SNAPSHOT_KEYS is how many distributions of ten bins there are; 9,000,000 are
// 2 GB. It asserts nothing about speed.
func TestSnapshotUnderLoad(t *testing.T) {
	if os.Getenv("EBB_BENCH") == "" {
		t.Skip("a measurement: set EBB_BENCH=1")
	}
	keys := 1_000_000
	if text := os.Getenv("EBB_SNAPSHOT_KEYS"); text != "" {
		var err error
		keys, err = strconv.Atoi(text)
		must(t, err)
	}
	n, err := Open(context.Background(), Config{
		Name: "ebb-0", DataDir: t.TempDir(), GRPC: "127.0.0.1:0", HTTP: Off, Admin: Off, Gossip: "127.0.0.1:0", BootstrapExpect: 1, Shards: 1,
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	must(t, err)
	defer n.Close()
	select {
	case <-n.Ready():
	case <-time.After(time.Minute):
		t.Fatal(n.Status())
	}
	b := &burden{t: t, n: n, r: n.groups.Load().byShard[1], keys: keys}
	must(t, b.propose(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}}}).Error())
	only := snapshotLimits{min: 1 << 50, log: 1 << 50}
	n.snapshots.mu.Lock()
	n.snapshots.limits = only // those taken here
	n.snapshots.mu.Unlock()

	start, first := time.Now(), 0
	b.keep(func() (batch []int) {
		for ; len(batch) < 50 && first < keys; first++ {
			batch = append(batch, first)
		}
		return batch
	})
	t.Logf("%d distributions of 10 bins, %d MiB of pages, written in %v", keys, mapped.Used()>>20, time.Since(start).Round(time.Second))
	report := func(what string, took counted) time.Duration {
		t.Logf("%s: an entry of 500 increments takes p50 %v, p99 %v, p99.9 %v", what, took.quantile(0.5), took.quantile(0.99), took.quantile(0.999))
		return took.quantile(0.99)
	}
	var alone int64
	quiet := report("alone", b.writesDuring(func() { _, alone = growth(func() { time.Sleep(20 * time.Second) }) }))
	t.Logf("alone: Go's heap grows by %d MiB of what is being written", alone>>20)
	files := &n.counts.snapshot.files
	// since is a view of the state before a snapshot: what is written from then on copies each page once.
	var since *shard.View
	var before int64
	snapshot := func(what string) (wrote int64) {
		if since != nil {
			since.Release()
		}
		since, before = b.r.state.freeze(), mapped.Used()
		was, start := files.Written.Load(), time.Now()
		_, err := b.r.snapshot(0)
		must(t, err)
		wrote = int64(files.Written.Load() - was)
		t.Logf("%s: %d MiB of %d MiB written in %v", what, wrote>>20, b.r.snapshotBytes()>>20, time.Since(start).Round(time.Millisecond))
		return wrote
	}
	written := func(what string, dirty, wrote int64) {
		t.Logf("%s: %.1f MiB of pages written since the one before, %.1f MiB to disk: %.2f x", what, float64(dirty)/(1<<20), float64(wrote)/(1<<20), float64(wrote)/float64(dirty))
	}
	incremental := func(what string) {
		dirty := mapped.Used() - before
		written(what, dirty, snapshot(what))
	}
	writesDuring := func(what string, f func()) {
		var pages, heap int64
		p99 := report(what, b.writesDuring(func() { pages, heap = growth(f) }))
		t.Logf("%s: p99 is %.1f x; %d MiB of pages are written meanwhile, and Go's heap grows by %d MiB, with what is written", what, float64(p99)/float64(quiet), pages>>20, heap>>20)
	}
	writesDuring("writesDuring the first snapshot", func() { snapshot("the first snapshot") })
	incremental("after the rest of that load")
	rng := rand.New(rand.NewPCG(3, 4))
	for _, share := range []int{1000, 100, 10} {
		left := keys / share
		b.keep(func() []int {
			if left <= 0 {
				return nil
			}
			left -= 50
			return b.random(rng, 50)
		})
		incremental(fmt.Sprintf("after writes to one key in %d", share))
	}
	b.writesDuring(func() { time.Sleep(10 * time.Second) })
	dirty, wrote := mapped.Used()-before, int64(0)
	writesDuring("during the release of pages that no view has any more", since.Release) // as at the end of every snapshot, and not of the one to come
	since = nil
	writesDuring("writesDuring an incremental one", func() { wrote = snapshot("after ten seconds of all the load") })
	written("after ten seconds of all the load", dirty, wrote)
	since.Release()
	if audits := n.counts.audit.audits.Load(); audits > 0 {
		t.Errorf("%d audits froze the state, too: pages count more than once", audits)
	}
}
