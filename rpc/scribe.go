package rpc

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// linesMax is how many lines of the audit log may wait to be written.
	linesMax = 1_000
	// lineWait is how long what is written down waits for its line: usually it is there before the caller has an answer.
	lineWait = time.Second
)

// scribe writes lines one after the other, so that a disk that hangs holds up nobody for long. Lines that find no room are counted, and
// the log says how many there were.
type scribe struct {
	log  *slog.Logger
	lost prometheus.Counter
	late atomic.Bool  // a line has taken longer than lineWait, and none has been written since
	left atomic.Int64 // lines that were handed over and are not written yet

	mu      sync.Mutex // guards what follows
	waiting []auditLine
	idle    chan struct{} // closed when the goroutine that writes ends; nil: none does
	unsaid  int           // lines that were lost since the log last said so
}

// auditLine is what is to be written.
type auditLine struct {
	args    []any
	written chan struct{} // closed then, or when the line is lost
}

func newScribe(log *slog.Logger, r prometheus.Registerer) *scribe {
	s := &scribe{log: log, lost: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ebb_rpc_audit_lost_total", Help: "Lines that the audit log lacks, because too many waited for its disk.",
	})}
	if r != nil {
		s.lost = registered(r, s.lost)
	}
	return s
}

// put hands a line over. It never waits.
func (s *scribe) put(args []any) (written <-chan struct{}) {
	l := auditLine{args, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= linesMax {
		s.unsaid++
		s.lost.Inc()
		close(l.written)
		return l.written
	}
	s.waiting = append(s.waiting, l)
	s.left.Add(1)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.write() // until nothing waits
	}
	return l.written
}

// await waits for a line, unless the log is late anyway.
func (s *scribe) await(written <-chan struct{}) {
	if s.late.Load() {
		return
	}
	timer := time.NewTimer(lineWait)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		s.late.Store(true)
	}
}

func (s *scribe) write() {
	for {
		lines, lost := s.take()
		if len(lines) == 0 {
			return
		}
		for _, l := range lines {
			s.log.Info("audit", l.args...)
			s.late.Store(false)
			s.left.Add(-1)
			close(l.written)
		}
		if lost > 0 {
			s.log.Error("the audit log lacks lines: its disk was too slow for them", "lines", lost)
		}
	}
}

// take returns what waits, and how many lines behind it were lost; nothing when the writer may go.
func (s *scribe) take() (lines []auditLine, lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines, lost = s.waiting, s.unsaid
	s.waiting, s.unsaid = nil, 0
	if len(lines) == 0 {
		close(s.idle)
		s.idle = nil
	}
	return lines, lost
}

// drain waits until nothing waits to be written, but no longer than most, and returns how many lines are not.
func (s *scribe) drain(most time.Duration) (left int) {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return 0
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
	return int(s.left.Load())
}
