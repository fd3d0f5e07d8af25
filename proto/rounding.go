package proto

import "math"

// rounding is by how much of itself a sum of weights may be off: each of its events adds 2^-53 of it at most, which is
// this after nine million. Ten million of 0.1 were measured to be off by 1.6e-10.
const rounding = 1e-9

// RoundingOf is by how much a sum may be off. Whole numbers, halves and the like have been added up without rounding.
func RoundingOf(sum float64) float64 {
	if whole := float64(sum * 0x1p10); whole == math.Trunc(whole) && math.Abs(whole) < 1<<53 {
		return 0
	}
	return math.Abs(float64(sum * rounding))
}
