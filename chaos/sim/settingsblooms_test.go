package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// Blooms under settings that change: a bin is found as long as the half-life that its key was made with, and gone an
// eighth later. See docs/kinds.md.
func TestBloomsUnderRandomSettings(t *testing.T) {
	first, seeds := settingsRange(t, 2*settingsSeeds)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 0x626c6f6f6d))
			opts := Options{Shards: 8, Seed: uint64(seed)}
			inBubble(t, opts, func(t *testing.T, c *Cluster) {
				var clients []*ebb.Client
				for i := range c.Nodes() {
					clients = append(clients, dialNode(t, c, i))
					defer clients[i].Close()
				}
				for n := range 4 {
					r := &bloomRun{settingsRun: settingsRun{
						T: t, rng: rng, cluster: c, clients: clients, name: fmt.Sprint("n", n), event: true,
					}}
					r.run()
				}
			})
		})
	}
}

// bloomRun is one namespace of blooms.
type bloomRun struct {
	settingsRun
	blooms map[string]*bloomKey

	live, gone, wrong int // bins that are to be found, that are not, and those of these that were
}

// bloomKey is what is known of a key.
type bloomKey struct {
	halfLives map[float64]bool // that it may have, in microseconds; infinite under none
	latest    float64
	bins      map[string][]bloomEvent
}

type bloomEvent struct{ at, least, most float64 }

func (r *bloomRun) run() {
	ctx := context.Background()
	r.unit = r.between(10e6, 6e11)
	ns := r.settings()
	ns.Clock, ns.MaxJump = ebb.ClockEvent, new(time.Duration(0))
	r.blooms = map[string]*bloomKey{}
	for k := range 3 + r.rng.IntN(10) {
		key := fmt.Sprint("k", k)
		r.keys = append(r.keys, key)
		r.blooms[key] = &bloomKey{halfLives: map[float64]bool{}, bins: map[string][]bloomEvent{}}
	}
	ns, err := r.client().CreateNamespace(ctx, ns)
	if err != nil {
		r.Fatal(err)
	}
	r.epochs = append(r.epochs, settingsEpoch{Namespace: ns})
	r.now = math.Floor(r.wall() - 1400*r.unit)
	for range 5 + r.rng.IntN(10) {
		r.write()
		r.ask()
		for n := r.rng.IntN(3); n > 0; n-- {
			r.set()
		}
		r.ask()
	}
	r.Logf("%d bins found, %d gone, %d of these found", r.live, r.gone, r.wrong)
	if r.wrong > 10+r.gone/50 {
		r.Errorf("%s: %d of %d bins that are gone are found", r.name, r.wrong, r.gone)
	}
}

// write writes a burst by one to three writers.
func (r *bloomRun) write() {
	first, last := r.now, r.now+r.unit*r.pick(0, 0.1, 1, 3, 10, r.between(0.01, 30))
	late := r.unit * r.pick(0.1, 1, 10)
	var wait sync.WaitGroup
	var sent []ebb.Increment
	for range 1 + r.rng.IntN(3) {
		var batch []ebb.Increment
		for range 1 + r.rng.IntN(100) {
			at := first + r.rng.Float64()*(last-first)
			if r.rng.IntN(4) == 0 {
				at = max(at-late*r.rng.Float64(), 1)
			}
			batch = append(batch, ebb.Increment{
				Key: r.keys[r.rng.IntN(len(r.keys))], Bin: fmt.Sprint("b", r.rng.IntN(100)),
				Amount: r.pick(1, 1e-6, 100), Kind: ebb.KindBloom, Time: timeAt(at),
			})
		}
		sent = append(sent, batch...)
		client, whole := r.client(), r.rng.IntN(2) == 0
		wait.Go(func() { r.send(client, batch, whole) })
	}
	wait.Wait()
	before := r.now
	for _, in := range sent {
		r.now = max(r.now, micros(in.Time))
	}
	latest := map[string]float64{}
	for _, in := range sent {
		key := r.blooms[in.Key]
		if _, seen := latest[in.Key]; !seen {
			key.mayHave(r.halfLife(), before, r.now)
		}
		latest[in.Key] = max(latest[in.Key], micros(in.Time))
	}
	for _, in := range sent {
		key, e := r.blooms[in.Key], bloomEvent{micros(in.Time), math.Inf(1), 0}
		for h := range key.halfLives {
			e.least, e.most = min(e.least, h), max(e.most, h)
		}
		key.bins[in.Bin] = append(key.bins[in.Bin], e)
		key.latest = max(key.latest, latest[in.Key])
	}
	r.did("write to %v", r.now)
}

// halfLife is that of a key that is made now.
func (r *bloomRun) halfLife() float64 {
	ns := r.epochs[len(r.epochs)-1]
	if ns.Decay == ebb.DecayNone {
		return math.Inf(1)
	}
	return float64(ns.HalfLife.Microseconds())
}

// mayHave takes into account that a key is written to between two times, and may have ended before.
func (k *bloomKey) mayHave(present, from, to float64) {
	if len(k.halfLives) == 0 {
		k.halfLives[present] = true
		return
	}
	next := map[float64]bool{}
	for h := range k.halfLives {
		if from-k.latest <= h*1.2 {
			next[h] = true
		}
		if to-k.latest > h {
			next[present] = true
		}
	}
	k.halfLives = next
}

// ask asks about all bins of some keys.
func (r *bloomRun) ask() {
	names := []string{"never"}
	for b := range 100 {
		names = append(names, fmt.Sprint("b", b))
	}
	for _, name := range r.keys[:1+r.rng.IntN(len(r.keys))] {
		var asOf []ebb.AskOption
		if r.rng.IntN(3) == 0 {
			asOf = append(asOf, ebb.AsOf(timeAt(r.now+r.unit*r.pick(-1, 0.5, 5))))
		}
		query := ebb.SummaryQuery{Keys: []string{name}, Bins: names}
		s, err := r.client().Summary(context.Background(), r.name, query, asOf...)
		if err != nil {
			r.Fatal(err)
		}
		for i, bin := range names {
			r.judge(name, bin, len(s.Memberships) > i && s.Memberships[i].Contained, s.AsOf)
		}
	}
}

func (r *bloomRun) judge(key, bin string, found bool, asOf time.Time) {
	there, gone := false, true
	for _, e := range r.blooms[key].bins[bin] {
		age := micros(asOf) - e.at
		there = there || age < e.least
		gone = gone && age > e.most*1.125+1
	}
	switch {
	case there:
		if r.live++; !found {
			r.Errorf("%s: %s of %s should be there as of %v (now %v): %v, half-lives %v\n%s",
				r.name, bin, key, micros(asOf), r.now,
				r.blooms[key].bins[bin], r.blooms[key].halfLives, strings.Join(r.steps, "\n"))
		}
	case gone:
		if r.gone++; found {
			r.wrong++
		}
	}
}
