package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/ebbdb/ebb/node/mapped"
)

const (
	// heapHeadroom is how much the heap of a node may grow between two garbage
	// collections, at the least. With Go's own 100% a node that holds 10 MB
	// would collect several times a second, and each time its answers wait.
	heapHeadroom   = 64 << 20
	gcPercentLeast = 100
)

// keepHeadroom sets the collector's percentage by what lives on the heap, after
// each collection until ctx ends: later, and a node that loads its data would
// grow by what was right for an empty one. $GOGC overrules it; a memory limit
// holds in any case.
func keepHeadroom(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		gcTuner{ctx: ctx}.adjust()
	}
}

// gcTuner sets the collector's percentage after each collection. percent is what it set last; 0 if nothing.
type gcTuner struct {
	ctx     context.Context
	percent int
}

// adjust sets the percentage, now and after the next collection, which finds
// the collectionMarker dead.
func (t gcTuner) adjust() {
	if t.ctx.Err() != nil {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if p := gcPercent(live[0].Value.Uint64()); p != t.percent {
		t.percent = p
		debug.SetGCPercent(p)
	}
	runtime.AddCleanup(new(collectionMarker), gcTuner.adjust, t)
}

// collectionMarker dies with the next collection.
type collectionMarker struct{ _ *byte } // what has no pointers may share its memory, and live longer

// keepLimit sets the limit of Go's heap to that of the process less what is mapped outside the heap, after each
// collection until ctx ends. A limit of math.MaxInt64 is none.
func keepLimit(ctx context.Context, limit int64) {
	if limit != math.MaxInt64 {
		heapLimiter{ctx: ctx, limit: limit}.adjust()
	}
}

// heapLimiter sets the limit of Go's heap after each collection. limit is that of the process.
type heapLimiter struct {
	ctx   context.Context
	limit int64
}

func (l heapLimiter) adjust() {
	if l.ctx.Err() != nil {
		return
	}
	debug.SetMemoryLimit(heapLimit(l.limit, mapped.Total()))
	runtime.AddCleanup(new(collectionMarker), heapLimiter.adjust, l)
}

// heapLimit leaves a heap an eighth of the limit in any case: with less it would do nothing but collect.
func heapLimit(limit, mapped int64) int64 { return max(limit-mapped, limit/8) }

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
