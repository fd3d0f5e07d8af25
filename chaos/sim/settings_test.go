package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// settingsSeeds is how many seeds TestCountsUnderRandomSettings takes; EBB_SETTINGS_SEEDS sets another number, and
// EBB_SETTINGS_FIRST the first one.
const settingsSeeds = 4

// Streams go to a cluster under random settings, which change on the way. Each count lies in what its answer states:
// see docs/kinds.md.
func TestCountsUnderRandomSettings(t *testing.T) {
	first, seeds := settingsRange(t, settingsSeeds)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 0x736574))
			opts := Options{Shards: []uint32{4, 4, 8, 8, 8, 16, 16, 64}[rng.IntN(8)], Seed: uint64(seed)}
			inBubble(t, opts, func(t *testing.T, c *Cluster) {
				if rng.IntN(2) == 0 {
					c.Net.SetUsual(Link{Delay: 10 * time.Millisecond, Jitter: 20 * time.Millisecond})
				}
				var clients []*ebb.Client
				for i := range c.Nodes() {
					clients = append(clients, dialNode(t, c, i))
					defer clients[i].Close()
				}
				compared := 0
				for n := range 3 {
					r := &settingsRun{
						T: t, rng: rng, cluster: c, clients: clients, name: fmt.Sprint("n", n), event: rng.IntN(4) > 0,
						faults: rng.IntN(4) == 0, during: rng.IntN(2) == 0,
					}
					r.run()
					compared += r.compared
				}
				t.Logf("%d bins compared", compared)
			})
		})
	}
}

// settingsRange is the first seed and how many there are: a tenth with -short.
func settingsRange(t *testing.T, usual int) (first, seeds int) {
	t.Helper()
	if seeds = usual; testing.Short() {
		seeds = max(1, seeds/10)
	}
	if n, err := strconv.Atoi(os.Getenv("EBB_SETTINGS_SEEDS")); err == nil {
		seeds = n
	}
	if n, err := strconv.Atoi(os.Getenv("EBB_SETTINGS_FIRST")); err == nil {
		first = n
	}
	return first, seeds
}

// span is a time or a count that is known by its ends.
type span struct{ low, high float64 }

// settingsEvent is an event that was acknowledged.
type settingsEvent struct {
	amount float64
	at     span   // in microseconds
	epoch  [2]int // the settings under which it came: the first and the last that it may have been
}

// settingsEpoch is the time for which settings held.
type settingsEpoch struct {
	ebb.Namespace
	from span
}

// settingsRun is one namespace.
type settingsRun struct {
	*testing.T
	rng     *rand.Rand
	cluster *Cluster
	clients []*ebb.Client
	name    string
	event   bool // it has an event clock
	compact bool
	signed  bool // amounts may be negative
	faults  bool // nodes die and come back
	during  bool // settings change while writers write

	unit   float64 // in microseconds: half-lives are around it
	now    float64 // the latest time of an event that was acknowledged
	keys   []string
	epochs []settingsEpoch
	events map[[2]string][]settingsEvent
	bins   map[string][]string
	steps  []string // what was done

	compared int
}

// clockFormat is how times of the bubble are shown.
const clockFormat = "15:04:05.000000"

// did notes a step, for what a failure says.
func (r *settingsRun) did(format string, args ...any) {
	r.steps = append(r.steps, fmt.Sprintf(format, args...))
}

func (r *settingsRun) pick(of ...float64) float64 { return of[r.rng.IntN(len(of))] }

// between is a number whose logarithm is uniform.
func (r *settingsRun) between(low, high float64) float64 {
	return math.Exp(math.Log(low) + r.rng.Float64()*math.Log(high/low))
}

// micros is a time in microseconds, which a double holds exactly.
func micros(t time.Time) float64 { return float64(t.UnixMicro()) }

// timeAt is the time of that.
func timeAt(us float64) time.Time { return time.UnixMicro(int64(us)) }

// wall is the time of the nodes.
func (r *settingsRun) wall() float64 { return micros(r.cluster.Clock(0).Now()) }

func (r *settingsRun) settings() ebb.Namespace {
	ns := ebb.Namespace{Name: r.name, Decay: ebb.DecayHalfLife, Threshold: r.between(1e-5, 0.9)}
	if r.rng.IntN(4) == 0 {
		ns.Decay = ebb.DecayNone
	}
	h := r.unit * r.pick(1, 1, 2, 0.5, 10, 0.1, r.between(0.05, 20))
	ns.HalfLife = time.Duration(max(h, 1e6)) * time.Microsecond
	return ns
}

