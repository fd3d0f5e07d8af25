package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/client"
)

// Trial breaks a fleet of processes under load, again and again, and mends it each time.
//
//	start ── load ──────────────────────────────────────────────────────────── stop
//	          fault, hold, mend, healed? | fault, hold, mend, healed? | ...  | count every key, compare replicas
//
// A seed decides which faults come in which order, for how long, and against which nodes. It does not decide what the
// processes do in this time.
type Trial struct {
	Binary   string        // the ebb binary
	Dir      string        // for data and logs
	Seed     uint64        //
	Nodes    int           // that the cluster starts with
	Shards   uint32        //
	Families []string      // of faults; all that this machine can do if empty
	Rate     int           // increments a second
	For      time.Duration // begin no fault after this long; 0: see Cycles
	Cycles   int           // the number of faults; 0: see For
	HoldMax  time.Duration // no fault lasts longer; 0: as long as its family says
	// Soak never ends the process of the first node, so that its use of resources can be observed over a long time. It
	// also leaves pauses between faults, in which the load must reach the rate.
	Soak bool
	// Progress receives a line for each event, and from time to time one about how far the trial is. It may be nil.
	Progress func(line string)
}

const (
	// spareMachines are for nodes that join.
	spareMachines = 2
	// retryFor is how long the load sends a batch again and again: longer than anything is broken.
	retryFor = 4 * time.Minute
	// readyMax is how long nodes may take to become ready after all is mended. healedMax is how long the load may then
	// take to be acknowledged again.
	readyMax, healedMax = 2 * time.Minute, time.Minute
	// movedMax is how long a change of the members, or of the placement of replicas, may take.
	movedMax = 4 * time.Minute
	// auditMax is how long reading all keys, and comparing all replicas, may take.
	auditMax = time.Minute
	// gapMin and gapMax bound the pause before each fault.
	gapMin, gapMax     = 200 * time.Millisecond, 1500 * time.Millisecond
	quietMin, quietMax = 2 * time.Second, 5 * time.Second // of a soak
	// rateShare is the share of the rate that must be acknowledged, at the median of the pauses between faults.
	rateShare = 0.9
	// auditEvery is the number of faults from one audit of all keys to the next. The load continues during an audit.
	auditEvery = 5
	// samples is about how many samples a trial takes of each process.
	samples = 240
)

// readInvariants must hold for every linearizable read that is answered, during faults and between them.
var readInvariants = []swarm.Invariant{
	{Name: "read-fresh", Holds: "a linearizable read has all that was acknowledged before it was asked, also at a node that is cut off, or was stopped"},
	{Name: "read-monotone", Holds: "a linearizable read has all that any read had that was answered before it was asked"},
	{Name: "read-possible", Holds: "a read has no more than was sent"},
}

// Invariants are all invariants that a trial checks.
var Invariants = slices.Concat(readInvariants, []swarm.Invariant{
	{Name: "acked-kept", Holds: "what was acknowledged is counted, during the run and at its end"},
	{Name: "counted-once", Holds: "no more is counted than was acknowledged, has an unknown outcome or is under way"},
	{Name: "readable", Holds: "every key is readable when all was mended"},
	{Name: "restarts", Holds: fmt.Sprintf("whoever was ended starts again, and is ready within %v", readyMax)},
	{Name: "healed-writes", Holds: fmt.Sprintf("the load is acknowledged again within %v after all was mended", healedMax)},
	{Name: "no-collapse", Holds: "no process ends of itself, except where its disk failed or it was removed"},
	{Name: "fail-stop", Holds: "a process ends whose disk has failed, or the log, node.json or table.pb on it"},
	{Name: "damage-seen", Holds: "a process whose log or snapshot has a flipped bit refuses it with " + corruptCode + " and ends, or nothing is missing"},
	{Name: "members-as-asked", Holds: fmt.Sprintf("nodes have come and gone, and replicas moved, within %v", movedMax)},
	{Name: "replicas-equal", Holds: "at the end all replicas of a shard have the same checksum"},
	{Name: "nothing-grows", Holds: "goroutines, descriptors and memory of a process are flat over the second half of a run, where one lived through it and it took " + TrendMin.String() + " at least: " + growthAllowed()},
	{Name: "rate", Holds: fmt.Sprintf("in a soak, at the median of the times between faults, %.0f%% of --rate is acknowledged at least", 100*rateShare)},
})

// deadlines are the invariants about time limits and rates. They say nothing about what was acknowledged or read.
var deadlines = []string{"restarts", "healed-writes", "members-as-asked", "rate"}

