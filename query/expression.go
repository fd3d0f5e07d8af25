package query

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// set parses an expression of bitmaps. The operators, from the lowest to the highest precedence:
//
//	a | b   a ^ b   a & b   a - b   ~a
func (p *parser) set() *ebbv1.PlanExpression {
	if !p.deeper() {
		return nil
	}
	defer func() { p.depth-- }()
	return p.joined(0)
}

// binary are the binary operators, from the lowest to the highest precedence.
var binary = []struct {
	sign     string
	operator ebbv1.PlanOperator
}{
	{"|", ebbv1.PlanOperator_PLAN_OPERATOR_UNION},
	{"^", ebbv1.PlanOperator_PLAN_OPERATOR_SYMMETRIC_DIFFERENCE},
	{"&", ebbv1.PlanOperator_PLAN_OPERATOR_INTERSECTION},
	{"-", ebbv1.PlanOperator_PLAN_OPERATOR_DIFFERENCE},
}

// joined parses operands of the operator of this level, or of operators with a higher precedence.
func (p *parser) joined(level int) *ebbv1.PlanExpression {
	if level == len(binary) {
		return p.operand()
	}
	operands := []*ebbv1.PlanExpression{p.joined(level + 1)}
	for p.between(binary[level].sign) {
		operands = append(operands, p.joined(level+1))
	}
	if len(operands) == 1 {
		return operands[0]
	}
	return operation(binary[level].operator, operands)
}

// between accepts a binary operator. "and not" is another form of "-".
func (p *parser) between(sign string) bool {
	if sign == "-" && p.err == nil && p.token.is("and") && p.ahead.is("not") {
		p.advance()
		p.advance()
		return true
	}
	return p.accept(sign)
}

func operation(o ebbv1.PlanOperator, operands []*ebbv1.PlanExpression) *ebbv1.PlanExpression {
	return &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Operation{Operation: &ebbv1.PlanOperation{Operator: o, Operands: operands}}}
}

func (p *parser) operand() *ebbv1.PlanExpression {
	switch {
	case p.accept("~"):
		if !p.deeper() {
			return nil
		}
		defer func() { p.depth-- }()
		return operation(ebbv1.PlanOperator_PLAN_OPERATOR_COMPLEMENT, []*ebbv1.PlanExpression{p.operand()})
	case p.accept("("):
		e := p.set()
		p.expect(")")
		return e
	case p.calls():
		return p.atLeast()
	}
	return &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Term{Term: p.term("a key, a pattern, a range, atleast(, ~ or (")}}
}

// calls says whether a function call comes next.
func (p *parser) calls() bool {
	return p.token.class == word && p.token.namespace == "" && p.ahead.is("(")
}

// atLeast parses atleast(...), the only function that makes a bitmap.
func (p *parser) atLeast() *ebbv1.PlanExpression {
	if t := p.token; !t.is("atleast") {
		p.fail(t, fmt.Sprintf("found %s(, expected a bitmap: atleast( is the only function of bitmaps that makes one", t.value),
			nearest(t.value, []string{"atleast"}, "ask each question by itself"))
		return nil
	}
	if !p.deeper() {
		return nil
	}
	defer func() { p.depth-- }()
	p.advance()
	p.expect("(")
	least := p.integer("how many", 1, TermsMax)
	var operands []*ebbv1.PlanExpression
	for p.accept(",") {
		operands = append(operands, p.set())
	}
	if len(operands) == 0 {
		p.unexpected(`"," and the bitmaps to be counted`)
	}
	p.expect(")")
	e := operation(ebbv1.PlanOperator_PLAN_OPERATOR_AT_LEAST, operands)
	e.GetOperation().Least = uint32(least)
	return e
}

// merged parses terms joined by |; parentheses around some of them change nothing.
func (p *parser) merged() []*ebbv1.PlanTerm {
	terms := p.mergedTerms()
	for p.accept("|") {
		terms = append(terms, p.mergedTerms()...)
	}
	if t := p.token; t.class == sign && slices.Contains([]string{"&", "^", "-"}, t.value) || t.is("and") && p.ahead.is("not") {
		p.fail(t, fmt.Sprintf("found %s, expected \"|\", the only operator here: %s is for sets and bitmaps",
			p.found(t), t.value),
			"total(...), count(...) and overlap(..., ...) take whatever sets and bitmaps can be made of")
	}
	return terms
}

