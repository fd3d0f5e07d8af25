package node

import "time"

const (
	// lineWait is how long a command may wait before it goes into an entry.
	lineWait = 500 * time.Millisecond
	// serviceWeight is the weight of the older entries in the mean.
	serviceWeight = 8
)

// line bounds a queue by the time that commands wait in it: it holds as many
// bytes as leave it in that time, by how long entries took lately. It is a value.
//
//	wait = rounds * time of an entry     rounds = bytes / bytes of the entries on their way
type line struct {
	service time.Duration // how long an entry takes until it is applied, on average
}

// served notes how long an entry took.
func (l *line) served(took time.Duration) {
	if l.service == 0 {
		l.service = took
	}
	l.service += (took - l.service) / serviceWeight
}

// round is what leaves a queue at its next turn, at least: as many entries as may be on their way.
func round(of *Limits) float64 { return float64(of.EntriesInFlight) * float64(of.EntryBytes) }

// limit is how many bytes may wait: one round in any case, and never more than QueueBytes.
func (l *line) limit(of *Limits) int {
	if l.service <= 0 {
		return of.QueueBytes
	}
	rounds := max(1, float64(lineWait)/float64(l.service))
	return int(min(float64(of.QueueBytes), rounds*round(of)))
}

// wait is how long what waits takes to leave.
func (l *line) wait(bytes int, of *Limits) time.Duration {
	return max(retryAfter, time.Duration(float64(bytes)/round(of)*float64(l.service)))
}