// Report is the result of a trial.
type Report struct {
	Soak    bool           `json:"soak,omitempty"`
	Command string         `json:"command,omitempty"`
	Verdict *swarm.Verdict `json:"verdict"`
	Ledger  Totals         `json:"ledger"`
	Keys    int            `json:"keys"`  // that the last audit compared with the ledger
	Lost    int            `json:"lost"`  // keys that count less than was acknowledged
	Twice   int            `json:"twice"` // keys that count more than was sent
	Stale   int            `json:"stale"` // reads that returned less than was acknowledged or read before, or more than was sent
	Reads   []Reads        `json:"reads"` // reads during the trial
	// Interrupted reports whether the run was cut short. What had not been compared by then is not judged.
	Interrupted bool      `json:"interrupted,omitempty"`
	Skipped     []Skipped `json:"skipped"` // families that this machine cannot do
	Outages     []Outage  `json:"outages"`
	Rate        *Rate     `json:"rate,omitempty"` // of a soak
	Trends      []Trend   `json:"trends"`         // none where no process lived long enough
	Samples     []Sample  `json:"samples,omitempty"`
}

// Skipped is a family of faults that this machine cannot inject.
type Skipped struct {
	Family string `json:"family"`
	Why    string `json:"why"`
}

// Outage is how long it took, after faults of a family were mended, until all nodes were ready and the load was
// acknowledged again.
type Outage struct {
	Family  string        `json:"family"`
	Times   int           `json:"times"`
	Median  time.Duration `json:"median_ns"`
	Longest time.Duration `json:"longest_ns"`
}

// Failed reports whether any invariant did not hold.
func (r *Report) Failed() bool { return r.Verdict.Failed() }

// Late reports whether the trial failed only by deadlines. Then it was not interrupted, and nothing was lost, counted
// twice or read stale.
func (r *Report) Late() bool {
	other := func(b swarm.Breach) bool { return !slices.Contains(deadlines, b.Invariant) }
	return r.Failed() && !r.Interrupted && !slices.ContainsFunc(r.Verdict.Breaches, other)
}

// Run starts the fleet, injects the faults and judges the results. An error says why there is no verdict. When ctx ends
// after the fleet has started, the report holds what was known by then.
func (t *Trial) Run(ctx context.Context) (_ *Report, err error) {
	able, skipped, err := Choose(t.Families)
	if err != nil {
		return nil, err
	}
	w, err := t.open(ctx, able)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // the interruption is the cause, whatever failed to start
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.strikeAll(ctx, able); err != nil && ctx.Err() == nil {
		return nil, err
	}
	if err := w.settle(ctx); err != nil && ctx.Err() == nil {
		return nil, err
	}
	r := w.report(skipped)
	r.Interrupted = ctx.Err() != nil
	return r, nil
}

