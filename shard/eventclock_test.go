package shard

import (
	"fmt"
	"slices"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

const day = 24 * hourLong

// newClockShard is a shard with a namespace n that has an event clock and a half-life of an hour.
func newClockShard(t *testing.T, change func(*ebbv1.Namespace)) *freeShard {
	t.Helper()
	def := &ebbv1.Namespace{Clock: ebbv1.Clock_CLOCK_EVENT}
	if change != nil {
		change(def)
	}
	f := newFreeShard(t, def)
	f.behave(BehaviourEventClocks)
	if change != nil { // before its behaviour a shard knows nothing of some settings
		change(f.def)
	}
	f.define()
	return f
}

// at makes a command of events of a key at times, given in microseconds after the beginning less 400 days.
func eventsAt(key string, kind ebbv1.Kind, times ...int64) *ebbv1.Command {
	c := &ebbv1.Increments{}
	for i, us := range times {
		in := &ebbv1.Increment{
			Key: []byte(
				key,
			), Bin: fmt.Appendf(nil, "b%d", i%3), TimeUs: clockEra + us, Kind: kind, Offset: uint64(i + 1),
		}
		if kind == ebbv1.Kind_KIND_QUANTILE {
			in.Bin, in.Value = nil, new(float64(i+1))
		}
		c.Increments = append(c.Increments, in)
	}
	return &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: c}}
}

// clockEra is long before the shard's own time.
const clockEra = beginning - 400*day

func (f *freeShard) set(us int64) *ebbv1.CommandResult {
	f.t.Helper()
	f.def.Version++
	f.def.ClockSetting = &ebbv1.ClockSetting{Epoch: f.def.Version, TimeUs: clockEra + us}
	return f.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: f.def}})[0]
}

func (f *freeShard) advance(epoch uint64, us int64) *ebbv1.CommandResult {
	f.t.Helper()
	clock := &ebbv1.EventClock{Epoch: epoch, NowUs: clockEra + us}
	return f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_EventClock{EventClock: clock}})[0]
}

func (f *freeShard) clock() (epoch uint64, us int64) {
	epoch, us = f.s.EventClock("n")
	return epoch, us - clockEra
}

func codesOf(r *ebbv1.CommandResult) (codes []ebbv1.Code) {
	for _, refusal := range r.Refused {
		codes = append(codes, refusal.GetError().GetCode())
	}
	return codes
}

// One wrong date moves no clock, and costs nothing else.
func TestAJumpIsRefused(t *testing.T) {
	f := newClockShard(t, nil)
	r := f.apply(eventsAt("k", 0, 1, day, 30*day+day, 31*day+1+30*day))[0]
	if r.Applied != 3 || !slices.Equal(codesOf(r), []ebbv1.Code{ebbv1.Code_CODE_TIME_JUMP}) {
		t.Fatalf("of events 1 day, 30 days and 30 days and 1 us after each other: %v", r)
	}
	if _, us := f.clock(); us != 31*day {
		t.Fatalf("the clock is %d", us)
	}
	for _, most := range []int64{0, 100 * day} {
		g := newClockShard(t, func(def *ebbv1.Namespace) { def.MaxJumpUs = new(most) })
		if r := g.apply(eventsAt("k", 0, 1, 2+100*day))[0]; (most == 0) != (r.Applied == 2) {
			t.Errorf("max_jump %d: %v", most, r)
		}
	}
	wall := newFreeShard(t, &ebbv1.Namespace{})
	wall.behave(BehaviourEventClocks)
	if r := wall.apply(eventsAt("k", 0, 1, 300*day))[0]; r.Applied != 2 {
		t.Errorf("without an event clock: %v", r)
	}
}

// Before its behaviour is in force a shard refuses no event and learns of no other clock: replicas of older builds do
// neither.
func TestJumpsBeforeTheirBehaviour(t *testing.T) {
	f := newFreeShard(t, &ebbv1.Namespace{Clock: ebbv1.Clock_CLOCK_EVENT})
	if r := f.apply(eventsAt("k", 0, 1, 300*day))[0]; r.Applied != 2 {
		t.Fatal(r)
	}
	if r := f.advance(0, 350*day); r.GetError() == nil {
		t.Fatal("told of another clock")
	}
	f.set(day)
	if _, us := f.clock(); us != 300*day {
		t.Fatalf("the clock was set to %d", us)
	}
}

