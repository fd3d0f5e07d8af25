// Package pay is what the tests of the tool mutate: each function says what becomes of its mutants.
package pay

import "errors"

var errNegative = errors.New("negative")

// Account has a sum.
type Account struct{ sum, calls int64 }

// Pay takes from an account. The test sees all of it but that calls are counted.
func (a *Account) Pay(n int64) error {
	if n < 0 {
		return errNegative
	}
	a.sum -= n
	a.calls++
	return nil
}

// Both is true for two; the test tries every pair.
func Both(a, b bool) bool { return a && b }

// First ends; a mutant of its loop does not.
func First(list []int, n int) int {
	i := 0
	for i < len(list) && list[i] != n {
		i++
	}
	return i
}

// Unused is not tested.
func Unused(n uint8) uint8 { return n + 1 }

// Shift and Part have operands without a type of their own.
func Shift(n uint64) uint64 { return n<<3 | 1 }

// Part is half of it.
func Part(x float64) float64 { return x / 2 }

func (a *Account) String() string {
	if a.sum > 0 {
		return "much"
	}
	return "little"
}
