package proto

import (
	"math"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// MaxJumpDefaultUS is how far ahead of its namespace's clock an event may be where nothing else is said.
	MaxJumpDefaultUS = int64(30 * 24 * time.Hour / time.Microsecond)
	// ClockMaxUS is the latest time that a clock may have, in the year 4253: sums of times cannot overflow.
	ClockMaxUS = int64(1) << 56
	// ClockRefuted is the value of Increment.confirmed for an event whose time later events contradict.
	ClockRefuted = math.MaxUint64
	// MaxJumpMaxUS is the most that a namespace allows, apart from no limit: 100 years.
	MaxJumpMaxUS = int64(HalfLifeMaxUS)
)

// MaxJumpUS returns how far ahead of the clock of a namespace an event may be, in microseconds; 0 for any time.
func MaxJumpUS(ns *ebbv1.Namespace) int64 {
	if ns == nil || ns.MaxJumpUs == nil {
		return MaxJumpDefaultUS
	}
	return ns.GetMaxJumpUs()
}

// Confirmed is the value of Increment.confirmed for events whose time is confirmed in the present epoch of a namespace's
// event clock.
func Confirmed(ns *ebbv1.Namespace) uint64 { return 1 + ns.GetClockSet().GetEpoch() }

// OnEventTime says whether a namespace lives by the times of its events.
func OnEventTime(ns *ebbv1.Namespace) bool { return ns.GetClock() == ebbv1.Clock_CLOCK_EVENT }

func checkEventClock(ns *ebbv1.Namespace) *Error {
	if us := ns.GetMaxJumpUs(); us < 0 || us > MaxJumpMaxUS {
		return ErrBadNamespace.Errorf("max_jump_us of %d: it is 0 for any time, and at most %d", us, MaxJumpMaxUS)
	}
	if us := ns.GetClockSet().GetNowUs(); us < 0 || us > ClockMaxUS {
		return ErrBadTime.Errorf("event clock of namespace %s: time %d µs: it is 0 to %d", ns.GetName(), us, ClockMaxUS)
	}
	return nil
}

// ErrClockBehind is what a shard answers that has not heard yet of an epoch of a namespace's event clock.
func ErrClockBehind(namespace string, shard uint32, has, wants uint64) *Error {
	return ErrStarting.Errorf("namespace %s: shard %d is in epoch %d of its event clock, and %d has begun", namespace, shard, has, wants).
		WithHint("try again in a second").WithShard(shard)
}

// LaterClock returns the later of two clocks of a namespace: that of the higher epoch, or within one the later time.
func LaterClock(a, b *ebbv1.EventClock) *ebbv1.EventClock {
	switch {
	case a == nil:
		return b
	case b == nil, a.GetEpoch() > b.GetEpoch(), a.GetEpoch() == b.GetEpoch() && a.GetNowUs() >= b.GetNowUs():
		return a
	}
	return b
}
