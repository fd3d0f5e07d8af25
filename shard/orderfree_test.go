//go:build !race

package shard

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// orderStreams is how many random streams TestOrderOfEvents takes; EBB_ORDER_STREAMS sets another number. The full run
// has 10,000.
const orderStreams = 1000

// faintest is what 2^20 events may weigh that each count as 0: see docs/kinds.md.
const faintest = 0x1p-80

// orderEvent is one event of a stream.
type orderEvent struct {
	key, bin string
	at       int64
	n        float64
	value    float64
}

// orderCase is a stream, and the namespace that it goes to.
type orderCase struct {
	name     string
	def      *ebbv1.Namespace
	kind     ebbv1.Kind
	events   []orderEvent
	until    int64 // no event is later
	at       int64 // when it is asked
	within   int64 // on wall time: all events come in so many microseconds
	orders   int
	boundTop float64 // of what is lost, in thresholds a key

	behaviour uint32 // 0: BehaviourOrderFree
}

func (c *orderCase) halfLife() float64 { return float64(c.def.GetHalfLifeUs()) }

func (c *orderCase) weight(at int64) float64 { return math.Exp2(float64(at-c.at) / c.halfLife()) }

// run brings the events to a shard in some order and in batches, with restarts on the way, and returns the shard.
func (c *orderCase) run(t *testing.T, rng *rand.Rand, id ID, events []orderEvent) *State {
	t.Helper()
	s := New(id, &wiping{})
	index, stamp := uint64(0), c.until
	apply := func(commands ...*ebbv1.Command) {
		index++
		for _, r := range s.Apply(index, encode(t, stamp, commands...), nil) {
			if r.Error != nil || len(r.Refused) > 0 {
				t.Fatalf("%s: %v", c.name, r)
			}
		}
	}
	apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{
		Version: cmp.Or(c.behaviour, BehaviourOrderFree),
	}}},
		&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: c.def}})
	restart := rng.IntN(3)
	for sent := 0; sent < len(events); {
		batch := &ebbv1.Increments{}
		for n := 1 + rng.IntN(1+min(len(events)/4, 2000)); n > 0 && sent < len(events); n-- {
			batch.Increments = append(batch.Increments, c.increment(&events[sent]))
			sent++
		}
		if c.within > 0 {
			stamp = c.until + int64(float64(c.within)*float64(sent)/float64(len(events)))
		}
		apply(&ebbv1.Command{Namespace: c.def.Name, Body: &ebbv1.Command_Increments{Increments: batch}})
		if restart > 0 && rng.IntN(6) == 0 {
			restart--
			s = reopen(t, s)
		}
	}
	return s
}

func (c *orderCase) increment(e *orderEvent) *ebbv1.Increment {
	in := &ebbv1.Increment{Key: []byte(e.key), Bin: []byte(e.bin), TimeUs: e.at, Amount: new(e.n)}
	if c.kind != ebbv1.Kind_KIND_DISTRIBUTION {
		in.Kind = c.kind
	}
	if c.kind == ebbv1.Kind_KIND_QUANTILE {
		in.Bin, in.Value = nil, new(e.value)
	}
	return in
}

// orderTruth is the exact count of every bin, of all keys together, and its parts.
type orderTruth struct {
	c      *orderCase
	keys   []string
	bins   []string
	counts map[string]float64
	total  float64
	around map[string]map[string]float64 // of each key: the latest weight of each bin
}

func (c *orderCase) truth() *orderTruth {
	tr := &orderTruth{c: c, counts: map[string]float64{}, around: map[string]map[string]float64{}}
	for _, e := range c.events {
		w := e.n * c.weight(e.at)
		tr.counts[e.bin] += w
		tr.total += w
		if tr.around[e.key] == nil {
			tr.around[e.key] = map[string]float64{}
			tr.keys = append(tr.keys, e.key)
		}
		tr.around[e.key][e.bin] = max(tr.around[e.key][e.bin], c.weight(e.at))
	}
	for bin := range tr.counts {
		tr.bins = append(tr.bins, bin)
	}
	slices.Sort(tr.bins)
	slices.Sort(tr.keys)
	return tr
}

// rounding is by how much of itself a count may be off.
func (c *orderCase) rounding() float64 {
	if c.def.GetPrecision() == ebbv1.Precision_PRECISION_COMPACT {
		return 1e-5
	}
	return 1e-10
}

