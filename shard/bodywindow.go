package shard

import (
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Before BehaviourWindows a namespace's window is divided into slices. A ring has one slice more, since the latest one
// has only begun. Its sketches have the precision of the namespace, up to windowPrecisionMax, at which a full ring is a
// megabyte.
const (
	windowSlices       = 60
	windowPrecisionMax = 12
)

// windowed is a body that answers for any window up to its own.
type windowed interface{ window() sketch.Tick }

// distinctWindow counts the different bins within its window.
type distinctWindow struct{ sketch.DistinctWindow }

func newDistinctWindow(window sketch.Tick, precision int, hash sketch.Hash) body {
	w, err := sketch.NewDistinctWindow(sketch.DistinctWindowParams{
		Distinct: sketch.DistinctParams{Precision: min(precision, windowPrecisionMax), Hash: hash},
		Slice:    windowSlice(window), Slices: windowSlices + 1,
	})
	return mustBody(&distinctWindow{w}, err)
}

// windowSlice is the length of the slices of a window.
func windowSlice(window sketch.Tick) sketch.Tick { return (window + windowSlices - 1) / windowSlices }

func (w *distinctWindow) form() form { return formDistinctWindow }

// add drops what is older than the window, as a half-life drops what weighs nothing.
func (w *distinctWindow) add(e *event) error {
	w.Add(e.now, e.at, e.hash())
	return nil
}

func (w *distinctWindow) last() sketch.Tick               { return w.Last() }
func (w *distinctWindow) death(float64) sketch.Tick       { return w.Death() }
func (w *distinctWindow) suits(ns *namespace) bool        { return w.Params().Distinct.Hash.Seed == ns.seed }
func (w *distinctWindow) clone() body                     { return &distinctWindow{w.Clone()} }
func (w *distinctWindow) appendBinary(b []byte) []byte    { return w.AppendBinary(b) }
func (w *distinctWindow) decode(b []byte) ([]byte, error) { return w.Decode(b) }

func (w *distinctWindow) merge(o body) error {
	return mergeAs(o, func(other *distinctWindow) error { return w.Merge(&other.DistinctWindow) })
}

func (w *distinctWindow) window() sketch.Tick {
	p := w.Params()
	return p.Slice * sketch.Tick(p.Slices-1)
}

// answer counts the slices that overlap a window, and one more, and returns the time that they span. The lower end of
// the interval comes from the slices that lie completely in the window.
func (w *distinctWindow) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	window := sketch.Tick(q.GetWindowUs())
	if window == 0 {
		window = w.window()
	}
	longer := window + w.Params().Slice
	touched, within := w.Union(at, longer), w.Within(at, window)
	out.Total = aboutBetween(q, &within, &touched)
	out.SpanUs = int64(w.Span(at, longer))
}

// checkWindow refuses a question about a window that a body does not keep.
func checkWindow(b body, q *ebbv1.SummaryQuestion) *proto.Error {
	asked := q.GetWindowUs()
	if asked == 0 {
		return nil
	}
	w, ok := b.(windowed)
	switch {
	case !ok:
		return proto.ErrWrongKind.Errorf("key %s is a %s that keeps no window", quote(q.Keys[0]), proto.KindName(b.form().kind())).
			WithHint("distinct keys that are made in a namespace with a window have one: ebb namespace set NAME --window 1h")
	case asked > int64(w.window()):
		return proto.ErrBadRequest.Errorf("window of %v: key %s keeps %v", span(asked), quote(q.Keys[0]), span(int64(w.window())))
	}
	return nil
}

func span(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
