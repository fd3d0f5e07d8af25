package shard

import (
	"fmt"
	"math"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	day    = 24 * 3600 * second
	in2005 = 1_104_537_600 * second // 2005-01-01
	in2016 = 1_451_606_400 * second // 2016-01-01
)

// replay is a shard of a namespace on event time.
type replay struct {
	t   testing.TB
	s   *State
	now int64
	def *ebbv1.Namespace
}

func newReplay(t testing.TB, behaviour uint32) *replay {
	r := &replay{t: t, s: New(1, &wiping{}), now: 1_700_000_000 * second}
	r.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: behaviour}}})
	r.def = proto.DefaultNamespaceSettings()
	r.def.Name, r.def.Version, r.def.Clock, r.def.HalfLifeUs, r.def.HashSeed = "history", 1, ebbv1.Clock_CLOCK_EVENT, 10*day, 7
	if behaviour >= BehaviourClocks {
		r.def.ClockSet = &ebbv1.EventClock{Epoch: 1}
	}
	r.define()
	return r
}

func (r *replay) define() {
	r.t.Helper()
	if res := r.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: pb.CloneOf(r.def)}}); res.Error != nil {
		r.t.Fatal(res.Error)
	}
}

// set sets the clock in a new epoch.
func (r *replay) set(to int64) {
	r.t.Helper()
	r.def.Version++
	r.def.ClockSet = &ebbv1.EventClock{Epoch: r.def.Version, NowUs: to}
	r.define()
}

func (r *replay) apply(c *ebbv1.Command) *ebbv1.CommandResult {
	r.t.Helper()
	r.now++
	c.Namespace = "history"
	return r.s.Apply(r.s.Applied()+1, encode(r.t, r.now, c), nil)[0]
}

func dated(key string, at int64) *ebbv1.Increment {
	return &ebbv1.Increment{Key: []byte(key), Bin: []byte("b"), TimeUs: at}
}

func (r *replay) count(id func(*ebbv1.Command), list ...*ebbv1.Increment) *ebbv1.CommandResult {
	r.t.Helper()
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: list}}}
	if id != nil {
		id(c)
	}
	return r.apply(c)
}

func (r *replay) read(epoch uint64, at int64) {
	r.apply(&ebbv1.Command{Body: &ebbv1.Command_EventClock{EventClock: &ebbv1.EventClock{Epoch: epoch, NowUs: at}}})
}

func (r *replay) ask(key string, clock *ebbv1.EventClock) *ebbv1.ShardAnswer {
	return r.s.Ask(&ebbv1.ShardQuestion{Clock: clock, Question: &ebbv1.Question{Namespace: "history", Ask: &ebbv1.Question_Distribution{
		Distribution: &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}},
	}}}, 1_800_000_000*second)
}

func (r *replay) clock() int64 {
	_, now := r.s.EventClock([]byte("history"))
	return int64(now)
}

func refusedOnly(r *ebbv1.CommandResult) ebbv1.Code {
	if r.Error != nil || len(r.Refused) != 1 {
		return -1
	}
	return r.Refused[0].Error.Code
}

