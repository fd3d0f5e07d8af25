package accuracy

import (
	"cmp"
	"slices"
)

// weighted is a value and how much it counts.
type weighted struct{ value, weight float64 }

// weightedQuantile returns the least value at which the sum of weights reaches part of the total. It sorts the values.
func weightedQuantile(values []weighted, part float64) float64 {
	slices.SortFunc(values, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total := 0.0
	for _, v := range values {
		total += v.weight
	}
	sum := 0.0
	for _, v := range values {
		if sum += v.weight; sum >= part*total {
			return v.value
		}
	}
	return values[len(values)-1].value
}
