package proc

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Failover cuts leaders off, one after the other, and measures how long it takes until the majority acknowledges a
// write.
type Failover struct {
	Binary string
	Dir    string
	Trials int
	Nodes  int
	Shards uint32
	// Deaf cuts the leader off from clients, too.
	Deaf     bool
	Progress func(line string)
}

// FailoverReport is the result of a Failover.
type FailoverReport struct {
	Command  string          `json:"command,omitempty"`
	Trials   int             `json:"trials"`
	Election time.Duration   `json:"election_timeout_ns"` // of a cluster with that number of shards
	P50      time.Duration   `json:"p50_ns"`
	P99      time.Duration   `json:"p99_ns"`
	Max      time.Duration   `json:"max_ns"`
	Took     []time.Duration `json:"took_ns"` // sorted
	// Counted is how many writes the cluster counts at the end. Written is how many it has acknowledged.
	Counted float64 `json:"counted"`
	Written int     `json:"written"`
	// Interrupted reports whether the run was cut short. The writes are not counted then.
	Interrupted bool `json:"interrupted,omitempty"`
}

// electionsMax is how many election timeouts the p99 may be.
const electionsMax = 3

// Limit returns the highest p99 that is allowed.
func (r *FailoverReport) Limit() time.Duration { return electionsMax * r.Election }

// Err returns an error if other writes are counted than were acknowledged, or if the p99 is above Limit. It returns nil
// for an interrupted run.
func (r *FailoverReport) Err() error {
	switch {
	case r.Interrupted:
	case r.Counted != float64(r.Written):
		return fmt.Errorf("%v writes are counted, and %d were acknowledged", r.Counted, r.Written)
	case r.P99 > r.Limit():
		return fmt.Errorf("p99 is %v: the limit is %d election timeouts of %v", r.P99, electionsMax, r.Election)
	}
	return nil
}

