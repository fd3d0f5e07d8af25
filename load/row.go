package load

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

func (r *Reader) split(line string, fields []string) ([]string, error) {
	if r.opts.Format == TSV {
		return splitTabs(line, fields), nil
	}
	return splitCommas(line, fields)
}

// parse makes a row of a line.
func (r *Reader) parse(line string) (row Row, err error) {
	if strings.IndexByte(line, 0) >= 0 {
		return row, fmt.Errorf("malformed: %w: there is a NUL byte in it", ErrBinary)
	}
	var missing []error
	if r.opts.Format == JSONLines {
		r.fields, missing, err = jsonFields([]byte(line), r.names, r.fields[:0])
	} else {
		r.fields, err = r.split(line, r.fields[:0])
	}
	if err != nil {
		return row, err
	}
	if err = r.checkColumns(); err != nil {
		return row, err
	}
	if err = r.parseBin(&row, missing); err != nil {
		return row, err
	}
	switch row.Key, err = r.take(r.key, missing); {
	case r.leftOut(row.Key, err):
		return row, errSkip
	case err != nil:
		return row, err
	}
	if err = r.parseNumbers(&row, missing); err != nil {
		return row, err
	}
	return row, r.check(&row)
}

// checkColumns refuses a row with more columns than the header has names. A separator in a text without quotes makes
// such a row: the values after it are in the wrong columns. Empty columns at the end are harmless.
func (r *Reader) checkColumns() error {
	if r.columns == 0 {
		return nil
	}
	for i := r.columns; i < len(r.fields); i++ {
		if r.fields[i] != "" {
			return fmt.Errorf("%d columns, and the header names %d: %s", len(r.fields), r.columns, r.unquotedHint())
		}
	}
	return nil
}

func (r *Reader) unquotedHint() string {
	if r.opts.Format == TSV {
		return "a text with a tab in it can be written in CSV only, in quotes"
	}
	return "a text with a comma in it stands in quotes"
}

func (r *Reader) parseBin(row *Row, missing []error) (err error) {
	if r.bin == nil {
		return nil
	}
	row.Bin, err = r.take(r.bin, missing)
	switch {
	case r.leftOut(row.Bin, err):
		return errSkip
	case err == nil && row.Bin == "":
		row.Bin = EmptyBin
	}
	return err
}

// leftOut reports whether SkipEmpty leaves out a row because one of its values is empty or is a missing field.
func (r *Reader) leftOut(text string, err error) bool {
	if err != nil {
		return r.opts.SkipEmpty && (errors.Is(err, errNoField) || errors.Is(err, errEmptyColumn))
	}
	return r.opts.SkipEmpty && strings.TrimSpace(text) == ""
}

// take builds the value of a spec. A JSON field that is missing, or that is a list or an object, is an error.
func (r *Reader) take(s *spec, missing []error) (string, error) {
	if missing != nil {
		for _, p := range s.parts {
			if !p.isLiteral() && missing[p.column] != nil {
				return "", missing[p.column]
			}
		}
	}
	return s.value(r.fields)
}

func (r *Reader) parseNumbers(row *Row, missing []error) (err error) {
	row.Amount = 1
	if r.amount != nil {
		if row.Amount, err = r.number(r.amount, "amount", missing); err != nil {
			return err
		}
	}
	if r.value != nil {
		if row.Value, err = r.number(r.value, "value", missing); err != nil {
			return err
		}
	}
	if r.time == nil {
		return nil
	}
	text, err := r.take(r.time, missing)
	if err != nil {
		return err
	}
	row.Time, err = r.times.parse(text)
	return err
}

// number reads an amount or a value. If it is empty or a missing field, SkipEmpty leaves the row out.
func (r *Reader) number(s *spec, what string, missing []error) (float64, error) {
	text, err := r.take(s, missing)
	if r.leftOut(text, err) {
		return 0, errSkip
	}
	if err != nil {
		return 0, err
	}
	return parseFloat(what, text)
}

// check refuses a row that a node would refuse.
func (r *Reader) check(row *Row) error {
	if err := proto.CheckKey([]byte(row.Key)); err != nil {
		return err
	}
	in := proto.IncrementWire{Bin: []byte(row.Bin), Amount: row.Amount, Kind: r.opts.Kind, Value: row.Value, HasValue: r.value != nil}
	if err := in.CheckEvent(); err != nil {
		return err
	}
	return nil
}
