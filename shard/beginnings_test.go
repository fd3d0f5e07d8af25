//go:build !race

package shard

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// When counting began depends on all events and not on their order; and it is what a plain reading of the rule says.
func TestBeginningInAnyOrder(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 17))
		times := wildTimes(rng)
		now := slices.Max(times)
		want := plainBeginning(times, now)
		for order := range 4 {
			switch order {
			case 0:
				slices.Sort(times)
			case 1:
				slices.SortFunc(times, func(a, b sketch.Tick) int { return cmp.Compare(b, a) })
			default:
				rng.Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
			}
			var s activePeriods
			clock := sketch.Tick(0)
			for _, at := range times {
				clock = max(clock, at)
				s = s.add(at, clock)
				if !s.valid(clock) {
					t.Fatalf("seed %d: %v", seed, s)
				}
			}
			if got := s.began(now); got != want {
				t.Fatalf("seed %d, order %d: began %v before now, want %v (%v)", seed, order, now-got, now-want, s)
			}
		}
	}
}

// plainBeginning is the rule, of all times together.
func plainBeginning(times []sketch.Tick, now sketch.Tick) (began sketch.Tick) {
	all := slices.Clone(times)
	slices.SortFunc(all, func(a, b sketch.Tick) int { return cmp.Compare(b, a) })
	for i := 0; i < len(all); {
		first := i
		for i++; i < len(all) && all[i-1]-all[i] <= max(now-all[i-1], 60e6); i++ {
		}
		if i-first >= first/64 {
			began = all[i-1]
		}
	}
	return began
}

// A trend is the same in any order of events: of a constant rate it says that nothing has changed, also where the
// newest events come first, and where one has a wrong date.
func TestTrendInAnyOrder(t *testing.T) {
	const day = 24 * hourLong
	var events []orderEvent
	for i := range int64(1000) {
		bin := "b" + strconv.Itoa(int(i%3))
		events = append(events, orderEvent{key: "k", bin: bin, at: beginning - hourLong - i*day, n: 1})
	}
	wrong := orderEvent{key: "k", bin: "b0", at: beginning - 12_000*day, n: 1}
	def := &ebbv1.Namespace{
		Name: "n", Version: 1, HalfLifeUs: 30 * day, SlowHalfLifeUs: new(300 * day), Clock: ebbv1.Clock_CLOCK_EVENT,
		Kind: ebbv1.Kind_KIND_DISTRIBUTION, MaxJumpUs: new(int64(0)),
	}
	proto.FillNamespace(def, proto.DefaultNamespaceSettings())
	c := &orderCase{name: "trend", def: def, kind: def.Kind, until: beginning, at: beginning, behaviour: BehaviourMax}
	newestFirst := slices.Concat(events[:60], sortedByTime(events[60:]))
	rng := rand.New(rand.NewPCG(1, 2))
	shuffled := slices.Clone(events)
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for name, events := range map[string][]orderEvent{
		"in order":                sortedByTime(events),
		"reversed":                events,
		"newest first":            newestFirst,
		"shuffled":                shuffled,
		"a wrong date at first":   slices.Concat([]orderEvent{wrong}, sortedByTime(events)),
		"a wrong date in between": slices.Concat(shuffled[:500], []orderEvent{wrong}, shuffled[500:]),
	} {
		s := c.run(t, rng, 1, events)
		ask := &ebbv1.TrendQuestion{Keys: [][]byte{[]byte("k")}, Bins: [][]byte{[]byte("b0")}}
		got := c.ask(t, []*State{s}, &ebbv1.Question{Ask: &ebbv1.Question_Trend{Trend: ask}}).GetTrend()
		if want := beginning - hourLong - 999*day; got.Warming || got.SinceUs != want {
			t.Errorf("%s: since %d, want %d, warming %v", name, got.SinceUs, want, got.Warming)
		}
		if p := got.GetTotal().GetPValue(); p < 0.2 || math.Abs(got.GetTotal().GetBits()) > 0.1 {
			t.Errorf("%s: %v", name, got.Total)
		}
	}
}

func sortedByTime(events []orderEvent) []orderEvent {
	out := slices.Clone(events)
	slices.SortStableFunc(out, func(a, b orderEvent) int { return cmp.Compare(a.at, b.at) })
	return out
}

// A shard that first hears of a namespace with its clock set begins with the first event all the same.
func TestBeginningBehindASetClock(t *testing.T) {
	const day = 24 * hourLong
	def := &ebbv1.Namespace{
		Name: "n", Version: 1, HalfLifeUs: 30 * day, SlowHalfLifeUs: new(300 * day), Clock: ebbv1.Clock_CLOCK_EVENT,
		Kind: ebbv1.Kind_KIND_DISTRIBUTION, ClockSetting: &ebbv1.ClockSetting{Epoch: 1, TimeUs: beginning - hourLong},
	}
	proto.FillNamespace(def, proto.DefaultNamespaceSettings())
	c := &orderCase{
		name: "set clock", def: def, kind: def.Kind, until: beginning, at: beginning - hourLong,
		behaviour: BehaviourMax,
	}
	var events []orderEvent
	for i := range int64(500) {
		events = append(events, orderEvent{key: "k", bin: "b", at: beginning - 2*hourLong - i*day, n: 1})
	}
	s := c.run(t, rand.New(rand.NewPCG(1, 3)), 1, sortedByTime(events))
	ask := &ebbv1.TrendQuestion{Keys: [][]byte{[]byte("k")}}
	got := c.ask(t, []*State{s}, &ebbv1.Question{Ask: &ebbv1.Question_Trend{Trend: ask}}).GetTrend()
	if want := beginning - 2*hourLong - 499*day; got.SinceUs != want || got.Warming {
		t.Errorf("since %d, want %d (warming %v)", got.SinceUs, want, got.Warming)
	}
}