// ask asks shards for all keys together.
func (c *orderCase) ask(t *testing.T, states []*State, q *ebbv1.Question) *ebbv1.Answer {
	t.Helper()
	q.Namespace = c.def.Name
	var answers []*ebbv1.ShardAnswer
	for _, s := range states {
		answers = append(answers, s.Ask(&ebbv1.ShardQuestion{Shard: uint32(s.id), Question: q, Partial: len(states) > 1}, sketch.Tick(c.at)))
	}
	a, err := Merge(q, answers)
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	return a
}

// check compares what shards answer with the truth.
func (tr *orderTruth) check(t *testing.T, states []*State) {
	t.Helper()
	switch tr.c.kind {
	case ebbv1.Kind_KIND_DISTRIBUTION:
		tr.checkDistribution(t, states)
		tr.checkSlow(t, states)
	case ebbv1.Kind_KIND_QUANTILE:
		tr.checkQuantile(t, states)
	default:
		tr.checkSummary(t, states)
	}
}

// forgotten says that the events of a bin weigh about what is stored at the least, 2^-100, or less: in some
// orders no shard has seen it.
func (tr *orderTruth) forgotten(bin string) bool { return math.Abs(tr.counts[bin]) < 0x1p-80 }

func (tr *orderTruth) keyNames() (names [][]byte) {
	for _, key := range tr.keys {
		names = append(names, []byte(key))
	}
	return names
}

func (tr *orderTruth) checkDistribution(t *testing.T, states []*State) {
	t.Helper()
	c := tr.c
	ask := &ebbv1.DistributionQuestion{Keys: tr.keyNames(), AsOfUs: c.at}
	list := &ebbv1.BinList{}
	for _, bin := range tr.bins {
		list.Bins = append(list.Bins, []byte(bin))
	}
	ask.Select = &ebbv1.DistributionQuestion_Bins{Bins: list}
	d := c.ask(t, states, &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: ask}}).GetDistribution()
	limit := c.boundTop * c.def.GetThreshold() * float64(len(tr.keys)*len(states))
	if d.Lost > limit*(1+1e-6) {
		t.Fatalf("%s: %v is lost, more than %v", c.name, d.Lost, limit)
	}
	inside := func(what string, truth, v, short float64) {
		t.Helper()
		slack := c.rounding()*math.Max(math.Abs(v), math.Abs(truth)) + faintest
		low := v - slack
		if c.def.GetAllowNegative() {
			slack += 1e-9
			low = v - short - slack
		}
		if truth < low || truth > v+short+slack {
			t.Fatalf("%s: %s counts %v, told %v and at most %v more", c.name, what, truth, v, short)
		}
	}
	if c.def.Floor == ebbv1.Floor_FLOOR_PRUNE {
		inside("all", tr.total, d.Z, d.Lost)
	}
	for i, bin := range tr.bins {
		b, truth := d.Bins[i], tr.counts[bin]
		if c.def.Floor == ebbv1.Floor_FLOOR_CLAMP {
			if tr.forgotten(bin) {
				continue
			}
			truth = max(1, truth)
		}
		inside("bin "+bin, truth, b.Count+b.Hidden, d.Lost)
		if p := truth / tr.total; c.def.Floor == ebbv1.Floor_FLOOR_PRUNE && tr.total > 0 && p >= 0 && p <= 1 && (b.PLow > p+1e-9 || b.PHigh < p-1e-9) {
			t.Fatalf("%s: bin %s has probability %v, told %v to %v", c.name, bin, p, b.PLow, b.PHigh)
		}
	}
}

// checkSlow compares what is counted under a second half-life, if there is one.
func (tr *orderTruth) checkSlow(t *testing.T, states []*State) {
	t.Helper()
	c := tr.c
	if c.def.GetSlowHalfLifeUs() == 0 {
		return
	}
	truth, told, short := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, e := range c.events {
		truth[e.bin] += e.n * math.Exp2(float64(e.at-c.at)/float64(c.def.GetSlowHalfLifeUs()))
	}
	for _, s := range states {
		slow := s.slowOf(s.lookup([]byte(c.def.Name)))
		for _, name := range tr.keyNames() {
			var d *sketch.Distribution
			if key, ok := s.findKey(slow, name); ok {
				sum := s.summary(key)
				d = s.present(slow, &sum, sketch.Tick(c.at))
			}
			for _, name := range tr.bins {
				bin, known := s.bins.find(tagOf([]byte(name), 0), []byte(name))
				if d == nil || !known {
					short[name] += slow.params().LostAtBirth(sketch.Tick(c.at))
					continue
				}
				r := d.At(slow.params(), sketch.Tick(c.at))
				told[name], short[name] = told[name]+r.Count(bin), short[name]+r.Short(bin)
			}
		}
	}
	for _, name := range tr.bins {
		slack := c.rounding()*math.Max(told[name], truth[name]) + faintest
		if truth[name] < told[name]-slack || truth[name] > told[name]+short[name]+slack {
			t.Fatalf("%s: under the second half-life bin %s counts %v, told %v and at most %v more",
				c.name, name, truth[name], told[name], short[name])
		}
	}
}

