package load

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

// A spec describes how a value is made from a row. In text:
//
//	g            the column of that name (or the field, in JSON lines)
//	6            the sixth column, from 1
//	clicks/{g}   a template: {...} is replaced by a column
//	plays/{t:day}  a template with a period of a column of times: hour, day, week, month, quarter or year
//	=all         the constant "all"
type spec struct {
	text  string
	parts []part
	times *timeReader // reads the columns that periods are made of
}

// part is a literal, or a column.
type part struct {
	literal string
	column  int    // the name of the column; "" for a literal
	field   string // its name, "" for a literal
	period  string // such as day: the column holds a time, and the value is the period of that time
}

// periodUnits are the periods that a template can make from a time.
var periodUnits = map[string]ebbv1.PlanUnit{
	"hour": ebbv1.PlanUnit_PLAN_UNIT_HOUR, "day": ebbv1.PlanUnit_PLAN_UNIT_DAY, "week": ebbv1.PlanUnit_PLAN_UNIT_WEEK,
	"month": ebbv1.PlanUnit_PLAN_UNIT_MONTH, "quarter": ebbv1.PlanUnit_PLAN_UNIT_QUARTER, "year": ebbv1.PlanUnit_PLAN_UNIT_YEAR,
}

// columnOf parses the text in braces: a column, or a period of a column.
func columnOf(text string) part {
	if i := strings.LastIndexByte(text, ':'); i > 0 {
		if _, known := periodUnits[text[i+1:]]; known {
			return part{field: text[:i], period: text[i+1:], column: -1}
		}
	}
	return part{field: text, column: -1}
}

// whole returns the text in braces as it was written.
func (p *part) whole() string {
	if p.period == "" {
		return p.field
	}
	return p.field + ":" + p.period
}

func (p *part) isLiteral() bool { return p.field == "" }

// ErrColumn says that the Options are wrong, and not the file: a column that they name is not in the file, or is no
// name.
var ErrColumn = errors.New("no such column")

// columnError is an ErrColumn with a message of its own.
type columnError string

func (e columnError) Error() string        { return string(e) }
func (e columnError) Is(target error) bool { return target == ErrColumn }

func columnErrorf(format string, args ...any) error { return columnError(fmt.Sprintf(format, args...)) }

// parseSpec parses a spec; columns are not resolved yet.
func parseSpec(what, text string) (*spec, error) {
	s := &spec{text: text}
	switch {
	case text == "":
		return nil, columnErrorf("%s: no column is named", what)
	case text[0] == '=':
		s.parts = []part{{literal: text[1:], column: -1}}
		return s, nil
	case !strings.ContainsAny(text, "{}"):
		s.parts = []part{{field: text, column: -1}}
		return s, nil
	}
	rest := text
	for rest != "" {
		open := strings.IndexByte(rest, '{')
		end := strings.IndexByte(rest, '}')
		switch {
		case open < 0 && end < 0:
			s.parts = append(s.parts, part{literal: rest, column: -1})
			return s, nil
		case open < 0 || end >= 0 && end < open:
			return nil, columnErrorf("%s %q: '}' without '{'", what, text)
		case end < 0:
			return nil, columnErrorf("%s %q: '{' without '}'", what, text)
		case end <= open+1:
			return nil, columnErrorf("%s %q: '{}' names no column", what, text)
		}
		if open > 0 {
			s.parts = append(s.parts, part{literal: rest[:open], column: -1})
		}
		s.parts = append(s.parts, columnOf(rest[open+1:end]))
		rest = rest[end+1:]
	}
	return s, nil
}

// named reports whether the spec gives a column by name.
func (s *spec) named() bool {
	if s == nil {
		return false
	}
	for _, p := range s.parts {
		if _, err := strconv.ParseUint(p.field, 10, 16); !p.isLiteral() && err != nil {
			return true
		}
	}
	return false
}

