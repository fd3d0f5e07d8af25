package client

import (
	"sync"
	"time"
)

const (
	// readEvery is how often a pauseDetector reads the clock while commands are in flight.
	readEvery = 250 * time.Millisecond
	// pausedAfter is how much time may pass between two readings. The process was paused for the rest.
	pausedAfter = 4 * readEvery
)

// pauseDetector measures for how long the process was paused: stopped, not scheduled, or on a paused machine. Deadlines
// of commands exclude that time, since no command is tried in it.
//
// Invariant "readings": while a sender runs, a timer reads the clock every readEvery. While commands wait, a sender
// runs. An idle client does not read the clock, so its idle time looks like a pause; later commands do not count that
// time.
type pauseDetector struct {
	now func() time.Time

	mu       sync.Mutex // guards all below
	last     clockReading
	senders  int
	timerSet bool // the timer of the next reading is set
}

// clockReading is a time, and for how long the process had been paused by then.
type clockReading struct {
	now    time.Time
	paused time.Duration
}

func newPauseDetector(now func() time.Time) *pauseDetector {
	return &pauseDetector{now: now, last: clockReading{now: now()}}
}

// read reads the clock.
func (a *pauseDetector) read() clockReading {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	a.last.paused += max(0, now.Sub(a.last.now)-pausedAfter)
	a.last.now = now
	return a.last
}

// begin starts regular readings, until end.
func (a *pauseDetector) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.senders++
	a.arm()
}

func (a *pauseDetector) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.senders--
}

// arm sets the timer, if it is needed and not set. The caller holds a.mu.
func (a *pauseDetector) arm() {
	if a.timerSet || a.senders == 0 {
		return
	}
	a.timerSet = true
	time.AfterFunc(readEvery, func() {
		a.read()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.timerSet = false
		a.arm()
	})
}
