package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// distinctSliding counts the different bins within any window up to its own.
type distinctSliding struct{ sketch.DistinctSliding }

func newDistinctSliding(window sketch.Tick, precision int, hash sketch.Hash) *distinctSliding {
	w, err := sketch.NewDistinctSliding(sketch.DistinctSlidingParams{
		Distinct: sketch.DistinctParams{Precision: min(precision, windowPrecisionMax), Hash: hash}, Window: window,
	})
	mustBody(nil, err)
	return &distinctSliding{w}
}

func (w *distinctSliding) form() form { return formDistinctSliding }

// add drops what is older than the window, as a half-life drops what weighs nothing.
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

// answer counts the slices that overlap a window, and returns the time that they span. The lower end of the interval
// comes from the slices that lie completely in the window. So what came before the window makes the interval wide, not
// wrong.
func (w *distinctSliding) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	window := sketch.Tick(q.GetWindowUs())
	if window == 0 {
		window = w.window()
	}
	touched, within := w.Union(at, window), w.Within(at, window)
	out.Total = aboutBetween(q, &within, &touched)
	out.SpanUs = int64(w.Span(at, window))
}

// aboutBetween returns the estimate of more, with an interval that also covers the lower end of the interval of less.
func aboutBetween(q *ebbv1.SummaryQuestion, less, more *sketch.Distinct) *ebbv1.Estimate {
	n, stdErr := more.Estimate()
	total := about(q, n, stdErr)
	n, stdErr = less.Estimate()
	low, _ := sketch.Around(n, stdErr, sureness(q))
	total.Low = min(total.Low, low)
	return total
}

// mergeWindows merges bodies of two forms that both count windows: the ring of slices from before BehaviourWindows, and
// the form of today. The result is a ring; the start of its slices is exact to a 32,768th of the window. For other
// bodies it returns false.
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
