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

// forgotten is sets that die and begin anew, and when each thing was seen last in truth.
type forgotten struct {
	*State
	now  int64
	last map[string]map[string]int64
}

const forgottenHalfLife = 20 * second

func newForgotten(t *testing.T) *forgotten {
	f := &forgotten{now: 1_700_000_000 * second, last: map[string]map[string]int64{}}
	f.State = definedAt(t, &ebbv1.Namespace{
		Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_HALF_LIFE, HalfLifeUs: forgottenHalfLife,
	}, f.now)
	free := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourSets}}}
	f.Apply(f.Applied()+1, encodeEntry(t, f.now, []*ebbv1.Command{free}), nil)
	return f
}

func (f *forgotten) see(t *testing.T, key, bin string, at int64) {
	t.Helper()
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{
		{Key: []byte(key), Bin: []byte(bin), TimeUs: at, Kind: ebbv1.Kind_KIND_SET},
	}}}}
	if r := f.Apply(f.Applied()+1, encodeEntry(t, f.now, []*ebbv1.Command{c}), nil)[0]; r.Error != nil {
		t.Fatal(r.Error)
	}
	if f.last[key] == nil {
		f.last[key] = map[string]int64{}
	}
	f.last[key][bin] = max(f.last[key][bin], at)
}

// weighs is what a set that is made of others weighs in truth, level by level.
func (f *forgotten) weighs(holds func(in map[string]bool) bool) (sum float64) {
	bins := map[string]bool{}
	for _, things := range f.last {
		for bin := range things {
			bins[bin] = true
		}
	}
	for bin := range bins {
		for level := 0.0; ; {
			in, next := map[string]bool{}, math.Inf(1)
			for key, things := range f.last {
				if at, seen := things[bin]; seen {
					if w := math.Exp2(-float64(f.now-at) / forgottenHalfLife); w > level {
						in[key], next = true, min(next, w)
					}
				}
			}
			if len(in) == 0 {
				break
			}
			if holds(in) {
				sum += next - level
			}
			level = next
		}
	}
	return sum
}

// contains fails unless an interval has a truth in it.
func contains(t *testing.T, what string, e *ebbv1.Estimate, truth float64) {
	t.Helper()
	if truth < e.GetLow()*(1-1e-9)-1e-12 || truth > e.GetHigh()*(1+1e-9)+1e-12 {
		t.Errorf("%s: %v is not in [%v, %v]", what, truth, e.GetLow(), e.GetHigh())
	}
}

// Intervals of sets, of what is made of them and of what they have in common contain the truth, whatever earlier sets
// of their keys held when they died, and also where a key is gone.
func TestLostBySetExpressions(t *testing.T) {
	x := func(key string) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
	}
	of := func(keys ...string) *ebbv1.BitmapExprs {
		out := new(ebbv1.BitmapExprs)
		for _, key := range keys {
			out.Of = append(out.Of, x(key))
		}
		return out
	}
	exprs := []*ebbv1.BitmapExpr{
		{Expr: &ebbv1.BitmapExpr_Or{Or: of("a", "b")}},
		{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: of("a", "c")}},
		{Expr: &ebbv1.BitmapExpr_Xor{Xor: of("a", "b", "c")}},
		{Expr: &ebbv1.BitmapExpr_And{And: of("b", "c")}},
		x("c"),
	}
	holds := []func(in map[string]bool) bool{
		func(in map[string]bool) bool { return in["a"] || in["b"] },
		func(in map[string]bool) bool { return in["a"] && !in["c"] },
		func(in map[string]bool) bool { return (in["a"] != in["b"]) != in["c"] },
		func(in map[string]bool) bool { return in["b"] && in["c"] },
		func(in map[string]bool) bool { return in["c"] },
	}
	gone, shorter := 0, 0
	for seed := range uint64(40) {
		f, r := newForgotten(t), rand.New(rand.NewPCG(seed, 61))
		for range 120 {
			f.now += r.Int64N(40 * second)
			if r.IntN(6) == 0 {
				f.now += 150*second + r.Int64N(100*second)
			}
			for range r.IntN(4) {
				at := f.now - r.Int64N(100*second)
				f.see(t, []string{"a", "b", "c"}[r.IntN(3)], fmt.Sprint(r.IntN(4)), at)
			}
			i, j := r.IntN(len(exprs)), r.IntN(len(exprs))
			overlap := &ebbv1.OverlapQuestion{Of: []*ebbv1.BitmapExpr{exprs[i], exprs[j]}}
			q := &ebbv1.Question{Ask: &ebbv1.Question_Overlap{Overlap: overlap}}
			if err := proto.CheckQuestion(q); err != nil {
				t.Fatal(err)
			}
			a := f.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(f.now))
			o := a.GetAnswer().GetOverlap()
			if o == nil {
				t.Fatal(a)
			}
			gone += len(a.GetMissing())
			what := fmt.Sprintf("seed %d, sets %d and %d, missing %d", seed, i, j, a.GetMissing())
			first, second := f.weighs(holds[i]), f.weighs(holds[j])
			union := f.weighs(func(in map[string]bool) bool { return holds[i](in) || holds[j](in) })
			both := f.weighs(func(in map[string]bool) bool { return holds[i](in) && holds[j](in) })
			contains(t, what+": the first", o.Sets[0].Size, first)
			contains(t, what+": the second", o.Sets[1].Size, second)
			contains(t, what+": union", o.Union, union)
			contains(t, what+": intersection", o.Intersection, both)
			contains(t, what+": difference", o.Difference,
				f.weighs(func(in map[string]bool) bool { return holds[i](in) && !holds[j](in) }))
			if union > 0 {
				contains(t, what+": similarity", o.Jaccard, both/union)
			}
			if union > o.Union.GetValue()*(1+1e-9) {
				shorter++
			}
			overlap.First = true
			similar := f.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(f.now)).GetAnswer().GetOverlap()
			if union > 0 {
				contains(t, what+": similar", similar.GetSimilar()[0], both/union)
			}
			whole := f.Ask(&ebbv1.ShardQuestion{Question: graphAsked(&ebbv1.GraphQuestion{}, "a", "b", "c")},
				sketch.Tick(f.now))
			for at, key := range []string{"a", "b", "c"} {
				truth := f.weighs(func(in map[string]bool) bool { return in[key] })
				contains(t, what+": in a graph "+key, whole.GetAnswer().GetGraph().GetNodes()[at].GetSet().GetSize(),
					truth)
			}
		}
	}
	if gone == 0 || shorter == 0 {
		t.Errorf("%d keys were missing, and %d unions were short of something", gone, shorter)
	}
}

