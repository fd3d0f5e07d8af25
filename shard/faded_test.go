package shard

import (
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A batch says how many of its increments weigh less than the namespace keeps.
func TestFadedAreCounted(t *testing.T) {
	const hour = 3600 * second
	for _, x := range []struct {
		what   string
		ns     *ebbv1.Namespace
		kind   ebbv1.Kind
		age    int64
		amount float64
		want   uint64
	}{
		{"now", &ebbv1.Namespace{}, 0, 0, 1, 0},
		{"nine half-lives weigh 1/512", &ebbv1.Namespace{}, 0, 9 * hour, 1, 0},
		{"ten weigh 1/1024, below 0.001", &ebbv1.Namespace{}, 0, 10 * hour, 1, 1},
		{"a small amount weighs less at once", &ebbv1.Namespace{}, 0, second, 0.0001, 1},
		{"a larger amount lasts longer", &ebbv1.Namespace{}, 0, 10 * hour, 2, 0},
		{"a namespace that does not forget", &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_NONE}, 0, 1000 * hour, 1, 0},
		{"linear: 0.69 leak in an hour", &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_LINEAR}, 0, hour, 1, 0},
		{"linear: all has leaked in two", &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_LINEAR}, 0, 2 * hour, 1, 1},
		{"a sketch as a distribution", &ebbv1.Namespace{}, ebbv1.Kind_KIND_DISTINCT, 10 * hour, 1, 1},
		{"a bloom forgets after 1.2", &ebbv1.Namespace{}, ebbv1.Kind_KIND_BLOOM, 2 * hour, 1, 1},
		{"a linear that is not there does not begin in the past", &ebbv1.Namespace{}, ebbv1.Kind_KIND_LINEAR, 10 * hour, 1, 1},
		{"but may begin late", &ebbv1.Namespace{}, ebbv1.Kind_KIND_LINEAR, 9 * hour, 1, 0},
		{"an amount of 0 has nothing that could fade", &ebbv1.Namespace{}, 0, 100 * hour, 0, 0},
		{"nor under linear decay", &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_LINEAR}, 0, 2 * hour, 0, 0},
		{"nor of a sketch", &ebbv1.Namespace{}, ebbv1.Kind_KIND_BLOOM, 2 * hour, 0, 0},
		{"phrases stay", &ebbv1.Namespace{}, ebbv1.Kind_KIND_PHRASES, 100 * hour, 1, 0},
	} {
		o := newOwners(t, 0)
		x.ns.Name, x.ns.Version = "c", 1
		o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: x.ns}})
		c := increments("k", "bin")
		in := c.GetIncrements().GetIncrements()[0]
		in.Kind, in.Amount = x.kind, &x.amount
		if x.age > 0 {
			in.TimeUs = o.now - x.age
		}
		r := o.apply("c", c)
		if r.GetApplied() != 1 || r.GetFaded() != x.want {
			t.Errorf("%s: %v, of which %d should have faded", x.what, r, x.want)
		}
	}
	o := newOwners(t, 0)
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name: "l", Version: 1, Kind: ebbv1.Kind_KIND_LINEAR,
	}}})
	late := increments("k", "old")
	late.GetIncrements().GetIncrements()[0].TimeUs = o.now - 100*hour
	if first, r := o.apply("l", increments("k", "new")), o.apply("l", late); first.GetFaded() != 0 || r.GetFaded() != 0 {
		t.Errorf("a late event counts in a linear that lives: %v, then %v", first, r)
	}
	o = newOwners(t, 0)
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name: "e", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT,
	}}})
	in := func(at int64) *ebbv1.CommandResult {
		c := increments("k", "bin")
		c.GetIncrements().GetIncrements()[0].TimeUs = at
		return o.apply("e", c)
	}
	if first, late := in(20*hour), in(5*hour); first.GetFaded() != 0 || late.GetFaded() != 1 {
		t.Errorf("under an event clock: %v, then %v", first, late)
	}
}

// Kinds that do not go into a namespace under linear decay are refused with the way on.
func TestOtherKindsUnderLinearDecay(t *testing.T) {
	o := newOwners(t, 0)
	o.apply("", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{
		Name: "c", Version: 1, Decay: ebbv1.Decay_DECAY_LINEAR,
	}}})
	c := increments("k", "bin")
	c.GetIncrements().GetIncrements()[0].Kind = ebbv1.Kind_KIND_DISTINCT
	r := o.apply("c", c)
	if len(r.GetRefused()) != 1 || !strings.Contains(r.GetRefused()[0].GetError().GetHint(), "--half-life 1h") {
		t.Errorf("%v", r)
	}
}

// Sources are listed by name, page by page, with those of no other namespace.
func TestSourcesAreListed(t *testing.T) {
	o := newOwners(t, BehaviourNamespaces)
	for _, name := range []string{"x", "z", "y"} {
		o.source("a", name, 1)
	}
	o.source("b", "other", 1)
	ask := func(q *ebbv1.SourcesQuestion, partial bool) *ebbv1.SourceList {
		question := &ebbv1.Question{Namespace: "a", Ask: &ebbv1.Question_Sources{Sources: q}}
		one := o.s.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: question, Partial: partial}, 0)
		answers := []*ebbv1.ShardAnswer{one}
		if partial {
			answers = append(answers, one)
		}
		a, err := Merge(question, answers)
		if err != nil {
			t.Fatal(err)
		}
		return a.GetSources()
	}
	for _, partial := range []bool{false, true} {
		shards := map[bool]uint32{false: 1, true: 2}[partial]
		first := ask(&ebbv1.SourcesQuestion{Limit: 2}, partial)
		if len(first.GetSources()) != 2 || first.Sources[0].Name != "x" || first.Sources[1].Name != "y" || !first.More || first.Sources[0].Shards != shards {
			t.Errorf("the first page is %v", first)
		}
		rest := ask(&ebbv1.SourcesQuestion{Limit: 2, After: "y"}, partial)
		if len(rest.GetSources()) != 1 || rest.Sources[0].Name != "z" || rest.More {
			t.Errorf("the second page is %v", rest)
		}
	}
	if _, err := mergeSources(&ebbv1.SourcesQuestion{}, []*ebbv1.ShardAnswer{{Value: &ebbv1.ShardAnswer_Part{Part: []byte("i\xff")}}}); err == nil {
		t.Error("a part that does not decode is taken")
	}
}

// FuzzMergeSources: any bytes are a part or are refused, and a page is in order.
func FuzzMergeSources(f *testing.F) {
	f.Add([]byte{partSources}, uint32(1))
	f.Add([]byte("i\x0a\x05\x0a\x01x\x20\x01"), uint32(2))
	f.Fuzz(func(t *testing.T, part []byte, limit uint32) {
		q := &ebbv1.SourcesQuestion{Limit: limit%100 + 1}
		one := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: part}}
		a, err := mergeSources(q, []*ebbv1.ShardAnswer{one, one})
		if err != nil {
			return
		}
		list := a.GetSources().GetSources()
		if len(list) > int(q.GetLimit()) {
			t.Fatalf("%d sources, asked for %d", len(list), q.GetLimit())
		}
		for i := 1; i < len(list); i++ {
			if list[i-1].GetName() >= list[i].GetName() {
				t.Fatalf("%q is before %q", list[i-1].GetName(), list[i].GetName())
			}
		}
	})
}
