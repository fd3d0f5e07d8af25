package shard

import (
	"fmt"
	"math"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// goneCase is a shard whose namespace changes its settings, and what its keys hold in truth.
type goneCase struct {
	*State
	t     fataler
	now   int64
	def   *ebbv1.Namespace
	kind  ebbv1.Kind
	truth map[string]float64
}

func newGoneCase(t fataler, kind ebbv1.Kind, def *ebbv1.Namespace) *goneCase {
	def.Name, def.Version, def.Kind = "default", 1, kind
	c := &goneCase{State: definedAt(t, def, beginning), t: t, now: beginning, def: def, kind: kind}
	c.truth = map[string]float64{}
	c.apply(behaving(BehaviourMax))
	return c
}

func (c *goneCase) apply(cmd *ebbv1.Command) {
	c.t.Helper()
	r := c.Apply(c.applied+1, encodeEntry(c.t, c.now, []*ebbv1.Command{cmd}), nil)[0]
	if r.Error != nil || len(r.Refused) > 0 {
		c.t.Fatalf("%v: %v", cmd, r)
	}
	audit(c.t, c.State)
}

// wait lets time pass, also on an event clock, by events of another key: what has faded by the first leaves with the
// second.
func (c *goneCase) wait(d int64) {
	c.now += d
	if c.def.GetDecay() == ebbv1.Decay_DECAY_HALF_LIFE || c.def.GetDecay() == 0 {
		for key := range c.truth {
			c.truth[key] *= math.Exp2(-float64(d) / float64(c.def.HalfLifeUs))
		}
	}
	c.event("clock", 1)
	c.event("clock", 1)
}

func (c *goneCase) event(key string, amount float64) {
	in := &ebbv1.Increment{Key: []byte(key), Bin: []byte("7"), Amount: &amount, TimeUs: c.now, Kind: c.kind}
	if c.kind == ebbv1.Kind_KIND_QUANTILE {
		in.Value = new(7.0)
	}
	all := &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}
	c.apply(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: all}})
}

func (c *goneCase) add(key string, amount float64) {
	c.event(key, amount)
	c.truth[key] += amount
}

func (c *goneCase) change(change func(def *ebbv1.Namespace)) {
	c.def = pb.CloneOf(c.def)
	c.def.Version++
	change(c.def)
	c.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: c.def}})
}

// holds asks for a key: at least so much, and so much at the most.
func (c *goneCase) holds(key string) (least, most float64) {
	q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}}}}
	if c.kind == ebbv1.Kind_KIND_DISTRIBUTION {
		q.Ask = &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}}}
	}
	answer := c.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(c.now))
	if answer.Error != nil {
		c.t.Fatalf("%v", answer.Error)
	}
	if d := answer.GetAnswer().GetDistribution(); d != nil {
		return d.Z, d.Z + d.Lost
	}
	total := answer.GetAnswer().GetSummary().GetTotal()
	return total.GetLow(), total.GetHigh()
}

func (c *goneCase) check(key string) {
	c.t.Helper()
	least, most := c.holds(key)
	if v := c.truth[key]; v > most*(1+1e-9) || v < least*(1-1e-9) {
		c.t.Fatalf("%s holds %v, and is said to hold %v to %v", key, v, least, most)
	}
}

func threshold(v float64) func(def *ebbv1.Namespace) {
	return func(def *ebbv1.Namespace) { def.Threshold = v }
}

func noDecay(def *ebbv1.Namespace) { def.Decay = ebbv1.Decay_DECAY_NONE }

// What a key held that had gone under a high threshold is inside what is said of it under a low one, whether it comes
// again or not, after a restart and in other shards. The bound fades.
func TestGoneBeforeALowerThreshold(t *testing.T) {
	for _, kind := range []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
		ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_DISTINCT,
	} {
		for _, clock := range []ebbv1.Clock{ebbv1.Clock_CLOCK_WALL, ebbv1.Clock_CLOCK_EVENT} {
			t.Run(fmt.Sprintf("%s, %s", kind, clock), func(t *testing.T) {
				def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: clock}
				c := newGoneCase(t, kind, def)
				c.add("a", 1)
				c.wait(31 * second)
				c.change(threshold(1e-6))
				c.check("a")
				c.State = reopen(t, c.State)
				c.check("a")
				s, err := Rehash(1, 1, Heap{}, []*State{New(2, Heap{}), c.State}, []*ebbv1.Namespace{c.def})
				if err != nil {
					t.Fatal(err)
				}
				audit(t, s)
				before := c.State
				c.State = s
				c.check("a")
				c.State = before
				c.add("a", 1)
				if counts(kind) {
					c.check("a")
				}
				c.wait(600 * second)
				if _, most := c.holds("b"); math.Abs(most/(8e-6/7)-1) > 1e-5 {
					t.Errorf("after 60 half-lives a missing key may have held %v", most)
				}
			})
		}
	}
}

