package main

import "testing"

// Times as people write them, in microseconds: 0 is now, so that the beginning of
// 1970 is 1.
func TestInstant(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{"", 0},
		{"now", 0},
		{"0", 1},
		{"1970-01-01", 1},
		{"1970-01-01T00:00:00Z", 1},
		{"1970-01-01T00:00:00.000002Z", 2},
		{"2013-05-17", 1_368_748_800_000_000},
		{"1368748800", 1_368_748_800_000_000},
		{"1368748800000", 1_368_748_800_000_000},
		{"1368748800000000", 1_368_748_800_000_000},
	} {
		if got, err := instant(c.text); err != nil || got != c.want {
			t.Errorf("%q is %d, %v: want %d", c.text, got, err, c.want)
		}
	}
}
