package load

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto"
)

// Where columns are numbers only, nothing says whether the first line holds names. Counted as a row it makes a key of
// the word "link" and a bin of the word "country"; left out, it may have been a row. So it is looked at.

// firstLine is what the first line of a file is.
type firstLine uint8

const (
	wordsOnly firstLine = iota // it and the line below it have words only: it may be either of the others
	isRow                      // it has a number or a time, or a word that the lines below it have too
	isNames                    // it has a name where the line below it has a number or a time
)

// judgeFirst says what the first of two records is, by the fields of both, and by further lines that are at hand.
func judgeFirst(first, second []string, further []byte, separator byte) firstLine {
	names := false
	for i, field := range first {
		if isQuantity(field) {
			return isRow
		}
		names = names || i < len(second) && isName(field) && isQuantity(second[i])
	}
	if names {
		return isNames
	}
	if recurs(first, second, further, separator) {
		return isRow
	}
	return wordsOnly
}

// isQuantity reports whether a field is a number or a time.
func isQuantity(field string) bool {
	field = strings.TrimSpace(field)
	if field == "" || unicode.IsLetter(firstRune(field)) {
		return false // nan and inf, which are names as well
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

// isName reports whether a field may be the name of a column: it begins with a letter, and is none of the words for
// a value that is missing.
func isName(field string) bool {
	field = strings.ToLower(strings.TrimSpace(field))
	switch field {
	case "na", "nan", "n/a", "null", "nil", "none", "true", "false", "inf", "unknown":
		return false
	}
	r := firstRune(field)
	return unicode.IsLetter(r) || r == '_'
}

// recurs reports whether some field of the first line stands in the same column again: names of columns do not.
func recurs(first, second []string, further []byte, separator byte) bool {
	same := func(fields []string) bool {
		for i := range min(len(first), len(fields)) {
			if first[i] != "" && first[i] == fields[i] {
				return true
			}
		}
		return false
	}
	if same(second) {
		return true
	}
	for {
		end := bytes.IndexByte(further, '\n')
		if end < 0 {
			return false // the last line may not be all there
		}
		if same(strings.Split(string(trimEnd(further[:end+1])), string(rune(separator)))) {
			return true
		}
		further = further[end+1:]
	}
}

// headed finds out whether the first line holds names, where no column is given by name and no option says it.
func (r *Reader) headed(first string) (bool, error) {
	separator := byte(',')
	if r.opts.Format == TSV {
		separator = '\t'
	}
	fields, second := r.fieldsOf(first), r.below()
	if fields == nil || second == nil {
		return false, nil // a line that cannot be read is refused as a row, and one alone is a row
	}
	further, _ := r.in.Peek(r.in.Buffered())
	switch judgeFirst(fields, second, further, separator) {
	case isNames:
		return true, nil
	case wordsOnly:
		return false, errWordsOnly(first)
	}
	return false, nil
}

// below returns the fields of the line below the first; nil if there is none or it is not a row.
func (r *Reader) below() []string {
	next, err := r.peek()
	if err == nil && next.line != "" {
		return r.fieldsOf(next.line)
	}
	return nil // the next read says what is wrong
}

// fieldsOf returns the fields of a line, nil if it is malformed.
func (r *Reader) fieldsOf(line string) []string {
	fields, err := r.split(line, nil)
	if err == nil {
		return fields
	}
	return nil
}

// errWordsOnly refuses a first line that may be either.
func errWordsOnly(first string) error {
	return columnErrorf("line 1 (%s) may hold the names of columns or be a row: "+
		"--header says that it holds names, --no-header that it is a row", quote(first))
}
