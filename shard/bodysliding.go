package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// distinctSliding counts what was there within any window up to its own.
type distinctSliding struct{ sketch.DistinctSliding }

func newDistinctSliding(window sketch.Tick, precision int, hash sketch.Hash) *distinctSliding {
	w, err := sketch.NewDistinctSliding(sketch.DistinctSlidingParams{
		Distinct: sketch.DistinctParams{Precision: min(precision, windowPrecisionMax), Hash: hash}, Window: window,
	})
	mustBody(nil, err)
	return &distinctSliding{w}
}

func (w *distinctSliding) form() form { return formDistinctSliding }

// add lets go of what is older than the window, as a half-life lets go of what weighs nothing.
func (w *distinctSliding) add(e *event) error {
	w.Add(e.now, e.at, e.hash())
	return nil
}

func (w *distinctSliding) last() sketch.Tick               { return w.Last() }
func (w *distinctSliding) death(float64) sketch.Tick       { return w.Death() }
func (w *distinctSliding) suits(ns *namespace) bool        { return w.Params().Distinct.Hash.Seed == ns.seed }
func (w *distinctSliding) clone() body                     { return &distinctSliding{w.Clone()} }
func (w *distinctSliding) appendBinary(b []byte) []byte    { return w.AppendBinary(b) }
func (w *distinctSliding) decode(b []byte) ([]byte, error) { return w.Decode(b) }
func (w *distinctSliding) window() sketch.Tick             { return w.Params().Window }

func (w *distinctSliding) decodeWithin(b []byte, room int) ([]byte, error) {
	return w.DecodeWithin(b, room)
}

func (w *distinctSliding) merge(o body) error {
	return mergeAs(o, func(other *distinctSliding) error { return w.Merge(&other.DistinctSliding) })
}

// answer counts the slices that a window touches, and says from when on. The interval begins at what the slices have
// that lie in the window as a whole, so that what came before it makes the interval wide and not wrong.
func (w *distinctSliding) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	window := sketch.Tick(q.GetWindowUs())
	if window == 0 {
		window = w.window()
	}
	touched, within := w.Union(at, window), w.Within(at, window)
	out.Total = aboutBetween(q, &within, &touched)
	out.SpanUs = int64(w.Span(at, window))
}

// aboutBetween is an estimate of more, with an interval that has that of less as well.
func aboutBetween(q *ebbv1.SummaryQuestion, less, more *sketch.Distinct) *ebbv1.Estimate {
	n, stdErr := more.Estimate()
	total := about(q, n, stdErr)
	n, stdErr = less.Estimate()
	low, _ := sketch.Around(n, stdErr, sureness(q))
	total.Low = min(total.Low, low)
	return total
}

// mergeWindows merges bodies of two forms that both count windows: the ring of slices from before BehaviourWindows, and
// what is made now. The result is a ring; where its slices begin is exact to a 32,768th of the window. It is false of
// other bodies.
func mergeWindows(a, b body) (body, bool, error) {
	if _, ok := b.(*distinctWindow); ok {
		a, b = b, a
	}
	ring, ok := a.(*distinctWindow)
	sliding, also := b.(*distinctSliding)
	if !ok || !also {
		return nil, false, nil
	}
	if windowSlice(sliding.window()) != ring.Params().Slice {
		return nil, true, errOtherWindow
	}
	other, err := sliding.Ring(ring.Params())
	if err != nil {
		return nil, true, err
	}
	out := &distinctWindow{ring.Clone()}
	err = out.Merge(&other)
	return out, true, err
}