// Run measures and returns a report. It fails where CanCut does. When ctx ends after the nodes have started, the report
// covers the trials until then.
func (o *Failover) Run(ctx context.Context) (r *FailoverReport, err error) {
	if err := canCut(); err != nil {
		return nil, err
	}
	defer func() {
		if r == nil && ctx.Err() != nil {
			err = ctx.Err() // the interruption is the cause, whatever failed to start
		}
	}()
	g, err := NewTestbed(TestbedOptions{Dir: o.Dir, Machines: o.Nodes, Network: true})
	if err != nil {
		return nil, err
	}
	defer g.Close()
	started, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	f, err := Start(started, Options{Binary: o.Binary, Dir: filepath.Join(o.Dir, "nodes"), Nodes: o.Nodes, Args: []string{"--shards", strconv.Itoa(int(o.Shards))}, Testbed: g})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := client.DialOptions(started, f.Addrs(), client.WithDialer(g.Dial))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.CreateNamespace(started, client.Namespace{Name: LedgerNamespace, Decay: client.DecayNone}); err != nil {
		return nil, err
	}
	m := &measuring{o: o, g: g, f: f, c: c, keys: shardKeys(o.Shards)}
	for trial := range o.Trials {
		if err := m.trial(ctx, trial); err != nil && ctx.Err() == nil {
			return nil, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return m.report(ctx)
}

// measuring is the state of a running Failover.
type measuring struct {
	o       *Failover
	g       *Testbed
	f       *Fleet
	c       *client.Client
	keys    [][]string
	written int
	took    []time.Duration
}

const (
	// healthyMax is how long it may take until every shard has one leader that all other replicas follow.
	healthyMax = time.Minute
	// writeMax is how long a write may take.
	writeMax = 30 * time.Second
)

// trial cuts the leader of a shard off, and writes to that shard.
func (m *measuring) trial(ctx context.Context, number int) error {
	shard := uint32(number%int(m.o.Shards)) + 1
	leader, err := m.awaitHealthy(ctx, shard)
	if err != nil {
		return err
	}
	if err := m.write(ctx, shard); err != nil { // so that the client has a route to the leader
		return err
	}
	others := make([]int, 0, m.f.Nodes())
	for i := range m.f.Nodes() {
		if i != leader {
			others = append(others, m.f.Machine(i).number)
		}
	}
	if m.o.Deaf {
		others = append(others, m.g.Clients())
	}
	m.g.Net.Isolate(m.f.Machine(leader).number, others)
	began := time.Now()
	err = m.write(ctx, shard)
	took := time.Since(began)
	m.g.Net.Heal()
	if err != nil {
		return fmt.Errorf("trial %d: %s, which led shard %d, is cut off: %w", number+1, m.f.Name(leader), shard, err)
	}
	m.took = append(m.took, took)
	if m.o.Progress != nil {
		m.o.Progress(fmt.Sprintf("trial %d of %d: %s led shard %d, and was cut off; the first write took %v", number+1, m.o.Trials, m.f.Name(leader), shard, took.Round(time.Millisecond)))
	}
	return nil
}

func (m *measuring) write(ctx context.Context, shard uint32) error {
	ctx, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	err := m.c.Increment(ctx, LedgerNamespace, client.One(m.keys[shard-1][0], "b"))
	if err == nil {
		m.written++
	}
	return err
}

// awaitHealthy waits until all nodes answer, and each shard has one leader that all its replicas follow in its term. It
// returns the node that leads shard.
func (m *measuring) awaitHealthy(ctx context.Context, shard uint32) (leader int, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthyMax)
	defer cancel()
	for {
		status, why := m.c.Status(ctx)
		if why == nil {
			if leader, why = m.led(status, shard); why == nil {
				return leader, nil
			}
		}
		if wait(ctx, 20*time.Millisecond) {
			return 0, fmt.Errorf("not healthy within %v after a cut was mended: %w", healthyMax, why)
		}
	}
}

// led returns the node that leads a shard, or why the cluster is not healthy.
func (m *measuring) led(status *ebbv1.StatusResponse, shard uint32) (int, error) {
	if len(status.GetUnreachable()) > 0 || len(status.GetNodes()) != m.f.Nodes() {
		return 0, fmt.Errorf("%d nodes answer, and not %v", len(status.GetNodes()), status.GetUnreachable())
	}
	leaders, terms := map[uint32][]string{}, map[uint32]uint64{}
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			terms[r.GetShard()] = max(terms[r.GetShard()], r.GetTerm())
			if r.GetRole() == "leader" {
				leaders[r.GetShard()] = append(leaders[r.GetShard()], n.GetNode().GetName())
			}
		}
	}
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			of := r.GetShard()
			if len(leaders[of]) != 1 || r.GetTerm() != terms[of] || r.GetLeader() != leaders[of][0] {
				return 0, fmt.Errorf("shard %d: led by %v, and %s is in term %d and follows %q", of, leaders[of], n.GetNode().GetName(), r.GetTerm(), r.GetLeader())
			}
		}
	}
	for i := range m.f.Nodes() {
		if names := leaders[shard]; len(names) == 1 && m.f.Name(i) == names[0] {
			return i, nil
		}
	}
	return 0, fmt.Errorf("nobody leads shard %d", shard)
}

func (m *measuring) report(ctx context.Context) (*FailoverReport, error) {
	slices.Sort(m.took)
	r := &FailoverReport{Trials: len(m.took), Election: cluster.ElectionTimeout(m.o.Shards), Took: m.took, Written: m.written}
	if n := len(m.took); n > 0 {
		r.P50, r.P99, r.Max = m.took[n/2], m.took[n*99/100], m.took[n-1]
	}
	if r.Interrupted = ctx.Err() != nil; r.Interrupted {
		return r, nil
	}
	counting, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	for _, of := range m.keys {
		got, err := m.c.Count(counting, LedgerNamespace, of[0])
		if r.Interrupted = ctx.Err() != nil; r.Interrupted {
			r.Counted = 0
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		r.Counted += got.Value
	}
	return r, nil
}
