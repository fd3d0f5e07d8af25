package bitmap

import (
	"errors"
	"fmt"

	"github.com/ebbdb/ebb/internal/kernel"
)

// ErrCorrupt is wrapped by the errors for words that are no container, and for bytes that are no bitmap.
var ErrCorrupt = errors.New("corrupt bitmap")

// Validate returns an error, which wraps ErrCorrupt, if a container of outside origin is invalid. Its form must be the
// one that its lows require, its count and length must match its words, and its lows or runs must be in order. Validate
// takes a microsecond for a dense container and a few for the longest of the others.
func Validate(c Container) error {
	if c.Count == 0 || c.Count > SliceLen {
		return fmt.Errorf("%w: %d lows in a container", ErrCorrupt, c.Count)
	}
	if len(c.Words) == 0 {
		return fmt.Errorf("%w: container without words", ErrCorrupt)
	}
	n, runs, err := c.measure()
	if err != nil {
		return err
	}
	if n != int(c.Count) {
		return fmt.Errorf("%w: %s container of %d lows says %d", ErrCorrupt, c.Form, n, c.Count)
	}
	if f := formOf(n, runs); f != c.Form {
		return fmt.Errorf("%w: %s container of %d lows in %d runs, which must be %s", ErrCorrupt, c.Form, n, runs, f)
	}
	return nil
}

// measure counts lows and runs. In a dense container it stops counting runs when there are too many for a run
// container.
func (c Container) measure() (n, runs int, err error) {
	switch c.Form {
	case Array:
		return c.measureArray()
	case Dense:
		if len(c.Words) != DenseWords {
			return 0, 0, fmt.Errorf("%w: dense container of %d words", ErrCorrupt, len(c.Words))
		}
		return kernel.Count(c.Words), kernel.Runs(c.block(), RunMax), nil
	case Run:
		return c.measureRuns()
	}
	return 0, 0, fmt.Errorf("%w: container of form %d", ErrCorrupt, c.Form)
}

func (c Container) measureArray() (n, runs int, err error) {
	if c.Count > ArrayMax || len(c.Words) != WordsFor(Array, int(c.Count), 0) {
		return 0, 0, fmt.Errorf("%w: array of %d lows in %d words", ErrCorrupt, c.Count, len(c.Words))
	}
	n, before := int(c.Count), -2
	for i := range 4 * len(c.Words) {
		low := int(lowAt(c.Words, i))
		switch {
		case i >= n && low != 0:
			return 0, 0, fmt.Errorf("%w: array with something behind its end", ErrCorrupt)
		case i >= n:
			continue
		case low <= before:
			return 0, 0, fmt.Errorf("%w: array with %d behind %d", ErrCorrupt, low, before)
		case low != before+1:
			runs++
		}
		before = low
	}
	return n, runs, nil
}

func (c Container) measureRuns() (n, runs int, err error) {
	if len(c.Words) > RunMax/2 {
		return 0, 0, fmt.Errorf("%w: run container of %d words", ErrCorrupt, len(c.Words))
	}
	runs = c.runs()
	before := -2
	for i := range runs {
		first, last := runAt(c.Words, i)
		if first > last || int(first) <= before+1 {
			return 0, 0, fmt.Errorf("%w: run from %d to %d behind %d", ErrCorrupt, first, last, before)
		}
		n += int(last-first) + 1
		before = int(last)
	}
	return n, runs, nil
}
