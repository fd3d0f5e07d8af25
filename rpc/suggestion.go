package rpc

import (
	"fmt"
	"slices"
	"strings"
)

// didYouMean is a hint with the nearest of names, or with all when none is near.
func didYouMean(name string, names []string) string {
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return "known: " + strings.Join(names, ", ")
}

// nearest is the one of names that a slip of the keyboard or two turn into name.
func nearest(name string, names []string) string {
	best, bestDistance := "", 3
	if len(name) > 64 {
		return ""
	}
	for _, n := range names {
		if d := editDistance(name, n); d < bestDistance && d < len(n) {
			best, bestDistance = n, d
		}
	}
	return best
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
