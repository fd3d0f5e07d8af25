package cluster

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// madeOf lists for a period the shorter periods that divide it, the longest first.
var madeOf = map[ebbv1.PlanUnit][]ebbv1.PlanUnit{
	ebbv1.PlanUnit_PLAN_UNIT_YEAR:    {ebbv1.PlanUnit_PLAN_UNIT_QUARTER, ebbv1.PlanUnit_PLAN_UNIT_MONTH, ebbv1.PlanUnit_PLAN_UNIT_DAY},
	ebbv1.PlanUnit_PLAN_UNIT_QUARTER: {ebbv1.PlanUnit_PLAN_UNIT_MONTH, ebbv1.PlanUnit_PLAN_UNIT_DAY},
	ebbv1.PlanUnit_PLAN_UNIT_MONTH:   {ebbv1.PlanUnit_PLAN_UNIT_DAY},
	ebbv1.PlanUnit_PLAN_UNIT_WEEK:    {ebbv1.PlanUnit_PLAN_UNIT_DAY},
}

// rollsUp reports whether a key names a period that its namespace rolls up.
func rollsUp(ns *ebbv1.Namespace, key []byte) (s query.KeyFormat, p query.Period, ok bool) {
	units := ns.GetRollups().GetUnits()
	if len(units) == 0 {
		return s, p, false
	}
	s, p, ok = query.ParseKey(string(key))
	return s, p, ok && slices.Contains(units, ebbv1.Period(p.Unit))
}

// rollup returns the keys that together make up a period that is rolled up, its own key first; nil for any other key.
// Keys that would be too long are left out: no caller can have written to them.
func rollup(ns *ebbv1.Namespace, key []byte) (keys [][]byte) {
	format, p, ok := rollsUp(ns, key)
	if !ok {
		return nil
	}
	longest := proto.KeyLenMax
	if proto.BySlice(ns) {
		longest = proto.PartKeyLenMax
	}
	keys = append(keys, key)
	for _, unit := range unitsOf(ns, p) {
		for part, last := p.Within(unit); part.Number <= last.Number; part.Number++ {
			name := format.Key(part)
			if len(name) > longest {
				break // all have the same length
			}
			keys = append(keys, name)
		}
	}
	return keys
}

// unitsOf returns the lengths of the shorter periods that a namespace rolls up into p.
func unitsOf(ns *ebbv1.Namespace, p query.Period) []ebbv1.PlanUnit {
	units := madeOf[p.Unit]
	if slices.Contains(ns.GetRollups().GetUnits(), ebbv1.Period_PERIOD_DAY) {
		units = append(slices.Clone(units), ebbv1.PlanUnit_PLAN_UNIT_HOUR)
	}
	return units
}

// rollupsMax bounds how many bitmaps the periods in a request stand for together, repetitions included. The expanded
// expression has its own limit.
const rollupsMax = 16 * proto.BitTermsMax

// partsIn returns how many shorter periods make up a period that is rolled up; 0 for any other key.
func partsIn(ns *ebbv1.Namespace, key []byte) (n int) {
	if _, p, ok := rollsUp(ns, key); ok {
		for _, unit := range unitsOf(ns, p) {
			first, last := p.Within(unit)
			n += int(last.Number - first.Number + 1)
		}
	}
	return n
}

// takeRollups subtracts from room the bitmaps that the periods in an expression stand for. It reports whether there is
// enough room, before any period is expanded.
func takeRollups(x *ebbv1.BitmapExpr, ns *ebbv1.Namespace, room *int) bool {
	*room -= partsIn(ns, x.GetKey())
	for _, term := range proto.ExprTerms(x) {
		if *room < 0 || !takeRollups(term, ns, room) {
			return false
		}
	}
	return *room >= 0
}

// rolledUp replaces each period that is rolled up by the union of its parts; it returns the expression itself if there
// are none.
func rolledUp(x *ebbv1.BitmapExpr, ns *ebbv1.Namespace) *ebbv1.BitmapExpr {
	if !slices.ContainsFunc(proto.ExprKeys(x), func(key []byte) bool { _, _, ok := rollsUp(ns, key); return ok }) {
		return x
	}
	return proto.RewriteExpr(x, func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
		if keys := rollup(ns, x.GetKey()); keys != nil {
			return union(keyExprs(keys))
		}
		if or := x.GetOr(); or != nil { // one flat union, in which windows can be recognized
			return flattened(or.GetOf())
		}
		return x
	})
}

// flattened returns one union in which the unions among the arguments are dissolved. A repeated bitmap is named once.
func flattened(of []*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	var flat []*ebbv1.BitmapExpr
	seen := map[string]bool{}
	for _, x := range of {
		inner := []*ebbv1.BitmapExpr{x}
		if or := x.GetOr(); or != nil {
			inner = or.GetOf()
		}
		for _, x := range inner {
			if key := string(x.GetKey()); key == "" || !seen[key] {
				seen[key] = true
				flat = append(flat, x)
			}
		}
	}
	return union(flat)
}

// checkRollups refuses to count by periods that are rolled up: a group must be a stored bitmap.
func checkRollups(q *ebbv1.Question, ns *ebbv1.Namespace) *proto.Error {
	for _, key := range q.GetBitmapGroups().GetKeys() {
		if _, _, ok := rollsUp(ns, key); ok {
			return proto.ErrBadRequest.Errorf("count by %s: namespace %s rolls it up, and groups are counted by bitmaps that are stored", query.Quote(key), ns.GetName()).
				WithHint(fmt.Sprintf("store it first, as a key that is no period, or ask for one count at a time: count(... & %s)", query.Quote(key)))
		}
	}
	return nil
}
