//go:build !race

package shard

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The periods of shards together are those of all events, in whatever shards these were counted, in whatever order, and
// whatever each shard knew of the clock at the time.
func TestUnitedPeriodsAreThoseOfAllEvents(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 71))
		times := wildTimes(rng)
		now := slices.Max(times)
		want := plainBeginning(times, now)
		for _, shards := range []int{1, 2, 16} {
			all := make([]activePeriods, shards)
			clocks := make([]sketch.Tick, shards)
			rng.Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
			for _, at := range times {
				i := rng.IntN(shards)
				clocks[i] = max(clocks[i], at)
				all[i] = all[i].add(at, clocks[i])
			}
			together := slices.Concat(all...).united(now)
			if got := together.began(now); got != want || !together.valid(now) {
				t.Fatalf("seed %d, %d shards: began %v before now, want %v (%v)", seed, shards, now-got, now-want, together)
			}
			events := uint64(0)
			for _, p := range together {
				events += p.events
			}
			if events != uint64(len(times)) {
				t.Fatalf("seed %d, %d shards: %d events of %d", seed, shards, events, len(times))
			}
		}
	}
}

// wildTimes are times of events with gaps of all sizes.
func wildTimes(rng *rand.Rand) (times []sketch.Tick) {
	at := sketch.Tick(beginning)
	for range 1 + rng.IntN(300) {
		at -= sketch.Tick(math.Exp(rng.Float64() * 24))
		for range 1 + rng.IntN(1+rng.IntN(40)) {
			times = append(times, at-sketch.Tick(rng.Int64N(100e6)))
		}
		if at < beginning/3 {
			break
		}
	}
	return times
}

const dayLong = 24 * hourLong

// unitedCase is a namespace on event time with two half-lives.
func unitedCase(name string) *orderCase {
	def := &ebbv1.Namespace{
		Name: name, Version: 1, HalfLifeUs: 30 * dayLong, SlowHalfLifeUs: new(300 * dayLong),
		Clock: ebbv1.Clock_CLOCK_EVENT, Kind: ebbv1.Kind_KIND_DISTRIBUTION, MaxJumpUs: new(int64(0)),
	}
	proto.FillNamespace(def, proto.DefaultNamespaceSettings())
	return &orderCase{name: name, def: def, kind: def.Kind, until: beginning, at: beginning, behaviour: BehaviourMax}
}

// beginningsOf are what states say of a namespace.
func beginningsOf(t *testing.T, namespace string, states ...*State) *Beginnings {
	t.Helper()
	b, err := ReadBeginnings(saidOf(namespace, states...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func saidOf(namespace string, states ...*State) (answers []*ebbv1.ShardAnswer) {
	for _, s := range states {
		answers = append(answers, s.Ask(&ebbv1.ShardQuestion{
			Shard: uint32(s.id), Partial: true, Beginnings: true,
			Question: &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{}}},
		}, sketch.Tick(beginning)))
	}
	return answers
}

func (b *Beginnings) mustBegin(t *testing.T, what string, want int64) {
	t.Helper()
	for side, h := range []int64{30 * dayLong, 300 * dayLong} {
		p := &sketch.Params{Decay: sketch.HalfLife, HalfLife: sketch.Tick(h)}
		w, known := b.of(side, p, beginning)
		if !known || w.began != sketch.Tick(want) || w.exposure != (sketch.Exposure{From: sketch.Tick(want)}) {
			t.Fatalf("%s, side %d: %v %+v, want %d", what, side, known, w, want)
		}
	}
}

// daily are n events of a key, one a day, the last of them some time before the beginning.
func daily(key string, n int64, before int64) (events []orderEvent) {
	for i := range n {
		events = append(events, orderEvent{key: key, bin: "b", at: beginning - before - i*dayLong, n: 1})
	}
	return events
}

// Wrong dates in a shard with few events do not move the rates of the namespace, nor does a shard that has heard
// nothing.
func TestFewEventsOfAShardAreNotAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 71))
	c := unitedCase("n")
	many := c.run(t, rng, 1, daily("k", 1000, hourLong))
	few := c.run(t, rng, 2, []orderEvent{{key: "l", bin: "b", at: dayLong, n: 1}})
	beginningsOf(t, "n", many, few, New(3, Heap{})).mustBegin(t, "together", beginning-hourLong-999*dayLong)
	beginningsOf(t, "n", few).mustBegin(t, "alone", dayLong)

	img := beginningsOf(t, "n", many, few).Date(exportedBoth(few, "n", "l"))
	target := unitedCase("to").run(t, rng, 1, nil)
	mustTake(t, target, putImage("to", "l", img))
	if w, known := beginningsOf(t, "to", target).of(0, &sketch.Params{}, beginning); known {
		t.Errorf("the wrong date comes along: %v", w)
	}
}

