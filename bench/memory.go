package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// Memory measures the total memory of distributions in one process, in states of shards without log and network. There
// are N distributions, whose names have 15 characters. Each in turn gets one bin, and then each the next one, as events
// would come.
type Memory struct {
	N       int
	Shape   Shape
	Compact bool
	// Shards is how many states share the distributions; 8 if 0.
	Shards int
	// Load is how long to add increments and to ask, alone and then during snapshots; 0 leaves it out. Rate is the
	// increments a second.
	Load time.Duration
	Rate int
}

// Shape says how many bins distributions have. It is the number for all of them, or "pareto": at least 3 and 9 on
// average, with more than 300 in one of a thousand.
type Shape string

// ShapePareto is a mix of many small distributions and a few large ones.
const ShapePareto Shape = "pareto"

const paretoBinsMax = 10_000

// Check returns an error for a text that is no shape.
func (s Shape) Check() error {
	if bins, err := strconv.Atoi(string(s)); s != ShapePareto && (err != nil || bins < 1 || bins > paretoBinsMax) {
		return fmt.Errorf("shape %q: it is %s, or a number of bins from 1 to %d", string(s), ShapePareto, paretoBinsMax)
	}
	return nil
}

// sizes draws how many bins each of n distributions has.
func (s Shape) sizes(n int) ([]uint16, error) {
	out := make([]uint16, n)
	if s == ShapePareto {
		rng := rand.New(rand.NewPCG(9, 0x73697a6573))
		for i := range out {
			out[i] = uint16(min(math.Round(3*math.Pow(1-rng.Float64(), -1/1.5)), paretoBinsMax))
		}
		return out, nil
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	bins, err := strconv.Atoi(string(s))
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i] = uint16(bins)
	}
	return out, nil
}

// MemoryResult is the result of a run. Bytes are in addition to those of the process before the run.
type MemoryResult struct {
	Distributions int     `json:"distributions"`
	Bins          int     `json:"bins"`
	BinsEach      float64 `json:"bins_each"`
	Resident      int64   `json:"resident_bytes"` // of the process, after a collection and FreeOSMemory
	Allocated     int64   `json:"allocated_bytes"`
	Mapped        int64   `json:"mapped_bytes"` // outside Go's heap
	Serialised    int64   `json:"serialised_bytes"`
	FillPerSecond float64 `json:"fill_per_second"` // increments a second on one core while filling
	FillGCShare   float64 `json:"fill_gc_share"`   // of the CPU used

	Load *LoadResult `json:"load,omitempty"`
}

// LoadResult is the result of increments to existing distributions with questions at the same time, first without
// snapshots and then with one snapshot after the other.
type LoadResult struct {
	PerSecond     float64   `json:"per_second"`       // increments applied
	ApplyEach     float64   `json:"apply_ns"`         // CPU ns of an increment in a batch of 1,000
	GCShare       float64   `json:"gc_share"`         // of the CPU used
	Read          Quantiles `json:"read"`             // top 10 of one distribution, without snapshots
	ReadSnapshots Quantiles `json:"read_snapshotted"` // the same during snapshots
	Snapshots     int       `json:"snapshots"`
}

// PerBin returns bytes divided by the number of bins.
func (r *MemoryResult) PerBin(bytes int64) float64 { return float64(bytes) / float64(r.Bins) }

const (
	memoryBatch  = 1000
	memoryKeyLen = 15
	memoryStart  = 1_700_000_000_000_000 // µs

	fieldEntryStamp    = 1
	fieldEntryCommands = 2
)

// memoryKey appends a name of 15 characters.
func memoryKey(b []byte, i int) []byte { return memoryName(b, "link/", i) }

// memoryBin appends the name of the j-th bin of distribution i.
func memoryBin(b []byte, i, j, names int) []byte {
	return memoryName(b, "bin/", (int(uint32(i)*0x9e3779b1>>8)+j)%names)
}

func memoryName(b []byte, prefix string, i int) []byte {
	b = append(b, prefix...)
	for div := int(math.Pow10(memoryKeyLen - len(prefix) - 1)); div > 0; div /= 10 {
		b = append(b, byte('0'+i/div%10))
	}
	return b
}