// morrisErrors is by how many standard errors of its own a Morris counter may be off, besides its interval: of tens of
// thousands of answers none is.
const morrisErrors = 4

func (tr *orderTruth) checkSummary(t *testing.T, states []*State) {
	t.Helper()
	c := tr.c
	ask := &ebbv1.SummaryQuestion{Keys: tr.keyNames(), AsOfUs: c.at}
	counted := c.kind == ebbv1.Kind_KIND_TOPK || c.kind == ebbv1.Kind_KIND_COUNTMIN
	if counted {
		for _, bin := range tr.bins[:min(len(tr.bins), 500)] {
			ask.Bins = append(ask.Bins, []byte(bin))
		}
	}
	out := c.ask(t, states, &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: ask}}).GetSummary()
	inside := func(what string, truth float64, e *ebbv1.Estimate, errors float64) {
		t.Helper()
		slack := 1e-9*truth + errors*e.StdError + faintest
		if truth > e.High+slack || truth < e.Low-slack && e.Confidence == certain || errors > 0 && truth < e.Low-slack {
			t.Fatalf("%s: %s counts %v, told %v", c.name, what, truth, e)
		}
	}
	if c.kind == ebbv1.Kind_KIND_MORRIS {
		if out.Total.Confidence == certain && out.Found {
			t.Fatalf("%s: %v is certain", c.name, out.Total)
		}
		inside("all", tr.total, out.Total, morrisErrors)
		return
	}
	if !counted {
		last := map[string]float64{} // a thing in several keys counts once, as it was last seen
		for _, bins := range tr.around {
			for bin, w := range bins {
				last[bin] = max(last[bin], w)
			}
		}
		truth := 0.0
		for _, w := range last {
			truth += w
		}
		inside("all", truth, out.Total, 3)
		return
	}
	inside("all", tr.total, out.Total, 0)
	for i, e := range out.Bins {
		inside("bin "+tr.bins[i], tr.counts[tr.bins[i]], e, 0)
	}
}

func (tr *orderTruth) checkQuantile(t *testing.T, states []*State) {
	t.Helper()
	c := tr.c
	parts := []float64{0, 0.1, 0.5, 0.9, 1}
	ask := &ebbv1.SummaryQuestion{Keys: tr.keyNames(), AsOfUs: c.at, Quantiles: parts}
	out := c.ask(t, states, &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: ask}}).GetSummary()
	if e := out.Total; tr.total > e.High*(1+1e-10) || tr.total < e.Low*(1-1e-10) {
		t.Fatalf("%s: all count %v, told %v", c.name, tr.total, e)
	}
	if len(out.Quantiles) == 0 {
		return
	}
	lost := out.Total.High - out.Total.Low
	sorted := slices.Clone(c.events)
	slices.SortFunc(sorted, func(a, b orderEvent) int { return cmp.Compare(a.value, b.value) })
	for i, part := range parts {
		low, high := math.NaN(), math.NaN() // a hair apart in rank
		sum := 0.0
		for _, e := range sorted {
			if w := e.n * c.weight(e.at); w > faintest && part == 1 {
				low, high = e.value, e.value
				continue
			} else if w > faintest {
				sum += w
			}
			if math.IsNaN(low) && sum >= (part-1e-9)*tr.total {
				low = e.value
			}
			if math.IsNaN(high) && sum >= (part+1e-9)*tr.total {
				high = e.value
			}
		}
		if e := out.Quantiles[i]; high < e.Low*(1-1e-9) || low > e.High*(1+1e-9) {
			t.Fatalf("%s: quantile %v is %v to %v, told %v (lost %v of %v)", c.name, part, low, high, e, lost, tr.total)
		} else if part > 0 && part < 1 && lost < 0.05*tr.total && max(-e.Low, e.High) == math.MaxFloat64 {
			t.Fatalf("%s: quantile %v has no bound, told %v (lost %v of %v)", c.name, part, e, lost, tr.total)
		}
	}
}

