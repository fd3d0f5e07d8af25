package shard

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// What a slow namespace holds is what a namespace of its settings would hold that is given every event which the first
// one takes, and no other. Neither restarts nor views change that.
func TestSlowCountsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_700_000_000 * second)
		def := proto.DefaultNamespaceSettings()
		def.Name, def.Version, def.HalfLifeUs, def.SlowHalfLifeUs = "default", 1, 4*second, new(int64(10*second))
		def.BinsMax = 3
		if rapid.Bool().Draw(t, "faster") {
			def.SlowHalfLifeUs = new(int64(2 * second))
		}
		if rapid.Bool().Draw(t, "event time") {
			def.Clock = ebbv1.Clock_CLOCK_EVENT
		}
		like := deriveSlow(def)
		like.Name, like.BinsMax = "default", 100
		s, twin := definedAt(t, def, now), definedAt(t, like, now)
		if rapid.Bool().Draw(t, "order free") {
			free := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourOrderFree}}}
			for _, one := range []*State{s, twin} {
				one.Apply(one.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{free}), nil)
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "entries") {
			now += rapid.SampledFrom([]int64{0, second / 2, 3 * second, 100 * second}).Draw(t, "later")
			c, taken := &ebbv1.Increments{}, &ebbv1.Increments{}
			for range rapid.IntRange(0, 3).Draw(t, "events") {
				c.Increments = append(c.Increments, &ebbv1.Increment{
					Key: []byte(rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "key")), Bin: fmt.Append(nil, rapid.IntRange(0, 5).Draw(t, "bin")),
					Amount: new(rapid.SampledFrom([]float64{1, 1, 20, -1, 0.0005}).Draw(t, "amount")), TimeUs: now - rapid.Int64Range(0, 9*second).Draw(t, "age"),
				})
			}
			apply := func(s *State, c *ebbv1.Increments) *ebbv1.CommandResult {
				cmd := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}}
				return s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{cmd}), nil)[0]
			}
			refused := map[uint32]ebbv1.Code{}
			for _, r := range apply(s, c).Refused {
				refused[r.Index] = r.GetError().GetCode()
			}
			for i, in := range c.Increments {
				switch code, ok := refused[uint32(i)]; {
				case !ok:
					taken.Increments = append(taken.Increments, in)
				case code == ebbv1.Code_CODE_TOO_MANY_BINS: // it has moved the clock all the same
					taken.Increments = append(taken.Increments,
						&ebbv1.Increment{Key: []byte("clock"), Bin: []byte("b"), TimeUs: in.TimeUs})
				}
			}
			if r := apply(twin, taken); len(r.Refused) > 0 {
				t.Fatalf("the twin refuses %v", r)
			}
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				s = reopen(t, s)
			case 1:
				s.Freeze()
			}
			audit(t, s)
			slow := s.slowOf(s.lookup([]byte("default")))
			for _, name := range []string{"k", "l", "m"} {
				at := slow.clock(s.now) // a refused event has moved it, too
				got, want := countsAt(s, slow, name, at), countsAt(twin, twin.lookup([]byte("default")), name, at)
				if !got.like(want) {
					t.Fatalf("%s holds %v, not %v", name, got, want)
				}
			}
		}
	})
}

// keyCounts is what a key holds at a time, with what a bin and what the sum may be short of.
type keyCounts struct {
	last        sketch.Tick
	bins        map[string]float64
	z           float64
	lost, faded float64
}

// like compares counts of the same events: where bins had faded, one may have removed them and the other not.
func (c keyCounts) like(o keyCounts) bool {
	lost, faded := c.lost+o.lost, c.faded+o.faded
	near := func(a, b, most float64) bool { return math.Abs(a-b) <= most+1e-9*math.Abs(a) }
	for _, bins := range []map[string]float64{c.bins, o.bins} {
		for bin := range bins {
			if !near(c.bins[bin], o.bins[bin], lost) {
				return false
			}
		}
	}
	return near(c.z, o.z, faded) && (c.last == o.last || c.last == 0 && o.z <= lost || o.last == 0 && c.z <= lost)
}

