package shard

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// back sets the event clock back: what there was then has faded less.
func (c *goneCase) back(d, halfLife int64) {
	c.now -= d
	for key := range c.truth {
		c.truth[key] *= math.Exp2(float64(d) / float64(halfLife))
	}
	c.change(func(def *ebbv1.Namespace) {
		def.ClockSetting = &ebbv1.ClockSetting{Epoch: def.Version, TimeUs: c.now}
	})
}

var goneKinds = []ebbv1.Kind{
	ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
	ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_MORRIS,
}

// boundable says of a kind that its answers have a bound, and not an interval of chance.
func boundable(kind ebbv1.Kind) bool { return kind != ebbv1.Kind_KIND_MORRIS }

func (c *goneCase) mayHold(key string, want float64) {
	c.t.Helper()
	if _, most := c.holds(key); boundable(c.kind) && math.Abs(most/want-1) > 1e-5 {
		c.t.Fatalf("a key that is gone may have held %v, not %v", most, want)
	}
}

// What a key held that had gone when the event clock was set back is inside what is said of it by the earlier clock,
// however often that happens, after a restart and in other shards. Before BehaviourGoneBack it is not.
func TestGoneBeforeTheClockWentBack(t *testing.T) {
	for _, kind := range goneKinds {
		t.Run(kind.String(), func(t *testing.T) {
			def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
			c := newGoneCase(t, kind, def)
			c.add("a", 1)
			c.wait(400 * second)
			c.mayHold("a", 3.2/7)
			heard := c.State
			c.back(300*second, 10*second)
			c.check("a")
			c.mayHold("a", 0x1p30*3.2/7)
			c.State = reopen(t, c.State)
			c.check("a")
			for _, from := range []*State{c.State, reopen(t, heard)} { // the other has not heard of it
				s, err := Rehash(1, 1, Heap{}, []*State{New(2, Heap{}), from}, []*ebbv1.Namespace{c.def})
				if err != nil {
					t.Fatal(err)
				}
				audit(t, s)
				before := c.State
				c.State = reopen(t, s)
				c.check("a")
				c.mayHold("a", 0x1p30*3.2/7)
				c.State = before
			}
			c.wait(200 * second)
			c.mayHold("a", 0x1p10*3.2/7)
			c.back(150*second, 10*second) // that is after it was set back
			c.check("a")
			c.mayHold("a", 0x1p25*3.2/7)
			c.back(150*second, 10*second) // and before
			c.check("a")
			c.mayHold("b", 0x1p40*3.2/7)
			c.add("a", 1)
			if counts(kind) {
				c.check("a")
			}
			c.State = reopen(t, c.State)
			c.change(threshold(0.01))
			c.check("b")
			c.mayHold("b", 0x1p40*3.2/7)
			c.wait(1000 * second)
			c.mayHold("b", 0.08/7)
		})
	}
}

// So it is where the key came again, late, before the clock was set back.
func TestGoneCameAgainBeforeTheClockWentBack(t *testing.T) {
	for _, kind := range goneKinds {
		t.Run(kind.String(), func(t *testing.T) {
			def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
			c := newGoneCase(t, kind, def)
			c.event("a", 1)
			c.wait(50 * second)
			c.now -= 50 * second
			c.event("a", 20) // late
			c.now += 50 * second
			c.State = reopen(t, c.State)
			c.back(50*second, 10*second)
			c.truth["a"] = 21
			if !counts(kind) {
				c.truth["a"] = 1
			}
			c.check("a")
		})
	}
}

// So it is with a half-life that was longer than that of now, or is: a sketch keeps its own.
func TestGoneBeforeTheClockWentBackUnderTwoHalfLives(t *testing.T) {
	for _, kind := range goneKinds {
		for _, h := range [][2]int64{{10 * second, 40 * second}, {40 * second, 10 * second}} {
			t.Run(fmt.Sprint(kind, h), func(t *testing.T) {
				def := &ebbv1.Namespace{HalfLifeUs: h[0], Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
				c := newGoneCase(t, kind, def)
				c.event("a", 1)
				start := c.now
				c.change(func(def *ebbv1.Namespace) { def.HalfLifeUs = h[1] })
				c.wait(second)
				c.event("a", 1)
				c.State = reopen(t, c.State)
				c.wait(400 * second)
				c.back(c.now-start-second, h[1])
				c.truth["a"] = 1.9
				if !counts(kind) {
					c.truth["a"] = 0.9
				}
				c.check("a")
				c.State = reopen(t, c.State)
				c.check("a")
			})
		}
	}
}

// With a second half-life each count grows by its own.
func TestGoneBeforeTheClockOfBothHalfLivesWentBack(t *testing.T) {
	def := &ebbv1.Namespace{
		HalfLifeUs: 10 * second, SlowHalfLifeUs: new(int64(40 * second)), Threshold: 0.4,
		Clock: ebbv1.Clock_CLOCK_EVENT,
	}
	c := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, def)
	c.add("a", 1)
	c.wait(800 * second)
	c.back(800*second, 10*second)
	for range 2 {
		c.check("a")
		c.mayHold("a", 0x1p80*3.2/7)
		slow := c.slowOf(c.lookup([]byte("default")))
		if n := slow.params().LostAtBirth(slow.clock(c.State.now)); math.Abs(n/(0x1p20*3.2/7)-1) > 1e-5 {
			t.Errorf("under the second half-life a key that is gone may have held %v", n)
		}
		c.State = reopen(t, c.State)
	}
}

