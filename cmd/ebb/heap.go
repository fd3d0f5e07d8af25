package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// heapHeadroom is how much the heap of a node may grow between two garbage
	// collections, at the least. With Go's own 100% a node that holds 10 MB
	// would collect several times a second, and each time its answers wait.
	heapHeadroom   = 64 << 20
	gcPercentLeast = 100
	headroomEvery  = 5 * time.Second
)

// keepHeadroom sets the collector's percentage by what lives on the heap, until
// ctx ends. $GOGC overrules it; a memory limit holds in any case.
func keepHeadroom(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := 0
	tick := time.NewTicker(headroomEvery)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		metrics.Read(live)
		if p := gcPercent(live[0].Value.Uint64()); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// gcPercent is the percentage at which a heap with so many live bytes grows by
// the headroom or more, in steps: each change stops the world for a moment.
func gcPercent(live uint64) int {
	const heapLeast = 4 << 20 // Go's own, at 100%
	percent := gcPercentLeast
	for uint64(percent)*max(live, heapLeast)/100 < heapHeadroom {
		percent *= 2
	}
	return percent
}