// losing sets what the counts may be short of. Where the order of events does not matter, that is what is lost, and
// what a bin has that is below the threshold and does not show. Where it does, both have removed the same bins of those
// that show; the sum has faded bins, too, until there is time or no room.
func (c *keyCounts) losing(p *sketch.Params, lost float64) {
	if p.OrderFree {
		c.lost = lost + p.Threshold
		c.faded = c.lost
		return
	}
	c.faded = 3 * p.Threshold
}

// countsAt reads a key, at a time; of one that is not there it is 0, and what it may have held when it died.
func countsAt(s *State, ns *namespace, name string, at sketch.Tick) keyCounts {
	out := keyCounts{bins: map[string]float64{}}
	out.losing(ns.params(), ns.params().LostAtBirth(at))
	key, ok := s.findKey(ns, []byte(name))
	if !ok {
		return out
	}
	sum := s.summary(key)
	d := s.present(ns, &sum, at)
	if d == nil {
		return out
	}
	r := d.At(ns.params(), at)
	for _, b := range r.All(nil) {
		out.bins[string(s.binName(b.ID))] = b.Count
	}
	out.last, out.z = r.Last, r.Z
	out.losing(ns.params(), r.Lost)
	return out
}

// A slow namespace that is closed is empty soon, however many keys it had, and no entry takes more of them than it has
// time for.
func TestClosedSlowNamespaceIsDropped(t *testing.T) {
	const keys = 1000
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 100 * second, SlowHalfLifeUs: new(int64(1e6 * second))})
	c := &ebbv1.Increments{}
	for i := range keys {
		c.Increments = append(c.Increments, &ebbv1.Increment{Key: fmt.Append(nil, i), Bin: []byte("b")})
	}
	s.Apply(s.applied+1, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}}), nil)
	if s.Keys() != keys || s.summaries.keys.live != 2*keys {
		t.Fatalf("%d keys of %d", s.Keys(), s.summaries.keys.live)
	}
	s.Apply(s.applied+1, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name: "default", Version: 2, HalfLifeUs: 100 * second,
	}}}), nil)
	entries := 0
	for ; s.summaries.keys.live > keys; entries++ {
		before := s.summaries.keys.live
		s.Apply(s.applied+1, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}), nil)
		if before-s.summaries.keys.live > dropSlots || entries > 4*keys/dropSlots {
			t.Fatalf("entry %d leaves %d of %d keys", entries, s.summaries.keys.live, before)
		}
		if entries%50 == 0 {
			s = reopen(t, s)
			audit(t, s)
		}
	}
	if len(s.dropping) > 1 || s.Keys() != keys {
		t.Errorf("%v, %d keys", s.dropping, s.Keys())
	}
}

// A trend says the same whether the keys lie in one shard or in two, whose bins have other ids.
func TestTrendAcrossShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_700_000_000 * second)
		def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 60 * second, SlowHalfLifeUs: new(int64(600 * second))}
		whole := definedAt(t, def, now)
		split := map[byte]*State{'a': definedAt(t, def, now), 'b': definedAt(t, def, now)}
		for range rapid.IntRange(0, 12).Draw(t, "entries") {
			now += rapid.Int64Range(0, 300*second).Draw(t, "later")
			key := rapid.SampledFrom([]string{"a/1", "a/2", "b/1"}).Draw(t, "key")
			in := &ebbv1.Increment{
				Key: []byte(key), Bin: fmt.Append(nil, rapid.IntRange(0, 9).Draw(t, "bin")), Amount: new(float64(rapid.IntRange(1, 40).Draw(t, "amount"))), TimeUs: now,
			}
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}}
			for _, s := range []*State{whole, split[key[0]]} {
				if r := s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != 1 {
					t.Fatalf("%v", r)
				}
			}
		}
		ask := func(keys ...string) *ebbv1.Question {
			return &ebbv1.Question{Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{Keys: named(keys...), Bins: named("3", "never"), AsOfUs: now + 5*second}}}
		}
		both := ask("a/1", "a/2", "b/1")
		want := whole.Ask(&ebbv1.ShardQuestion{Question: both}, sketch.Tick(now)).GetAnswer().GetTrend()
		parts := []*ebbv1.ShardAnswer{
			split['a'].Ask(&ebbv1.ShardQuestion{Question: ask("a/1", "a/2"), Partial: true}, sketch.Tick(now)),
			split['b'].Ask(&ebbv1.ShardQuestion{Question: ask("b/1"), Partial: true}, sketch.Tick(now)),
		}
		a, err := Merge(both, parts)
		if err != nil {
			t.Fatalf("%v", err)
		}
		got := a.GetTrend()
		if got.Found != want.Found || got.Warming != want.Warming || got.SinceUs != want.SinceUs || got.AsOfUs != want.AsOfUs {
			t.Fatalf("one shard %v\ntwo      %v", want, got)
		}
		same(t, []*ebbv1.Change{got.Total}, []*ebbv1.Change{want.Total})
		same(t, got.Rising, want.Rising)
		same(t, got.Falling, want.Falling)
		same(t, got.Bins, want.Bins)
	})
}