// One event that is dated eleven years later is refused, and moves nothing. Whatever identity it came under, it can be
// sent again under it, and counts once when the clock has come so far.
func TestAJumpConsumesNothing(t *testing.T) {
	session := func(r *replay) func(*ebbv1.Command) {
		id := r.apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: 9}}}).Session
		return func(c *ebbv1.Command) {
			c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: id, Sequence: 1, Secret: 9}}
		}
	}
	source := func(r *replay) func(*ebbv1.Command) {
		epoch := r.apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "s", Token: 3}}}).Epoch
		return func(c *ebbv1.Command) {
			c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "s", Epoch: epoch}}
			for i, in := range c.GetIncrements().Increments {
				in.Offset = uint64(i) + 1
			}
		}
	}
	keyed := func(r *replay) func(*ebbv1.Command) {
		at := r.now
		return func(c *ebbv1.Command) {
			c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: at, Hi: 1, Lo: 2}}
		}
	}
	for _, c := range []struct {
		name string
		id   func(*replay) func(*ebbv1.Command)
	}{{"session", session}, {"source", source}, {"idempotency key", keyed}} {
		for _, mixed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, among others %v", c.name, mixed), func(t *testing.T) {
				r := newReplay(t, BehaviourClocks)
				r.count(nil, dated("first", in2005))
				list := []*ebbv1.Increment{dated("k", in2016)}
				if mixed {
					list = []*ebbv1.Increment{dated("a", in2005), dated("k", in2016), dated("z", in2005+1)}
				}
				id := c.id(r)
				others := uint64(len(list) - 1)
				for range 2 { // a repetition is refused as well
					res := r.count(id, list...)
					if refusedOnly(res) != ebbv1.Code_CODE_TIME_JUMP || res.Applied+res.Duplicates != others {
						t.Fatalf("%v", res)
					}
					if text := res.Refused[0].Error.Message; !strings.Contains(text, "2016-01-01") || !strings.Contains(text, "2005-01-01") {
						t.Fatalf("the refusal says %q", text)
					}
				}
				if got := r.clock(); got > in2005+1 {
					t.Fatalf("the clock is at %d", got)
				}
				r.s = reopen(t, r.s)
				r.read(1, in2016)
				res := r.count(id, list...)
				if res.Error != nil || len(res.Refused) > 0 || res.Applied+res.Duplicates != others+1 {
					t.Fatalf("sent again: %v", res)
				}
				r.s = reopen(t, r.s)
				if res = r.count(id, list...); res.Error != nil || len(res.Refused) > 0 {
					t.Fatalf("sent once more: %v", res)
				}
				if got := r.ask("k", nil).GetAnswer().GetDistribution().GetZ(); math.Abs(got-1) > 1e-9 {
					t.Errorf("it counts %v", got)
				}
				audit(t, r.s)
			})
		}
	}
}

// What confirms a time, and what refutes it.
func TestJumpsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name      string
		behaviour uint32
		jump      *int64
		first     int64 // 0: none
		at        int64
		confirmed uint64
		want      ebbv1.Code
	}{
		{name: "within 30 days", first: in2005, at: in2005 + 30*day},
		{name: "beyond", first: in2005, at: in2005 + 30*day + 1, want: ebbv1.Code_CODE_TIME_JUMP},
		{name: "the first", at: in2016},
		{name: "the first, refuted", at: in2016, confirmed: proto.ClockRefuted, want: ebbv1.Code_CODE_TIME_JUMP},
		{name: "confirmed", first: in2005, at: in2016, confirmed: 2},
		{name: "confirmed in another epoch", first: in2005, at: in2016, confirmed: 1, want: ebbv1.Code_CODE_TIME_JUMP},
		{name: "any", jump: new(int64(0)), first: in2005, at: in2016},
		{name: "any, refuted", jump: new(int64(0)), first: in2005, at: in2016, confirmed: proto.ClockRefuted},
		{name: "an hour", jump: new(int64(3600 * second)), first: in2005, at: in2005 + day, want: ebbv1.Code_CODE_TIME_JUMP},
		{name: "late", first: in2016, at: in2005, confirmed: proto.ClockRefuted},
		{name: "an older behaviour", behaviour: BehaviourDeletion, first: in2005, at: in2016},
	} {
		t.Run(c.name, func(t *testing.T) {
			behaviour := c.behaviour
			if behaviour == 0 {
				behaviour = BehaviourClocks
			}
			r := newReplay(t, behaviour)
			if c.jump != nil {
				r.def.Version++
				r.def.MaxJumpUs = c.jump
				r.define()
				r.s = reopen(t, r.s)
			}
			if c.first != 0 {
				r.count(nil, dated("first", c.first))
			}
			in := dated("k", c.at)
			in.Confirmed = c.confirmed
			res := r.count(nil, in)
			if got := refusedOnly(res); c.want != 0 && got != c.want || c.want == 0 && len(res.Refused) > 0 {
				t.Errorf("%v", res)
			}
		})
	}
}

