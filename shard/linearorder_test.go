package shard

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// leakyBuckets is what bins have under linear decay at a time, their events in the order of times.
func leakyBuckets(events []*ebbv1.Increment, halfLife, at int64) map[string]float64 {
	sorted := slices.Clone(events)
	slices.SortStableFunc(sorted, func(a, b *ebbv1.Increment) int { return cmp.Compare(a.TimeUs, b.TimeUs) })
	content, last := map[string]float64{}, map[string]int64{}
	leak := func(bin string, at int64) float64 {
		return max(0, content[bin]-float64(at-last[bin])*math.Ln2/float64(halfLife))
	}
	for _, e := range sorted {
		bin := string(e.Bin)
		content[bin], last[bin] = leak(bin, e.TimeUs)+e.GetAmount(), e.TimeUs
	}
	for bin := range content {
		content[bin] = leak(bin, at)
	}
	return content
}

// Under linear decay the truth of a bin, and of all, lies between the answer and the answer plus what is lost. That
// holds whatever order events come in, with restarts, over shards and in copies. An increment that is too late to count
// for certain is reported so, and no other.
func TestLinearDecayInAnyOrder(t *testing.T) {
	def := &ebbv1.Namespace{
		Name: "n", Version: 1, HalfLifeUs: hourOfLinear, Decay: ebbv1.Decay_DECAY_LINEAR, Clock: ebbv1.Clock_CLOCK_EVENT,
	}
	proto.FillNamespace(def, proto.DefaultNamespaceSettings())
	for seed := range 60 {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		var events []*ebbv1.Increment
		until := int64(beginning) + 20*hourOfLinear
		for range 300 {
			bin := fmt.Sprint("b", rng.IntN(1+rng.IntN(8)))
			events = append(events, &ebbv1.Increment{
				Key: []byte(
					"k",
				), Bin: []byte(bin), TimeUs: int64(beginning) + rng.Int64N(20*hourOfLinear), Amount: new(3 * rng.Float64()),
			})
		}
		events = append(events, &ebbv1.Increment{Key: []byte("other"), Bin: []byte("x"), TimeUs: until})
		rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		shards := 1 + seed%2
		var states []*State
		for id := range ID(shards) {
			s := New(id+1, &wiping{})
			s.Apply(
				1,
				encode(
					t,
					until,
					&ebbv1.Command{
						Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourBounded}},
					},
					&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}},
				),
				nil,
			)
			states = append(states, s)
		}
		parts := make([][]*ebbv1.Increment, shards)
		for i, e := range events {
			s := states[i%shards]
			batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{e}}
			r := s.Apply(s.Applied()+1, encode(t, until, &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: batch}}), nil)[0]
			if r.Applied != 1 {
				t.Fatal(r)
			}
			clock := s.lookup([]byte("n")).clock(s.now)
			leaked := float64(int64(clock)-e.TimeUs) * math.Ln2 / float64(hourOfLinear)
			if want := e.Amount != nil && *e.Amount <= leaked && leaked > 0; (r.Faded == 1) != want {
				t.Fatalf("%v, of which %v has leaked, is reported as %v", e, leaked, r)
			}
			if string(e.Key) == "k" {
				parts[i%shards] = append(parts[i%shards], e)
			}
			if rng.IntN(100) == 0 {
				states[i%shards] = reopen(t, s)
			}
		}
		ask := &ebbv1.DistributionQuestion{
			Keys:   [][]byte{[]byte("k")},
			AsOfUs: until,
			Select: &ebbv1.DistributionQuestion_All{All: true},
		}
		q := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Distribution{Distribution: ask}}
		var answers []*ebbv1.ShardAnswer
		truth, sum := map[string]float64{}, 0.0
		for i, s := range states {
			audit(t, s)
			answers = append(
				answers,
				s.Ask(&ebbv1.ShardQuestion{Shard: uint32(s.id), Question: q, Partial: shards > 1}, sketch.Tick(until)),
			)
			for bin, n := range leakyBuckets(parts[i], hourOfLinear, until) {
				truth[bin] += n
				sum += n
			}
		}
		a, err := Merge(q, answers)
		if err != nil {
			t.Fatal(err)
		}
		d := a.GetDistribution()
		if d.Lost <= 0 {
			t.Fatalf("nothing is lost: %v", d)
		}
		told := map[string]float64{}
		for _, b := range d.Bins {
			told[string(b.Bin)] = b.Count
		}
		const hair = 1e-3 // whole micro-counts, and the threshold of what shows
		for bin, n := range truth {
			if n < told[bin]-hair || n > told[bin]+d.Lost+hair {
				t.Errorf("stream %d: bin %s has %v, told %v and at most %v more", seed, bin, n, told[bin], d.Lost)
			}
		}
		if sum < d.Z-hair || sum > d.Z+d.Lost+hair*8 {
			t.Errorf("stream %d: all have %v, told %v and at most %v more", seed, sum, d.Z, d.Lost)
		}
	}
}

const hourOfLinear = int64(3600 * second)

// A shard of before BehaviourBounded refuses the image of a key that says what late events may have lost, as builds do
// that do not know it.
func TestImageOfLinearDecay(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: hourOfLinear, Decay: ebbv1.Decay_DECAY_LINEAR}
	now := int64(beginning)
	s := definedAt(t, def, now)
	s.setBehaviour(BehaviourBounded)
	fillLinear(t, s, now)
	key, _ := s.findKey(s.lookup(nil), []byte("k"))
	image, _, _ := s.exportContent(s.lookup(nil), key)
	put := &ebbv1.Command{
		Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("copy"), What: &ebbv1.PutKey_Image{Image: image}}},
	}
	ask := question(
		"default",
		&ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("copy")}, Select: &ebbv1.DistributionQuestion_All{All: true}},
	)
	for behaviour, refused := range map[uint32]bool{BehaviourOrderFree: true, BehaviourBounded: false} {
		to := definedAt(t, def, now)
		to.setBehaviour(behaviour)
		r := to.Apply(2, encodeEntry(t, now, []*ebbv1.Command{put}), nil)[0]
		if (r.GetError() != nil) != refused {
			t.Errorf("behaviour %d: %v", behaviour, r)
		}
		if d := to.Ask(ask, sketch.Tick(now)).GetAnswer().GetDistribution(); !refused && !(d.GetLost() > 0.5) {
			t.Errorf("behaviour %d: the copy has %v", behaviour, d)
		}
	}
}

// fillLinear counts an event in time and a late one.
func fillLinear(t *testing.T, s *State, now int64) {
	t.Helper()
	batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{
		{
			Key:    []byte("k"),
			Bin:    []byte("a"),
			TimeUs: now,
		}, {Key: []byte("k"), Bin: []byte("a"), TimeUs: now - hourOfLinear},
	}}
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
	if r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 2 {
		t.Fatal(r)
	}
}
