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
	// heapHeadroom is how much the heap of a node may grow between two garbage collections, at the least. With Go's
	// default of 100%, a node that holds 10 MB would collect several times a second, and its answers would wait each
	// time.
	heapHeadroom   = 64 << 20
	gcPercentLeast = 100
)

// keepHeadroom sets the GC percentage from the live heap, after each collection until ctx ends. If it did so less
// often, a node that loads its data would grow by a percentage meant for an empty heap. $GOGC overrides it; a memory
// limit holds in any case.
func keepHeadroom(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		gcTuner{ctx: ctx}.adjust()
	}
}

// gcTuner sets the GC percentage after each collection. percent is what it set last; 0 before the first time.
type gcTuner struct {
	ctx     context.Context
	percent int
}

// adjust sets the percentage now, and again after the next collection, which frees the collectionMarker.
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

// collectionMarker is freed by the next collection.
type collectionMarker struct{ _ *byte } // a small object without a pointer may share its memory, and live longer

// keepLimit sets the limit of Go's heap to the process's limit minus the memory mapped outside the heap. It does so
// after each collection until ctx ends. A limit of math.MaxInt64 is none.
func keepLimit(ctx context.Context, limit int64) {
	if limit != math.MaxInt64 {
		heapLimiter{ctx: ctx, limit: limit}.adjust()
	}
}

// heapLimiter sets the limit of Go's heap after each collection. limit is the memory limit of the process.
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

// heapLimit returns the limit of the heap, at least an eighth of limit: with less, the process would only collect
// garbage.
func heapLimit(limit, mapped int64) int64 { return max(limit-mapped, limit/8) }

// gcPercent returns the percentage at which a heap with live bytes may grow by the headroom or more. It doubles in
// steps, because each change stops the world for a moment.
func gcPercent(live uint64) int {
	const heapLeast = 4 << 20 // Go's own minimum, at 100%
	percent := gcPercentLeast
	for uint64(percent)*max(live, heapLeast)/100 < heapHeadroom {
		percent *= 2
	}
	return percent
}
