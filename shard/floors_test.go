package shard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// freeShard is a shard in which the order of events does not matter, and the index of its last entry.
type freeShard struct {
	t     *testing.T
	s     *State
	index uint64
	now   int64
	def   *ebbv1.Namespace
}

func newFreeShard(t *testing.T, def *ebbv1.Namespace) *freeShard {
	t.Helper()
	f := &freeShard{t: t, s: New(1, &wiping{}), now: beginning, def: def}
	f.def.Name, f.def.HalfLifeUs = "n", hourLong
	proto.FillNamespace(f.def, proto.DefaultNamespaceSettings())
	f.behave(BehaviourOrderFree)
	f.define()
	return f
}

const hourLong = int64(3600 * second)

func (f *freeShard) behave(version uint32) {
	f.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}})
}

func (f *freeShard) define() {
	f.def.Version++
	f.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: f.def}})
}

func (f *freeShard) apply(commands ...*ebbv1.Command) []*ebbv1.CommandResult {
	f.t.Helper()
	f.index++
	results := f.s.Apply(f.index, encode(f.t, f.now, commands...), nil)
	audit(f.t, f.s)
	return results
}

// add counts n events of bins of a key at the present.
func (f *freeShard) add(key string, n float64, bins ...string) *ebbv1.CommandResult {
	f.t.Helper()
	c := increments(key, bins...)
	c.Namespace = "n"
	for _, in := range c.GetIncrements().Increments {
		in.Amount = new(n)
	}
	return f.apply(c)[0]
}

// later lets time pass, and ticks.
func (f *freeShard) later(hours int64) {
	f.now += hours * hourLong
	f.apply(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
}

func (f *freeShard) ask(key string) *ebbv1.Distribution {
	q := question("n", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_All{All: true}})
	return f.s.Ask(q, sketch.Tick(f.now)).GetAnswer().GetDistribution()
}

// Clamp and prior show known bins for good, through restarts, and what is idle tends to uniform; a time to live ends
// it. Where the floor changes, what has faded goes.
func TestFloorsKeepKeys(t *testing.T) {
	for _, floor := range []ebbv1.Floor{ebbv1.Floor_FLOOR_CLAMP, ebbv1.Floor_FLOOR_PRIOR} {
		for _, decay := range []ebbv1.Decay{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_LINEAR} {
			t.Run(floor.String()+decay.String(), func(t *testing.T) {
				f := newFreeShard(t, &ebbv1.Namespace{Floor: floor, Decay: decay})
				f.add("k", 5, "a", "b", "c", "c")
				f.add("short", 5, "a")
				f.apply(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{
					Keys: [][]byte{[]byte("short")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 5 * hourLong},
				}}})
				for range 8 {
					f.later(100)
					f.s = reopen(t, f.s)
					if d := f.ask("k"); len(d.Bins) != 3 || d.Bins[0].P < 0.333 || d.Bins[0].P > 0.334 {
						t.Fatalf("after a long silence: %v", d)
					}
				}
				if f.ask("short").Found || f.s.Keys() != 1 {
					t.Errorf("a time to live did not end a key: %d keys", f.s.Keys())
				}
				f.def.Floor = ebbv1.Floor_FLOOR_PRUNE
				f.define()
				f.s = reopen(t, f.s)
				for range 4 {
					f.later(100)
				}
				if d := f.ask("k"); d.Found || f.s.Keys() != 0 {
					t.Errorf("under another floor it is still there: %v", d)
				}
			})
		}
	}
}

