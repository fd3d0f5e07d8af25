package shard

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// What is subtracted for the rounding of weights makes no lower bound negative: amounts of such kinds never are.
func TestLowerBoundIsNotNegative(t *testing.T) {
	for _, value := range []float64{0, 1.0 / 3, 7.3, 1e9 / 7} {
		if e := atMost(value, value, 0, certain); e.Low != 0 || e.High < value {
			t.Errorf("%v: %v", value, e)
		}
		if e := atMost(value, value/2, 0, certain); e.Low > value/2 || e.Low < value/2-proto.RoundingOf(value)-1e-9 {
			t.Errorf("%v, by half: %v", value, e)
		}
	}
}
