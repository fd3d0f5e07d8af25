package proto

import (
	"errors"
	"strconv"
	"strings"
)

var (
	errUnderscores = errors.New("it has underscores: write 1000 for 1_000")
	errHexadecimal = errors.New("it is hexadecimal: write it in decimal digits")
	errNotNumber   = errors.New("it is not a number")
)

// ParseNumber reads a number as strconv.ParseFloat does, without the underscores and the hexadecimal digits of Go's
// literals. Its error is a phrase that can follow the text. For a number that is too large it returns an infinity and
// an error of strconv.ErrRange.
func ParseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, errNotNumber
	case strings.Contains(text, "_"):
		return 0, errUnderscores
	case strings.ContainsAny(text, "xX"):
		return 0, errHexadecimal
	}
	return v, err
}
