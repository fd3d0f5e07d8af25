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
	// lineWait is how long an audited request waits for its line. Usually the line is written before the caller has an
	// answer.
	lineWait = time.Second
)

// auditWriter writes lines of the audit log one after another, so that a disk that hangs delays no request for long. It
// drops and counts lines beyond linesMax, and writes to the log how many are missing.
type auditWriter struct {
	log  *slog.Logger
	lost prometheus.Counter
	late atomic.Bool  // a line has taken longer than lineWait, and none has been written since
	left atomic.Int64 // lines that are queued and not written yet

	mu      sync.Mutex // guards what follows
	waiting []auditLine
	idle    chan struct{} // closed when the goroutine that writes ends; nil: none does
	unsaid  int           // lines lost since the log last reported lost lines
}

// auditLine is a line that waits to be written.
type auditLine struct {
	args    []any
	written chan struct{} // closed when it is written or lost
}

func newAuditWriter(log *slog.Logger, r prometheus.Registerer) *auditWriter {
	w := &auditWriter{log: log, lost: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ebb_rpc_audit_lost_total", Help: "Lines that the audit log lacks, because too many waited for its disk.",
	})}
	if r != nil {
		w.lost = registered(r, w.lost)
	}
	return w
}

// put queues a line. It never waits.
func (w *auditWriter) put(args []any) (written <-chan struct{}) {
	l := auditLine{args, make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) >= linesMax {
		w.unsaid++
		w.lost.Inc()
		close(l.written)
		return l.written
	}
	w.waiting = append(w.waiting, l)
	w.left.Add(1)
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.write() // until nothing waits
	}
	return l.written
}

// await waits for a line, unless the log is late anyway.
func (w *auditWriter) await(written <-chan struct{}) {
	if w.late.Load() {
		return
	}
	timer := time.NewTimer(lineWait)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		w.late.Store(true)
	}
}

func (w *auditWriter) write() {
	for {
		lines, lost := w.take()
		if len(lines) == 0 {
			return
		}
		for _, l := range lines {
			w.log.Info("audit", l.args...)
			w.late.Store(false)
			w.left.Add(-1)
			close(l.written)
		}
		if lost > 0 {
			w.log.Error("the audit log lacks lines: its disk was too slow for them", "lines", lost)
		}
	}
}

// take returns the waiting lines, and how many lines after them were lost; nothing when the writing goroutine may end.
func (w *auditWriter) take() (lines []auditLine, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines, lost = w.waiting, w.unsaid
	w.waiting, w.unsaid = nil, 0
	if len(lines) == 0 {
		close(w.idle)
		w.idle = nil
	}
	return lines, lost
}

// drain waits until nothing waits to be written, but no longer than most, and returns how many lines are not.
func (w *auditWriter) drain(most time.Duration) (left int) {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return 0
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
	return int(w.left.Load())
}
