package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Family is a kind of fault.
type Family struct {
	Name string
	What string // what happens, in words
	// Can returns why this machine cannot inject the fault; nil if it can.
	Can func() error

	network, disk, tls bool // what the fleet needs: networks or disks of its own, TLS
	holdMin, holdMax   time.Duration
	// holdLong is how long one fault in longOneIn may last, but no longer than a tenth of the run. 0: no fault lasts
	// longer than holdMax.
	holdLong time.Duration
	// strike injects the fault and returns a function that mends it; nil if nothing is left to mend. The caller later
	// starts the processes that have ended. Both functions return errNothing if the fault had no effect.
	strike func(ctx context.Context, w *world) (mend func() error, err error)
}

// cyclesFor is the assumed length of a run if only its number of faults is given.
const cyclesFor = 15 * time.Minute

// Bare reports whether a family needs processes alone: no network and no disk of their own.
func (f Family) Bare() bool { return !f.network && !f.disk && f.strike != nil }

// longOneIn says how often a fault lasts long, in a family with holdLong: one time in so many.
const longOneIn = 6

// lasts draws how long a fault lasts.
func (w *world) lasts(f Family) time.Duration {
	long := min(f.holdLong, cmp.Or(w.t.For, cyclesFor)/10)
	d := w.between(f.holdMin, f.holdMax)
	if w.rng.IntN(longOneIn) == 0 && long > f.holdMax {
		d = w.between(f.holdMax, long)
	}
	if w.t.HoldMax > 0 {
		d = min(d, w.t.HoldMax)
	}
	return d
}

var (
	canCut  = sync.OnceValue(CanCut)
	canLose = sync.OnceValue(CanLose)
)

func can() error { return nil }

// Families are all families of faults.
var Families = slices.Concat(processFaults, networkFaults, diskFaults, callFaults, memoryFaults, memberFaults, impossible)

// FamilyNames are the names of all families, in the order of the table.
func FamilyNames() []string {
	var names []string
	for _, f := range Families {
		names = append(names, f.Name)
	}
	return names
}

// Choose returns the named families, or all if names is empty. Families that this machine cannot inject are in skipped
// instead. Choose fails if no family is left.
func Choose(names []string) (able []Family, skipped []Skipped, err error) {
	var last error
	for _, f := range Families {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		if why := f.Can(); why != nil {
			skipped = append(skipped, Skipped{f.Name, why.Error()})
			last = fmt.Errorf("%s cannot be done here: %w", f.Name, why)
			continue
		}
		able = append(able, f)
	}
	if len(able) == 0 {
		return nil, nil, last
	}
	return able, skipped, nil
}

var processFaults = []Family{
	{
		Name: "kill", What: "a process is killed", Can: can, holdMin: 100 * time.Millisecond, holdMax: 5 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			w.kill(w.killableVictim(ctx))
			return nil, nil //nolint:nilnil // the caller starts it again
		},
	},
	{
		Name: "kill-all", What: "all processes are killed at once", Can: can, holdMax: 500 * time.Millisecond,
		strike: func(_ context.Context, w *world) (func() error, error) {
			w.kill(w.killable()...)
			return nil, nil //nolint:nilnil // as above
		},
	},
	{
		Name: "pause", What: "a process stops where it is, for 0.1 to 15 s, one time in six up to 60 s, and goes on", Can: func() error { return canPause },
		holdMin: 100 * time.Millisecond, holdMax: 15 * time.Second, holdLong: time.Minute,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			i := w.victim(ctx)
			w.tell("%s stops", w.f.Name(i))
			return func() error { return w.f.Resume(i) }, w.f.Pause(i)
		},
	},
	{
		Name: "starve", What: "a process gets a tenth of the time: it is stopped for 45 ms of every 50", Can: func() error { return canPause }, holdMin: time.Second, holdMax: 8 * time.Second,
		strike: func(ctx context.Context, w *world) (func() error, error) { return w.starve(w.victim(ctx)), nil },
	},
	{
		Name: "rolling-restart", What: "each node ends in order and starts again, one after the other", Can: can,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			for _, i := range w.killable() {
				w.tell("%s is stopped in order", w.f.Name(i))
				w.f.Interrupt(i)
				w.start(i)
				if !w.until(ctx, readyMax, func(ctx context.Context) bool { return !w.f.Runs(i) || w.f.Ready(ctx, i) }) {
					break // the wait for all of them reports it
				}
			}
			return nil, nil //nolint:nilnil // all run
		},
	},
	{
		Name: "certificates", What: "nodes and clients get new certificates while they run, and one starts again", Can: can, tls: true,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			if err := w.certs.issue(ctx); err != nil {
				return nil, err
			}
			i := w.killableVictim(ctx)
			w.tell("new certificates; %s is stopped in order", w.f.Name(i))
			w.f.Interrupt(i)
			w.start(i)
			return nil, nil //nolint:nilnil // all run
		},
	},
}

// cutMax is how long a network cut may last. A tenth of the run is mostly less.
const cutMax = 10 * time.Minute