// A row that jumps is not decided for good: once the clock is there, the same row counts, and once only.
func TestARowThatJumpedIsSentAgain(t *testing.T) {
	f := newClockShard(t, nil)
	source := func(c *ebbv1.Command) *ebbv1.CommandResult {
		t.Helper()
		c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "s", Epoch: 1}}
		return f.apply(c)[0]
	}
	f.apply(
		&ebbv1.Command{
			Namespace: "n",
			Body:      &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "s", Token: 5}},
		},
	)
	rows := eventsAt("k", 0, 1, 300*day, 2, -1)
	rows.GetIncrements().Increments[3].Bin = nil // refused for good
	jump, bad := ebbv1.Code_CODE_TIME_JUMP, ebbv1.Code_CODE_BAD_BIN
	for range 2 {
		if r := source(rows); !slices.Equal(codesOf(r), []ebbv1.Code{jump, bad}) {
			t.Fatal(r)
		}
	}
	f.s = reopen(t, f.s)
	f.advance(0, 299*day)
	if r := source(rows); r.Applied != 1 || r.Duplicates != 2 || !slices.Equal(codesOf(r), []ebbv1.Code{bad}) {
		t.Fatal(r)
	}
	if r := source(rows); r.Applied != 0 || r.Duplicates != 3 || !slices.Equal(codesOf(r), []ebbv1.Code{bad}) {
		t.Fatal(r)
	}
	if d := f.ask("k"); len(d.GetBins()) != 1 || string(d.GetBins()[0].GetBin()) != "b1" {
		t.Fatalf("the row of 300 days: %v", d)
	}
}

// A row of a time that is still to come is not decided for good either: when the shard's clock is there, the same row
// counts, and once only, also under a wall clock. One before 1970 stays refused. Older shards do not judge it again.
func TestARowOfTheFutureIsSentAgain(t *testing.T) {
	for _, clock := range []ebbv1.Clock{ebbv1.Clock_CLOCK_EVENT, ebbv1.Clock_CLOCK_WALL} {
		for _, behaviour := range []uint32{BehaviourGoneBack, BehaviourAdds} {
			t.Run(fmt.Sprint(clock, behaviour), func(t *testing.T) {
				f := newClockShard(t, func(def *ebbv1.Namespace) { def.Clock = clock })
				f.behave(behaviour)
				open := &ebbv1.OpenSource{Name: "s", Token: 5}
				f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_OpenSource{OpenSource: open}})
				rows := eventsAt("k", 0, 400*day-second, 400*day+25*second, 400*day, -1)
				rows.GetIncrements().Increments[3].TimeUs = -1
				rows.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "s", Epoch: 1}}
				const bad = ebbv1.Code_CODE_BAD_TIME
				for range 2 {
					if r := f.apply(rows)[0]; !slices.Equal(codesOf(r), []ebbv1.Code{bad, bad}) {
						t.Fatal(r)
					}
				}
				f.s = reopen(t, f.s)
				f.now += 27 * second
				r := f.apply(rows)[0]
				if behaviour < BehaviourAdds {
					if r.Applied != 0 || !slices.Equal(codesOf(r), []ebbv1.Code{bad, bad}) {
						t.Fatal(r)
					}
					return
				}
				if r.Applied != 1 || r.Duplicates != 2 || !slices.Equal(codesOf(r), []ebbv1.Code{bad}) {
					t.Fatal(r)
				}
				f.s = reopen(t, f.s)
				if r := f.apply(rows)[0]; r.Applied != 0 || r.Duplicates != 3 || !slices.Equal(codesOf(r), []ebbv1.Code{bad}) {
					t.Fatal(r)
				}
				if d := f.ask("k"); len(d.GetBins()) != 3 {
					t.Errorf("three rows count as %v", d)
				}
			})
		}
	}
}

// A source remembers so many rows that are to be sent again, and no more: then it takes no further ones, and loses
// none.
func TestASourceFullOfJumps(t *testing.T) {
	f := newClockShard(t, nil)
	f.s.limits.SourceRefusals = 4
	source := func(times ...int64) *ebbv1.CommandResult {
		t.Helper()
		c := eventsAt("k", 0, times...)
		c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "s", Epoch: 1}}
		return f.apply(c)[0]
	}
	open := &ebbv1.OpenSource{Name: "s", Token: 5}
	f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_OpenSource{OpenSource: open}})
	times := []int64{1, 300 * day, 301 * day, 302 * day, 2, 303 * day, 304 * day, 305 * day, 3}
	for range 2 {
		if r := source(times...); r.GetError().GetCode() != ebbv1.Code_CODE_TIME_JUMP {
			t.Fatal(r)
		}
		f.s = reopen(t, f.s)
		f.s.limits.SourceRefusals = 4
	}
	f.set(299 * day)
	if r := source(times...); r.Error != nil || len(r.Refused) > 0 || r.Applied != 7 || r.Duplicates != 2 {
		t.Fatal(r)
	}
	f.advance(f.def.ClockSetting.Epoch, 305*day)
	if d := f.ask("k"); d.GetLastEventUs() != clockEra+305*day {
		t.Fatal(d)
	}
}

