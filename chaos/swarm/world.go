package swarm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Options change what is run, for tests of the swarm itself.
type Options struct {
	Logger    *slog.Logger                              // of the nodes; nil discards it
	Configure func(i int, cfg *node.Config)             // changes a node's configuration before each of its lives
	Client    []ebb.Option                              // options of every client
	Inject    func(ctx context.Context, c *sim.Cluster) // is called once the cluster serves
	Workloads []string                                  // names of the workloads to run; drawn from the seed if nil
}

// Bubble runs f in virtual time, and returns when all goroutines that f started have ended. It is a wrapper of
// synctest.Test.
type Bubble func(f func())

// diskError is the error with which a node may end when its disk has failed.
var diskError = proto.ErrDisk

const (
	countsNamespace = "counts" // no decay
	fadingNamespace = "fading" // a half-life of one hour
	slicedNamespace = "sliced" // bitmaps whose slices are stored in all shards
	fadingHalfLife  = time.Hour

	// clientHosts is the number of client machines.
	clientHosts = 4
	// outageMax bounds how long a shard may acknowledge nothing after its leader was cut off. It covers an election,
	// and the SDK's tries at the old leader.
	outageMax = 8 * time.Second
	// healMax is how long writes may fail after all was mended.
	healMax = 8 * time.Second
	// homeMax bounds how long a shard may have another leader than the table prefers, after all was mended. A node that
	// has just started leads nothing for 10 s. A failed leadership transfer is tried again after 30 s.
	homeMax = time.Minute
	// readyMax is how long a node may take to become ready after all was mended.
	readyMax = time.Minute
)

func clientIP(host int) string { return fmt.Sprintf("10.0.1.%d", host+1) }

// world is the state of one run: the simulated cluster, its clients, their oracles and the verdict.
type world struct {
	plan  Plan
	opts  Options
	c     *sim.Cluster
	begun time.Time
	admin *ebb.Client

	// used only by the goroutine that injects faults
	skewed     map[int]bool   // nodes whose clocks are wrong
	manySkewed bool           // at some time, no majority of clocks was right
	everSkewed atomic.Bool    // at some time, a clock was wrong
	leaving    map[int]bool   // nodes that the cluster is to remove
	wiped      map[int]bool   // nodes whose disks were replaced
	damaged    map[int]string // dead nodes whose next start must refuse the damaged log, and why
	mendAll    func()         // w.mend, for families: Families cannot refer to mend, which refers to Families
	whole      bool           // nothing is broken: a dead node must start
	wishes     []*ebbv1.ChangeClusterRequest
	latest     time.Duration   // the largest delay of a message that may still be on its way
	idle       bool            // the fault being injected has had no effect, or none yet
	said       string          // the cluster's last answer to a requested change
	releases   []chan struct{} // closing one ends the hang of a disk
	excuses    map[int][]error // by node: errors with which it may end

	counts *counts
	texts  *texts

	judges    []func() // checks of histories, run after the bubble has ended
	autopsies []func() // the last checks in the bubble, which may end the nodes

	waiting atomic.Bool // a slow change is awaited; clients pause longer

	mu      sync.Mutex // guards what follows; never held over a wait
	verdict *Verdict
	reigns  map[uint32]*Reign // the current leaders, by shard
	leaders map[[2]uint64]string
	clocks  map[[3]uint64]int64 // by node, life and shard
	applied map[uint32]uint64   // the highest index that any replica of a shard was seen to have applied
}

// Run runs the plan in a new bubble, and returns the verdict. A panic that leaves the bubble becomes a breach of
// nothing-left.
func Run(bubble Bubble, plan Plan, opts Options) (v *Verdict) {
	v = &Verdict{Plan: plan, Faults: map[string]int{}, Checks: map[string]int{}}
	began := time.Now()
	ended := false
	defer func() { v.Real = time.Since(began) }()
	defer func() {
		v.Checks["nothing-left"]++
		v.Checks["time-goes-on"]++
		if r := recover(); r != nil { // synctest panics if goroutines are left that nothing can wake
			v.Breaches = append(v.Breaches, Breach{Invariant: "nothing-left", At: v.Virtual, What: fmt.Sprint(r)})
		} else if !ended {
			v.Breaches = append(v.Breaches, Breach{Invariant: "time-goes-on", What: "the run was broken off"})
		}
	}()
	var w *world
	bubble(func() {
		w = &world{
			plan: plan, opts: opts, begun: time.Now(), verdict: v,
			skewed: map[int]bool{}, leaving: map[int]bool{}, wiped: map[int]bool{}, damaged: map[int]string{}, excuses: map[int][]error{},
			reigns: map[uint32]*Reign{}, leaders: map[[2]uint64]string{}, clocks: map[[3]uint64]int64{}, applied: map[uint32]uint64{},
		}
		w.mendAll = w.mend
		w.live()
		v.Virtual = w.now()
		if w.c != nil {
			v.Trace = fmt.Sprintf("%016x", w.c.Net.Trace())
		}
		time.Sleep(sim.Linger)
		ended = true
	})
	if w != nil && w.texts != nil {
		w.texts.judge(orderMax)
		for _, judge := range w.judges {
			judge()
		}
	}
	return v
}

