package query

import _ "embed" // of the grammar

// Grammar is the grammar of the language, as package ebnf reads it. Words in capitals are classes of tokens, see
// Classes.
//
//go:embed grammar.ebnf
var Grammar string

// Class is a class of tokens in the grammar, described for the documentation.
type Class struct {
	Name, Means, Example string
}

// Classes returns the classes of tokens of the grammar.
func Classes() []Class {
	return []Class{
		{
			"KEY", "a key: letters, digits and `_ / - . : +` as they are, anything else in double quotes, with the escapes of Go; `@namespace/key` is one of another namespace",
			`clicks/country, "two words", "\xff", @sales/clicks/country`,
		},
		{"OWNKEY", "a key without namespace", "clicks/country"},
		{"PATTERN", "`*` stands for any bytes but '/', `**` for any bytes; in quotes after `like`, where `\\\\*` is a star", `link/*, clicks/**, like "two words/*"`},
		{
			"RANGE", "the periods of a family from the first to the last, which are of one length: years, months, weeks, days or hours",
			"play/2011-11-01 .. 2011-11-30, play/2011-W44 .. play/2012-W03",
		},
		{"STRING", "text or any bytes, in double quotes", `"US"`},
		{"INTEGER", "a whole number", "10"},
		{"LINKS", "a whole number from 1 to 100", "2"},
		{"FRACTION", "a number from 0 to 1", "0.99"},
		{"LEAST", "a number above 0, up to 1", "0.1"},
		{"CONFIDENCE", "a number from 0.5 to 0.9999", "0.95"},
		{"DURATION", "a number with a unit: us, ms, s, m, h, d, w or y (365.25 days)", "10m, 90d, 2y, 1h30m"},
		{
			"TIME",
			"a time as RFC 3339 has it, without leap seconds (`:60`), or a date; in quotes if it has another zone than Z",
			"2013-05-06T12:00:00Z, 2013-05-06",
		},
		{"NAMESPACE", "the name of a namespace", "sales"},
	}
}
