package kernel

import "testing"

// BenchmarkCounters counts in 32 blocks that lie in a cache.
func BenchmarkCounters(b *testing.B) {
	srcs := blocks(32, 1)
	planes := make(Counters, 6)
	for p := range planes {
		planes[p] = new(Block)
	}
	for b.Loop() {
		for _, p := range planes {
			clear(p[:])
		}
		planes.Add(srcs)
		planes.AtLeast(new(Block), 3)
	}
}