func same(t *rapid.T, got, want []*ebbv1.Change) {
	if len(got) != len(want) {
		t.Fatalf("%v\nwant %v", got, want)
	}
	for i, g := range got {
		w := want[i]
		if !bytes.Equal(g.Bin, w.Bin) || !near(g.FastRate, w.FastRate) || !near(g.SlowRate, w.SlowRate) || !near(g.Bits, w.Bits) || !near(g.LowBits, w.LowBits) || !near(g.PValue, w.PValue) {
			t.Fatalf("%v\nwant %v", g, w)
		}
	}
}

// trendPart is a part that a shard makes, of a key that has seen something.
func trendPart(t testing.TB) []byte {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second, SlowHalfLifeUs: new(int64(100 * second))}, 1_700_000_000*second)
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{
		{Key: []byte("k"), Bin: []byte("a"), Amount: new(5.)}, {Key: []byte("k"), Bin: []byte("b")},
	}}}}
	s.Apply(s.applied+1, encodeEntry(t, 1_700_000_030*second, []*ebbv1.Command{c}), nil)
	return s.Ask(&ebbv1.ShardQuestion{Question: trendOf("k"), Partial: true}, 1_700_000_040*second).GetPart()
}

func trendOf(key string) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{Keys: named(key), Bins: named("a")}}}
}

// Parts that no shard makes are refused.
func TestTrendPartsRefused(t *testing.T) {
	good := trendPart(t)
	answer := func(part []byte) *ebbv1.ShardAnswer {
		return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: part}}
	}
	if a, err := Merge(trendOf("k"), []*ebbv1.ShardAnswer{answer(good), answer(good)}); err != nil || a.GetTrend().GetTotal().GetFastRate() == 0 {
		t.Fatalf("%v, %v", a, err)
	}
	for name, part := range map[string][]byte{
		"nothing": nil, "another kind": appendCount(nil, 1), "cut": good[:len(good)-1], "too long": append(bytes.Clone(good), 0), "one side": {partTrend, 0},
		"no exposure": append(bytes.Clone(good[:len(good)-8]), 0, 0, 0, 0, 0, 0, 0xf8, 0x7f),
	} {
		if _, err := Merge(trendOf("k"), []*ebbv1.ShardAnswer{answer(good), answer(part)}); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// Whatever parts say, an answer is made of numbers.
func FuzzMergeTrends(f *testing.F) {
	good := trendPart(f)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{partTrend, 2, partDistribution, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		own, other := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: good}}, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
		a, err := Merge(trendOf("k"), []*ebbv1.ShardAnswer{own, other, other})
		if err != nil {
			return
		}
		w := a.GetTrend()
		for _, c := range append(append(append(w.Rising, w.Falling...), w.Bins...), w.Total) {
			for _, v := range []float64{c.FastRate, c.SlowRate, c.Bits, c.StdErrorBits, c.LowBits, c.HighBits, c.ZScore, c.PValue} {
				if !number(v) {
					t.Fatalf("%v", c)
				}
			}
		}
	})
}