// counts says of a kind that it adds amounts up, so that an event that comes again counts again.
func counts(kind ebbv1.Kind) bool {
	return kind != ebbv1.Kind_KIND_SET && kind != ebbv1.Kind_KIND_DISTINCT
}

// So it is when nothing fades any more; and where no key can have gone before, counts stay exact.
func TestGoneBeforeNothingFades(t *testing.T) {
	for _, clock := range []ebbv1.Clock{ebbv1.Clock_CLOCK_WALL, ebbv1.Clock_CLOCK_EVENT} {
		def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.1, Clock: clock}
		c := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, def)
		c.add("a", 1)
		c.wait(50 * second)
		c.change(noDecay)
		c.check("a")
		c.add("a", 7)
		c.wait(500 * second)
		c.check("a")
		c.State = reopen(t, c.State)
		c.check("b")
		c.add("a", 3)
		c.check("a")

		c = newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, &ebbv1.Namespace{HalfLifeUs: 10 * second, Clock: clock})
		c.change(noDecay)
		c.add("a", 1)
		if least, most := c.holds("a"); least != 1 || most != 1 {
			t.Errorf("%s: 1 is said to be %v to %v", clock, least, most)
		}
		if _, most := c.holds("b"); most != 0 {
			t.Errorf("%s: a missing key may have held %v", clock, most)
		}
	}
}

// An image may be short of less than a key that is new, and goes earlier.
func TestGoneImage(t *testing.T) {
	from := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, &ebbv1.Namespace{HalfLifeUs: 10 * second})
	from.add("a", 8)
	from.wait(95 * second)
	c := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, &ebbv1.Namespace{HalfLifeUs: 10 * second})
	c.now = from.now - 20*second
	c.change(func(*ebbv1.Namespace) {})
	c.now = from.now
	c.apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: imagePut("a", exported(&from.frame, "", "a").Image)}})
	c.truth["a"] = from.truth["a"]
	c.wait(25 * second)
	c.change(noDecay)
	c.check("a")
}

// A quantile keeps the threshold that it was made with for what it shows, and lives until that of now, if that is
// lower.
func TestGoneQuantileUnderALowerThreshold(t *testing.T) {
	for _, clock := range []ebbv1.Clock{ebbv1.Clock_CLOCK_WALL, ebbv1.Clock_CLOCK_EVENT} {
		def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.1, Clock: clock}
		c := newGoneCase(t, ebbv1.Kind_KIND_QUANTILE, def)
		c.add("a", 32)
		c.change(threshold(1e-6))
		for range 12 {
			c.wait(10 * second)
			c.check("a")
			c.State = reopen(t, c.State)
		}
		c.add("a", 1)
		c.check("a")
	}
}

// Keys that a change of settings finds gone do not come back, however many of them are still to leave.
func TestGoneStaysGone(t *testing.T) {
	for _, kind := range []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
		ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_MORRIS,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
			c := newGoneCase(t, kind, def)
			for i := range 400 {
				c.event(fmt.Sprintf("k%d", i), 1)
			}
			c.now += 90 * second
			c.event("clock", 1)
			c.change(func(def *ebbv1.Namespace) { def.Threshold, def.HalfLifeUs = 1e-6, 1000*second })
			count := &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
			for range 2 {
				a := c.Ask(&ebbv1.ShardQuestion{Question: count}, sketch.Tick(c.now))
				if n := a.GetAnswer().GetCountKeys().GetKeys(); n != 1 {
					t.Fatalf("%d keys are there", n)
				}
				c.State = reopen(t, c.State)
			}
			c.event("k399", 1)
			c.wait(second)
		})
	}
}

// Whatever settings follow each other, what is said of a key contains what it holds, and replicas say the same.
func TestGoneWhateverFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := proto.DefaultNamespaceSettings()
		def.HalfLifeUs = 10 * second
		if rapid.Bool().Draw(t, "event time") {
			def.Clock = ebbv1.Clock_CLOCK_EVENT
		}
		c := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, def)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1:
				key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
				c.add(key, rapid.SampledFrom([]float64{1, 0.01, 1e-5, 50}).Draw(t, "amount"))
			case 2, 3:
				c.wait(rapid.SampledFrom([]int64{1, second, 40 * second, 200 * second}).Draw(t, "time"))
			case 4:
				c.State = reopen(t, c.State)
			default:
				c.change(func(def *ebbv1.Namespace) {
					def.Threshold = rapid.SampledFrom([]float64{1e-6, 0.001, 0.1, 5}).Draw(t, "threshold")
					def.HalfLifeUs = rapid.SampledFrom([]int64{3 * second, 10 * second, 50 * second}).Draw(t, "half-life")
					def.Decay = rapid.SampledFrom([]ebbv1.Decay{
						ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_NONE,
					}).Draw(t, "decay")
				})
			}
			c.check("a")
			c.check("b")
			c.check("c")
		}
	})
}
