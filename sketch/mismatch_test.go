package sketch

import (
	"errors"
	"testing"
)

// A refused merge names what differs; its text for replicas is the older one, with all parameters.
func TestDifferences(t *testing.T) {
	hour := CountMinParams{Epsilon: 0.01, Delta: 0.01, HalfLife: 3600e6, Hash: Hash{ID: HashXXH3, Seed: 5}}
	day := hour
	day.HalfLife, day.Epsilon, day.Hash.Seed = 24*3600e6, 0.5, 0xbeef
	a, err := NewCountMin(hour)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewCountMin(day)
	if err != nil {
		t.Fatal(err)
	}
	err = a.Merge(&b)
	const want = "epsilon 0.01 and 0.5, half-life 1h0m0s and 24h0m0s, hash 1 with seed 0x5 and 1 with seed 0xbeef"
	if got, ok := Differences(err); !ok || got != want {
		t.Errorf("differences are %q, want %q", got, want)
	}
	const stored = "summaries do not merge: count-min of {Epsilon:0.01 Delta:0.01 HalfLife:3600000000 Hash:{ID:1 Seed:5}} " +
		"and of {Epsilon:0.5 Delta:0.01 HalfLife:86400000000 Hash:{ID:1 Seed:48879}}"
	if err.Error() != stored || !errors.Is(err, ErrIncompatible) {
		t.Errorf("the text for replicas is %q, want %q", err, stored)
	}
	if text, ok := Differences(ErrIncompatible); ok {
		t.Errorf("another error differs in %q", text)
	}
}
