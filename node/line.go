package node

import "time"

const (
	// lineTarget is how long the first command of a queue may have waited when a
	// queue is as it should be.
	lineTarget = 100 * time.Millisecond
	// lineInterval is for how long that may be passed: a slow sync, or a burst,
	// is no overload.
	lineInterval = time.Second
)

// line judges a queue by the time that commands wait in it, as CoDel does: only
// a queue that does not come below its target for an interval is too long. Then
// what comes is refused until the first in it has waited for less. It is a value.
type line struct {
	long time.Time // since when the queue has been above its target; zero: it is not
}

// left is told when commands have left the queue, and when the first of those that stay came; zero if none stays.
func (l *line) left(now, oldest time.Time) {
	switch {
	case oldest.IsZero() || now.Sub(oldest) < lineTarget:
		l.long = time.Time{}
	case l.long.IsZero():
		l.long = now
	}
}

// refuses reports whether a command that comes now is one too many.
func (l *line) refuses(now, oldest time.Time) bool {
	return !l.long.IsZero() && now.Sub(l.long) >= lineInterval && !oldest.IsZero() && now.Sub(oldest) >= lineTarget
}
