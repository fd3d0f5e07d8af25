// Package query is the query language: it parses a text into a typed plan, and prints a plan as text.
//
//	text --Parse--> ebbv1.Plan --Text--> text
//
// Parse(Text(p)) equals p for every plan p that Parse returns. A plan from elsewhere is valid if this is true for it:
// see Check. grammar.ebnf is the only definition of the grammar. Tests check the parser against it in both directions,
// and the railroad diagrams of docs/query.md are drawn from it. Readers of the code should begin with statement.go,
// which has a function for each kind of question.
package query