func (r *settingsRun) run() {
	ctx := context.Background()
	r.unit = r.between(10e6, 6e11)
	if !r.event {
		r.unit = r.between(600e6, 36000e6)
		r.faults = false // with clocks that jump, sessions end while a write is tried again: its outcome is unknown
	}
	ns := r.settings()
	ns.Clock, ns.MaxJump = ebb.ClockWall, new(time.Duration(0))
	if r.event {
		ns.Clock = ebb.ClockEvent
	}
	if r.compact = r.rng.IntN(5) == 0; r.compact {
		ns.Precision = ebb.PrecisionCompact
	}
	if r.signed = r.rng.IntN(5) == 0; r.signed {
		ns.AllowNegative = &r.signed
	}
	r.events, r.bins = map[[2]string][]settingsEvent{}, map[string][]string{}
	for k := range 5 + r.rng.IntN(100) {
		r.keys = append(r.keys, fmt.Sprint("k", k))
	}
	at := r.wall()
	ns, err := r.client().CreateNamespace(ctx, ns)
	if err != nil {
		r.Fatal(err)
	}
	r.epochs = append(r.epochs, settingsEpoch{ns, span{at, r.wall()}})
	r.now = math.Floor(at - 1400*r.unit) // an event clock never comes to the present
	for range 4 + r.rng.IntN(10) {
		if r.faults && r.rng.IntN(3) == 0 {
			r.fault()
		}
		r.write()
		r.cluster.Heal()
		if r.rng.IntN(3) == 0 {
			r.ask(5)
		}
		if r.rng.IntN(4) == 0 {
			r.slow()
		}
		away := -1
		if n := r.rng.IntN(3); n > 0 {
			if r.faults && r.rng.IntN(2) == 0 {
				away = r.rng.IntN(r.cluster.Nodes())
				r.cluster.Kill(away)
				r.did("node %d is away", away)
			}
			for ; n > 0; n-- {
				r.set()
			}
		}
		if away >= 0 {
			if r.rng.IntN(2) == 0 {
				r.write()
			}
			if err := r.cluster.Restart(context.Background(), away); err != nil {
				r.Fatal(err)
			}
		}
		if r.rng.IntN(3) == 0 {
			r.ask(5)
		}
	}
	r.cluster.Heal()
	r.ask(len(r.keys))
	for range 10 {
		r.askMerged()
	}
}

// slow has a node take longer than it mostly does, while settings change and the next burst is written.
func (r *settingsRun) slow() {
	slow, link := r.rng.IntN(r.cluster.Nodes()), Link{Delay: 30 * time.Millisecond, Jitter: 30 * time.Millisecond}
	for i := range r.cluster.Nodes() {
		if i != slow {
			r.cluster.Net.SetLink(r.cluster.IP(i), r.cluster.IP(slow), link)
			r.cluster.Net.SetLink(r.cluster.IP(slow), r.cluster.IP(i), link)
		}
	}
	r.did("node %d is slow", slow)
}

// fault ends a node, and starts it again.
func (r *settingsRun) fault() {
	i := r.rng.IntN(r.cluster.Nodes())
	if r.rng.IntN(2) == 0 {
		r.cluster.Kill(i)
	} else {
		r.cluster.PowerLoss(i)
	}
	if err := r.cluster.Restart(context.Background(), i); err != nil {
		r.Fatal(err)
	}
	if r.rng.IntN(2) == 0 {
		if err := r.cluster.Ready(context.Background()); err != nil {
			r.Fatal(err)
		}
	}
	r.did("fault of node %d", i)
}

func (r *settingsRun) client() *ebb.Client { return r.clients[r.rng.IntN(len(r.clients))] }

