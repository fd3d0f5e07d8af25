package proto

import "github.com/ebbdb/ebb/proto/ebbv1"

// MaxJumpDefaultUS is how far ahead of its namespace's event clock an event may be dated by default: 30 days.
const MaxJumpDefaultUS = 30 * 24 * 3600 * 1_000_000

// MaxJumpUS is how far ahead of the event clock of a namespace an event may be dated, in microseconds; 0 means no
// limit.
func MaxJumpUS(ns *ebbv1.Namespace) int64 {
	if ns.MaxJumpUs == nil {
		return MaxJumpDefaultUS
	}
	return ns.GetMaxJumpUs()
}

// OnEventTime says whether a namespace has an event clock.
func OnEventTime(ns *ebbv1.Namespace) bool { return ns.GetClock() == ebbv1.Clock_CLOCK_EVENT }

// Later says whether clock a has a later epoch than clock b, or a later time in the same epoch.
func Later(a, b *ebbv1.EventClock) bool {
	return a.GetEpoch() > b.GetEpoch() || a.GetEpoch() == b.GetEpoch() && a.GetNowUs() > b.GetNowUs()
}

func checkEventClock(ns *ebbv1.Namespace) *Error {
	name := ns.GetName()
	if jump := ns.GetMaxJumpUs(); jump != 0 && (jump < HalfLifeMinUS || jump > HalfLifeMaxUS) {
		return ErrBadNamespace.Errorf(
			"namespace %s: max_jump of %d us: it is 0 for none, or 1 s to 100 years",
			name,
			jump,
		)
	}
	if at := ns.GetClockSetting().GetTimeUs(); at < 0 {
		return ErrBadTime.Errorf(
			"namespace %s: its clock is set to a time after the beginning of 1970, not to %d us",
			name,
			at,
		)
	}
	return nil
}

// CheckClockSetting checks whether the event clock of a namespace can be set to the time in its definition.
func CheckClockSetting(ns *ebbv1.Namespace) *Error {
	name, at := ns.GetName(), ns.GetClockSetting().GetTimeUs()
	switch {
	case at <= 0:
		return ErrBadTime.Errorf(
			"namespace %s: its clock is set to a time after the beginning of 1970, not to %d us",
			name,
			at,
		)
	case !OnEventTime(ns):
		return ErrBadNamespace.Errorf("namespace %s has no event clock: only that can be set", name)
	case ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR:
		return ErrBadNamespace.Errorf("namespace %s: under linear decay what is stored are times, so that its clock cannot be set",
			name).
			WithHint("write what it should hold to another namespace")
	}
	return nil
}

// QuestionAsOf returns the as-of time of a question in microseconds; 0 if it has none.
func QuestionAsOf(q *ebbv1.Question) int64 {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return ask.Distribution.GetAsOfUs()
	case *ebbv1.Question_Summary:
		return ask.Summary.GetAsOfUs()
	case *ebbv1.Question_Surprise:
		return ask.Surprise.GetAsOfUs()
	case *ebbv1.Question_Overlap:
		return ask.Overlap.GetAsOfUs()
	case *ebbv1.Question_Graph:
		return ask.Graph.GetAsOfUs()
	case *ebbv1.Question_Keys:
		return ask.Keys.GetAsOfUs()
	case *ebbv1.Question_Describe:
		return ask.Describe.GetAsOfUs()
	case *ebbv1.Question_Trend:
		return ask.Trend.GetAsOfUs()
	}
	return 0
}