func (p *parser) mergedTerms() []*ebbv1.PlanTerm {
	if p.token.is("(") {
		if !p.deeper() {
			return nil
		}
		defer func() { p.depth-- }()
		p.advance()
		terms := p.merged()
		p.expect(")")
		return terms
	}
	switch {
	case p.token.is("~"):
		p.fail(p.token, fmt.Sprintf("found %s, expected %s: expressions are for sets and bitmaps",
			p.found(p.token), aTerm), "several keys are joined with |")
	case p.calls():
		p.fail(p.token, fmt.Sprintf("found %s(, expected %s", p.token.value, aTerm), "ask each question by itself")
	}
	return []*ebbv1.PlanTerm{p.term(aTerm)}
}

// unionOf are the terms of an expression that is a plain union of terms; nil for any other expression.
func unionOf(e *ebbv1.PlanExpression) []*ebbv1.PlanTerm {
	if t := e.GetTerm(); t != nil {
		return []*ebbv1.PlanTerm{t}
	}
	if e.GetOperation().GetOperator() != ebbv1.PlanOperator_PLAN_OPERATOR_UNION {
		return nil
	}
	var terms []*ebbv1.PlanTerm
	for _, operand := range e.GetOperation().GetOperands() {
		of := unionOf(operand)
		if of == nil {
			return nil
		}
		terms = append(terms, of...)
	}
	return terms
}

// wholeUnits are, by the unit of a range, the longer units that consist of whole periods of that unit.
var wholeUnits = map[ebbv1.PlanUnit][]ebbv1.PlanUnit{
	ebbv1.PlanUnit_PLAN_UNIT_HOUR: {
		ebbv1.PlanUnit_PLAN_UNIT_DAY, ebbv1.PlanUnit_PLAN_UNIT_WEEK, ebbv1.PlanUnit_PLAN_UNIT_MONTH, ebbv1.PlanUnit_PLAN_UNIT_QUARTER, ebbv1.PlanUnit_PLAN_UNIT_YEAR,
	},
	ebbv1.PlanUnit_PLAN_UNIT_DAY: {
		ebbv1.PlanUnit_PLAN_UNIT_WEEK, ebbv1.PlanUnit_PLAN_UNIT_MONTH, ebbv1.PlanUnit_PLAN_UNIT_QUARTER, ebbv1.PlanUnit_PLAN_UNIT_YEAR,
	},
	ebbv1.PlanUnit_PLAN_UNIT_MONTH:   {ebbv1.PlanUnit_PLAN_UNIT_QUARTER, ebbv1.PlanUnit_PLAN_UNIT_YEAR},
	ebbv1.PlanUnit_PLAN_UNIT_QUARTER: {ebbv1.PlanUnit_PLAN_UNIT_YEAR},
}

// unit parses the unit of a cohort's periods. If it is the unit of the range, it is stored as unspecified: the same
// plan as without a unit.
func (p *parser) unit(r *ebbv1.PlanRange) ebbv1.PlanUnit {
	t := p.token
	var names []string
	for u := ebbv1.PlanUnit_PLAN_UNIT_HOUR; u <= ebbv1.PlanUnit_PLAN_UNIT_YEAR; u++ {
		if names = append(names, unitNames[u]); !t.is(unitNames[u]) {
			continue
		}
		first, _ := Ends(r)
		if p.err == nil && u == first.Unit {
			p.advance()
			return ebbv1.PlanUnit_PLAN_UNIT_UNSPECIFIED
		}
		if p.err == nil && !slices.Contains(wholeUnits[first.Unit], u) {
			p.fail(t, fmt.Sprintf("a period by %s is not made of whole %ss", unitNames[u], unitNames[first.Unit]), "")
		}
		p.advance()
		return u
	}
	p.refuse(t, "hour, day, week, month, quarter or year")
	if near := spell.Nearest(t.value, names); near != "" && p.err != nil && p.err.Hint == "" {
		p.err.Hint = "did you mean " + near + "?"
	}
	return 0
}