// A question is answered of the namespace's now, whatever the shard has heard of, and writes nothing.
func TestAskedOfTheNamespacesNow(t *testing.T) {
	r := newReplay(t, BehaviourClocks)
	r.count(nil, dated("k", in2005))
	before := r.s.Checksum()
	for _, c := range []struct {
		name  string
		clock *ebbv1.EventClock
		at    int64
	}{
		{"none", nil, in2005},
		{"a later one", &ebbv1.EventClock{Epoch: 1, NowUs: in2005 + 10*day}, in2005 + 10*day},
		{"an earlier one", &ebbv1.EventClock{Epoch: 1, NowUs: in2005 - day}, in2005},
		{"one of an epoch before", &ebbv1.EventClock{Epoch: 0, NowUs: in2016}, in2005},
	} {
		a := r.ask("k", c.clock)
		d := a.GetAnswer().GetDistribution()
		want := math.Exp2(-float64(c.at-in2005) / float64(10*day))
		if d.GetAsOfUs() != c.at || math.Abs(d.GetZ()-want) > 1e-9 || a.GetClock().GetNowUs() != in2005 || a.GetClock().GetEpoch() != 1 {
			t.Errorf("%s: %v", c.name, a)
		}
	}
	if a := r.ask("k", &ebbv1.EventClock{Epoch: 2}); a.GetError().GetCode() != ebbv1.Code_CODE_STARTING {
		t.Errorf("of an epoch that it has not heard of: %v", a)
	}
	if r.s.Checksum() != before {
		t.Error("a question has changed the state")
	}
	if a := newReplay(t, BehaviourDeletion).ask("k", &ebbv1.EventClock{NowUs: in2016}); a.GetAsOfUs() != 0 || a.GetClock() != nil {
		t.Errorf("an older behaviour: %v", a)
	}
}

// A reading moves the clock of its epoch, and of no other.
func TestReadingsMoveTheClock(t *testing.T) {
	r := newReplay(t, BehaviourClocks)
	r.count(nil, dated("k", in2005))
	for _, c := range []struct {
		epoch uint64
		at    int64
		want  int64
	}{{1, in2005 + 40*day, in2005 + 40*day}, {1, in2005, in2005 + 40*day}, {2, in2016, in2005 + 40*day}, {0, in2016, in2005 + 40*day}} {
		r.read(c.epoch, c.at)
		if got := r.clock(); got != c.want {
			t.Errorf("after %d of epoch %d the clock is at %d, not %d", c.at, c.epoch, got, c.want)
		}
	}
	if res := r.count(nil, dated("k", in2005+70*day)); len(res.Refused) > 0 || res.GetClock().GetNowUs() != in2005+70*day {
		t.Errorf("%v", res)
	}
}