// Run builds the distributions, measures their memory, and frees them.
func (m Memory) Run(ctx context.Context) (MemoryResult, error) {
	sizes, err := m.Shape.sizes(m.N)
	if err != nil {
		return MemoryResult{}, err
	}
	w := &memoryWorld{sizes: sizes, names: 260}
	for _, n := range sizes {
		w.bins += int(n)
		w.names = max(w.names, int(n))
	}
	before := measure()
	for i := range max(m.Shards, 1) {
		if err := w.addShard(shard.ID(i+1), newMemory(), m.Compact); err != nil {
			return MemoryResult{}, err
		}
	}
	cpu := readCPU()
	start := time.Now()
	if err := w.fill(ctx); err != nil {
		return MemoryResult{}, err
	}
	took := time.Since(start)
	r := MemoryResult{
		Distributions: m.N, Bins: w.bins, BinsEach: float64(w.bins) / float64(m.N),
		FillPerSecond: float64(w.bins) / took.Seconds(), FillGCShare: readCPU().gcShareSince(cpu),
	}
	after := measure()
	r.Resident, r.Allocated = after.resident-before.resident, after.allocated-before.allocated
	for _, s := range w.shards {
		if mapped, ok := s.mem.(interface{ Mapped() int64 }); ok {
			r.Mapped += mapped.Mapped()
		}
		n, err := s.state.WriteTo(io.Discard)
		if err != nil {
			return r, err
		}
		r.Serialised += n
	}
	if m.Load > 0 {
		load, err := w.load(ctx, m.Load, max(m.Rate, memoryBatch))
		if err != nil {
			return r, err
		}
		r.Load = &load
	}
	runtime.KeepAlive(w)
	return r, nil
}

// newMemory returns the memory for the pages of a state, of the type that nodes use.
func newMemory() shard.Memory { return mapped.New() }

// memoryWorld holds the states under test.
type memoryWorld struct {
	sizes  []uint16
	bins   int
	names  int // number of different bins
	shards []*memoryShard
}

// memoryShard is a state with its lock, as in a node.
type memoryShard struct {
	mem   shard.Memory
	mu    sync.RWMutex // guards state, as in a node
	state *shard.State
	stamp int64
	batch int
	body  []byte
	entry []byte
}

func (w *memoryWorld) addShard(id shard.ID, mem shard.Memory, compact bool) error {
	s := &memoryShard{mem: mem, state: shard.New(id, mem), stamp: memoryStart}
	def := &ebbv1.Namespace{Name: proto.DefaultNamespace, Version: 1}
	if compact {
		def.Precision = ebbv1.Precision_PRECISION_COMPACT
	}
	raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
	if err != nil {
		return err
	}
	w.shards = append(w.shards, s)
	return s.apply(raw, 0)
}

// apply applies a command with n increments.
func (s *memoryShard) apply(command []byte, n int) error {
	s.stamp += 100
	e := protowire.AppendTag(s.entry[:0], fieldEntryStamp, protowire.Fixed64Type)
	e = protowire.AppendFixed64(e, uint64(s.stamp))
	e = protowire.AppendTag(e, fieldEntryCommands, protowire.BytesType)
	e = protowire.AppendBytes(e, command)
	s.entry = e
	s.mu.Lock()
	results := s.state.Apply(s.state.Applied()+1, e, nil)
	s.mu.Unlock()
	if len(results) != 1 || results[0].Error != nil || results[0].Applied != uint64(n) {
		return fmt.Errorf("a batch of %d: %v", n, results)
	}
	return nil
}

// add adds an increment to the batch, and applies the batch when it is full.
func (s *memoryShard) add(key, bin []byte) error {
	s.body = proto.AppendIncrement(s.body, &proto.IncrementWire{Key: key, Bin: bin, Amount: 1})
	s.batch++
	if s.batch == memoryBatch {
		return s.flush()
	}
	return nil
}

func (s *memoryShard) flush() error {
	if s.batch == 0 {
		return nil
	}
	n := s.batch
	command := protowire.AppendTag(nil, proto.FieldCommandIncrements, protowire.BytesType)
	command = protowire.AppendBytes(command, s.body)
	s.body, s.batch = s.body[:0], 0
	return s.apply(command, n)
}

