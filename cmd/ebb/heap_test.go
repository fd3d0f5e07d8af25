package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/ebbdb/ebb/node/mapped"
)

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

// A collection that finds much more alive changes the percentage, not a time after it.
func TestHeadroomFollowsCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercentLeast))
	set := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	collect := func(want func(uint64) bool) bool {
		for range 100 {
			runtime.GC()
			if want(set()) {
				return true
			}
			runtime.Gosched()
		}
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keepHeadroom(ctx)
	small := func(p uint64) bool { return p > gcPercentLeast }
	if !collect(small) {
		t.Fatalf("%d%% for a small heap", set())
	}
	data := make([]byte, heapHeadroom)
	if !collect(func(p uint64) bool { return p == gcPercentLeast }) {
		t.Errorf("%d%% for a large heap", set())
	}
	runtime.KeepAlive(data)
	if !collect(small) {
		t.Errorf("%d%% for a small heap again", set())
	}
}

// The heap gets what is not mapped, and never so little that it cannot live.
func TestHeapLimit(t *testing.T) {
	const gb = 1 << 30
	for _, c := range []struct{ limit, mapped, want int64 }{
		{8 * gb, 0, 8 * gb}, {8 * gb, 3 * gb, 5 * gb}, {8 * gb, 7 * gb, gb}, {8 * gb, 20 * gb, gb},
	} {
		if got := heapLimit(c.limit, c.mapped); got != c.want {
			t.Errorf("limit %d, mapped %d: %d, want %d", c.limit, c.mapped, got, c.want)
		}
	}
}

// The limit follows what is mapped, at the next collection.
func TestLimitFollowsCollections(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const limit = 1 << 40
	keepLimit(ctx, limit)
	mem := mapped.New()
	run := mem.Run(1 << 14) // 64 MiB, not touched
	for range 100 {
		runtime.GC()
		if debug.SetMemoryLimit(-1) <= limit-64<<20 {
			mem.FreeRun(run)
			return
		}
		runtime.Gosched()
	}
	t.Errorf("the limit is %d with %d bytes mapped", debug.SetMemoryLimit(-1), mapped.Total())
}