// checkOrders counts a stream in several orders, batches and shards.
func (c *orderCase) checkOrders(t *testing.T, rng *rand.Rand) {
	t.Helper()
	tr := c.truth()
	for order := range c.orders {
		switch order {
		case 0: // as it came
		case 1:
			slices.SortStableFunc(c.events, func(a, b orderEvent) int { return cmp.Compare(b.at, a.at) })
		default:
			rng.Shuffle(len(c.events), func(i, j int) { c.events[i], c.events[j] = c.events[j], c.events[i] })
		}
		tr.check(t, []*State{c.run(t, rng, 1, c.events)})
	}
	var shards [2][]orderEvent
	for _, e := range c.events {
		i := rng.IntN(2)
		shards[i] = append(shards[i], e)
	}
	tr.check(t, []*State{c.run(t, rng, 1, shards[0]), c.run(t, rng, 2, shards[1])})
}

// orderKinds are all that forget by half-life. Not in here: linear decay (see TestLinearDecayInAnyOrder), and kinds
// that end otherwise, which are linear, bloom, distinct with a window, bitmap, phrases and string.
var orderKinds = []ebbv1.Kind{
	ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
	ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_MORRIS,
}

// newOrderCase draws a stream of about a thousand events over some hours or weeks, in bursts and silences, with late
// events.
func newOrderCase(seed int) (*orderCase, *rand.Rand) {
	rng := rand.New(rand.NewPCG(uint64(seed), 61))
	c := &orderCase{kind: orderKinds[0], orders: 3, boundTop: 9.0 / 7 * (1 + 1e-3)}
	if seed%2 == 1 {
		c.kind = orderKinds[1+seed/2%(len(orderKinds)-1)]
	}
	if seed%3 == 0 || c.kind == ebbv1.Kind_KIND_MORRIS {
		c.behaviour = BehaviourMax
	}
	c.def = &ebbv1.Namespace{
		Name: "n", Version: 1, HalfLifeUs: hourLong, Kind: c.kind, Clock: ebbv1.Clock_CLOCK_EVENT, Floor: ebbv1.Floor_FLOOR_PRUNE,
		Threshold: []float64{0.001, 0.001, 0.05, 0.4}[rng.IntN(4)],
	}
	proto.FillNamespace(c.def, proto.DefaultNamespaceSettings())
	if c.kind == ebbv1.Kind_KIND_DISTRIBUTION {
		switch rng.IntN(8) {
		case 0:
			c.def.Precision = ebbv1.Precision_PRECISION_COMPACT
		case 1:
			c.def.AllowNegative = new(true)
		case 2:
			c.def.Floor = ebbv1.Floor_FLOOR_CLAMP
		case 3:
			c.def.SlowHalfLifeUs = new(10 * hourLong)
		}
	}
	c.draw(rng)
	c.name = fmt.Sprintf("stream %d: %s, clock %s, threshold %v, floor %s, precision %s, negative %v", seed, proto.KindName(c.kind), c.def.Clock,
		c.def.GetThreshold(), c.def.Floor, c.def.Precision, c.def.GetAllowNegative())
	return c, rng
}

// draw makes the events.
func (c *orderCase) draw(rng *rand.Rand) {
	bins := []int{3, 12, 100, 3000}[rng.IntN(4)]
	keys := 1 + rng.IntN(3)
	start := int64(beginning)
	at, late := start, float64(hourLong)*(0.1+20*rng.Float64()*rng.Float64())
	small, quiet := rng.IntN(3) == 0, []int{0, 30, 200}[rng.IntN(3)]
	for n := 500 + rng.IntN(1000); n > 0; n-- {
		at += rng.Int64N(hourLong / 20)
		if quiet > 0 && rng.IntN(quiet) == 0 {
			at += rng.Int64N(20 * hourLong)
		}
		e := orderEvent{
			key: "k" + strconv.Itoa(rng.IntN(keys)), bin: "b" + strconv.Itoa(rng.IntN(1+rng.IntN(bins))),
			at: max(start-40*hourLong, at-int64(rng.ExpFloat64()*late/4)), n: float64(1 + rng.IntN(3)), value: math.Exp(rng.NormFloat64() * 2),
		}
		if small {
			e.n *= 0.3 * c.def.GetThreshold()
		}
		if c.def.GetAllowNegative() && rng.IntN(3) == 0 {
			e.n = -e.n
		}
		if c.kind == ebbv1.Kind_KIND_DISTINCT || c.kind == ebbv1.Kind_KIND_SET {
			e.n = 1
		}
		c.events = append(c.events, e)
		c.until = max(c.until, e.at)
	}
	c.at = c.until + rng.Int64N(6*hourLong)
	if rng.IntN(3) == 0 {
		c.def.Clock, c.within = ebbv1.Clock_CLOCK_WALL, 1+rng.Int64N(6*hourLong)
		c.at = c.until + c.within
	}
}