// Keys that are copied into another namespace bring when rates began there, however many they are, and the periods of
// the shard that they come to are kept.
func TestCopiedKeysBringWhenRatesBegan(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 71))
	from, to := unitedCase("from"), unitedCase("to")
	source := []*State{from.run(t, rng, 1, daily("old", 1000, hourLong)), from.run(t, rng, 2, daily("new", 5, hourLong))}
	b := beginningsOf(t, "from", source...)
	began := beginning - hourLong - 999*dayLong
	for _, events := range [][]orderEvent{nil, daily("own", 3, 2*hourLong)} {
		target := to.run(t, rng, 1, events)
		for i, key := range []string{"new", "old", "new"} {
			s := source[min(i%2, 1)^1]
			img := exportedBoth(s, "from", key)
			if dated := b.Date(img); bytes.Equal(dated, img) == (key == "new") {
				t.Fatalf("key %s was dated: %v", key, key == "old")
			} else if again := b.Date(dated); !bytes.Equal(again, dated) {
				t.Fatal("dated again, it is another")
			} else {
				img = dated
			}
			mustTake(t, target, putImage("to", key+string(rune('0'+i)), img))
			beginningsOf(t, "to", target).mustBegin(t, "after "+key, began)
			if len(events) > 0 && len(target.lookup([]byte("to")).active) == 0 {
				t.Fatal("the periods of the shard are gone")
			}
		}
		target = reopen(t, target)
		beginningsOf(t, "to", target).mustBegin(t, "opened again", began)
		mustTake(t, target, &ebbv1.Command{Namespace: "to", Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
			Increments: []*ebbv1.Increment{{Key: []byte("late"), Bin: []byte("b"), TimeUs: beginning - 10}},
		}}})
		beginningsOf(t, "to", target).mustBegin(t, "after an event", began)
	}
}

func exportedBoth(s *State, namespace, key string) []byte {
	return s.Ask(&ebbv1.ShardQuestion{Shard: uint32(s.id), Question: &ebbv1.Question{
		Namespace: namespace, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte(key), Both: true}},
	}}, beginning).GetAnswer().GetExport().GetImage()
}

// mustTake applies a command that is not refused.
func mustTake(t *testing.T, s *State, c *ebbv1.Command) {
	t.Helper()
	for _, r := range s.Apply(s.applied+1, encode(t, beginning, c), nil) {
		if r.Error != nil || len(r.Refused) > 0 {
			t.Fatal(r)
		}
	}
}

// A clock that is set back leaves the periods up to then, in whatever shards they are.
func TestPeriodsOfAClockThatIsSetBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 71))
	c := unitedCase("n")
	states := []*State{
		c.run(t, rng, 1, daily("k", 1000, 100*dayLong)),
		c.run(t, rng, 2, []orderEvent{{key: "l", bin: "b", at: dayLong, n: 1}}),
		c.run(t, rng, 3, daily("m", 5, hourLong)), // all later than the clock will be
	}
	def := unitedCase("n").def
	def.Version, def.ClockSetting = 2, &ebbv1.ClockSetting{Epoch: 2, TimeUs: beginning - 50*dayLong}
	for i, s := range states {
		mustTake(t, s, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
		beginningsOf(t, "n", states...).mustBegin(t, "set back in some", beginning-1099*dayLong)
		states[i] = reopen(t, s)
	}
	if ns := states[2].lookup([]byte("n")); ns.began != 0 || len(ns.active) != 0 {
		t.Errorf("a shard with later events only began %d, %v", ns.began, ns.active)
	}
}

// A change of the half-life before the first event of a shard leaves it without a beginning: it has counted nothing.
func TestHalfLifeIsChangedBeforeTheFirstEvent(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 71))
	c := unitedCase("n")
	s := c.run(t, rng, 1, nil)
	clock := &ebbv1.EventClock{NowUs: beginning - 10*dayLong}
	mustTake(t, s, &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_EventClock{EventClock: clock}})
	def := unitedCase("n").def
	def.Version, def.HalfLifeUs = 2, 20*dayLong
	mustTake(t, s, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
	first := beginning - 5*dayLong
	mustTake(t, s, &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b"), TimeUs: first}},
	}}})
	w, known := beginningsOf(t, "n", s).of(0, &sketch.Params{Decay: sketch.HalfLife, HalfLife: sketch.Tick(20 * dayLong)}, beginning)
	if !known || w.exposure != (sketch.Exposure{From: sketch.Tick(first)}) {
		t.Errorf("%v %+v", known, w)
	}
}