// A shard's clock follows that of others, but not one of another epoch, nor beyond the shard's own time.
func TestAClockFollowsOthers(t *testing.T) {
	f := newClockShard(t, nil)
	f.apply(eventsAt("k", 0, 1, 2, 3))
	for _, step := range []struct {
		epoch    uint64
		to, want int64
	}{
		{0, 2, 3},
		{0, hourLong + 3, hourLong + 3},
		{1, 2 * hourLong, hourLong + 3},
		{0, 400*day + second/4, 400 * day},
		{0, 500 * day, 400 * day},
	} {
		if r := f.advance(step.epoch, step.to); (r.GetError() != nil) != (step.to == 500*day) {
			t.Fatal(r)
		}
		if _, us := f.clock(); us != step.want {
			t.Fatalf("epoch %d, to %d: the clock is %d, not %d", step.epoch, step.to, us, step.want)
		}
		if step.want == hourLong+3 {
			if d := f.ask("k"); !near(d.GetZ(), 1.5) {
				t.Fatalf("three events, an hour old: %v", d)
			}
		}
	}
	if wall := newFreeShard(t, &ebbv1.Namespace{}); wall.apply(eventsAt("k", 0, 1))[0].Applied != 1 {
		t.Fatal("not counted")
	} else if wall.behave(BehaviourEventClocks); wall.advance(0, 5).GetError() != nil {
		t.Fatal("a namespace without an event clock has nothing to follow")
	}
}

// A question is answered at the time that the namespace's clock has come to anywhere, if that is of the same epoch; but
// not before the shard's own, and at a later time if it says so.
func TestAnswersOfTheNamespacesTime(t *testing.T) {
	f := newClockShard(t, nil)
	f.apply(eventsAt("k", 0, 0))
	f.set(hourLong)
	epoch, _ := f.clock()
	for _, c := range []struct {
		clock *ebbv1.EventClock
		asOf  int64
		want  int64
	}{
		{nil, 0, hourLong},
		{&ebbv1.EventClock{Epoch: epoch, NowUs: clockEra + 3*hourLong}, 0, 3 * hourLong},
		{&ebbv1.EventClock{Epoch: epoch, NowUs: clockEra + 3*hourLong}, 2 * hourLong, 3 * hourLong},
		{&ebbv1.EventClock{Epoch: epoch, NowUs: clockEra + 3*hourLong}, 4 * hourLong, 4 * hourLong},
		{&ebbv1.EventClock{Epoch: epoch, NowUs: clockEra}, 0, hourLong},
		{&ebbv1.EventClock{Epoch: epoch - 1, NowUs: clockEra + 3*hourLong}, 0, hourLong},
		{&ebbv1.EventClock{Epoch: epoch + 1, NowUs: clockEra + 3*hourLong}, 0, hourLong},
	} {
		ask := &ebbv1.DistributionQuestion{
			Keys:   [][]byte{[]byte("k")},
			Select: &ebbv1.DistributionQuestion_All{All: true},
		}
		if c.asOf != 0 {
			ask.AsOfUs = clockEra + c.asOf
		}
		q := question("n", ask)
		q.Clock = c.clock
		a := f.s.Ask(q, sketch.Tick(f.now))
		if a.GetAsOfUs() != clockEra+c.want || a.GetClockEpoch() != epoch {
			t.Errorf(
				"clock %v, as of %d: answered at %d of epoch %d",
				c.clock,
				c.asOf,
				a.GetAsOfUs()-clockEra,
				a.GetClockEpoch(),
			)
		}
	}
}

// summaryOf is what a key of any kind holds, in words; "" for nothing.
func (f *freeShard) summaryOf(key string, kind ebbv1.Kind) string {
	f.t.Helper()
	_, at := f.s.EventClock("n")
	if kind == ebbv1.Kind_KIND_DISTRIBUTION {
		d := f.ask(key)
		if !d.GetFound() {
			return ""
		}
		d.AsOfUs = 0
		return d.String()
	}
	q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}}
	a := f.s.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: &ebbv1.Question{
		Namespace: "n", Ask: &ebbv1.Question_Summary{Summary: q},
	}}, sketch.Tick(at))
	s := a.GetAnswer().GetSummary()
	if a.GetError() != nil {
		f.t.Fatal(a.GetError())
	}
	if !s.GetFound() {
		return ""
	}
	if kind == ebbv1.Kind_KIND_MORRIS { // which is rounded by chance
		return fmt.Sprintf("%.2g", s.GetTotal().GetValue())
	}
	s.AsOfUs = 0
	return s.String()
}

