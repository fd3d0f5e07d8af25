package cluster

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// cohortRowsMax is how many rows a cohort table has. It is made of half the square of that in counts.
const cohortRowsMax = 60

// row is one period of a cohort, and the bitmaps that it is made of.
type row struct {
	period query.Period
	keys   [][]byte
}

// rowsOf are the periods of a range, or the longer ones that they are taken together in.
func rowsOf(c *ebbv1.PlanCohort) []row {
	first, _ := query.Ends(c.GetOf().GetRange())
	unit := first.Unit
	if c.GetBy() != 0 {
		unit = c.GetBy()
	}
	var rows []row
	for at, key := range query.Keys(c.GetOf().GetRange()) {
		p := query.PeriodAt(unit, query.Period{Unit: first.Unit, Number: first.Number + int64(at)}.Start())
		if n := len(rows); n == 0 || rows[n-1].period != p {
			rows = append(rows, row{period: p})
		}
		rows[len(rows)-1].keys = append(rows[len(rows)-1].keys, key)
	}
	return rows
}

// cohort makes a table of counts: of what is in a period and in none before, and of what that has in common with each later one.
//
//	first(i) = p(i) - p(0) - ... - p(i-1)      again(i, j) = first(i) & p(j)
func (i *inquiry) cohort(c *ebbv1.PlanCohort) (*errand, *proto.Error) {
	const step = "each period with each later one"
	rows := rowsOf(c)
	if len(rows) > cohortRowsMax {
		return nil, proto.ErrQueryTooCostly.Errorf("a cohort of %d periods: the limit is %d", len(rows), cohortRowsMax).WithHint("take longer ones, with by week, month, quarter or year")
	}
	terms := append([]*ebbv1.PlanTerm{c.GetOf()}, termsOf(nil, c.GetWithin())...)
	e, err := i.resolved(step, terms, func(namespace string, f found, cover *ebbv1.Coverage) (*errand, *ebbv1.Answer, *proto.Error) {
		within := func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr { return x }
		if c.GetWithin() != nil {
			w, err := f.expr(c.GetWithin())
			if err != nil {
				return nil, nil, err
			}
			if w == nil {
				return nil, cohortOf(rows, nil, cover), nil
			}
			within = func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr { return both(w, x) }
		}
		var questions []*ebbv1.Question
		var before []*ebbv1.BitmapExpr
		for at, r := range rows {
			first := within(without(union(keyExprs(r.keys)), before))
			questions = append(questions, bitmapQuestion(namespace, first))
			for _, later := range rows[at+1:] {
				questions = append(questions, bitmapQuestion(namespace, both(first, union(keyExprs(later.keys)))))
			}
			before = append(before, keyExprs(r.keys)...)
		}
		return inTurns(step, questions, func(answers []*ebbv1.Answer) *ebbv1.Answer { return cohortOf(rows, answers, together(answers)) }), nil, nil
	})
	return e, err
}

// cohortOf makes a table of counts in the order in which they were asked for; of none, one of zeros.
func cohortOf(rows []row, answers []*ebbv1.Answer, c *ebbv1.Coverage) *ebbv1.Answer {
	out := &ebbv1.BitmapCohort{AsOfUs: c.GetAsOfMaxUs()}
	next := func() (count uint64) {
		if len(answers) > 0 {
			count, answers = answers[0].GetBitmap().GetCount(), answers[1:]
		}
		return count
	}
	for at, r := range rows {
		line := &ebbv1.BitmapCohortRow{Period: r.period.String(), Count: next()}
		for range rows[at+1:] {
			line.Again = append(line.Again, next())
		}
		out.Rows = append(out.Rows, line)
	}
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Cohort{Cohort: out}}
}