// Parts of several shards say what keys may have held that are not there, and of no other namespace anything new.
func TestMissingSetsInParts(t *testing.T) {
	f := newForgotten(t)
	f.see(t, "a", "x", f.now)
	for _, q := range []*ebbv1.Question{overlapAsked("a", "no"), graphAsked(&ebbv1.GraphQuestion{}, "a", "no")} {
		whole := f.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(f.now)).GetAnswer()
		two := []*ebbv1.ShardAnswer{
			partOf(t, f.State, overlapAsked("a"), f.now),
			partOf(t, f.State, overlapAsked("no"), f.now),
		}
		if q.GetGraph() != nil {
			two = []*ebbv1.ShardAnswer{
				partOf(t, f.State, graphAsked(&ebbv1.GraphQuestion{}, "a"), f.now),
				partOf(t, f.State, graphAsked(&ebbv1.GraphQuestion{}, "no"), f.now),
			}
		}
		merged, err := Merge(q, two)
		if err != nil || fmt.Sprint(merged) != fmt.Sprint(whole) {
			t.Errorf("%v\n%v\n%v", err, merged, whole)
		}
		missing := whole.GetOverlap().GetSets()
		if g := whole.GetGraph(); g != nil {
			missing = []*ebbv1.SizedSet{nil, g.GetNodes()[1].GetSet()}
		}
		if e := missing[1].GetSize(); e.GetValue() != 0 || e.GetLow() != 0 || e.GetHigh() < 0.001 ||
			e.GetHigh() > 0.002 {
			t.Errorf("a set that is not there has %v", e)
		}
	}
	plain := definedAt(t, &ebbv1.Namespace{
		Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_HALF_LIFE,
		HalfLifeUs: second,
	}, f.now)
	if part := partOf(t, plain, overlapAsked("no"), f.now).GetPart(); part[0] != partOverlap {
		t.Errorf("a part begins with %q", part[0])
	}
}

// A comparison that would take too long is refused before it begins.
func TestSetsTooCostly(t *testing.T) {
	f := newForgotten(t)
	batch := &ebbv1.Increments{}
	for i := range 1000 {
		batch.Increments = append(batch.Increments, &ebbv1.Increment{
			Key: []byte("a"), Bin: fmt.Append(nil, i), TimeUs: f.now, Kind: ebbv1.Kind_KIND_SET,
		})
	}
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
	f.Apply(f.Applied()+1, encodeEntry(t, f.now, []*ebbv1.Command{c}), nil)
	for _, terms := range []int{100, 9000} {
		or := new(ebbv1.BitmapExprs)
		for range terms {
			or.Of = append(or.Of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("a")}})
		}
		x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}
		for range proto.BitDepthMax - 4 {
			x = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{x}}}}
		}
		q := &ebbv1.Question{Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Of: []*ebbv1.BitmapExpr{x}}}}
		if err := proto.CheckQuestion(q); err != nil {
			t.Fatal(err)
		}
		a := f.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(f.now))
		costly := a.GetError().GetCode() == ebbv1.Code_CODE_QUERY_TOO_COSTLY
		if costly != (terms == 9000) || !costly && a.GetAnswer().GetOverlap().GetUnion().GetValue() != 1000 {
			t.Errorf("%d terms: %v", terms, a)
		}
	}
}
