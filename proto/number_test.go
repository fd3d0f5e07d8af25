package proto

import (
	"errors"
	"math"
	"strconv"
	"testing"
)

func TestParseNumber(t *testing.T) {
	for text, want := range map[string]float64{"1": 1, "-10.5": -10.5, "1e3": 1000, ".5": 0.5, "1E-2": 0.01} {
		if got, err := ParseNumber(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]error{
		"1_000": errUnderscores, "1_0.5": errUnderscores, "1e1_0": errUnderscores, "0x10": errNotNumber,
		"0x1p4": errHexadecimal, "0X1_0p4": errUnderscores, "1,5": errNotNumber, "": errNotNumber, "_": errNotNumber,
		" 1": errNotNumber, "1__0": errNotNumber,
	} {
		if got, err := ParseNumber(text); got != 0 || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v: want %v", text, got, err, want)
		}
	}
	if got, err := ParseNumber("1e999"); !math.IsInf(got, 1) || !errors.Is(err, strconv.ErrRange) {
		t.Errorf("%v, %v", got, err)
	}
}