// However far the clock is set back, the bound is no more than counts can be, and a new key is as exact as any.
func TestGoneBeforeTheClockWentFarBack(t *testing.T) {
	for _, kind := range goneKinds {
		t.Run(kind.String(), func(t *testing.T) {
			def := &ebbv1.Namespace{HalfLifeUs: second, Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
			c := newGoneCase(t, kind, def)
			for range 3 {
				c.event("a", 1)
				c.wait(5000 * second)
				c.back(5000*second, second)
				c.State = reopen(t, c.State)
				c.mayHold("b", sketch.CountMax)
				c.event("a", 1)
				c.event("b", 1)
				c.State = reopen(t, c.State)
				least, most := c.holds("b")
				if !(least <= 1 && most >= 1 && most <= math.MaxFloat64) {
					t.Fatalf("1 is said to be %v to %v", least, most)
				}
				c.wait(second)
				c.change(func(def *ebbv1.Namespace) { def.HalfLifeUs += second })
				c.wait(second)
				c.State = reopen(t, c.State)
			}
		})
	}
}

// Whenever the clock is set back, what is said of a key contains what it holds, and replicas say the same.
func TestGoneWheneverTheClockGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := proto.DefaultNamespaceSettings()
		def.HalfLifeUs, def.Clock = 10*second, ebbv1.Clock_CLOCK_EVENT
		kind := rapid.SampledFrom([]ebbv1.Kind{ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_COUNTMIN}).Draw(t, "kind")
		c := newGoneCase(t, kind, def)
		latest := map[string]int64{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1:
				key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
				c.add(key, rapid.SampledFrom([]float64{1, 0.01, 50}).Draw(t, "amount"))
				latest[key] = c.now
			case 2, 3:
				c.wait(rapid.SampledFrom([]int64{1, second, 40 * second, 200 * second}).Draw(t, "time"))
			case 4:
				c.State = reopen(t, c.State)
			case 5:
				c.change(threshold(rapid.SampledFrom([]float64{1e-6, 0.001, 0.1, 0.4}).Draw(t, "threshold")))
			default:
				c.back(rapid.SampledFrom([]int64{second, 30 * second, 200 * second}).Draw(t, "back"), 10*second)
				for key, at := range latest {
					if at > c.now { // it begins anew
						delete(c.truth, key)
					}
				}
			}
			c.check("a")
			c.check("b")
			c.check("c")
		}
	})
}

// Shards that are not at BehaviourGoneBack say what they said.
func TestGoneBackInOlderShards(t *testing.T) {
	def := &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: ebbv1.Clock_CLOCK_EVENT}
	c := newGoneCase(t, ebbv1.Kind_KIND_DISTRIBUTION, def)
	c.setBehaviour(BehaviourGone)
	c.add("a", 1)
	c.wait(400 * second)
	c.back(400*second, 10*second)
	c.mayHold("a", 3.2/7)
	if c.format() != formatGone {
		t.Errorf("a snapshot of format %d", c.format())
	}
}

// A sketch that came from elsewhere keeps its half-life: by an earlier clock it may have held as much more as that
// says.
func TestGoneImageOfAShorterHalfLife(t *testing.T) {
	for _, kind := range []ebbv1.Kind{ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE} {
		t.Run(kind.String(), func(t *testing.T) {
			event := ebbv1.Clock_CLOCK_EVENT
			from := newGoneCase(t, kind, &ebbv1.Namespace{HalfLifeUs: 10 * second, Threshold: 0.4, Clock: event})
			from.add("a", 8)
			c := newGoneCase(t, kind, &ebbv1.Namespace{HalfLifeUs: 1000 * second, Threshold: 0.4, Clock: event})
			c.event("clock", 1)
			c.apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: imagePut("a", exported(&from.frame, "", "a").Image)}})
			c.wait(400 * second)
			if least, _ := c.holds("a"); least != 0 {
				t.Fatalf("it is still there: %v", least)
			}
			c.back(390*second, 1000*second)
			c.truth["a"] = 4 // ten seconds after it came
			c.check("a")
		})
	}
}
