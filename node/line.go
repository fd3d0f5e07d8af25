package node

import (
	"time"

	"github.com/ebbdb/ebb/proto"
)

const (
	// lineWait is how long a command may wait before it goes into an entry.
	lineWait = 500 * time.Millisecond
	// lineRound is what leaves a queue at its next turn, at least: as many entries as may be on their way.
	lineRound = flightsMax * proto.EntryBytesSoft
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

// limit is how many bytes may wait: one round in any case, and never more than queueBytesMax.
func (l *line) limit() int {
	if l.service <= 0 {
		return queueBytesMax
	}
	rounds := max(1, float64(lineWait)/float64(l.service))
	return int(min(queueBytesMax, rounds*lineRound))
}

// wait is how long what waits takes to leave.
func (l *line) wait(bytes int) time.Duration {
	return max(retryAfter, time.Duration(float64(bytes)/lineRound*float64(l.service)))
}
