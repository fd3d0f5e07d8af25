//go:build !race

package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// morrisCase is late events of Morris counters in a namespace that lives by the times of its events.
func morrisCase(events, keys int, late int64) *orderCase {
	c := &orderCase{kind: ebbv1.Kind_KIND_MORRIS, until: beginning, at: beginning, behaviour: BehaviourMorris}
	c.def = &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong, Kind: c.kind, Clock: ebbv1.Clock_CLOCK_EVENT}
	proto.FillNamespace(c.def, proto.DefaultNamespaceSettings())
	c.name = fmt.Sprintf("%d events in %d keys, %d hours late", events, keys, late/hourLong)
	c.events = append(c.events, orderEvent{key: "now", bin: "b", at: beginning, n: 1})
	for i := range events {
		c.events = append(c.events, orderEvent{key: fmt.Sprint("k", i%keys), bin: "b", at: beginning - late, n: 1})
	}
	return c
}

// Late events of a Morris counter, that weigh little each, are in its interval: alone, and merged over keys and shards.
// Before BehaviourMorris each was rounded to nothing, the key was gone, and the answer was certain that it had held
// 0.0011 at most.
func TestLateEventsOfMorrisCounters(t *testing.T) {
	for _, events := range []int{1, 30, 300, 3000} {
		c := morrisCase(events, 50, 11*hourLong)
		c.events = append(c.events, morrisCase(50*events, 50, 11*hourLong).events[1:]...)
		outside, each := 0, map[string]float64{}
		for _, e := range c.events {
			each[e.key] += c.weight(e.at)
		}
		rng := rand.New(rand.NewPCG(1, uint64(events)))
		states := []*State{c.run(t, rng, 1, c.events)}
		ask := func(keys ...string) *ebbv1.Estimate {
			q := &ebbv1.SummaryQuestion{AsOfUs: c.at}
			for _, key := range keys {
				q.Keys = append(q.Keys, []byte(key))
			}
			return c.ask(t, states, &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: q}}).GetSummary().GetTotal()
		}
		var all []string
		truth := 0.0
		for key, want := range each {
			all, truth = append(all, key), truth+want
			e := ask(key)
			if e.Confidence == certain || e.StdError == 0 || e.Low == e.High {
				t.Fatalf("%s: key %s counts %v: certain", c.name, key, e)
			}
			if want < e.Low || want > e.High {
				outside++
			}
		}
		if outside > 6 {
			t.Errorf("%s: %d of %d intervals do not contain the truth", c.name, outside, len(each))
		}
		if e := ask(all...); math.Abs(e.Value-truth) > 4*e.StdError {
			t.Errorf("%s: all keys count %v, told %v", c.name, truth, e)
		}
	}
}

// Counters from before BehaviourMorris stay as they are, and merge with those that are made now. A shard of before
// refuses the image of a new one.
func TestBehaviourMorris(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: hourLong}
	s, now, index := definedAt(t, def, int64(beginning)), int64(beginning), uint64(1)
	apply := func(s *State, raw []byte) *ebbv1.CommandResult {
		index++
		return s.Apply(index, raw, nil)[0]
	}
	add := func(key string) {
		now += second
		in := &ebbv1.Increment{Key: []byte(key), Bin: []byte("b"), Kind: ebbv1.Kind_KIND_MORRIS, Amount: new(100.)}
		batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
		if r := apply(s, encodeEntry(t, now, []*ebbv1.Command{c})); r.Applied != 1 {
			t.Fatal(r)
		}
	}
	add("a old")
	apply(s, behaves(t, BehaviourMorris))
	add("a old")
	add("a new")
	audit(t, s)
	for range 2 {
		for name, want := range map[string]form{"a old": formMorris, "a new": formMorrisMeasured} {
			key, _ := s.findKey(s.lookup(nil), []byte(name))
			sum := s.summary(key)
			if got := sum.body.form(); got != want {
				t.Errorf("%s has form %d, not %d", name, got, want)
			}
		}
		q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("a old"), []byte("a new")}, AsOfUs: now}
		if e := summarise(t, q, map[byte]*State{'a': s}, now).Total; e.Low > 300 || e.High < 299 ||
			e.Confidence == certain {
			t.Errorf("both together count %v, not 300", e)
		}
		s = reopen(t, s)
	}
	key, _ := s.findKey(s.lookup(nil), []byte("a new"))
	image, _, _ := s.exportContent(s.lookup(nil), key)
	put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
		Key: []byte("copy"), What: &ebbv1.PutKey_Image{Image: image},
	}}}
	for behaviour, refused := range map[uint32]bool{BehaviourOrderFree: true, BehaviourMorris: false} {
		to := definedAt(t, def, now)
		to.setBehaviour(behaviour)
		if r := apply(to, encodeEntry(t, now, []*ebbv1.Command{put})); (r.GetError() != nil) != refused {
			t.Errorf("behaviour %d: %v", behaviour, r)
		}
	}
}

// A body is decoded as the form that is written before it, and as no other.
func TestMorrisForms(t *testing.T) {
	for _, measured := range []bool{false, true} {
		m := newMorris(sketch.Tick(hourLong), proto.DefaultSizes(), measured)
		raw := m.appendBinary(nil)
		for _, f := range []form{formMorris, formMorrisMeasured} {
			if _, ok := decodeBody(f, raw); ok != (f == m.form()) {
				t.Errorf("a counter of form %d, decoded as %d: %t", m.form(), f, ok)
			}
		}
	}
}
