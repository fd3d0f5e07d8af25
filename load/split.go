package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// splitTabs cuts a line at its tabs. TSV has no quotes.
func splitTabs(line string, fields []string) []string {
	for {
		tab := strings.IndexByte(line, '\t')
		if tab < 0 {
			return append(fields, line)
		}
		fields = append(fields, line[:tab])
		line = line[tab+1:]
	}
}

var (
	errBareQuote   = errors.New("malformed: a quote in a field that does not begin with one")
	errAfterQuote  = errors.New("malformed: text after a closing quote")
	errOpenedQuote = errors.New("malformed: a quote is not closed")
)

// splitCommas cuts a record of CSV (RFC 4180) into its fields. A field in quotes
// may hold commas, line ends and doubled quotes.
func splitCommas(record string, fields []string) ([]string, error) {
	for {
		var field string
		var err error
		if field, record, err = nextField(record); err != nil {
			return fields, err
		}
		fields = append(fields, field)
		if record == "" {
			return fields, nil
		}
		record = record[1:] // the comma
	}
}

// nextField returns the first field of a record, and the rest from its comma.
func nextField(record string) (field, rest string, err error) {
	if record == "" || record[0] != '"' {
		end := strings.IndexByte(record, ',')
		if end < 0 {
			end = len(record)
		}
		if strings.IndexByte(record[:end], '"') >= 0 {
			return "", "", errBareQuote
		}
		return record[:end], record[end:], nil
	}
	end := 1
	for {
		q := strings.IndexByte(record[end:], '"')
		if q < 0 {
			return "", "", errOpenedQuote
		}
		end += q
		if end+1 < len(record) && record[end+1] == '"' {
			end += 2
			continue
		}
		break
	}
	field, rest = record[1:end], record[end+1:]
	if rest != "" && rest[0] != ',' {
		return "", "", errAfterQuote
	}
	return strings.ReplaceAll(field, `""`, `"`), rest, nil
}

// quotes follows the quotes of one line; in says that the line begins inside a quoted field. It reports whether the
// line ends inside a quoted field, so that the next line belongs to the same record. The error says what is wrong with
// the quotes. Only a quote at the beginning of a field opens one. The two quotes of a doubled quote are on one line.
func quotes(line string, in bool) (open bool, err error) {
	if in {
		line = `"` + line
	}
	for {
		_, rest, err := nextField(line)
		switch {
		case err == errOpenedQuote:
			return true, nil
		case err != nil || rest == "":
			return false, err
		}
		line = rest[1:]
	}
}

// errNoField says that a row of JSON lacks a field.
var errNoField = errors.New("no field")

// jsonField returns a field of a JSON object as text. Dots in path lead into nested objects. null is empty, and so is a
// field below null.
func jsonField(object map[string]json.RawMessage, path string) (string, error) {
	raw, ok := object[path]
	if ok {
		return jsonText(raw, path)
	}
	head, tail, nested := strings.Cut(path, ".")
	inner, has := object[head]
	if !nested || !has {
		return "", fmt.Errorf("%w %q; %s", errNoField, path, fieldsThere(object))
	}
	var below map[string]json.RawMessage
	if json.Unmarshal(inner, &below) != nil {
		return "", fmt.Errorf("malformed: field %s is not an object, so it has no field %q", head, tail)
	}
	if below == nil {
		return "", nil
	}
	text, err := jsonField(below, tail)
	if err != nil {
		err = fmt.Errorf("in field %s: %w", head, err)
	}
	return text, err
}

// fieldsShown is how many fields of a row an error lists.
const fieldsShown = 12

// fieldsThere lists the names of a row's fields.
func fieldsThere(object map[string]json.RawMessage) string {
	if len(object) == 0 {
		return "the object is empty"
	}
	names := slices.Sorted(maps.Keys(object))
	more := ""
	if len(names) > fieldsShown {
		names, more = names[:fieldsShown], ", ..."
	}
	for i, name := range names {
		names[i] = quote(name)
	}
	return "there are " + strings.Join(names, ", ") + more
}

func jsonText(raw json.RawMessage, path string) (string, error) {
	switch {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return "", nil
	case raw[0] == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", fmt.Errorf("malformed: field %s: %w", path, err)
		}
		return s, nil
	case raw[0] == '{' || raw[0] == '[':
		return "", fmt.Errorf("malformed: field %s is an object or a list", path)
	}
	return string(raw), nil
}

// jsonSort names the type of a JSON line that is not an object.
func jsonSort(line []byte) string {
	switch bytes.TrimSpace(line)[0] {
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	}
	return "a number"
}

// jsonFields fills fields with the fields that the specs name, in the order of names.
func jsonFields(line []byte, names, fields []string) ([]string, []error, error) {
	var object map[string]json.RawMessage
	err := json.Unmarshal(line, &object)
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other), err == nil && object == nil:
		return fields, nil, fmt.Errorf("malformed: %s; each line must be an object {...}", jsonSort(line))
	case err != nil:
		return fields, nil, fmt.Errorf("malformed: not a JSON object: %w", err)
	}
	var missing []error
	for i, name := range names {
		v, err := jsonField(object, name)
		if err != nil {
			if missing == nil {
				missing = make([]error, len(names))
			}
			missing[i] = err
		}
		fields = append(fields, v)
	}
	return fields, missing, nil
}

// parseFloat parses the text of an amount or a value.
func parseFloat(what, text string) (float64, error) {
	if strings.TrimSpace(text) == "" {
		return 0, fmt.Errorf("bad %s: it is empty (--skip-empty leaves such rows out)", what)
	}
	n, err := proto.ParseNumber(strings.TrimSpace(text))
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("bad %s %s: %w", what, quote(text), err)
	}
	return n, nil
}
