package sketch

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// mismatch is an ErrIncompatible of two summaries of one kind with different parameters, two structs of one type.
type mismatch struct {
	kind string
	a, b any
}

// Error is part of results that replicas store, so its text does not change.
func (m *mismatch) Error() string {
	return fmt.Sprintf("%v: %s of %+v and of %+v", ErrIncompatible, m.kind, m.a, m.b)
}

func (m *mismatch) Unwrap() error { return ErrIncompatible }

// Differences describes the parameters that differ in an ErrIncompatible, in words for users: "epsilon 0.01 and 0.5".
// It returns false for other errors.
func Differences(err error) (text string, ok bool) {
	var m *mismatch
	if !errors.As(err, &m) {
		return "", false
	}
	a, b := reflect.ValueOf(m.a), reflect.ValueOf(m.b)
	var parts []string
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); x != y {
			name := a.Type().Field(i).Name
			parts = append(parts, fmt.Sprintf("%s %s and %s", words(name), parameter(x), parameter(y)))
		}
	}
	return strings.Join(parts, ", "), true
}

// words is the name of a field in lower case, with a blank before each capital letter; a half-life has a hyphen.
func words(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return strings.Replace(strings.ToLower(b.String()), "half life", "half-life", 1)
}

// parameter is a value of a parameter; durations have their units.
func parameter(v any) string {
	switch v := v.(type) {
	case Tick:
		return (time.Duration(v) * time.Microsecond).String()
	case Hash:
		return fmt.Sprintf("%d with seed %#x", v.ID, v.Seed)
	}
	return fmt.Sprint(v)
}