func (w *memoryWorld) fill(ctx context.Context) error {
	var key, bin []byte
	for j, more := 0, true; more; j++ {
		more = false
		for i, size := range w.sizes {
			if j >= int(size) {
				continue
			}
			more = true
			key, bin = memoryKey(key[:0], i), memoryBin(bin[:0], i, j, w.names)
			if err := w.shards[i%len(w.shards)].add(key, bin); err != nil {
				return err
			}
			if i%(1<<16) == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	for _, s := range w.shards {
		if err := s.flush(); err != nil {
			return err
		}
		s.body, s.entry = nil, nil
	}
	return nil
}

// load adds increments and asks: for the first half of the time without snapshots, for the second half during
// snapshots.
func (w *memoryWorld) load(ctx context.Context, d time.Duration, rate int) (r LoadResult, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	applied := make(chan error, 1)
	var applying loadCount
	cpu, start := readCPU(), time.Now()
	go func() { applied <- w.increment(ctx, rate, &applying) }()
	r.Read = w.ask(ctx, d/2)
	written := make(chan int, 1)
	snapshots, stop := context.WithCancel(ctx)
	go func() { written <- w.snapshot(snapshots) }()
	r.ReadSnapshots = w.ask(ctx, d/2)
	stop()
	r.Snapshots = <-written
	cancel()
	err = <-applied
	r.PerSecond = float64(applying.n.Load()) / time.Since(start).Seconds()
	r.ApplyEach = float64(applying.busy.Load()) / float64(max(applying.n.Load(), 1))
	r.GCShare = readCPU().gcShareSince(cpu)
	return r, err
}

type loadCount struct {
	n    atomic.Int64
	busy atomic.Int64 // ns spent in Apply
}

// increment adds increments of random bins, rate of them a second, or as fast as it can.
func (w *memoryWorld) increment(ctx context.Context, rate int, c *loadCount) error {
	rng := rand.New(rand.NewPCG(1, 0x6c6f6164))
	var key, bin []byte
	start := time.Now()
	for batch := 0; ctx.Err() == nil; batch++ {
		if wait := time.Until(start.Add(time.Duration(batch) * memoryBatch * time.Second / time.Duration(rate))); wait > 0 {
			time.Sleep(wait)
		}
		s := w.shards[batch%len(w.shards)]
		for range memoryBatch - 1 {
			i := w.random(rng, batch%len(w.shards))
			key, bin = memoryKey(key[:0], i), memoryBin(bin[:0], i, rng.IntN(int(w.sizes[i])), w.names)
			if err := s.add(key, bin); err != nil {
				return err
			}
		}
		before := time.Now()
		if err := s.flush(); err != nil {
			return err
		}
		c.busy.Add(int64(time.Since(before)))
		c.n.Add(memoryBatch - 1)
	}
	return nil
}

// random returns a random distribution of shard s.
func (w *memoryWorld) random(rng *rand.Rand, s int) int {
	return s + rng.IntN(max((len(w.sizes)-s)/len(w.shards), 1))*len(w.shards)
}

// ask asks for the top 10 of random distributions, a thousand times a second.
func (w *memoryWorld) ask(ctx context.Context, d time.Duration) Quantiles {
	rng := rand.New(rand.NewPCG(2, 0x61736b))
	var l Latencies
	for start := time.Now(); time.Since(start) < d && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
		i := rng.IntN(len(w.sizes))
		q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{memoryKey(nil, i)}, Select: &ebbv1.DistributionQuestion_Top{Top: 10},
		}}}}
		s := w.shards[i%len(w.shards)]
		before := time.Now()
		s.mu.RLock()
		s.state.Ask(q, s.state.Now())
		s.mu.RUnlock()
		l.Add(time.Since(before))
	}
	return l.Quantiles()
}

// snapshot writes snapshots of one shard after the other until ctx ends, and returns their number.
func (w *memoryWorld) snapshot(ctx context.Context) (n int) {
	for ; ctx.Err() == nil; n++ {
		s := w.shards[n%len(w.shards)]
		s.mu.Lock()
		view := s.state.Freeze()
		s.mu.Unlock()
		_, _ = view.WriteTo(cancelled{ctx})
		view.Release()
	}
	return n
}

// cancelled discards what is written, and returns an error when its context has ended.
type cancelled struct{ ctx context.Context }

func (c cancelled) Write(p []byte) (int, error) { return len(p), c.ctx.Err() }

type footprint struct{ resident, allocated int64 }

// measure collects garbage, returns free memory to the system, and reads the memory figures.
func measure() footprint {
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return footprint{resident: residentOf("self"), allocated: int64(stats.HeapAlloc)}
}

// residentOf returns the resident memory of a process in bytes; 0 if the system does not report it.
func residentOf(pid string) int64 {
	raw, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// cpuTime is CPU time of the process, in seconds.
type cpuTime struct{ gc, used float64 }

func readCPU() cpuTime {
	runtime.GC() // a collection updates these metrics; its own cost is part of the result
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/user:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}}
	metrics.Read(samples)
	gc := samples[0].Value.Float64() - samples[2].Value.Float64() // marking by idle cores slows nothing down
	return cpuTime{gc: gc, used: gc + samples[1].Value.Float64()}
}

func (c cpuTime) gcShareSince(before cpuTime) float64 {
	return (c.gc - before.gc) / max(c.used-before.used, 1e-9)
}