// weather makes a family of network faults. cutOff sets the rules for packets and returns a line for the story; mending
// removes all rules.
func weather(name, what string, long time.Duration, cutOff func(ctx context.Context, w *world, n *Network) string) Family {
	return Family{
		Name: name, What: what, Can: canCut, network: true, holdMin: 500 * time.Millisecond, holdMax: 12 * time.Second, holdLong: long,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			w.tell("%s", cutOff(ctx, w, w.testbed.Net))
			return func() error { w.testbed.Net.Heal(); return nil }, nil
		},
	}
}

var networkFaults = []Family{
	weather("cut", "a node and the others do not hear each other; clients hear all; one time in six for up to 10 min", cutMax, func(ctx context.Context, w *world, n *Network) string {
		i := w.victim(ctx)
		n.Isolate(w.port(i), w.ports(w.others(i)))
		return w.f.Name(i) + " is cut off from the others"
	}),
	weather("cut-all", "neither the other nodes nor clients hear a node; one time in six for up to 10 min", cutMax, func(ctx context.Context, w *world, n *Network) string {
		i := w.victim(ctx)
		n.Isolate(w.port(i), append(w.ports(w.others(i)), w.testbed.Clients()))
		return w.f.Name(i) + " is cut off from everybody"
	}),
	weather("one-way", "a node hears nobody, or no node hears it; one time in six for up to 10 min", cutMax, func(ctx context.Context, w *world, n *Network) string {
		i, deaf := w.victim(ctx), w.rng.IntN(2) == 0
		for _, other := range w.ports(w.others(i)) {
			if deaf {
				n.Set(other, w.port(i), Weather{Cut: true})
			} else {
				n.Set(w.port(i), other, Weather{Cut: true})
			}
		}
		if deaf {
			return w.f.Name(i) + " hears no other node"
		}
		return "no other node hears " + w.f.Name(i)
	}),
	weather("pair", "two nodes do not hear each other; one time in six for up to 10 min", cutMax, func(ctx context.Context, w *world, n *Network) string {
		i := w.victim(ctx)
		others := w.others(i)
		other := others[w.rng.IntN(len(others))]
		n.Isolate(w.port(i), w.ports([]int{other}))
		return fmt.Sprintf("%s and %s do not hear each other", w.f.Name(i), w.f.Name(other))
	}),
	weather("delay", "packets between nodes are 5 to 200 ms late, and up to as much again", 0, func(_ context.Context, w *world, n *Network) string {
		d := w.between(5*time.Millisecond, 200*time.Millisecond)
		w.everywhere(n, Weather{Delay: d, Jitter: d})
		return fmt.Sprintf("packets between nodes are %v late", d.Round(time.Millisecond))
	}),
	weather("loss", "1 to 30% of packets between nodes are lost, and some come twice", 0, func(_ context.Context, w *world, n *Network) string {
		part := 0.01 + 0.29*w.rng.Float64()
		w.everywhere(n, Weather{Loss: part, Duplicate: part})
		return fmt.Sprintf("%.0f%% of packets between nodes are lost, and as many come twice", 100*part)
	}),
}

// port is the number of a node's machine in the network.
func (w *world) port(i int) int { return w.f.Machine(i).number }

func (w *world) ports(nodes []int) (ports []int) {
	for _, i := range nodes {
		ports = append(ports, w.port(i))
	}
	return ports
}

// everywhere sets the same rule for packets between any two members.
func (w *world) everywhere(n *Network, what Weather) {
	for _, i := range w.members {
		for _, j := range w.others(i) {
			n.Set(w.port(i), w.port(j), what)
		}
	}
}

// killable returns the members whose processes may be ended.
func (w *world) killable() []int {
	return slices.DeleteFunc(slices.Clone(w.members), func(i int) bool { return i == w.witness })
}

// kill kills processes at once.
func (w *world) kill(nodes ...int) {
	var wg sync.WaitGroup
	for _, i := range nodes {
		w.tell("%s is killed", w.f.Name(i))
		w.down[i] = true
		wg.Go(func() { w.f.Kill(i) })
	}
	wg.Wait()
}

// starve suspends a process for most of the time, until mend.
func (w *world) starve(i int) (mend func() error) {
	const on, off = 5 * time.Millisecond, 45 * time.Millisecond
	w.tell("%s gets little time", w.f.Name(i))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for failed == nil {
			failed = w.f.Pause(i)
			over := wait(ctx, off)
			failed = errors.Join(failed, w.f.Resume(i))
			if over || wait(ctx, on) {
				return
			}
		}
	})
	return func() error {
		cancel()
		wg.Wait()
		return failed
	}
}

// wait waits for d at most, and reports whether ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(d):
		return false
	}
}

// impossible are the families that cannot be injected into real processes on any machine so far.
var impossible = []Family{
	{
		Name: "clock-jump", What: "the clock of a node jumps",
		Can: func() error {
			return errors.New("the wall clock of one process cannot be set apart from the machine's: `ebb chaos sim` breaks clocks")
		},
	},
}
