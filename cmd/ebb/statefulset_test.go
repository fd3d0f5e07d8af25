package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
)

// podHaste makes seconds of probes and preStop tenths, and DNS remember for 1.5 s.
const podHaste = 20

// startSet starts pods as the manifest for production says, with so many shards.
func startSet(t *testing.T, shards int) *proc.StatefulSet {
	t.Helper()
	pod, err := proc.ReadPod("../../deploy/testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := proc.StartSet(proc.SetOptions{
		Binary: binary(t), Dir: t.TempDir(), Pod: pod, Haste: podHaste, Env: []string{"EBB_SHARDS=" + strconv.Itoa(shards)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i := range pod.Replicas {
				t.Logf("end of the log of pod %d:\n%s", i, s.LogTail(i))
			}
		}
		s.Close()
	})
	return s
}

// dialSet connects as a client in the same cluster does: by the Service's name.
func dialSet(ctx context.Context, t *testing.T, s *proc.StatefulSet) *client.Client {
	t.Helper()
	names := net.Dialer{Resolver: node.ResolverAt(s.DNS())}
	c, err := client.DialOptions(ctx, []string{s.Doors()}, client.WithDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return names.DialContext(ctx, "tcp", addr)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// rounds is how often a test of real processes does what it does; the variable is for long runs.
func rounds(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Three pods that start at once, with nothing on their volumes and all of DNS
// unknown before they run, form one cluster, each time. EBB_SET_RUNS says how often
// (the acceptance run: 20).
func TestParallelStartFormsOneCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	for round := range rounds(t, "EBB_SET_RUNS", 2) {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			start := time.Now()
			s := startSet(t, 8)
			if err := s.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			t.Logf("three pods are ready after %v", time.Since(start).Round(time.Millisecond))
			clusters := map[string]bool{}
			for i := range 3 {
				c, err := client.Dial(ctx, s.GRPC(i))
				if err != nil {
					t.Fatal(err)
				}
				st, err := c.Status(ctx)
				c.Close()
				if err != nil {
					t.Fatal(err)
				}
				d := digest(st)
				clusters[d.ClusterID] = true
				if len(d.Nodes) != 3 {
					t.Errorf("pod %d knows %d nodes", i, len(d.Nodes))
				}
				for j, n := range d.Nodes {
					if want := fmt.Sprintf("ebb-%d.ebb-peers.%s.svc:", j, proc.Namespace); !strings.HasPrefix(n.GRPC, want) {
						t.Errorf("pod %d tells clients to find node %d at %s, not at its name", i, j, n.GRPC)
					}
				}
			}
			if len(clusters) != 1 || clusters[""] {
				t.Errorf("clusters: %v", clusters)
			}
			if killed := s.Restarts(); len(killed) > 0 {
				t.Errorf("kubelet killed %v", killed)
			}
		})
	}
}

// All pods are replaced one after the other, each coming back at another address
// with its volume, while the SDK writes to every shard and reads: no call fails,
// nothing is lost or counted twice, no pod keeps a leadership or is killed, and
// none is restarted by its probes.
func TestRollingRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts real processes")
	}
	const shards = 16
	restarts := rounds(t, "EBB_SET_RUNS", 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(5+restarts)*time.Minute)
	defer cancel()
	s := startSet(t, shards)
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	c := dialSet(ctx, t, s)
	if _, err := c.CreateNamespace(ctx, client.Namespace{Name: "ledger", Decay: client.DecayNone}); err != nil {
		t.Fatal(err)
	}
	keys := keyOfEachShard("ledger", shards)
	load := startLoad(ctx, t, c, keys)
	load.await(ctx, t, 5)
	var gaps []time.Duration // of each round: the longest time that a shard was without an acknowledged write
	for round := range restarts {
		was := []string{s.GRPC(0), s.GRPC(1), s.GRPC(2)}
		stops, err := s.RollingRestart(ctx)
		if err != nil {
			t.Fatal(err)
		}
		load.await(ctx, t, 5)
		gaps = append(gaps, load.gap())
		for i, stop := range stops {
			t.Logf("round %d: %s ended %v after SIGTERM", round, stop.Pod, stop.Took.Round(time.Millisecond))
			if stop.Killed || stop.Code != 0 {
				t.Errorf("%s: killed %v, exit code %d", stop.Pod, stop.Killed, stop.Code)
			}
			if !strings.Contains(stop.Log, `"still_led":0`) {
				t.Errorf("%s kept leaderships:\n%s", stop.Pod, stop.Log)
			}
			if slices.Contains(was, s.GRPC(i)) {
				t.Errorf("pod %d came back at %s", i, s.GRPC(i))
			}
		}
	}
	written, reads := load.stop()
	slices.Sort(gaps)
	t.Logf("%d writes, %d reads; a shard was without an acknowledged write for %v at most, in 99 of 100 rounds for %v",
		sum(written), reads, gaps[len(gaps)-1].Round(time.Millisecond),
		gaps[(len(gaps)*99+99)/100-1].Round(time.Millisecond))
	for i, key := range keys {
		got, err := c.Count(ctx, "ledger", key)
		if err != nil || got.Value != float64(written[i]) {
			t.Errorf("shard %d: %v was counted, %d was acknowledged (%v)", i+1, got.Value, written[i], err)
		}
	}
	if killed := s.Restarts(); len(killed) > 0 {
		t.Errorf("kubelet killed %v", killed)
	}
}

// podLoad writes to a key of each shard, one write after the other, and reads them all.
type podLoad struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	written []int      // acknowledged, by key
	slowest time.Duration
	reads   int
}

func startLoad(ctx context.Context, t *testing.T, c *client.Client, keys []string) *podLoad {
	l := &podLoad{written: make([]int, len(keys))}
	loop, cancel := context.WithCancel(ctx)
	l.cancel = cancel
	for i, key := range keys {
		l.wg.Go(func() {
			last := time.Now()
			for loop.Err() == nil {
				// by ctx, so that the end of the load interrupts none
				if err := c.Increment(ctx, "ledger", client.Increment{Key: key, Bin: "b", Amount: 1}); err != nil {
					t.Errorf("write to shard %d: %v", i+1, err)
					return
				}
				now := time.Now()
				l.mu.Lock()
				l.written[i]++
				l.slowest = max(l.slowest, now.Sub(last))
				l.mu.Unlock()
				last = now
				time.Sleep(5 * time.Millisecond) // a pace that leaves the machine to others
			}
		})
	}
	l.wg.Go(func() {
		for loop.Err() == nil {
			if _, err := c.Count(ctx, "ledger", keys[0]); err != nil {
				t.Errorf("read: %v", err)
				return
			}
			l.mu.Lock()
			l.reads++
			l.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	})
	return l
}

// await waits until each key has been written so many times more.
func (l *podLoad) await(ctx context.Context, t *testing.T, more int) {
	t.Helper()
	counts := func() []int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Clone(l.written)
	}
	before := counts()
	for i := range before {
		for counts()[i] < before[i]+more {
			if ctx.Err() != nil || t.Failed() {
				t.Fatalf("shard %d takes no more writes", i+1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// gap is the longest time between two acknowledged writes to a shard since it was asked last.
func (l *podLoad) gap() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.slowest = 0 }()
	return l.slowest
}

func (l *podLoad) stop() (written []int, reads int) {
	l.cancel()
	l.wg.Wait()
	return l.written, l.reads
}

func sum(n []int) (all int) {
	for _, v := range n {
		all += v
	}
	return all
}
