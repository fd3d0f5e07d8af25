package main

import "testing"

// A small heap grows by the headroom, a large one as Go would have it.
func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 1600}, {4 << 20, 1600}, {5 << 20, 1600}, {8 << 20, 800}, {20 << 20, 400}, {33 << 20, 200}, {64 << 20, 100}, {1 << 40, 100},
	} {
		got := gcPercent(c.live)
		if got != c.want {
			t.Errorf("%d MB live: %d%%, want %d%%", c.live>>20, got, c.want)
		}
		if grows := uint64(got) * max(c.live, 4<<20) / 100; grows < heapHeadroom || (got > gcPercentLeast && grows >= 2*heapHeadroom) {
			t.Errorf("%d MB live: it grows by %d MB", c.live>>20, grows>>20)
		}
	}
}