// write writes a burst by one to three writers, and returns when all is acknowledged.
func (r *settingsRun) write() {
	forward := r.unit * r.pick(0, 0.1, 1, 3, 10, 30, r.between(0.01, 100))
	if !r.event {
		r.cluster.Advance(time.Duration(min(forward, 20*r.unit)) * time.Microsecond)
		time.Sleep(600 * time.Millisecond) // until nodes trust each other's clocks again
		r.now = r.wall()
	}
	first, last := r.now, r.now
	if r.event {
		last += forward
	}
	late := r.unit * r.pick(0.1, 1, 10, 100, 500)
	least := r.pick(1, 1, 0.1, 1e-3, 1e-5)
	binsMax := 1 + r.rng.IntN(30)
	var wait sync.WaitGroup
	var sent []ebb.Increment
	began := r.cluster.Clock(0).Now()
	for range 1 + r.rng.IntN(3) {
		var batch []ebb.Increment
		for range 1 + r.rng.IntN(150) {
			in := ebb.Increment{Key: r.keys[r.rng.IntN(len(r.keys))], Amount: r.between(least, 10)}
			in.Bin = fmt.Sprint("b", r.rng.IntN(binsMax))
			if r.signed && r.rng.IntN(3) == 0 {
				in.Amount = -in.Amount
			}
			at := first + r.rng.Float64()*(last-first)
			if r.rng.IntN(4) == 0 {
				at = max(at-late*r.rng.Float64(), 1)
			}
			if r.event || r.rng.IntN(2) == 0 {
				in.Time = timeAt(at)
			}
			batch = append(batch, in)
		}
		sent = append(sent, batch...)
		client, whole := r.client(), r.rng.IntN(2) == 0
		wait.Go(func() { r.send(client, batch, whole) })
	}
	epoch, before := len(r.epochs)-1, r.now
	if r.during && r.rng.IntN(2) == 0 {
		for range 1 + r.rng.IntN(2) {
			time.Sleep(time.Duration(r.rng.IntN(20)) * time.Millisecond)
			r.set()
		}
	}
	wait.Wait()
	r.note(sent, epoch, span{micros(began), r.wall()})
	for i := epoch + 1; r.event && i < len(r.epochs); i++ {
		r.epochs[i].from = span{before, r.now}
	}
	r.did("write from %v to %v", began.Format(clockFormat), r.now)
}