// open starts a fleet and a load.
func (t *Trial) open(ctx context.Context, able []Family) (w *world, err error) {
	w = &world{t: t, over: func() bool { return ctx.Err() != nil }, began: time.Now(), down: make(map[int]bool), witness: -1, healed: make(map[string][]time.Duration)}
	if t.Soak {
		w.witness = 0
	}
	w.verdict = &swarm.Verdict{Plan: swarm.Plan{Seed: t.Seed, Nodes: t.Nodes, Shards: t.Shards}, Faults: map[string]int{}, Checks: map[string]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	o := TestbedOptions{Dir: filepath.Join(t.Dir, "disks"), Machines: t.Nodes + spareMachines}
	secure := false
	for _, f := range able {
		o.Network, o.Disks, secure = o.Network || f.network, o.Disks || f.disk, secure || f.tls
	}
	if w.testbed, err = NewTestbed(o); err != nil {
		return w, err
	}
	opts := Options{Binary: t.Binary, Dir: filepath.Join(t.Dir, "nodes"), Nodes: t.Nodes, Args: []string{"--shards", fmt.Sprint(t.Shards)}, Testbed: w.testbed}
	dial := []client.Option{client.WithDialer(w.testbed.Dial)}
	if secure {
		if w.certs, err = newCertificates(ctx, t.Binary, filepath.Join(t.Dir, "certs"), w.testbed); err != nil {
			return w, err
		}
		opts.Every = w.certs.serveArgs()
		cfg, err := w.certs.config("client")
		if err != nil {
			return w, err
		}
		dial = append(dial, client.WithTLS(cfg))
	}
	started, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	if w.f, err = Start(started, opts); err != nil {
		return w, err
	}
	for i := range t.Nodes {
		w.members = append(w.members, i)
	}
	if w.admin, err = client.DialOptions(started, w.f.Addrs(), dial...); err != nil {
		return w, err
	}
	if _, err = w.admin.CreateNamespace(started, client.Namespace{Name: LedgerNamespace, Decay: client.DecayNone}); err != nil {
		return w, err
	}
	if w.doors, err = newDoors(w.testbed.Dial, w.certs); err != nil {
		return w, err
	}
	for i := range t.Nodes {
		if err := w.doors.open(w.f.Name(i), w.f.GRPC(i)); err != nil {
			return w, err
		}
	}
	w.began = time.Now()
	w.load = StartLoad(LoadOptions{Client: w.admin, Doors: w.doors, Shards: t.Shards, Rate: t.Rate, RetryFor: retryFor})
	w.readers = &readers{ledger: &w.load.Ledger, keys: w.load.keys, client: w.admin, doors: w.doors, now: w.now, amid: w.amid}
	w.readers.start()
	w.count()
	return w, nil
}

// strikeAll injects one fault after the other, in rounds. Each round has every family once, in another order.
func (w *world) strikeAll(ctx context.Context, able []Family) error {
	order := rand.New(rand.NewPCG(w.t.Seed, 0x6f72646572))
	var round []Family
	for number := 1; w.goesOn(number); number++ {
		if len(round) == 0 {
			round = slices.Clone(able)
			order.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		f := round[0]
		round = round[1:]
		w.rng = rand.New(rand.NewPCG(w.t.Seed, uint64(number)))
		if err := w.strike(ctx, f); err != nil {
			return err
		}
		if w.over() {
			return nil
		}
		if number%auditEvery == 0 {
			if err := w.audit(ctx); err != nil {
				return err
			}
		}
		w.tell("%s", w.progress(number))
		if len(w.verdict.Breaches) > 0 {
			return nil // faults after a breach show nothing new
		}
	}
	return nil
}

func (w *world) goesOn(number int) bool {
	if w.t.Cycles > 0 && number > w.t.Cycles {
		return false
	}
	return w.t.For == 0 || w.now() < w.t.For
}

// strike injects one fault. It covers the time from the pause before the fault until the cluster has healed.
func (w *world) strike(ctx context.Context, f Family) error {
	if w.t.Soak {
		w.measureQuiet(ctx)
	} else {
		w.pass(ctx, w.between(gapMin, gapMax))
	}
	from := w.now()
	mend, err := f.strike(ctx, w)
	if err == nil {
		if f.holdMax > 0 {
			w.pass(ctx, w.lasts(f))
		}
		w.collapses()
		if mend != nil {
			if err = mend(); err != nil {
				err = fmt.Errorf("mend: %w", err)
			}
		}
	}
	if errors.Is(err, errNothing) {
		if !w.over() {
			w.tell("%s is not counted: %v", f.Name, err)
		}
		w.heal(ctx)
		w.collectReads()
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	w.verdict.Faults[f.Name]++
	w.verdict.Spans = append(w.verdict.Spans, swarm.Span{Fault: f.Name, From: from, To: w.now()})
	if took, ok := w.heal(ctx); ok {
		w.healed[f.Name] = append(w.healed[f.Name], took)
	}
	w.collectReads()
	return nil
}

// settle makes the final checks, after everything has been mended for good.
func (w *world) settle(ctx context.Context) error {
	if len(w.verdict.Breaches) == 0 {
		w.heal(ctx)
	}
	if len(w.verdict.Breaches) > 0 {
		w.load.Abandon() // after a breach, outcomes may never come
	} else if !w.over() {
		stop := context.AfterFunc(ctx, w.load.abandon)
		w.load.Stop()
		stop()
	}
	w.stopCounting()
	w.readers.close()
	w.collectReads()
	if w.over() {
		w.verdict.Virtual, w.trends = w.now(), Trends(w.samples, w.now()) // trends of the run so far only
		return nil
	}
	if err := w.audit(ctx); err != nil {
		return err
	}
	w.compareReplicas(ctx)
	if w.t.Soak {
		w.judgeRate()
	}
	w.verdict.Virtual = w.now()
	for _, trend := range Trends(w.samples, w.now()) {
		w.trends = append(w.trends, trend)
		w.hold("nothing-grows", !trend.Grows(), "%v", trend)
	}
	return nil
}

func (w *world) report(skipped []Skipped) *Report {
	r := &Report{
		Soak: w.t.Soak, Verdict: w.verdict, Ledger: w.load.Ledger.Totals(), Keys: w.keys, Lost: w.lost, Twice: w.twice,
		Skipped: skipped, Trends: w.trends, Samples: w.samples, Stale: w.stale, Reads: w.readers.sums(),
	}
	if w.t.Soak {
		r.Rate = w.rateReached()
	}
	w.verdict.Real = w.now()
	w.verdict.Tally = swarm.Tally{Acked: int(r.Ledger.Acknowledged), Unknown: int(r.Ledger.Unknown), Failed: int(r.Ledger.Refused), Reads: w.reads}
	for _, of := range r.Reads {
		w.verdict.Tally.Reads += of.Answered
		w.verdict.Tally.Unread += of.Refused
	}
	for _, f := range Families {
		if all := w.healed[f.Name]; len(all) > 0 {
			slices.Sort(all)
			r.Outages = append(r.Outages, Outage{f.Name, len(all), all[len(all)/2], all[len(all)-1]})
		}
	}
	return r
}

// close ends everything, in the reverse order.
func (w *world) close() (err error) {
	w.stopCounting()
	if w.readers != nil {
		w.readers.close()
	}
	if w.load != nil {
		w.load.Abandon()
	}
	if w.doors != nil {
		err = w.doors.close()
	}
	if w.admin != nil {
		w.admin.Close()
	}
	if w.f != nil {
		w.f.Close()
	}
	w.testbed.Close()
	if len(w.verdict.Breaches) == 0 {
		err = errors.Join(err, os.RemoveAll(filepath.Join(w.t.Dir, "disks")))
	}
	return err
}
