// Package spell finds the known word that is nearest to a misspelled one.
package spell

import "strings"

// wordLenMax is the longest word that is corrected, in bytes; longer words are not typed by hand.
const wordLenMax = 64

// slipsMax is how many typing errors a word may have.
const slipsMax = 2

// Nearest returns the word of words that was probably meant: the first at the least distance, if less than half of it
// is wrong. Otherwise it returns the first that begins with word, or "" if there is none. Case does not count.
func Nearest(word string, words []string) string {
	if len(word) > wordLenMax {
		return ""
	}
	word = strings.ToLower(word)
	best, least := "", slipsMax+1
	for _, w := range words {
		if d := distance(word, strings.ToLower(w)); d < least && 2*d < max(len(word), len(w)) {
			best, least = w, d
		}
	}
	if best != "" || len(word) < 2 {
		return best
	}
	for _, w := range words {
		if strings.HasPrefix(strings.ToLower(w), word) {
			return w
		}
	}
	return ""
}

// distance returns how many bytes must be inserted, deleted, replaced or swapped with the next one to turn a into b.
// Each byte is edited at most once: the optimal string alignment.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replaced)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