// send sends increments, all at once or by a writer.
func (r *settingsRun) send(client *ebb.Client, batch []ebb.Increment, whole bool) {
	ctx := context.Background()
	if whole {
		if err := client.Increment(ctx, r.name, batch...); err != nil {
			r.Error(err)
		}
		return
	}
	w := client.Writer(ebb.WriterOptions{Namespace: r.name, MaxBatch: 7, OnError: func(err error) { r.Error(err) }})
	for _, in := range batch {
		if err := w.Write(ctx, in); err != nil {
			r.Error(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		r.Error(err)
	}
}

// note notes increments that came at a time, under settings from an epoch on.
func (r *settingsRun) note(sent []ebb.Increment, epoch int, at span) {
	for _, in := range sent {
		e := settingsEvent{amount: in.Amount, at: at, epoch: [2]int{epoch, len(r.epochs) - 1}}
		if !in.Time.IsZero() {
			e.at = span{micros(in.Time), micros(in.Time)}
			if r.event {
				r.now = max(r.now, e.at.low)
			}
		}
		bin := [2]string{in.Key, in.Bin}
		if r.events[bin] == nil {
			r.bins[in.Key] = append(r.bins[in.Key], in.Bin)
		}
		r.events[bin] = append(r.events[bin], e)
	}
}

// set changes the settings.
func (r *settingsRun) set() {
	ns, was := r.settings(), r.epochs[len(r.epochs)-1].Namespace
	switch r.rng.IntN(4) {
	case 0:
		ns.Threshold = was.Threshold
	case 1:
		ns.Decay, ns.HalfLife = was.Decay, was.HalfLife
	}
	if ns.Decay == ebb.DecayNone {
		ns.HalfLife = was.HalfLife
	}
	at := span{low: r.wall()}
	ns, err := r.client().SetNamespace(context.Background(), ns)
	if err != nil {
		r.Fatal(err)
	}
	if !r.event {
		time.Sleep(3 * time.Second) // all shards have heard of it
	}
	at.high = r.wall()
	if r.event {
		at = span{r.now, r.now}
	}
	r.epochs = append(r.epochs, settingsEpoch{ns, at})
	r.did("%v: decay %v, half-life %v, threshold %v", r.cluster.Clock(0).Now().Format(clockFormat),
		ns.Decay, ns.HalfLife, ns.Threshold)
}

// settingsTruth is what a bin counts, between the least and the most, and by how much rounding may move that.
type settingsTruth struct{ low, high, slack float64 }

func (s *settingsTruth) add(other settingsTruth) {
	s.low, s.high, s.slack = s.low+other.low, s.high+other.high, s.slack+other.slack
}

// truth is what a bin counts at a time.
func (r *settingsRun) truth(key, bin string, at float64) (sum settingsTruth) {
	rounding := 1e-9
	if r.compact {
		rounding = 1e-5
	}
	for _, e := range r.events[[2]string{key, bin}] {
		least, most := math.Inf(1), 0.0
		for epoch := e.epoch[0]; epoch <= e.epoch[1]; epoch++ {
			least = min(least, math.Exp2(-r.lives(e.at.low, epoch, at, 1)))
			most = max(most, math.Exp2(-r.lives(e.at.high, epoch, at, -1)))
		}
		low, high := e.amount*least, e.amount*most
		sum.add(settingsTruth{min(low, high), max(low, high), rounding*max(high, -high) + 0x1p-100})
	}
	return sum
}

// lives is how many half-lives pass from an event in an epoch to a time: the most if sign is 1, the least if it is -1.
func (r *settingsRun) lives(from float64, epoch int, to, sign float64) (lives float64) {
	rate := func(k int) float64 {
		if r.epochs[k].Decay == ebb.DecayNone {
			return 0
		}
		return 1 / float64(r.epochs[k].HalfLife.Microseconds())
	}
	for k := epoch; k < len(r.epochs); k++ {
		end := to
		if k+1 < len(r.epochs) {
			next := r.epochs[k+1].from
			if end = next.low; sign*(rate(k)-rate(k+1)) > 0 {
				end = next.high
			}
		}
		lives += rate(k) * (end - from)
		from = end
	}
	return lives
}

// ask asks about some keys in all ways, and compares.
func (r *settingsRun) ask(keys int) {
	if r.rng.IntN(2) == 0 {
		time.Sleep(1100 * time.Millisecond) // all nodes have heard of all events
	}
	for _, k := range r.rng.Perm(len(r.keys))[:min(keys, len(r.keys))] {
		key, asOf := r.keys[k], []ebb.AskOption(nil)
		if r.rng.IntN(3) == 0 {
			at := r.now + r.unit*r.pick(-1, 0.5, 5, 20)
			asOf = []ebb.AskOption{ebb.AsOf(timeAt(at))}
		}
		r.askKey(key, asOf)
	}
}

func (r *settingsRun) askKey(key string, asOf []ebb.AskOption) {
	ctx, client := context.Background(), r.client()
	names := append([]string{"never"}, r.bins[key]...)
	named, err := client.Bins(ctx, r.name, key, names, asOf...)
	if err != nil {
		r.Fatal(err)
	}
	for i, b := range named.Bins {
		r.judge("bin "+names[i], key, r.truth(key, names[i], micros(named.AsOf)), b.Count+b.Hidden, &named)
	}
	all, err := client.Distribution(ctx, r.name, key, asOf...)
	if err != nil {
		r.Fatal(err)
	}
	r.whole("all", []string{key}, all)
	top, err := client.Top(ctx, r.name, key, 3, asOf...)
	if err != nil {
		r.Fatal(err)
	}
	r.whole("top", []string{key}, top)
}

// askMerged asks about several keys together, and compares.
func (r *settingsRun) askMerged() {
	keys := []string{"never"}
	for range 1 + r.rng.IntN(5) {
		keys = append(keys, r.keys[r.rng.IntN(len(r.keys))])
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	d, err := r.client().Merged(context.Background(), r.name, keys, 0)
	if err != nil {
		r.Fatal(err)
	}
	r.whole("merged", keys, d)
}

// whole compares an answer about all or the largest bins of keys.
func (r *settingsRun) whole(what string, keys []string, d ebb.Distribution) {
	var z settingsTruth
	bins := map[string]*settingsTruth{}
	for _, key := range keys {
		for _, name := range r.bins[key] {
			sum := r.truth(key, name, micros(d.AsOf))
			if z.add(sum); bins[name] == nil {
				bins[name] = new(settingsTruth)
			}
			bins[name].add(sum)
		}
	}
	threshold := r.epochs[len(r.epochs)-1].Threshold
	for name, sum := range bins {
		if b, ok := d.Bin(name); ok {
			r.judge(what+": bin "+name, fmt.Sprint(keys), *sum, b.Count, &d)
			continue
		}
		most := threshold + d.Lost + sum.slack
		if len(d.Bins) == d.BinsTotal && (sum.low > most || sum.high < -most) {
			r.Errorf("%s: %s: %s of %s is not there, and should count %v; lost %v\n%s",
				r.name, what, name, keys, *sum, d.Lost, strings.Join(r.steps, "\n"))
		}
	}
	r.judge(what+": Z", fmt.Sprint(keys), z, d.Z, &d)
}

// judge says whether the truth lies between a count and what is lost more: docs/kinds.md.
func (r *settingsRun) judge(what, key string, truth settingsTruth, count float64, d *ebb.Distribution) {
	r.compared++
	low, high := count-truth.slack, count+d.Lost+truth.slack
	if r.signed {
		low -= d.Lost
	}
	if truth.high >= low && truth.low <= high {
		return
	}
	r.Errorf("%s: %s of %s counts %v, at most %v more, and should %v as of %v (now %v)\n"+
		"event clock %v, compact %v, signed %v\n%s",
		r.name, what, key, count, d.Lost, truth, micros(d.AsOf), r.now,
		r.event, r.compact, r.signed, strings.Join(r.steps, "\n"))
}