// The clock goes back: what was written before that time is as if nothing had happened since, what a later time was
// written to begins anew, whatever it holds, and both after restores, for views, and with a second half-life.
func TestTheClockGoesBack(t *testing.T) {
	kinds := []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
		ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_LINEAR, ebbv1.Kind_KIND_BLOOM, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_MORRIS,
	}
	settings := map[string]func(*ebbv1.Namespace){
		"half-life": func(def *ebbv1.Namespace) {},
		"two":       func(def *ebbv1.Namespace) { def.SlowHalfLifeUs = new(5 * hourLong) },
		"window":    func(def *ebbv1.Namespace) { def.WindowUs = new(hourLong) },
		"none":      func(def *ebbv1.Namespace) { def.Decay = ebbv1.Decay_DECAY_NONE },
		"none, with a window": func(def *ebbv1.Namespace) {
			def.Decay, def.WindowUs = ebbv1.Decay_DECAY_NONE, new(hourLong)
		},
	}
	forgets := func(name string, kind ebbv1.Kind) bool {
		return name == "half-life" || name == "two" || name == "window" ||
			kind == ebbv1.Kind_KIND_DISTINCT && name != "none"
	}
	// Of these it is not known when the events were that came while the clock was ahead.
	forgetsTouched := func(name string, kind ebbv1.Kind) bool {
		switch kind {
		case ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_BLOOM:
			return forgets(name, kind)
		}
		return false
	}
	const ahead = hourLong + 40*60*second // before the first key has ended
	for name, change := range settings {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s/%s", name, proto.KindName(kind)), func(t *testing.T) {
				fresh := func() *freeShard {
					return newClockShard(t, func(def *ebbv1.Namespace) { change(def); def.MaxJumpUs = new(int64(0)) })
				}
				f, twin := fresh(), fresh() // the twin has never seen a later time
				for _, one := range []*freeShard{f, twin} {
					one.apply(eventsAt("early", kind, 1, 2, hourLong))
				}
				before := f.summaryOf("early", kind)
				f.apply(eventsAt("late", kind, ahead))
				f.apply(eventsAt("touched", kind, 5, 6, 7)) // by a clock that is far ahead
				f.apply(eventsAt("mixed", kind, 5, ahead, 6))
				f.s = reopen(t, f.s)
				view := f.s.Freeze()
				defer view.Release()
				for _, one := range []*freeShard{f, twin} {
					one.set(hourLong)
				}
				if got := f.summaryOf("early", kind); got != before || got != twin.summaryOf("early", kind) {
					t.Errorf("a key from before holds\n%s\nnot\n%s", got, before)
				}
				if got := f.summaryOf("touched", kind); got == "" && !forgetsTouched(name, kind) {
					t.Error("a key that late events were written to while the clock was ahead begins anew")
				}
				for _, key := range []string{"late", "mixed"} {
					if got := f.summaryOf(key, kind); (got == "") != forgets(name, kind) {
						t.Errorf("%s holds %q", key, got)
					}
				}
				f.s = reopen(t, f.s)
				for _, one := range []*freeShard{f, twin} {
					if r := one.apply(eventsAt("early", kind, hourLong+5))[0]; r.Applied != 1 {
						t.Fatal(r)
					}
				}
				if got, want := f.summaryOf("early", kind), twin.summaryOf("early", kind); got != want {
					t.Errorf("after a write it holds\n%s\nnot\n%s", got, want)
				}
				if !forgets(name, kind) {
					return
				}
				f.apply(eventsAt("late", kind, hourLong+9))
				twin.apply(eventsAt("late", kind, hourLong+9))
				if got, want := f.summaryOf("late", kind), twin.summaryOf("late", kind); got != want || got == "" {
					t.Errorf("begun anew it holds\n%s\nnot\n%s", got, want)
				}
				f.s = reopen(t, f.s)
				if got, want := f.summaryOf("late", kind), twin.summaryOf("late", kind); got != want {
					t.Errorf("after a restore it holds\n%s\nnot\n%s", got, want)
				}
			})
		}
	}
}

