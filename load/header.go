package load

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto"
)

// If all columns are given by number, nothing says whether the first line holds names. If a line of names is counted as
// a row, its words become a key ("link") and a bin ("country"). If the line is skipped, a row may be lost. So the code
// below judges the first line by its content.

// firstLine says whether the first line of a file is a row or holds names.
type firstLine uint8

const (
	undecided firstLine = iota // it may be a row or names
	isRow                      // it has a number or a time, or a word that a line below repeats
	isNames                    // it has a name, and the line below it has a number or a time in that column
)

// judgeFirst judges the first record by its fields, by those of the second record, and by further lines that are
// already read.
//
// A number or a time in the first line makes it a row. But the columns of some tables are named after years, days or 1,
// 2, 3. So the line is undecided if it has such numbers above other values, or both a number and a name above a number.
// If a later line repeats one of its words, it is a row after all.
func judgeFirst(first, second []string, further []byte, separator byte) firstLine {
	var words, names, quantities, columns int // names: above a number; columns: quantities that may be names of columns
	lines := linesOf(second, further, separator)
	for i, field := range first {
		switch {
		case isQuantity(field):
			quantities++
			if namesPeriod(i, field, lines) {
				columns++
			}
		case isName(field):
			words++
			if i < len(second) && isQuantity(second[i]) {
				names++
			}
		case field == "":
			words++ // an empty name, as above the index of a table
		}
	}
	if inSequence(first) {
		columns = quantities
	}
	switch {
	case names > 0 && columns == quantities:
		return isNames
	case names == 0 && quantities > 0 && (columns < quantities || words == 0 && columns < 2):
		return isRow
	case recurs(first, lines):
		return isRow
	}
	return undecided
}

// linesOf splits the lines below the first, as far as they are already read. It ignores quotes in the further lines.
func linesOf(second []string, further []byte, separator byte) [][]string {
	lines := [][]string{second}
	for {
		end := bytes.IndexByte(further, '\n')
		if end < 0 {
			return lines // the last line may be incomplete
		}
		lines = append(lines, strings.Split(string(trimEnd(further[:end+1])), string(rune(separator))))
		further = further[end+1:]
	}
}

// namesPeriod reports whether a field is a year or a day, and a line below has something else in that column.
func namesPeriod(column int, field string, lines [][]string) bool {
	sort := periodOf(field)
	return sort != noPeriod && slices.ContainsFunc(lines, func(fields []string) bool {
		return column < len(fields) && fields[column] != "" && periodOf(fields[column]) != sort
	})
}

// period is the kind of period that may name a column.
type period uint8

const (
	noPeriod period = iota
	aYear
	aDay
)

// periodOf takes numbers from 1000 to 2999 for years, and dates without a time of day for days.
func periodOf(field string) period {
	field = strings.TrimSpace(field)
	if n, err := strconv.ParseUint(field, 10, 16); err == nil && len(field) == 4 && n >= 1000 && n < 3000 {
		return aYear
	}
	if _, err := proto.ParseNumber(field); err == nil || strings.Contains(field, ":") || !isQuantity(field) {
		return noPeriod
	}
	return aDay
}

// sequenceMin is how many consecutive numbers may be names of columns, at the least.
const sequenceMin = 3

// inSequence reports whether the numbers of a line are whole, and each is one more than the last.
func inSequence(first []string) bool {
	count, last := 0, int64(0)
	for _, field := range first {
		if !isQuantity(field) {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(field), 10, 32)
		if err != nil || count > 0 && n != last+1 {
			return false
		}
		count, last = count+1, n
	}
	return count >= sequenceMin
}

// isQuantity reports whether a field is a number or a time.
func isQuantity(field string) bool {
	field = strings.TrimSpace(field)
	if field == "" || unicode.IsLetter(firstRune(field)) {
		return false // nan and inf can also be names
	}
	if _, err := proto.ParseNumber(field); err == nil {
		return true
	}
	_, err := ParseTime(field)
	return err == nil
}

func firstRune(text string) rune {
	r, _ := utf8.DecodeRuneInString(text)
	return r
}

// isName reports whether a field may be the name of a column: it begins with a letter or '_', and is no word for a
// missing value.
func isName(field string) bool {
	field = strings.ToLower(strings.TrimSpace(field))
	switch field {
	case "na", "nan", "n/a", "null", "nil", "none", "true", "false", "inf", "unknown":
		return false
	}
	r := firstRune(field)
	return unicode.IsLetter(r) || r == '_'
}

// recurs reports whether a later line repeats a word of the first line in the same column: names of columns do not
// recur. Numbers are not compared, because they may.
func recurs(first []string, lines [][]string) bool {
	return slices.ContainsFunc(lines, func(fields []string) bool {
		for i := range min(len(first), len(fields)) {
			if first[i] != "" && first[i] == fields[i] && !isQuantity(first[i]) {
				return true
			}
		}
		return false
	})
}

// headed finds out whether the first line holds names, if no column is given by name and no option says it.
func (r *Reader) headed(first string) (bool, error) {
	separator := byte(',')
	if r.opts.Format == TSV {
		separator = '\t'
	}
	fields, second := r.fieldsOf(first), r.below()
	if fields == nil || second == nil {
		return false, nil // a line that cannot be read is refused as a row, and a single line is a row
	}
	further, _ := r.in.Peek(r.in.Buffered())
	switch judgeFirst(fields, second, further, separator) {
	case isNames:
		return true, nil
	case undecided:
		return false, errUndecided(first)
	}
	return false, nil
}

// below returns the fields of the line below the first; nil if there is none or it is not a row.
func (r *Reader) below() []string {
	next, err := r.peek()
	if err == nil && next.line != "" {
		return r.fieldsOf(next.line)
	}
	return nil // the next read returns the error
}

// fieldsOf returns the fields of a line, nil if it is malformed.
func (r *Reader) fieldsOf(line string) []string {
	fields, err := r.split(line, nil)
	if err == nil {
		return fields
	}
	return nil
}

// errUndecided refuses a first line that may be a row or names.
func errUndecided(first string) error {
	return columnErrorf("line 1 (%s) may hold the names of columns or be a row: "+
		"--header says that it holds names, --no-header that it is a row", quote(first))
}
