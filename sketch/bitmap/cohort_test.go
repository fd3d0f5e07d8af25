package bitmap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCohorts: tables of periods of every form and size say what maps say, slice after slice.
func TestCohorts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 11))
	var table Cohorts
	for round := range rounds(60) {
		n := 1 + r.IntN(7)
		everyone, counts, again := round%2 == 0, make([]uint64, n), make([][]uint64, n)
		wantCounts, wantAgain := make([]uint64, n), make([][]uint64, n)
		for i := range n {
			again[i], wantAgain[i] = make([]uint64, n-1-i), make([]uint64, n-1-i)
		}
		for range 1 + r.IntN(3) { // slices
			sets, containers := make([]ids, n), make([]Container, n)
			for i := range n {
				sets[i] = drawSlice(r)
				containers[i] = container(sets[i])
			}
			within, set := Full(), ids(nil)
			if r.IntN(3) > 0 {
				set = drawSlice(r)
				within = container(set)
			}
			table.Count(containers, within, everyone, counts, again)
			seen := ids{}
			for i := range n {
				for low := range sets[i] {
					if (set == nil || set[low]) && (everyone || !seen[low]) {
						wantCounts[i]++
						for j := range wantAgain[i] {
							if sets[i+1+j][low] {
								wantAgain[i][j]++
							}
						}
					}
					seen[low] = true
				}
			}
		}
		if !slices.Equal(counts, wantCounts) || fmt.Sprint(again) != fmt.Sprint(wantAgain) {
			t.Fatalf("of everyone %v: %d %d, want %d %d", everyone, counts, again, wantCounts, wantAgain)
		}
	}
}

// drawSlice is lows of one slice: none, few, many, in runs, or all.
func drawSlice(r *rand.Rand) ids {
	o := ids{}
	switch n := []int{0, 3, listMax - 1, listMax, listMax + 1, 1000, 9000, SliceLen}[r.IntN(8)]; {
	case n == SliceLen || r.IntN(4) == 0:
		from := r.IntN(SliceLen - n + 1)
		for low := range n {
			o[uint64(from+low)] = true
		}
	default:
		for range n {
			o[uint64(r.IntN(8*n))%SliceLen] = true
		}
	}
	return o
}

func container(o ids) Container {
	if d := o.shelve(); len(d) > 0 {
		return d[0].c
	}
	return Container{}
}
