// Package query is the query language: text to a typed plan, and back.
//
//	text --Parse--> ebbv1.Plan --Text--> text
//
// Parse(Text(p)) equals p for every plan that Parse returns, and a plan from elsewhere is right if that holds for it:
// see Check. grammar.ebnf is the grammar, and the only place where it is written down: tests hold the parser to it in
// both directions, and the railroads of docs/query.md are drawn from it. Whoever reads the code begins with
// statement.go, which has a function for each rule of what can be asked.
package query
