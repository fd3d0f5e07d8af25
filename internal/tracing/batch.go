package tracing

import (
	"context"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
)

// ended is a span that is to be sent, and who made it.
type ended struct {
	by   instrumentation
	wire *spans.Span
}

// enqueue gives a span to the goroutine that sends, or drops it if too many wait.
func (p *Provider) enqueue(s ended) {
	select {
	case p.queue <- s:
	default:
	}
}

// run sends batches until the provider is shut down, and then what is left.
func (p *Provider) run() {
	defer close(p.stopped)
	tick := time.NewTicker(batchDelay)
	defer tick.Stop()
	var batch []ended
	for {
		select {
		case s := <-p.queue:
			if batch = append(batch, s); len(batch) == batchMax {
				batch = p.sendBatch(batch)
			}
		case <-tick.C:
			batch = p.sendBatch(batch)
		case <-p.stop:
			p.drain(batch)
			return
		}
	}
}

// drain sends a batch and the spans that still wait.
func (p *Provider) drain(batch []ended) {
	for p.ctx.Err() == nil {
		select {
		case s := <-p.queue:
			if batch = append(batch, s); len(batch) == batchMax {
				batch = p.sendBatch(batch)
			}
		default:
			p.sendBatch(batch)
			return
		}
	}
}

// sendBatch sends a batch, unless it is empty, and returns an empty one.
func (p *Provider) sendBatch(batch []ended) []ended {
	if len(batch) == 0 {
		return batch
	}
	out := &spans.ResourceSpans{Resource: p.resource}
	scopes := make(map[instrumentation]*spans.ScopeSpans)
	for _, s := range batch {
		scope := scopes[s.by]
		if scope == nil {
			scope = &spans.ScopeSpans{Scope: &common.InstrumentationScope{Name: s.by.name, Version: s.by.version}}
			scopes[s.by] = scope
			out.ScopeSpans = append(out.ScopeSpans, scope)
		}
		scope.Spans = append(scope.Spans, s.wire)
	}
	ctx, cancel := context.WithTimeout(p.ctx, sendTimeout)
	defer cancel()
	_ = p.send(ctx, []*spans.ResourceSpans{out}) // a collector that is away must not disturb the node
	clear(batch)
	return batch[:0]
}
