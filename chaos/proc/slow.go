package proc

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/client"
)

// SlowNode measures how long writes take, with and without one node whose disk is slow.
type SlowNode struct {
	Binary string
	Dir    string
	Nodes  int
	Shards uint32
	Part   time.Duration // the part of each half second in which the disk does nothing
	Each   time.Duration // how long to measure without the slow disk, and as long with it
}

// SlowReport is the result of a SlowNode. The slow node leads some of the shards at first. Writes to these are reported
// apart from writes to the other shards.
type SlowReport struct {
	Without, With           Latency // of shards that other nodes led before the disk became slow
	WithoutOnIts, WithOnIts Latency // of the shards that the slow node led; With is after it has handed them over
	Becoming                Latency // of these shards, from when the disk became slow until the node led none
	HandedOver              time.Duration
}

// Latency is how long writes took.
type Latency struct {
	Writes   int
	P50, P99 time.Duration
}

func (l Latency) String() string {
	return fmt.Sprintf("p50 %v, p99 %v of %d writes", l.P50.Round(10*time.Microsecond), l.P99.Round(10*time.Microsecond), l.Writes)
}

// slowWriters write to each shard concurrently. Each waits slowPause after an answer before it writes again.
const slowWriters, slowPause = 2, 10 * time.Millisecond

// handOverPoll is how often write checks whether it can end.
const handOverPoll = 100 * time.Millisecond

// Run measures and returns a report. It fails where CanLose does.
func (o *SlowNode) Run(ctx context.Context) (r *SlowReport, err error) {
	if err := canLose(); err != nil {
		return nil, err
	}
	g, err := NewTestbed(TestbedOptions{Dir: o.Dir, Machines: o.Nodes, Disks: true})
	if err != nil {
		return nil, err
	}
	defer g.Close()
	f, err := Start(ctx, Options{Binary: o.Binary, Dir: filepath.Join(o.Dir, "nodes"), Nodes: o.Nodes, Args: []string{"--shards", strconv.Itoa(int(o.Shards))}, Testbed: g})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := client.DialOptions(ctx, f.Addrs())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: LedgerNamespace, Decay: client.DecayNone}); err != nil {
		return nil, err
	}
	const slow = 0
	m := &measuring{o: &Failover{Shards: o.Shards}, f: f, c: c, keys: shardKeys(o.Shards)}
	its := make([]bool, o.Shards)
	for shard := range o.Shards {
		leader, err := m.awaitHealthy(ctx, shard+1)
		if err != nil {
			return nil, err
		}
		its[shard] = leader == slow
	}
	r = &SlowReport{}
	if r.Without, r.WithoutOnIts, err = o.measure(ctx, m, its); err != nil {
		return nil, err
	}
	w := &world{t: &Trial{}, f: f, began: time.Now(), verdict: &swarm.Verdict{}}
	mend := w.slow(slow, o.Part)
	began := time.Now()
	var led error
	_, r.Becoming, err = o.write(ctx, m, its, handOverMax, func() bool { // the node detects the slow disk by the load
		led = o.leads(ctx, m, slow)
		return led == nil
	})
	if r.HandedOver = time.Since(began); err == nil {
		err = led
	}
	if err == nil {
		r.With, r.WithOnIts, err = o.measure(ctx, m, its)
	}
	if err == nil {
		err = o.leads(ctx, m, slow)
	}
	if merr := mend(); err == nil {
		err = merr
	}
	return r, err
}

// handOverMax is how long a node with a slow disk may lead shards. It needs eight seconds with writes to detect the
// slow disk, and more where machines are busy.
const handOverMax = time.Minute

// leads returns an error that names a group that the node still leads; nil if it leads none.
func (o *SlowNode) leads(ctx context.Context, m *measuring, node int) error {
	status, err := m.c.Status(ctx)
	if err != nil {
		return err
	}
	for _, n := range status.GetNodes() {
		if n.GetNode().GetName() != m.f.Name(node) {
			continue
		}
		for _, r := range n.GetReplicas() {
			if r.GetRole() == "leader" {
				return fmt.Errorf("%s leads group %d although its disk is slow, which it knows: %v", m.f.Name(node), r.GetShard(), n.GetDiskSlow())
			}
		}
		return nil
	}
	return fmt.Errorf("%s does not say what it leads", m.f.Name(node))
}

// measure writes to all shards for a while.
func (o *SlowNode) measure(ctx context.Context, m *measuring, its []bool) (others, own Latency, err error) {
	return o.write(ctx, m, its, o.Each, func() bool { return false })
}

// write writes to all shards until enough returns true, or atMost has passed. its tells which shards belong to own; the
// rest belong to others.
func (o *SlowNode) write(ctx context.Context, m *measuring, its []bool, atMost time.Duration, enough func() bool) (others, own Latency, err error) {
	ctx, cancel := context.WithTimeout(ctx, atMost+writeMax)
	defer cancel()
	var over atomic.Bool
	var mu sync.Mutex // guards took and err
	var took [2][]time.Duration
	var wg sync.WaitGroup
	for shard := range its {
		for range slowWriters {
			wg.Go(func() {
				for !over.Load() && !wait(ctx, slowPause) {
					began := time.Now()
					werr := m.c.Increment(ctx, LedgerNamespace, client.One(m.keys[shard][0], "b"))
					mu.Lock()
					if werr != nil {
						err = werr
					}
					side := 0
					if its[shard] {
						side = 1
					}
					took[side] = append(took[side], time.Since(began))
					mu.Unlock()
				}
			})
		}
	}
	for until := time.Now().Add(atMost); time.Now().Before(until) && !enough() && !wait(ctx, handOverPoll); {
	}
	over.Store(true)
	wg.Wait()
	return latencyOf(took[0]), latencyOf(took[1]), err
}

func latencyOf(took []time.Duration) (l Latency) {
	slices.Sort(took)
	if l.Writes = len(took); l.Writes > 0 {
		l.P50, l.P99 = took[l.Writes/2], took[l.Writes*99/100]
	}
	return l
}