// Settings of one epoch are applied once, and a definition without a setting leaves the clock alone.
func TestAClockIsSetOnce(t *testing.T) {
	f := newClockShard(t, nil)
	f.apply(eventsAt("k", 0, 1))
	if r := f.set(50 * day); r.GetError() != nil {
		t.Fatal(r)
	}
	f.apply(eventsAt("k", 0, 60*day))
	f.def.Threshold = 0.01
	f.define()
	f.s = reopen(t, f.s)
	f.define()
	if epoch, us := f.clock(); us != 60*day || epoch != f.def.ClockSetting.Epoch {
		t.Fatalf("epoch %d, %d us", epoch, us)
	}
	f.set(900 * day) // no further than the shard's own clock
	if _, us := f.clock(); us != 400*day {
		t.Fatalf("set to %d us", us)
	}
	g := newFreeShard(t, &ebbv1.Namespace{})
	g.behave(BehaviourEventClocks)
	late := pb.CloneOf(f.def)
	late.Name, late.Version, late.ClockSetting = "late", 1, &ebbv1.ClockSetting{Epoch: 1, TimeUs: clockEra}
	g.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: late}})
	if _, us := g.s.EventClock("late"); us != clockEra {
		t.Fatalf("a shard that hears of a namespace later begins at %d", us)
	}
}

// The newest epoch counts, and a shard that has not heard of it has no time.
func TestMergeEventClocks(t *testing.T) {
	part := func(epoch uint64, us int64) *ebbv1.ShardAnswer {
		return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{
			Part: appendEventClock(nil, &ebbv1.EventClock{Epoch: epoch, NowUs: us}),
		}}
	}
	for _, c := range []struct {
		parts  []*ebbv1.ShardAnswer
		epoch  uint64
		us     int64
		oldest int64
	}{
		{[]*ebbv1.ShardAnswer{part(0, 5)}, 0, 5, 5},
		{[]*ebbv1.ShardAnswer{part(0, 5), part(0, 0), part(0, 9)}, 0, 9, 0},
		{[]*ebbv1.ShardAnswer{part(3, 5), part(2, 50), part(3, 7)}, 3, 7, 0},
		{[]*ebbv1.ShardAnswer{part(2, 50), part(3, 7), part(3, 8)}, 3, 8, 0},
		{[]*ebbv1.ShardAnswer{part(3, 9), part(3, 7)}, 3, 9, 7},
	} {
		a, err := mergeEventClocks(c.parts)
		got := a.GetEventClock()
		if err != nil || got.GetClock().GetEpoch() != c.epoch || got.GetClock().GetNowUs() != c.us ||
			got.GetOldestUs() != c.oldest {
			t.Errorf("%v: %v, %v", c.parts, got, err)
		}
	}
	if _, err := mergeEventClocks([]*ebbv1.ShardAnswer{part(1, -1)}); err == nil {
		t.Error("a time before 1970 is taken")
	}
}

// An event that its key cannot take moves the clock; one that is refused for its time, its amount or its name does not.
func TestRefusedEventsAndTheClock(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(in *ebbv1.Increment)
		code   ebbv1.Code
		moves  bool
	}{
		{"another kind", func(in *ebbv1.Increment) { in.Kind = ebbv1.Kind_KIND_SET }, ebbv1.Code_CODE_WRONG_KIND, true},
		{"no room for a bin", func(in *ebbv1.Increment) { in.Bin = []byte("b") }, ebbv1.Code_CODE_TOO_MANY_BINS, true},
		{"a jump", func(in *ebbv1.Increment) { in.TimeUs += 300 * day }, ebbv1.Code_CODE_TIME_JUMP, false},
		{"a negative amount", func(in *ebbv1.Increment) { in.Amount = new(-1.0) }, ebbv1.Code_CODE_NEGATIVE_AMOUNT, false},
		{"no key", func(in *ebbv1.Increment) { in.Key = nil }, ebbv1.Code_CODE_BAD_KEY, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newClockShard(t, func(def *ebbv1.Namespace) { def.BinsMax, def.HalfLifeUs = 1, 10*day })
			f.behave(BehaviourMax)
			event := func(at int64, change func(in *ebbv1.Increment)) *ebbv1.CommandResult {
				in := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("a"), TimeUs: clockEra + at}
				change(in)
				all := &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}
				return f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: all}})[0]
			}
			event(0, func(*ebbv1.Increment) {})
			if codes := codesOf(event(10*day, c.change)); len(codes) != 1 || codes[0] != c.code {
				t.Fatalf("refused with %v, want %v", codes, c.code)
			}
			want := int64(0)
			if c.moves {
				want = 10 * day
			}
			if _, at := f.clock(); at != want {
				t.Errorf("the clock is at %v days, want %v", at/day, want/day)
			}
		})
	}
}