// An image that is ahead of a namespace's event clock takes the slow namespace's along: the state that follows is one
// that restarts.
func TestImagesAheadOfTheEventClock(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: second, SlowHalfLifeUs: new(int64(10 * second)), Clock: ebbv1.Clock_CLOCK_EVENT}
	one, two := definedAt(t, def, beginning+1000*second), definedAt(t, def, beginning+1000*second)
	event := func(at int64) *ebbv1.Command {
		c := increments("k", "a")
		c.GetIncrements().Increments[0].TimeUs = at
		return c
	}
	apply := func(s *State, c *ebbv1.Command) {
		t.Helper()
		if r := s.Apply(s.applied+1, encodeEntry(t, beginning+1000*second, []*ebbv1.Command{c}), nil)[0]; r.Error != nil || len(r.Refused) > 0 {
			t.Fatalf("%v", r)
		}
		audit(t, s)
	}
	apply(one, event(beginning+100*second))
	apply(one, event(beginning+900*second))
	apply(two, event(beginning))
	export := exported(&one.frame, "", "k")
	apply(two, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("l"), What: &ebbv1.PutKey_Image{Image: export.Image}}}})
	ns := two.lookup(nil)
	if own, other := ns.clock(two.now), two.slowOf(ns).clock(two.now); own != other {
		t.Errorf("the clock is %d, and that of the slow namespace %d", own, other)
	}
	again := reopen(t, two)
	apply(two, event(beginning+901*second))
	apply(again, event(beginning+901*second))
	if two.Checksum() != again.Checksum() {
		t.Error("a restored state went another way")
	}
}

// Batches of a stream may be applied out of order: it began with its earliest event all the same, and what came evenly
// is no change. One event with a wrong date is no beginning.
func TestTrendOfBatchesOutOfOrder(t *testing.T) {
	const minute = 60 * second
	day := int64(1_700_000_000 * second)
	for name, c := range map[string]struct {
		order []int // batches of four hours, of a day
		stray int64 // one event so long before, after the first batch
		late  int64 // how late it may say that it began
	}{
		"in order":               {[]int{0, 1, 2, 3, 4, 5}, 0, 0},
		"two swapped":            {[]int{1, 0, 2, 3, 4, 5}, 0, 10 * minute},
		"the latest first":       {[]int{3, 4, 5, 2, 1, 0}, 0, 10 * minute},
		"a date of years before": {[]int{0, 1, 2, 3, 4, 5}, 5 * 365 * 24 * 60 * minute, 0},
	} {
		def := proto.DefaultNamespaceSettings()
		def.Name, def.Version, def.HalfLifeUs, def.SlowHalfLifeUs, def.Clock = "default", 1, 10*minute, new(int64(6*60*minute)), ebbv1.Clock_CLOCK_EVENT
		s := definedAt(t, def, day+48*60*minute)
		add := func(at int64) {
			c := increments("k", "a")
			c.GetIncrements().Increments[0].TimeUs = at
			s.Apply(s.Applied()+1, encodeEntry(t, day+48*60*minute, []*ebbv1.Command{c}), nil)
		}
		for i, batch := range c.order {
			if i == 1 && c.stray > 0 {
				add(day - c.stray)
			}
			for m := range int64(240) {
				add(day + (240*int64(batch)+m)*minute)
			}
		}
		audit(t, s)
		s = reopen(t, s)
		w := s.Ask(&ebbv1.ShardQuestion{Question: trendOf("k")}, 0).GetAnswer().GetTrend()
		if since := w.SinceUs - day; since < 0 || since > c.late {
			t.Errorf("%s: since %s of the day", name, text(sketch.Tick(since)))
		}
		if a := w.Bins[0]; w.Warming || a.PValue < 0.5 {
			t.Errorf("%s: warming %v, %v", name, w.Warming, a)
		}
	}
}

// The slow namespace of the longest name comes through a snapshot.
func TestSlowNamespaceOfALongName(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{
		Name: strings.Repeat("n", proto.NamespaceLenMax), Version: 1, HalfLifeUs: 60 * second, SlowHalfLifeUs: new(int64(7200 * second)),
	}, beginning)
	if again := reopen(t, s); len(again.namespaces) != 2 || again.Checksum() != s.Checksum() {
		t.Errorf("%d namespaces", len(again.namespaces))
	}
}

