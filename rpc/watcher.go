package rpc

import (
	"math"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// watcher decides which answers a watch sends. It reads no clock and asks nothing.
type watcher struct {
	every     bool
	tolerance float64
	alert     *alert        // nil: changes are sent, not crossings
	last      *ebbv1.Answer // sent
	unsent    uint64        // answers since then
}

func newWatcher(req *ebbv1.WatchRequest) *watcher {
	w := &watcher{every: req.GetEvery(), tolerance: proto.DefaultWatchTolerance}
	if req.Tolerance != nil {
		w.tolerance = req.GetTolerance()
	}
	if a := req.GetAlert(); a != nil {
		w.alert = newAlert(a)
	}
	return w
}

// next takes an answer, and returns the event to send; nil if there is none. The first answer is always sent.
func (w *watcher) next(a *ebbv1.Answer) *ebbv1.WatchEvent {
	crossed := w.alert != nil && a.GetError() == nil && !partial(a) && w.alert.take(a.GetSurprise())
	news := w.last == nil || w.every || crossed
	switch {
	case news:
	case w.alert != nil: // errors and shards that come and go are news, too
		news = a.GetError().GetCode() != w.last.GetError().GetCode() || partial(a) != partial(w.last)
	default:
		news = !alike(a.ProtoReflect(), w.last.ProtoReflect(), w.tolerance)
	}
	if !news {
		w.unsent++
		return nil
	}
	e := &ebbv1.WatchEvent{Answer: a, Unsent: w.unsent}
	if w.alert != nil {
		e.Raised, e.Crossed = w.alert.raised, crossed
	}
	w.last, w.unsent = a, 0
	return e
}

// partial reports whether shards are missing from an answer. Such an answer neither raises an alert nor clears one: an
// apparent drift may be the missing part.
func partial(a *ebbv1.Answer) bool { return len(a.GetCoverage().GetShardsFailed()) > 0 }

// alert is raised when a comparison passes its thresholds. It is cleared when a comparison no longer passes weaker
// thresholds. So a value near a threshold does not raise it again and again.
type alert struct {
	at, off threshold
	raised  bool
}

// threshold is passed by comparisons that differ at least so much, and so hardly by chance. A field that is 0 is not
// checked.
type threshold struct{ p, distance float64 }

func (t threshold) passed(s *ebbv1.Surprise) bool {
	return s.GetFound() && (t.p == 0 || s.GetPValue() <= t.p) && (t.distance == 0 || s.GetJensenShannonBits() >= t.distance)
}

// By default an alert is cleared at ten times its p-value, at most halfway between the p-value and 1, or at four fifths
// of its distance. So a comparison without a difference clears every alert.
const (
	clearP        = 10
	clearDistance = 0.8
)

func newAlert(a *ebbv1.Alert) *alert {
	c := &alert{raised: a.GetRaised(), at: threshold{a.GetPValue(), a.GetJensenShannonBits()}}
	c.off = threshold{min(clearP*c.at.p, (1+c.at.p)/2), clearDistance * c.at.distance}
	if c.at.p == 0 {
		c.off.p = 0
	}
	if a.ClearPValue != nil {
		c.off.p = a.GetClearPValue()
	}
	if a.ClearJensenShannonBits != nil {
		c.off.distance = a.GetClearJensenShannonBits()
	}
	return c
}

// take reports whether a comparison raises the alert, or clears it.
func (a *alert) take(s *ebbv1.Surprise) (crossed bool) {
	now := a.at.passed(s)
	if a.raised {
		now = a.off.passed(s)
	}
	crossed = now != a.raised
	a.raised = now
	return crossed
}

// alike reports whether two messages of one type are the same except for their times, and for numbers that differ by no
// more than a part of the larger. For p-values the difference itself counts, for errors only the code.
func alike(a, b protoreflect.Message, tolerance float64) bool {
	fields := a.Descriptor().Fields()
	if a.Descriptor().FullName() == "ebb.v1.Error" {
		code := fields.ByName("code")
		return a.Get(code).Equal(b.Get(code))
	}
	for i := range fields.Len() {
		fd := fields.Get(i)
		if strings.HasSuffix(string(fd.Name()), "_us") {
			continue
		}
		if a.Has(fd) != b.Has(fd) && fd.Message() != nil || !alikeField(fd, a.Get(fd), b.Get(fd), tolerance) {
			return false
		}
	}
	return true
}

func alikeField(fd protoreflect.FieldDescriptor, a, b protoreflect.Value, tolerance float64) bool {
	if !fd.IsList() {
		return alikeValue(fd, a, b, tolerance)
	}
	if a.List().Len() != b.List().Len() {
		return false
	}
	for i := range a.List().Len() {
		if !alikeValue(fd, a.List().Get(i), b.List().Get(i), tolerance) {
			return false
		}
	}
	return true
}

func alikeValue(fd protoreflect.FieldDescriptor, a, b protoreflect.Value, tolerance float64) bool {
	switch {
	case fd.Message() != nil:
		return alike(a.Message(), b.Message(), tolerance)
	case fd.Kind() != protoreflect.DoubleKind:
		return a.Equal(b)
	}
	x, y := a.Float(), b.Float()
	scale := max(math.Abs(x), math.Abs(y))
	if fd.Name() == "p_value" {
		scale = 1
	}
	return math.Abs(x-y) <= tolerance*scale
}
