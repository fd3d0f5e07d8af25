package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// slicedFlights is how many requests of a BitWriter are under way at most about bitmaps that are placed by slice.
const slicedFlights = 8

// slicedLinger is how long an id waits for company at least: shards remember each request for ten minutes, and no more than 65,536.
const slicedLinger = 100 * time.Millisecond

// slicedQueue is what waits for one bitmap that is placed by slice. Its ids go to any node, which cuts them up, so that they are gathered by key. Several requests of one operation may be
// under way, for these may be done in any order; before another operation all have landed.
type slicedQueue struct {
	batch   *bitBatch // nil: nothing waits
	op      ebbv1.BitOp
	flights int
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
		other := q.op != op && (q.batch != nil || q.flights > 0)
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
		w.sealSliced()
		if err := w.awaitSpace(ctx); err != nil {
			return err
		}
	}
}

// awaitSpace waits until something has landed. The caller holds w.mu.
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

// sealSliced sends whatever waits for bitmaps that are placed by slice. The caller holds w.mu.
func (w *BitWriter) sealSliced() {
	for key, q := range w.sliced {
		switch {
		case q.batch != nil:
			w.sendSliced(q)
		case q.flights == 0:
			delete(w.sliced, key)
		}
	}
}

// sendSliced sends what waits for a bitmap. The caller holds w.mu.
func (w *BitWriter) sendSliced(q *slicedQueue) {
	b := q.batch
	q.batch = nil
	q.flights++
	w.epochs.now.open++
	note := &bitNote{writer: w, epoch: w.epochs.now, ids: len(b.ids)}
	go func() {
		w.flights <- struct{}{}
		ctx, cancel := context.WithTimeout(w.producer.ctx, w.opts.Timeout)
		defer cancel()
		ids := b.sorted()
		edits := (len(ids) + editIDs - 1) / editIDs
		changed, err := w.client.slicedEdits(ctx, w.opts.Namespace, &ebbv1.BitChange{Key: []byte(b.key), Op: b.op, Ids: ids})
		<-w.flights
		w.mu.Lock()
		q.flights--
		w.mu.Unlock()
		note.landed(edits, changed, err)
	}()
}

// landed hears what became of a request.
func (n *bitNote) landed(edits, changed int, err error) {
	n.delivered(&parcel{entries: edits}, &ebbv1.CommandResult{Changed: uint64(changed)}, err)
}