func (w *world) now() time.Duration { return time.Since(w.begun) }

// reservedSegments is the disk space that a node reserves, in log files.
const reservedSegments = 8

// live is the whole run, inside the bubble.
func (w *world) live() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	configure := func(i int, cfg *node.Config) {
		cfg.LogSegmentBytes = w.plan.Segment
		cfg.DiskReserve = reservedSegments * w.plan.Segment
		w.plan.turn(cfg)
		if w.opts.Configure != nil {
			w.opts.Configure(i, cfg)
		}
	}
	var err error
	w.c, err = sim.Start(ctx, sim.Options{
		Nodes: w.plan.Nodes, Shards: w.plan.Shards, Seed: w.plan.Seed, Logger: w.opts.Logger, Sync: 300 * time.Microsecond,
		Create: w.plan.knobTime(knobNewFile), Configure: configure,
	})
	if !w.hold("restarts", err == nil, "the cluster does not start: %v", err) {
		return
	}
	defer w.c.Stop()
	w.admin, err = w.dial(clientHosts - 1)
	if !w.hold("healed-reads", err == nil, "dial: %v", err) {
		return
	}
	defer w.admin.Close()
	chosen := w.drawWorkloads()
	for _, ns := range spaces(chosen) {
		if _, err = w.admin.CreateNamespace(ctx, ns); !w.hold("healed-writes", err == nil, "create namespace %s: %v", ns.Name, err) {
			return
		}
	}
	if w.opts.Inject != nil {
		w.opts.Inject(ctx, w.c)
	}
	finish, err := w.startClients(chosen)
	if !w.hold("healed-reads", err == nil, "dial: %v", err) {
		return
	}
	w.suffer()
	w.mend()
	w.gather()
	w.heal()
	settlers := finish()
	w.settle(settlers)
	w.judgeSnapshots()
	w.judgeCollapses()
	for _, read := range w.autopsies {
		read()
	}
}

// dial connects a client on one of the clients' machines.
func (w *world) dial(host int) (*ebb.Client, error) {
	var addrs []string
	for i := range w.plan.Nodes {
		addrs = append(addrs, w.c.IP(i)+":7070")
	}
	return ebb.DialOptions(context.Background(), addrs, slices.Concat([]ebb.Option{
		ebb.WithDialer(w.c.Dialer(clientIP(host))), ebb.WithAttemptTimeout(w.plan.knobTime(knobTry)),
		ebb.WithWindow(w.plan.window()), ebb.WithLimits(w.plan.sdk()), ebb.WithBackoff(w.plan.backoff()),
	}, w.opts.Client)...)
}

// client is one concurrent user of the cluster. It makes its own random choices, and may share its connection.
type client interface {
	// work does one piece of work.
	work(c *ebb.Client)
	// settle makes the last check of the client, when all is mended and all clients have stopped working.
	settle(ctx context.Context, c *ebb.Client)
}

// pauseMax is the longest pause of a client between two calls of work, in ms.
const pauseMax = 300

// startClients starts all clients. finish stops them, and returns them for their last check.
func (w *world) startClients(chosen []workload) (finish func() []client, err error) {
	w.counts, w.texts = newCounts(w), newTexts(w)
	workers := []client{
		&writer{w.counts, w.rng(1)}, &writer{w.counts, w.rng(2)}, &writer{w.counts, w.rng(3)}, &reader{w.counts, w.rng(4)}, &reader{w.counts, w.rng(5)},
		newOwner(w, 0), newSurveyor(w), newTexter(w.texts, 0), newTexter(w.texts, 1), newTexter(w.texts, 2),
	}
	for _, l := range chosen {
		workers = append(workers, l.clients(w)...)
	}
	var hosts []*ebb.Client
	for host := range clientHosts - 1 {
		c, err := w.dial(host)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, c)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, k := range workers {
		rng := w.rng(uint64(100 + i))
		c := hosts[i%len(hosts)]
		wg.Go(func() {
			for ctx.Err() == nil {
				k.work(c)
				pause := millis(rng, 0, pauseMax)
				if w.waiting.Load() {
					pause *= 20
				}
				time.Sleep(pause)
			}
		})
	}
	wg.Go(func() { w.observe(ctx) })
	return func() []client {
		stop()
		wg.Wait()
		for _, c := range hosts {
			c.Close()
		}
		return workers
	}, nil
}

func (w *world) rng(who uint64) *rand.Rand { return rand.New(rand.NewPCG(w.plan.Seed, who)) }

