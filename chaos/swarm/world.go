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
	Logger    *slog.Logger                              // of the nodes; nothing if nil
	Configure func(i int, cfg *node.Config)             // changes a node's configuration before each of its lives
	Client    []ebb.Option                              // of every client
	Inject    func(ctx context.Context, c *sim.Cluster) // is called once the cluster serves, to plant something
	Workloads []string                                  // names of the workloads to run; drawn from the seed if nil
}

// Bubble runs f in virtual time, and returns when all that f began has ended: synctest.Test, given a test.
type Bubble func(f func())

// diskError is what excuses the end of a node whose disk failed.
var diskError = proto.ErrDisk

const (
	countsNamespace = "counts" // forgets nothing
	fadingNamespace = "fading" // halves every hour
	slicedNamespace = "sliced" // bitmaps that lie in all shards
	fadingHalfLife  = time.Hour

	// clientHosts is how many machines clients are on.
	clientHosts = 4
	// outageMax is how long a shard may be without acknowledgements when its leader is cut off: an election, and tries
	// of the SDK at the old leader.
	outageMax = 8 * time.Second
	// healMax is how long writes may fail after all was mended.
	healMax = 8 * time.Second
	// homeMax is how long leaders may be away from home after all was mended: a node that has just started leads
	// nothing for 10 s, and a hand-over that failed is tried again after 30 s.
	homeMax = time.Minute
	// readyMax is how long a node may take to become ready after all was mended.
	readyMax = time.Minute
)

func clientIP(host int) string { return fmt.Sprintf("10.0.1.%d", host+1) }

// world is one run.
type world struct {
	plan  Plan
	opts  Options
	c     *sim.Cluster
	begun time.Time
	admin *ebb.Client

	// of the one goroutine that injects
	skewed     map[int]bool   // nodes whose clocks are wrong
	manySkewed bool           // no majority of clocks was right at some time
	everSkewed atomic.Bool    // some clock was wrong at some time
	leaving    map[int]bool   // nodes that the cluster is to be without
	wiped      map[int]bool   // nodes whose disks were replaced
	damaged    map[int]string // dead nodes whose logs must be refused, and why
	mendAll    func()         // mend, which knows all families, for one of these
	whole      bool           // nothing is broken: a dead node must start
	wishes     []*ebbv1.ChangeClusterRequest
	latest     time.Duration   // how late what is sent may come
	idle       bool            // the fault that is being injected has done nothing, or not yet
	said       string          // what the cluster answered last when it was asked for a change
	releases   []chan struct{} // of disks that hang
	excuses    map[int][]error // why nodes may end

	counts *counts
	texts  *texts

	judges    []func() // of histories, when the bubble has ended
	autopsies []func() // at the very end, which may end the nodes

	waiting atomic.Bool // for something slow: clients do little while it is set

	mu      sync.Mutex // guards what follows; never held over a wait
	verdict *Verdict
	reigns  map[uint32]*Reign // now, by shard
	leaders map[[2]uint64]string
	clocks  map[[3]uint64]int64 // by node, life and shard
	applied map[uint32]uint64   // the last entry of a shard that any replica has been seen to have applied
}

// Run does what the plan says in a bubble of its own.
func Run(bubble Bubble, plan Plan, opts Options) (v *Verdict) {
	v = &Verdict{Plan: plan, Faults: map[string]int{}, Checks: map[string]int{}}
	began := time.Now()
	ended := false
	defer func() { v.Real = time.Since(began) }()
	defer func() {
		v.Checks["nothing-left"]++
		v.Checks["time-goes-on"]++
		if r := recover(); r != nil { // synctest says that goroutines are left that wait for nothing to come
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

// reservedSegments is how many files of the log fit into what a node holds back of its disk.
const reservedSegments = 8

// live is the whole run.
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

// client works until it is stopped, with a connection that it may share and chances of its own.
type client interface {
	// work does one thing.
	work(c *ebb.Client)
	// settle is its last check, when all is mended and no client works any more.
	settle(ctx context.Context, c *ebb.Client)
}

// pauseMax is how long a client rests at most between two things.
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

// suffer does what the plan says.
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

// nothing says why a fault that is being injected does nothing: it is not counted.
func (w *world) nothing(why string) string {
	w.idle = true
	return why
}

// outage cuts off the leader of one key, and sees the majority acknowledge increments of that key again.
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

// mend makes everything usual again, and starts the nodes that are dead.
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

// ended reports whether a node that is to leave has learned that it did.
func (w *world) ended(i int) bool {
	return w.leaving[i] && slices.ContainsFunc(w.c.Collapses(), func(c sim.Collapse) bool { return c.Node == i && errors.Is(c, proto.ErrWrongCluster) })
}

// start starts a node that is dead. One whose disk is damaged comes back with an empty one.
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
	if !w.whole && errors.Is(err, diskError) && w.excused(i, err) { // a full or failing disk is refused until it is mended
		w.line(LineNode, "%s does not start: %v", w.c.Name(i), err)
		return
	}
	if w.hold("restarts", err == nil, "%v", err) {
		w.line(LineNode, "%s runs", w.c.Name(i))
	}
}

// damage is why a node ended that found its disk damaged, unless it has another by now.
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