// A clock that is set back drops keys that forget and had a later event, of every kind, and leaves the others as they
// were. The state can be restored, and is asked and written as before.
func TestTheClockIsSetBack(t *testing.T) {
	kinds := []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE,
		ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_LINEAR, ebbv1.Kind_KIND_MORRIS, ebbv1.Kind_KIND_BLOOM, ebbv1.Kind_KIND_SET,
		ebbv1.Kind_KIND_STRING, ebbv1.Kind_KIND_PHRASES,
	}
	of := func(kind ebbv1.Kind, key string, at int64) *ebbv1.Increment {
		in := dated(fmt.Sprint(key, "/", kind), at)
		in.Kind = kind
		switch kind {
		case ebbv1.Kind_KIND_QUANTILE:
			in.Bin, in.Value = nil, new(2.5)
		case ebbv1.Kind_KIND_STRING:
			in.Bin, in.Text = nil, []byte("text")
		}
		return in
	}
	forgets := func(kind ebbv1.Kind) bool { return kind != ebbv1.Kind_KIND_STRING && kind != ebbv1.Kind_KIND_PHRASES }
	for _, slow := range []int64{0, 100 * day} {
		t.Run(fmt.Sprint("second half-life of ", slow/day, " days"), func(t *testing.T) {
			r := newReplay(t, BehaviourClocks)
			if slow > 0 {
				r.def.Version++
				r.def.SlowHalfLifeUs = &slow
				r.define()
			}
			totals := func() map[string]float64 {
				out := map[string]float64{}
				list := r.s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "history", Ask: &ebbv1.Question_Keys{
					Keys: &ebbv1.KeysQuestion{},
				}}}, 0).GetAnswer().GetKeys()
				for _, k := range list.GetKeys() {
					out[string(k.GetKey())] = k.GetTotal().GetValue()
				}
				return out
			}
			for _, kind := range kinds {
				for _, key := range []string{"kept", "late", "wrong"} {
					if res := r.count(nil, of(kind, key, in2005)); len(res.Refused) > 0 {
						t.Fatal(res)
					}
				}
			}
			before := totals()
			for _, kind := range kinds {
				wrong := of(kind, "wrong", in2016)
				wrong.Confirmed = 2
				r.count(nil, wrong)
			}
			for _, kind := range kinds {
				r.count(nil, of(kind, "late", in2005)) // behind a clock that is wrong
			}
			r.set(in2005 + 1)
			audit(t, r.s)
			r.s = reopen(t, r.s)
			if got := r.clock(); got != in2005+1 {
				t.Fatalf("the clock is at %d", got)
			}
			after := totals()
			for _, kind := range kinds {
				kept, wrong := fmt.Sprint("kept/", kind), fmt.Sprint("wrong/", kind)
				if v, left := after[kept]; left && math.Abs(v-before[kept]) > 0.01 { // those that were visited have left
					t.Errorf("%s has %v, and had %v", kept, v, before[kept])
				}
				if _, there := after[wrong]; there == forgets(kind) {
					t.Errorf("%s is there: %v", wrong, there)
				}
				if v := after[fmt.Sprint("late/", kind)]; !(v >= 0 && v < 3) {
					t.Errorf("%s has %v", fmt.Sprint("late/", kind), v)
				}
			}
			for _, kind := range kinds {
				if res := r.count(nil, of(kind, "wrong", in2005+2)); len(res.Refused) > 0 || res.GetClock().GetEpoch() != r.def.Version {
					t.Fatal(res)
				}
			}
			again := totals()
			for _, kind := range kinds {
				if key := fmt.Sprint("wrong/", kind); forgets(kind) && math.Abs(again[key]-1) > 0.3 && kind != ebbv1.Kind_KIND_QUANTILE {
					t.Errorf("%s counts %v again", key, again[key])
				}
			}
			audit(t, r.s)
			reopen(t, r.s)
		})
	}
}

// What has faded by a wrong clock and was not visited yet is there when the clock is set back.
func TestSetBackBeforeTheVisits(t *testing.T) {
	const keys = 500
	r := newReplay(t, BehaviourClocks)
	var list []*ebbv1.Increment
	for i := range keys {
		list = append(list, dated(fmt.Sprint(i), in2005))
	}
	r.count(nil, list...)
	wrong := dated("wrong", in2016)
	wrong.Confirmed = 2
	r.count(nil, wrong)
	r.set(in2005)
	left := 0
	for i := range keys {
		if math.Abs(r.ask(fmt.Sprint(i), nil).GetAnswer().GetDistribution().GetZ()-1) < 1e-9 {
			left++
		}
	}
	if left < keys-100 || left > keys {
		t.Errorf("%d of %d keys are left", left, keys)
	}
	if r.ask("wrong", nil).GetAnswer().GetDistribution().GetFound() {
		t.Error("the wrong event is there")
	}
	audit(t, r.s)
	reopen(t, r.s)
}

// What was said of the clock before it was set says nothing afterwards.
func TestEpochsOfTheClock(t *testing.T) {
	r := newReplay(t, BehaviourClocks)
	r.count(nil, dated("k", in2005))
	r.set(in2005 + day)
	late := dated("k", in2016)
	late.Confirmed = 2 // of epoch 1
	if res := r.count(nil, late); refusedOnly(res) != ebbv1.Code_CODE_TIME_JUMP {
		t.Errorf("confirmed in the epoch before: %v", res)
	}
	r.read(1, in2016)
	if got := r.clock(); got != in2005+day {
		t.Errorf("a reading of the epoch before moved the clock to %d", got)
	}
	if a := r.ask("k", &ebbv1.EventClock{Epoch: 1, NowUs: in2016}); a.GetAsOfUs() != in2005+day || a.GetClock().GetEpoch() != 2 {
		t.Errorf("asked of the epoch before: %v", a)
	}
	r.define() // the same again
	if got := r.clock(); got != in2005+day {
		t.Errorf("defined again, the clock is at %d", got)
	}
	r.set(in2005 + 3*day) // forward
	if got := r.clock(); got != in2005+3*day {
		t.Errorf("set forward, the clock is at %d", got)
	}
}