// In a namespace with a second half-life an image brings the counts of both, and since when they were counted: another
// shard answers as the first one does, also how rates have changed. A log of an earlier behaviour version neither
// writes nor takes such images.
func TestImagesBringBothHalfLives(t *testing.T) {
	def := &ebbv1.Namespace{
		Name: "default", Version: 1, HalfLifeUs: 100 * second,
		SlowHalfLifeUs: new(int64(1000 * second)),
	}
	for name, clock := range map[string]ebbv1.Clock{"wall": ebbv1.Clock_CLOCK_WALL, "event": ebbv1.Clock_CLOCK_EVENT} {
		def.Clock = clock
		end := beginning + int64(4000*second)
		one := definedAt(t, def, beginning)
		behave := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourDeletion}}}
		apply := func(s *State, at int64, c *ebbv1.Command) *ebbv1.CommandResult {
			t.Helper()
			r := s.Apply(s.applied+1, encodeEntry(t, at, []*ebbv1.Command{c}), nil)[0]
			audit(t, s)
			return r
		}
		for at := int64(beginning); at <= end; at += 10 * second {
			c := increments("k", "a", "b")
			if at > end-300*second {
				c = increments("k", "a", "a", "c")
			}
			for _, in := range c.GetIncrements().Increments {
				in.TimeUs = at
			}
			if r := apply(one, at, c); r.Error != nil || len(r.Refused) > 0 {
				t.Fatalf("%s: %v", name, r)
			}
		}
		if raw := exported(&one.frame, "", "k").Image; raw[1] != imageVersion {
			t.Errorf("%s: an image of version %d where one was asked for that older builds know", name, raw[1])
		}
		apply(one, end, behave)
		apply(one, end, &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{
			Keys:  named("k"),
			Until: &ebbv1.ExpireKeys_AtUs{AtUs: end + 5000*second},
		}}})
		export := exported(&one.frame, "", "k")
		put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
			Key: []byte("k"), Overwrite: true,
			What: &ebbv1.PutKey_Image{Image: export.Image},
		}}}
		two := definedAt(t, def, end)
		if r := apply(two, end, put); r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
			t.Errorf("%s: put before the behaviour version: %v", name, r)
		}
		apply(two, end, behave)
		if r := apply(two, end, put); r.Error != nil || r.Applied != 1 {
			t.Fatalf("%s: %v", name, r)
		}
		if r := apply(two, end, put); r.Error != nil || r.Applied != 0 {
			t.Errorf("%s: once more: %v", name, r)
		}
		if back := exported(&two.frame, "", "k"); !bytes.Equal(back.Image, export.Image) ||
			back.Checksum != export.Checksum {
			t.Errorf("%s: it has another image there", name)
		}
		q := trendOf("k")
		for _, later := range []int64{0, 700 * second} {
			q.GetTrend().AsOfUs = end + later
			here, there := one.Ask(&ebbv1.ShardQuestion{Question: q},
				sketch.Tick(end)), two.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(end))
			if !pb.Equal(here, there) || here.GetAnswer().GetTrend().GetWarming() ||
				len(here.GetAnswer().GetTrend().GetFalling()) == 0 {
				t.Errorf("%s: here  %v\nthere %v", name, here, there)
			}
		}
		if again := reopen(t, two); again.Checksum() != two.Checksum() {
			t.Errorf("%s: the state changed by a restart", name)
		}
		for n := range export.Image {
			if _, ok := decodeImage(export.Image[:n], imageBothVersion, two.lookup(nil).room); ok {
				t.Errorf("%s: %d of %d bytes decode", name, n, len(export.Image))
			}
		}
	}
}

// Of two exposures the longer one is right, also where it began later.
func TestTheLongerExposureIsTakenOver(t *testing.T) {
	p := sketch.Params{Decay: sketch.HalfLife, HalfLife: 3600e6, Threshold: 0.001}
	const clock = 100_000e6
	own := sketch.Exposure{From: 90_000e6, Had: 3000}
	long, short := sketch.Exposure{From: 90_000e6, Had: 4000}, sketch.Exposure{From: 99_999e6}
	for _, c := range []struct {
		name     string
		w        watched
		began    sketch.Tick
		exposure sketch.Exposure
	}{
		{"longer and later", watched{2e6, long}, 1e6, long},
		{"shorter and later", watched{2e6, short}, 1e6, own},
		{"shorter and earlier", watched{5e5, short}, 5e5, own},
	} {
		ns := &namespace{definition: &ebbv1.Namespace{}, eras: []era{{params: p}}, began: 1e6, exposure: own}
		new(State).watch(ns, &c.w, &p, clock, clock)
		if ns.began != c.began || ns.exposure != c.exposure {
			t.Errorf("%s: since %d, %+v", c.name, ns.began, ns.exposure)
		}
	}
}
