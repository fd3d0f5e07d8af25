package query

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Text writes a plan in the language. The text of an invalid plan may not parse.
func Text(plan *ebbv1.Plan) string {
	w := &writer{}
	w.question(plan)
	w.clauses(plan)
	return w.String()
}

// ExpressionText writes an expression of bitmaps in the language.
func ExpressionText(e *ebbv1.PlanExpression) string {
	w := &writer{}
	w.set(e, 0)
	return w.String()
}

// TermText writes keys, patterns and ranges in the language.
func TermText(terms ...*ebbv1.PlanTerm) string {
	w := &writer{}
	w.merged(terms)
	return w.String()
}

// writer has a method for each rule of the grammar that needs more than one line.
type writer struct {
	strings.Builder
	depth int
}

// nothing is a text that does not parse.
const nothing = "?"

func (w *writer) put(parts ...string) {
	for _, p := range parts {
		w.WriteString(p)
	}
}

func number[N uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

func decimal(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func (w *writer) question(plan *ebbv1.Plan) {
	switch ask := plan.GetAsk().(type) {
	case *ebbv1.Plan_Top:
		w.put("top ", number(ask.Top.GetN()), " ")
		w.merged(ask.Top.GetOf())
		w.trend(ask.Top.GetTrend())
	case *ebbv1.Plan_Keys:
		w.keys(ask.Keys)
	case *ebbv1.Plan_Distribution:
		name := "dist"
		if len(ask.Distribution.GetBins()) > 0 {
			name = "p"
		}
		w.call(name, ask.Distribution.GetOf(), ask.Distribution.GetBins())
	case *ebbv1.Plan_Summary:
		w.summary(ask.Summary)
	case *ebbv1.Plan_Trend:
		w.call("trend", ask.Trend.GetOf(), ask.Trend.GetBins())
		w.limit(" top ", ask.Trend.GetTop())
	case *ebbv1.Plan_Surprise:
		w.put("surprise(")
		w.merged(ask.Surprise.GetOf())
		w.put(" against ")
		w.merged(ask.Surprise.GetAgainst())
		w.bins(ask.Surprise.GetBins())
		w.put(")")
		w.limit(" top ", ask.Surprise.GetTop())
	default:
		w.comparison(plan)
	}
}

// comparison writes the questions about sets, and about single keys.
func (w *writer) comparison(plan *ebbv1.Plan) {
	switch ask := plan.GetAsk().(type) {
	case *ebbv1.Plan_Overlap:
		name := "overlap"
		if ask.Overlap.GetJaccard() {
			name = "jaccard"
		}
		w.put(name, "(")
		w.listed(ask.Overlap.GetSets())
		for i, e := range ask.Overlap.GetOf() {
			if i > 0 {
				w.put(", ")
			}
			w.set(e, 0)
		}
		w.put(")")
	case *ebbv1.Plan_Similar:
		w.put("similar(")
		if of := ask.Similar.GetOf(); of != nil {
			w.set(of, 0)
		} else {
			w.term(ask.Similar.GetTo())
		}
		for _, t := range ask.Similar.GetAmong() {
			w.put(", ")
			w.term(t)
		}
		w.put(")")
		w.limit(" top ", ask.Similar.GetTop())
	case *ebbv1.Plan_Graph:
		w.put("graph(")
		w.listed(ask.Graph.GetSets())
		w.limit(", links ", ask.Graph.GetLinks())
		if j := ask.Graph.GetMinJaccard(); j != 0 {
			w.put(", min ", decimal(j))
		}
		w.put(")")
	case *ebbv1.Plan_Describe:
		w.put("describe(")
		w.term(ask.Describe.GetKey())
		w.put(")")
	case *ebbv1.Plan_Match:
		w.put("match(")
		w.term(ask.Match.GetPhrases())
		w.put(", ", quote(ask.Match.GetText()), ")")
	default:
		w.bitmaps(plan)
	}
}

// bitmaps writes the questions about bitmaps.
func (w *writer) bitmaps(plan *ebbv1.Plan) {
	switch ask := plan.GetAsk().(type) {
	case *ebbv1.Plan_Count:
		w.put("count")
		if by := ask.Count.GetBy(); len(by) > 0 {
			w.put(" by ")
			w.merged(by)
			w.put(" ")
		}
		w.put("(")
		w.set(ask.Count.GetOf(), 0)
		w.put(")")
		w.limit(" top ", ask.Count.GetTop())
	case *ebbv1.Plan_Ids:
		w.put("ids(")
		w.set(ask.Ids.GetOf(), 0)
		w.put(")")
		if from := ask.Ids.GetFrom(); from != 0 {
			w.put(" from ", number(from))
		}
		w.limit(" limit ", ask.Ids.GetLimit())
	case *ebbv1.Plan_Cohort:
		w.put("cohort(")
		w.term(ask.Cohort.GetOf())
		if by := ask.Cohort.GetBy(); by != 0 {
			w.put(" by ", orElse(unitNames[by], nothing))
		}
		if within := ask.Cohort.GetWithin(); within != nil {
			w.put(", ")
			w.set(within, 0)
		}
		w.put(")")
		if ask.Cohort.GetEveryone() {
			w.put(" of everyone")
		}
	case *ebbv1.Plan_Store:
		w.put("store ")
		w.term(ask.Store.GetTo())
		w.put(" = ")
		w.set(ask.Store.GetOf(), 0)
	default:
		w.put(nothing)
	}
}

func (w *writer) keys(k *ebbv1.PlanKeys) {
	ranked := k.GetTrend() != nil || k.GetOrder() == ebbv1.KeyOrder_KEY_ORDER_TOTAL || k.GetOrder() == ebbv1.KeyOrder_KEY_ORDER_RECENT
	if ranked {
		w.put("top ", number(k.GetLimit()), " ")
	}
	w.put("keys")
	if k.GetOf() != nil {
		w.put(" ")
		w.term(k.GetOf())
	}
	switch {
	case k.GetTrend() != nil:
		w.trend(k.GetTrend())
	case k.GetOrder() == ebbv1.KeyOrder_KEY_ORDER_RECENT:
		w.put(" by recent")
	}
	if len(k.GetAfter()) > 0 {
		w.put(" from ", Quote(k.GetAfter()))
	}
	if !ranked {
		w.limit(" limit ", k.GetLimit())
	}
}

var functionNames = map[ebbv1.PlanFunction]string{
	ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL: "total", ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT: "distinct", ebbv1.PlanFunction_PLAN_FUNCTION_QUANTILE: "quantile",
	ebbv1.PlanFunction_PLAN_FUNCTION_CONTAINS: "contains", ebbv1.PlanFunction_PLAN_FUNCTION_ESTIMATE: "estimate",
	ebbv1.PlanFunction_PLAN_FUNCTION_MEMBERS: "members", ebbv1.PlanFunction_PLAN_FUNCTION_GET: "get",
}

func (w *writer) summary(s *ebbv1.PlanSummary) {
	w.put(orElse(functionNames[s.GetFunction()], nothing), "(")
	w.merged(s.GetOf())
	if s.GetSet() != nil {
		w.set(s.GetSet(), 0)
	}
	w.bins(s.GetBins())
	for _, q := range s.GetQuantiles() {
		w.put(", ", decimal(q))
	}
	if us := s.GetWindowUs(); us != 0 {
		w.put(", ", durationText(us))
	}
	w.put(")")
	w.limit(" limit ", s.GetLimit())
}

func (w *writer) call(name string, of []*ebbv1.PlanTerm, bins [][]byte) {
	w.put(name, "(")
	w.merged(of)
	w.bins(bins)
	w.put(")")
}

func (w *writer) bins(bins [][]byte) {
	for _, bin := range bins {
		w.put(", ", quote(bin))
	}
}

func (w *writer) limit(word string, n uint32) {
	if n != 0 {
		w.put(word, number(n))
	}
}

func (w *writer) trend(h *ebbv1.PlanHalfLives) {
	if h != nil {
		w.put(" by trend(", durationText(h.GetFastUs()), ", ", durationText(h.GetSlowUs()), ")")
	}
}

func (w *writer) merged(terms []*ebbv1.PlanTerm) { w.join(terms, " | ") }
func (w *writer) listed(terms []*ebbv1.PlanTerm) { w.join(terms, ", ") }

func (w *writer) join(terms []*ebbv1.PlanTerm, between string) {
	for i, t := range terms {
		if i > 0 {
			w.put(between)
		}
		w.term(t)
	}
}

func (w *writer) term(t *ebbv1.PlanTerm) {
	elsewhere := ""
	if t.GetNamespace() != "" {
		elsewhere = "@" + t.GetNamespace() + "/"
	}
	switch of := t.GetOf().(type) {
	case *ebbv1.PlanTerm_Key:
		w.put(elsewhere, Quote(of.Key))
	case *ebbv1.PlanTerm_Pattern:
		if bareWord(of.Pattern) && strings.Contains(string(of.Pattern), "*") {
			w.put(elsewhere, string(of.Pattern))
			return
		}
		w.put("like ", elsewhere, quote(of.Pattern))
	case *ebbv1.PlanTerm_Range:
		first := []byte(rangeKey(of.Range, of.Range.GetFirst()))
		w.put(elsewhere, Quote(first), " .. ", of.Range.GetLast())
	default:
		w.put(nothing)
	}
}

// set writes an expression. An operation whose operator has a lower precedence than level is written in parentheses.
func (w *writer) set(e *ebbv1.PlanExpression, level int) {
	if w.depth > (len(binary)+1)*DepthMax { // deeper than any plan that Parse returns
		w.put(nothing)
		return
	}
	w.depth++
	defer func() { w.depth-- }()
	if e.GetOperation() == nil {
		w.term(e.GetTerm())
		return
	}
	o := e.GetOperation()
	switch o.GetOperator() {
	case ebbv1.PlanOperator_PLAN_OPERATOR_COMPLEMENT:
		w.put("~")
		w.operands(o, ", ", len(binary))
		return
	case ebbv1.PlanOperator_PLAN_OPERATOR_AT_LEAST:
		w.put("atleast(", number(o.GetLeast()), ", ")
		w.operands(o, ", ", 0)
		w.put(")")
		return
	}
	for i, b := range binary {
		if b.operator != o.GetOperator() {
			continue
		}
		if i < level {
			w.put("(")
			defer w.put(")")
		}
		w.operands(o, " "+b.sign+" ", i+1)
		return
	}
	w.put(nothing)
}

func (w *writer) operands(o *ebbv1.PlanOperation, between string, level int) {
	for i, e := range o.GetOperands() {
		if i > 0 {
			w.put(between)
		}
		w.set(e, level)
	}
}

func (w *writer) clauses(plan *ebbv1.Plan) {
	if name := plan.GetNamespace(); bareWord([]byte(name)) {
		w.put(" in ", name)
	} else if name != "" {
		w.put(" in ", strconv.Quote(name))
	}
	if us := plan.GetAsOfUs(); us != 0 {
		w.put(" as of ", time.UnixMicro(us).UTC().Format(time.RFC3339Nano))
	}
	for _, c := range consistencies {
		if c.value != plan.GetConsistency() {
			continue
		}
		if w.put(" with consistency ", c.name); c.name == "bounded" {
			w.put(" ", durationText(plan.GetMaxStalenessUs()))
		}
	}
	if c := plan.GetConfidence(); c != 0 {
		w.put(" with confidence ", decimal(c))
	}
	if plan.GetAllowPartial() {
		w.put(" allow partial")
	}
}

// quote writes any bytes in quotes, so that strconv.Unquote restores them.
func quote(text []byte) string {
	if utf8.Valid(text) {
		return strconv.Quote(string(text))
	}
	return strconv.QuoteToASCII(string(text))
}