// suffer runs the outage and injects the faults of the plan, in order.
func (w *world) suffer() {
	time.Sleep(500 * time.Millisecond)
	if w.plan.Outage {
		w.outage()
	}
	for _, a := range w.plan.Faults {
		time.Sleep(a.Wait)
		w.strike(a)
		time.Sleep(a.Hold)
		if a.Mend {
			w.mend()
		}
	}
}

// strike injects one fault.
func (w *world) strike(a Fault) {
	f, ok := FamilyOf(a.Family)
	if !ok {
		panic("no family is called " + a.Family)
	}
	w.line(LineFault, "%d. %s begins", a.Number, a)
	w.span(a.String())
	w.texts.strikes()
	w.idle = false
	detail := f.inject(w, a.Dose)
	w.texts.struckStill()
	w.line(LineFault, "%d. %s: %s", a.Number, a, detail)
	if !w.idle {
		w.mu.Lock()
		w.verdict.Faults[a.Family]++
		w.mu.Unlock()
	}
	w.compare()
}

// nothing marks the fault being injected as one without effect, which is not counted. It returns why.
func (w *world) nothing(why string) string {
	w.idle = true
	return why
}

// outage cuts off the leader of one key's shard. The majority must acknowledge increments of that key again within
// outageMax.
func (w *world) outage() {
	shard := proto.ShardOf(countsNamespace, []byte(keyName(0)), w.plan.Shards)
	leader := max(0, w.c.Leader(shard))
	w.line(LineFault, "%s, which leads shard %d, is cut off from the other nodes", w.c.Name(leader), shard)
	w.span("outage")
	w.texts.strikes()
	w.c.Isolate(leader)
	cut := time.Now()
	time.Sleep(time.Second) // what was on its way has arrived
	w.texts.struckStill()
	before := w.counts.ackedOf(0)
	for w.counts.ackedOf(0) == before && time.Since(cut) <= outageMax {
		ctx, cancel := context.WithTimeout(context.Background(), outageMax)
		w.counts.add(ctx, w.admin, 0, 1, w.rng(6))
		cancel()
	}
	took := time.Since(cut)
	w.hold("majority-serves", w.counts.ackedOf(0) > before && took <= outageMax, "the majority acknowledged nothing of %s in %v after %s was cut off", keyName(0), took, w.c.Name(leader))
	w.mu.Lock()
	w.verdict.Outages = append(w.verdict.Outages, took)
	w.mu.Unlock()
	w.c.Heal()
	w.mended()
	w.line(LineMend, "all links work again")
}

// mend ends all faults, and starts the dead nodes.
func (w *world) mend() {
	for _, f := range Families {
		f.mend(w)
	}
	w.whole = true
	w.restart()
	w.whole = false
	w.mended()
	w.line(LineMend, "all is mended")
}

// restart starts the nodes that are dead, but not those that were removed.
func (w *world) restart() {
	for i := range w.c.Nodes() {
		if !w.ended(i) {
			w.start(i)
		}
	}
}

// ended reports whether a node that is to be removed has ended because the cluster removed it.
func (w *world) ended(i int) bool {
	return w.leaving[i] && slices.ContainsFunc(w.c.Collapses(), func(c sim.Collapse) bool { return c.Node == i && errors.Is(c, proto.ErrWrongCluster) })
}

// start starts a dead node. If the disk of the node is found damaged, the node gets an empty one.
func (w *world) start(i int) {
	if w.c.Node(i) != nil {
		return
	}
	err := w.damage(i)
	if err == nil {
		err = w.c.Restart(context.Background(), i)
	}
	if why := w.damaged[i]; why != "" && (err == nil || corrupt(err)) {
		w.hold("damage-seen", corrupt(err), "%s starts with a damaged log: %s", w.c.Name(i), why)
		delete(w.damaged, i)
	}
	if corrupt(err) && w.excused(i, err) {
		w.hold("damage-seen", true, "")
		w.line(LineNode, "%s cannot go on, and gets an empty disk: %v", w.c.Name(i), err)
		w.wipe(i)
		err = w.c.Restart(context.Background(), i)
	}
	if w.leaving[i] && errors.Is(err, proto.ErrWrongCluster) {
		return
	}
	if !w.whole && errors.Is(err, diskError) && w.excused(i, err) { // until its disk is mended, it need not start
		w.line(LineNode, "%s does not start: %v", w.c.Name(i), err)
		return
	}
	if w.hold("restarts", err == nil, "%v", err) {
		w.line(LineNode, "%s runs", w.c.Name(i))
	}
}

// damage returns the error with which node i ended because of a damaged disk. It is nil if the disk was replaced since
// then.
func (w *world) damage(i int) error {
	for _, c := range w.c.Collapses() {
		if c.Node == i && corrupt(c) && !w.wiped[i] {
			return c
		}
	}
	return nil
}

func (w *world) excuse(i int, why error) { w.excuses[i] = append(w.excuses[i], why) }

func (w *world) excused(i int, err error) bool {
	return slices.ContainsFunc(w.excuses[i], func(why error) bool { return errors.Is(err, why) })
}
