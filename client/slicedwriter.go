package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// slicedFlights is how many requests of a BitWriter about bitmaps that are placed by slice are in flight at most.
const slicedFlights = 8

// slicedLinger is how long an id waits for others to share its request, at least. Shards remember each command for ten
// minutes, and no more than 65,536 of them.
const slicedLinger = 100 * time.Millisecond

// slicedQueue holds the ids that wait for one bitmap that is placed by slice. They are sent to any node, which splits
// them, so they are gathered by key. Several requests of one operation may be in flight, because they may be applied in
// any order. Before another operation is sent, all of them have been answered.
type slicedQueue struct {
	batch    *bitBatch // nil: nothing waits
	op       ebbv1.BitOp
	inFlight int
}

// putSliced takes ids that fit a request.
func (w *BitWriter) putSliced(ctx context.Context, key string, op ebbv1.BitOp, ids []uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.closed {
			return ErrClosed
		}
		q := w.sliced[key]
		if q == nil {
			q = &slicedQueue{}
			w.sliced[key] = q
		}
		other := q.op != op && (q.batch != nil || q.inFlight > 0)
		if !other && w.buffered+len(ids) <= w.opts.MaxBuffered {
			q.op = op
			if q.batch == nil {
				q.batch = &bitBatch{key: key, op: op, ids: make([]uint64, 0, max(len(ids), min(w.opts.MaxBatch, 2*len(ids))))}
			}
			q.batch.ids = append(q.batch.ids, ids...)
			w.buffered += len(ids)
			w.stats.Added += int64(len(ids))
			if len(q.batch.ids) >= w.opts.MaxBatch {
				w.sendSliced(q)
			} else {
				w.linger(slicedLinger)
			}
			return nil
		}
		w.sendAllSliced()
		if err := w.awaitSpace(ctx); err != nil {
			return err
		}
	}
}

// awaitSpace waits until a request has been answered. The caller holds w.mu.
func (w *BitWriter) awaitSpace(ctx context.Context) error {
	if w.space == nil {
		w.space = make(chan struct{})
	}
	space := w.space
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-space:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sendAllSliced sends all ids that wait for bitmaps that are placed by slice. It sends many bitmaps in one request, as
// far as they fit. The caller holds w.mu.
func (w *BitWriter) sendAllSliced() {
	var some []*slicedQueue
	ids := 0
	for key, q := range w.sliced {
		switch {
		case q.batch != nil:
			if len(some) == proto.BitChangesMax || len(some) > 0 && ids+len(q.batch.ids) > proto.BitIDsMax {
				w.sendSliced(some...)
				some, ids = nil, 0
			}
			some, ids = append(some, q), ids+len(q.batch.ids)
		case q.inFlight == 0:
			delete(w.sliced, key)
		}
	}
	if len(some) > 0 {
		w.sendSliced(some...)
	}
}

// slicedRequest is one bitmap's part of a request in flight.
type slicedRequest struct {
	queue   *slicedQueue
	batch   *bitBatch
	handler *bitHandler
	ids     []uint64 // that the request names
}

// sendSliced sends the ids that wait for bitmaps, in one request. The caller holds w.mu.
func (w *BitWriter) sendSliced(queues ...*slicedQueue) {
	list := make([]slicedRequest, len(queues))
	for i, q := range queues {
		note := &bitHandler{writer: w, group: w.flushes.now, ids: len(q.batch.ids)}
		list[i] = slicedRequest{queue: q, batch: q.batch, handler: note}
		q.batch = nil
		q.inFlight++
		w.flushes.now.open++
	}
	go func() {
		w.slicedSlots <- struct{}{}
		ctx, cancel := context.WithTimeout(w.producer.ctx, w.opts.Timeout)
		defer cancel()
		for i := range list {
			list[i].ids = list[i].batch.sorted()
		}
		changed, errs := w.sendSlicedRequest(ctx, list)
		<-w.slicedSlots
		w.mu.Lock()
		for _, f := range list {
			f.queue.inFlight--
		}
		w.mu.Unlock()
		for i, f := range list {
			f.handler.handleSliced((len(f.ids)+editIDs-1)/editIDs, changed[i], errs[i])
		}
	}()
}

// sendSlicedRequest makes a request. For each bitmap it returns how many ids were changed, and the error. Only the sum
// of changed is right.
func (w *BitWriter) sendSlicedRequest(ctx context.Context, list []slicedRequest) (changed []int, errs []error) {
	changed, errs = make([]int, len(list)), make([]error, len(list))
	var changes []*ebbv1.BitChange
	var of []int // by change: its place in the list
	for i, f := range list {
		if len(f.ids) == 0 {
			continue // flipped back
		}
		change := &ebbv1.BitChange{Key: []byte(f.batch.key), Op: f.batch.op}
		if len(list) == 1 { // it may not fit a request
			change.Ids = f.ids
			changed[i], errs[i] = w.client.slicedEdits(ctx, w.opts.Namespace, change)
			return changed, errs
		}
		change.Packed = proto.AppendBitIDs(nil, f.ids)
		changes, of = append(changes, change), append(of, i)
	}
	if len(changes) == 0 {
		return changed, errs
	}
	done, refused := w.client.changeTogether(ctx, w.opts.Namespace, changes)
	for at, i := range of {
		errs[i] = refused[at]
		if at < len(done) {
			changed[i] = int(done[at])
		}
	}
	return changed, errs
}

// handleSliced handles the result of a request.
func (n *bitHandler) handleSliced(edits, changed int, err error) {
	n.handleResult(&pendingCommand{entries: edits}, &ebbv1.CommandResult{Changed: uint64(changed)}, err)
}