// resolve finds the indexes of the columns; header is nil if the file has none.
func (s *spec) resolve(what string, header []string) error {
	if s == nil {
		return nil
	}
	for i := range s.parts {
		p := &s.parts[i]
		if p.isLiteral() {
			continue
		}
		if p.column = indexOf(header, p.whole()); p.column >= 0 {
			p.field, p.period = p.whole(), ""
			continue
		}
		if p.column = indexOf(header, p.field); p.column >= 0 {
			continue
		}
		n, err := strconv.ParseUint(p.field, 10, 16)
		switch {
		case err == nil && n >= 1 && (header == nil || int(n) <= len(header)):
			p.column = int(n) - 1
		case err == nil && n == 0:
			return columnErrorf("%s %q: columns are numbered from 1", what, s.text)
		case header == nil:
			return columnErrorf("%s %q: the file has no header, so columns are numbers from 1", what, s.text)
		default:
			hint := separatorHint(header)
			if hint == "" {
				hint = s.columnHint(p.field)
			}
			return columnErrorf("%s %q: no column %q; there are %s%s",
				what, s.text, p.field, strings.Join(header, ", "), hint)
		}
	}
	return nil
}

// separatorHint returns a hint if a header of one column looks like several columns with another separator.
func separatorHint(header []string) string {
	if len(header) != 1 {
		return ""
	}
	for _, s := range []struct{ separator, name, way string }{
		{"\t", "tabs", "--format tsv"},
		{",", "commas", "--format csv"},
		{";", "semicolons", `tr ';' '\t' <FILE | ebb import - --format tsv, if no field is quoted`},
		{"|", "bars", `tr '|' '\t' <FILE | ebb import - --format tsv, if no field is quoted`},
	} {
		if strings.Contains(header[0], s.separator) {
			return fmt.Sprintf("; the file seems to be separated by %s: %s", s.name, s.way)
		}
	}
	return ""
}

// columnHint returns what else may have been meant by a field that names no column, in parentheses; "" for nothing.
func (s *spec) columnHint(field string) string {
	var hints []string
	if len(s.parts) == 1 { // a text of several parts has constants between its columns
		hints = append(hints, "a constant is written ="+field)
	}
	if column, _, is := strings.Cut(field, ":"); is {
		hints = append(hints, fmt.Sprintf("of a time {%s:hour}, or day, week, month, quarter or year", column))
	}
	if len(hints) == 0 {
		return ""
	}
	return " (" + strings.Join(hints, "; ") + ")"
}

func indexOf(header []string, name string) int {
	for i, h := range header {
		if h == name {
			return i
		}
	}
	return -1
}

// errEmptyColumn says that a column of a key or bin is empty.
var errEmptyColumn = errors.New("is empty (--skip-empty leaves such rows out)")

// value builds the value from a row's fields. In a template an empty column is an error, because it would give many
// rows the same key.
func (s *spec) value(fields []string) (string, error) {
	if len(s.parts) == 1 {
		return s.parts[0].value(fields, s.times)
	}
	var b strings.Builder
	for i := range s.parts {
		p := &s.parts[i]
		v, err := p.value(fields, s.times)
		if err != nil {
			return "", err
		}
		if v == "" && !p.isLiteral() {
			return "", fmt.Errorf("column %s %w", p.field, errEmptyColumn)
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// value returns the literal, the field, or the period of the time in the field. The period is in the zone in which
// times are read.
func (p *part) value(fields []string, times *timeReader) (string, error) {
	switch {
	case p.isLiteral():
		return p.literal, nil
	case p.column >= len(fields):
		return "", fmt.Errorf("not enough columns: %d, and %s is number %d", len(fields), p.field, p.column+1)
	case p.period == "":
		return fields[p.column], nil
	}
	at, err := times.parse(fields[p.column])
	if err != nil {
		return "", err
	}
	if times.zone != nil {
		at = at.In(times.zone)
	} else {
		at = at.UTC()
	}
	// periods are in UTC, so the local time in the zone is used as if it were UTC
	at = time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), 0, 0, 0, time.UTC)
	return query.PeriodAt(periodUnits[p.period], at).String(), nil
}
