package node

import "time"

const (
	// lineWait is how long a command may wait before it goes into an entry.
	lineWait = 500 * time.Millisecond
	// serviceWeight is the weight of the older entries in the mean.
	serviceWeight = 8
)

// line bounds a queue by the time that commands wait in it: it may hold as many bytes as leave it in lineWait. How fast
// they leave is estimated from recent entries. It is a value.
//
//	wait = rounds * time of an entry     rounds = bytes / bytes of the entries in flight
type line struct {
	service time.Duration // how long an entry takes until it is applied, on average
}

// served records how long an entry took.
func (l *line) served(took time.Duration) {
	if l.service == 0 {
		l.service = took
	}
	l.service += (took - l.service) / serviceWeight
}

// round returns the bytes that leave a queue at its next turn, at least: those of as many entries as may be in flight.
func round(of *Limits) float64 { return float64(of.EntriesInFlight) * float64(of.EntryBytes) }

// limit returns how many bytes may wait: at least one round, but never more than QueueBytes.
func (l *line) limit(of *Limits) int {
	if l.service <= 0 {
		return of.QueueBytes
	}
	rounds := max(1, float64(lineWait)/float64(l.service))
	return int(min(float64(of.QueueBytes), rounds*round(of)))
}

// wait returns how long the waiting bytes take to leave the queue, at least retryAfter.
func (l *line) wait(bytes int, of *Limits) time.Duration {
	return max(retryAfter, time.Duration(float64(bytes)/round(of)*float64(l.service)))
}