// A cluster of another number of shards has the rates of the old one, with both half-lives.
func TestRehashedRates(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 71))
	c := unitedCase("n")
	old := []*State{
		c.run(t, rng, 1, daily("k", 1000, hourLong)),
		c.run(t, rng, 2, slices.Concat(daily("l", 40, hourLong), []orderEvent{{key: "l", bin: "c", at: dayLong, n: 1}})),
	}
	ask := func(states []*State) *ebbv1.Trend {
		t.Helper()
		q := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{
			Keys: [][]byte{[]byte("k"), []byte("l")}, Bins: [][]byte{[]byte("b")},
		}}}
		var answers []*ebbv1.ShardAnswer
		for _, s := range states {
			answers = append(answers, s.Ask(&ebbv1.ShardQuestion{Shard: uint32(s.id), Question: q, Partial: true}, beginning))
		}
		a, err := MergeTrend(q, answers, beginningsOf(t, "n", states...))
		if err != nil {
			t.Fatal(err)
		}
		return a.GetTrend()
	}
	want := ask(old)
	if want.SinceUs != beginning-hourLong-999*dayLong || want.Warming {
		t.Fatal(want)
	}
	for _, shards := range []uint32{1, 3, 16} {
		var states []*State
		for id := ID(1); id <= ID(shards); id++ {
			s, err := Rehash(id, shards, Heap{}, old, []*ebbv1.Namespace{c.def})
			if err != nil {
				t.Fatal(err)
			}
			audit(t, s)
			states = append(states, reopen(t, s))
		}
		got := ask(states)
		same := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(a) }
		if got.SinceUs != want.SinceUs || got.Warming || !same(want.Total.FastRate, got.Total.FastRate) ||
			!same(want.Total.SlowRate, got.Total.SlowRate) || !same(want.Bins[0].ZScore, got.Bins[0].ZScore) {
			t.Errorf("%d shards: %v, want %v", shards, got, want)
		}
	}
}

// A shard of an older build answers with a part of a trend, which says nothing here; what does not decode is an error.
func TestReadBeginnings(t *testing.T) {
	c := unitedCase("n")
	s := c.run(t, rand.New(rand.NewPCG(9, 71)), 1, daily("k", 100, hourLong))
	q := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{}}}
	older := s.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: q, Partial: true}, beginning)
	b, err := ReadBeginnings([]*ebbv1.ShardAnswer{older})
	if _, known := b.of(0, &sketch.Params{}, beginning); err != nil || known {
		t.Errorf("an older build: %v, known %v", err, known)
	}
	said := saidOf("n", s)[0].GetPart()
	for n := range said {
		part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: said[:n]}}
		if _, err := ReadBeginnings([]*ebbv1.ShardAnswer{part}); err == nil {
			t.Errorf("%d of %d bytes are read", n, len(said))
		}
	}
}

// What is read of any bytes is what a shard may have said, and images of keys stay ones that shards take.
func FuzzBeginnings(f *testing.F) {
	t := &testing.T{}
	c := unitedCase("n")
	s := c.run(t, rand.New(rand.NewPCG(9, 71)), 1, daily("k", 100, hourLong))
	image := exportedBoth(s, "n", "k")
	f.Add(saidOf("n", s)[0].GetPart(), image)
	f.Add(saidOf("none", s)[0].GetPart(), []byte{})
	f.Fuzz(func(t *testing.T, part, img []byte) {
		b, err := ReadBeginnings([]*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: part}}})
		if err != nil {
			return
		}
		p := &sketch.Params{Decay: sketch.HalfLife, HalfLife: sketch.Tick(30 * dayLong)}
		if w, known := b.of(0, p, beginning); known != (w.began > 0) || w.exposure.From < 0 {
			t.Errorf("%v %+v", known, w)
		}
		for _, old := range [][]byte{image, img} {
			room := func(form, int) int { return 1 << 20 }
			was, ok := decodeImage(old, imageBothVersion, room)
			is, still := decodeImage(b.Date(old), imageBothVersion, room)
			if ok && (!still || is.at != was.at || is.checksum != was.checksum) {
				t.Errorf("an image became another")
			}
		}
	})
}