// Before the behaviour is in force floors are as they were, and late events are not counted; from then on they are.
func TestOrderIsFreeFromItsBehaviourOn(t *testing.T) {
	f := &freeShard{t: t, s: New(1, &wiping{}), now: beginning, def: &ebbv1.Namespace{Name: "n", HalfLifeUs: hourLong, Clock: ebbv1.Clock_CLOCK_EVENT}}
	proto.FillNamespace(f.def, proto.DefaultNamespaceSettings())
	f.behave(BehaviourDeletion)
	f.define()
	late := func() *ebbv1.Distribution {
		c := increments("k", "now", "late", "late")
		c.Namespace = "n"
		for i, in := range c.GetIncrements().Increments {
			in.TimeUs = beginning - int64(min(i, 1))*11*hourLong
		}
		f.apply(c)
		return f.ask("k")
	}
	before := late()
	if len(before.Bins) != 1 || before.Lost != 0 {
		t.Errorf("before: %v", before)
	}
	sum := f.s.Checksum()
	if f.s = reopen(t, f.s); f.s.Checksum() != sum {
		t.Error("a restart changes the state of before")
	}
	f.behave(BehaviourOrderFree)
	for range 3 {
		late()
		sum := f.s.Checksum()
		if f.s = reopen(t, f.s); f.s.Checksum() != sum {
			t.Error("a restart changes the state")
		}
	}
	after := f.ask("k")
	if len(after.Bins) != 2 || after.Bins[1].Count < 6./2048*0.999 || after.Lost > 0.0012 {
		t.Errorf("after: %v", after)
	}
}

// At the limit of bins an event below the threshold is counted as other and as lost, one above is refused, and what has
// faded makes room.
func TestLimitOfBinsIsLost(t *testing.T) {
	f := newFreeShard(t, &ebbv1.Namespace{BinsMax: 100, Threshold: 0.5})
	for i := range 100 {
		f.add("k", 1, fmt.Sprintf("b%d", i))
	}
	before := f.ask("k")
	if r := f.add("k", 0.25, "small"); r.Applied != 1 {
		t.Errorf("a small event is refused: %v", r)
	}
	after := f.ask("k")
	if grown := after.Lost - before.Lost; grown < 0.25 || grown > 0.2501 || after.Z != before.Z+0.25 {
		t.Errorf("lost grows by %v, Z from %v to %v", grown, before.Z, after.Z)
	}
	if r := f.add("k", 1, "large"); len(r.Refused) != 1 || r.Refused[0].Error.Code != ebbv1.Code_CODE_TOO_MANY_BINS {
		t.Errorf("a large event is answered %v", r)
	}
	f.later(2)
	if r := f.add("k", 1, "large"); r.Applied != 1 {
		t.Errorf("what has faded makes no room: %v", r)
	}
	if d := f.ask("k"); d.BinsTotal != 1 {
		t.Errorf("%v", d)
	}
}

// What describe says of accuracy is computed from what is lost.
func TestClaimsFollowWhatIsLost(t *testing.T) {
	for _, kind := range []ebbv1.Kind{
		ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_QUANTILE, ebbv1.Kind_KIND_DISTINCT,
		ebbv1.Kind_KIND_SET,
	} {
		for _, decay := range []ebbv1.Decay{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_NONE} {
			f := newFreeShard(t, &ebbv1.Namespace{Decay: decay, Kind: kind})
			c := increments("k", "a", "b")
			c.Namespace = "n"
			for _, in := range c.GetIncrements().Increments {
				if in.Kind = kind; kind == ebbv1.Kind_KIND_QUANTILE {
					in.Bin, in.Value = nil, new(2.0)
				}
			}
			f.apply(c)
			q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Describe{
				Describe: &ebbv1.DescribeQuestion{Key: []byte("k")},
			}}}
			d := f.s.Ask(q, sketch.Tick(f.now)).GetAnswer().GetDescribe()
			forgets := decay == ebbv1.Decay_DECAY_HALF_LIFE
			if says := strings.Contains(d.Accuracy, "too low by at most 0.0011, whatever order events came in"); says != forgets {
				t.Errorf("%s, %s: %q", kind, decay, d.Accuracy)
			}
			short := strings.Contains(d.Accuracy, "number of values is too low")
			if kind == ebbv1.Kind_KIND_QUANTILE && short != forgets {
				t.Errorf("what is too low is the number of values: %q", d.Accuracy)
			}
			if kind == ebbv1.Kind_KIND_DISTINCT && strings.HasPrefix(d.Accuracy, "exact") == forgets {
				t.Errorf("two bins are counted exactly: %q", d.Accuracy)
			}
			if claims := strings.Contains(d.Accuracy, "sum is exact") || strings.Contains(d.Accuracy, "never too low"); claims && forgets {
				t.Errorf("%s: %q", kind, d.Accuracy)
			}
			total := d.Key.Total
			if short := total.High - total.Value; forgets != (short > 0.0011) {
				t.Errorf("%s, %s: total %v", kind, decay, total)
			}
		}
	}
}