// adversarialCase is 100,000 events, each below the threshold when it comes, over few or many bins.
func adversarialCase(seed int) (*orderCase, *rand.Rand) {
	rng := rand.New(rand.NewPCG(uint64(seed), 62))
	bins := []int{3, 100_000}[seed%2]
	c := &orderCase{orders: 2, boundTop: 9.0 / 7 * (1 + 1e-3)}
	c.kind = slices.Concat(orderKinds[:1], orderKinds)[seed/2%(len(orderKinds)+1)] // each over few and over many bins
	if seed%3 == 0 || c.kind == ebbv1.Kind_KIND_MORRIS {
		c.behaviour = BehaviourMax
	}
	c.def = &ebbv1.Namespace{
		Name: "n", Version: 1, HalfLifeUs: hourLong, Kind: c.kind, Clock: ebbv1.Clock_CLOCK_EVENT, Threshold: 0.001,
		Floor: ebbv1.Floor_FLOOR_PRUNE, BinsMax: 1 << 20,
	}
	if seed/2%(len(orderKinds)+1) == 1 {
		c.def.SlowHalfLifeUs = new(10 * hourLong)
	}
	proto.FillNamespace(c.def, proto.DefaultNamespaceSettings())
	c.until = beginning
	c.events = append(c.events, orderEvent{key: "k", bin: "now", at: c.until, n: 1, value: 1})
	for i := range 100_000 {
		e := orderEvent{key: "k", bin: "b" + strconv.Itoa(i%bins), at: c.until - 11*hourLong, n: 1, value: float64(1 + i%bins)}
		once := c.kind == ebbv1.Kind_KIND_DISTINCT || c.kind == ebbv1.Kind_KIND_SET // whatever the amount
		if small := (seed%4 < 2) != (seed >= 16); small && !once {                  // half the threshold, on time
			e.n, e.at = 0.0005, c.until-int64(i)*hourLong/400_000
		}
		c.events = append(c.events, e)
	}
	c.at = c.until + rng.Int64N(5*hourLong)
	c.name = fmt.Sprintf("adversary %d: %s over %d bins", seed, proto.KindName(c.kind), bins)
	return c, rng
}

// The same events in any order, batches, shards and with any restarts have the same answers, within what the answers
// say is lost.
func TestOrderOfEvents(t *testing.T) {
	streams, adversaries := orderStreams, 2
	if n, err := strconv.Atoi(os.Getenv("EBB_ORDER_STREAMS")); err == nil {
		streams, adversaries = n, max(2, n/500)
	}
	if testing.Short() {
		streams = 100
	}
	for seed := range streams {
		c, rng := newOrderCase(seed)
		c.checkOrders(t, rng)
	}
	for seed := range adversaries {
		c, rng := adversarialCase(seed)
		c.checkOrders(t, rng)
	}
}

// Thirty thousand events that are 11 half-lives old count 4.88 in each of three bins, whether the present came before
// or after them.
func TestLateEventsCountBehindTheClock(t *testing.T) {
	for _, kind := range orderKinds[:4] { // the others count a bin once, or err by chance
		for _, first := range []string{"late", "now", "other key"} {
			c := &orderCase{kind: kind, until: beginning, at: beginning, boundTop: 9. / 7}
			c.def = &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong, Kind: kind, Clock: ebbv1.Clock_CLOCK_EVENT}
			proto.FillNamespace(c.def, proto.DefaultNamespaceSettings())
			c.name = fmt.Sprintf("%s, %s first", proto.KindName(kind), first)
			now := orderEvent{key: "k", bin: "now", at: beginning, n: 1, value: 3}
			if first == "other key" {
				now.key = "other"
			}
			for i := range 30_000 {
				c.events = append(c.events, orderEvent{key: "k", bin: "b" + strconv.Itoa(i%3), at: beginning - 11*hourLong, n: 1, value: float64(i % 3)})
			}
			if first == "late" {
				c.events = append(c.events, now)
			} else {
				c.events = append([]orderEvent{now}, c.events...)
			}
			s := c.run(t, rand.New(rand.NewPCG(1, 2)), 1, c.events)
			tr := c.truth()
			tr.check(t, []*State{s})
			if kind != ebbv1.Kind_KIND_DISTRIBUTION {
				continue
			}
			q := question("n", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_All{All: true}})
			d := s.Ask(q, sketch.Tick(beginning)).GetAnswer().GetDistribution()
			if len(d.Bins) < 3 || math.Abs(d.Bins[0].Count-4.8828125) > 0.003 || d.Lost > 0.0013 {
				t.Errorf("%s: %v", c.name, d)
			}
		}
	}
}
