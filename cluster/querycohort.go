package cluster

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// row is one period of a cohort and its bitmaps.
type row struct {
	period query.Period
	keys   [][]byte
}

// rowsOf returns the periods of a range, or the longer periods into which they are grouped.
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

// cohort asks for a table: how many ids of each period are in each later one. By default a period counts only the ids
// that are in no earlier one; with everyone it counts all its ids. All periods of one family are in one shard, which
// computes the table.
func (x *queryExecution) cohort(c *ebbv1.PlanCohort) (*queryStage, *proto.Error) {
	const step = "each period with each later one"
	rows := rowsOf(c)
	if len(rows) > proto.BitCohortMax {
		return nil, proto.ErrQueryTooCostly.Errorf("a cohort of %d periods: the limit is %d", len(rows), proto.BitCohortMax).WithHint("take longer ones, with by week, month, quarter or year")
	}
	terms := append([]*ebbv1.PlanTerm{c.GetOf()}, termsOf(nil, c.GetWithin())...)
	return x.resolved(step, terms, func(namespace string, f found, cover *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		table := &ebbv1.BitmapCohortQuestion{Everyone: c.GetEveryone()}
		for _, r := range rows {
			table.Periods = append(table.Periods, &ebbv1.BitmapCohortPeriod{Period: r.period.String(), Expr: union(keyExprs(r.keys))})
		}
		if c.GetWithin() != nil {
			var err *proto.Error
			if table.Within, err = f.expr(c.GetWithin()); err != nil {
				return nil, nil, err
			}
			if table.Within == nil {
				return x.noBitmaps(namespace, c.GetWithin(), cover, func(c *ebbv1.Coverage) *ebbv1.Answer {
					return zeroTable(rows, c)
				})
			}
		}
		e, err := ask(step, &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: table}}, nil)
		return x.lookingFor(e, ebbv1.Kind_KIND_BITMAP, namespace, termsOf(nil, c.GetWithin())), nil, err
	})
}

// zeroTable returns a table of zeros.
func zeroTable(rows []row, c *ebbv1.Coverage) *ebbv1.Answer {
	out := &ebbv1.BitmapCohort{AsOfUs: c.GetAsOfMaxUs()}
	for at, r := range rows {
		out.Rows = append(out.Rows, &ebbv1.BitmapCohortRow{Period: r.period.String(), Again: make([]uint64, len(rows)-1-at)})
	}
	return &ebbv1.Answer{Coverage: c, Value: &ebbv1.Answer_Cohort{Cohort: out}}
}
