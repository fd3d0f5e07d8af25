package client

import (
	"sync"
	"time"
)

const (
	// lookEvery is how often an awake looks at the time while something is under way.
	lookEvery = 250 * time.Millisecond
	// stoodAfter is how much time may pass from one look to the next: if it is more, the process stood still for the rest.
	stoodAfter = 4 * lookEvery
)

// awake tells for how long the process stood still: while it is stopped, gets no turn, or its machine is paused, time
// goes on, and no command was tried for that.
//
// Invariant "looks": while a sender has a command, a timer looks at the time every lookEvery. Where commands wait, a
// sender has one. An idle client does not look, and then seems to have stood still: later commands do not count that.
type awake struct {
	now func() time.Time

	mu      sync.Mutex // guards all below
	last    moment
	senders int
	ticks   bool // the timer of the next look is set
}

// moment is a time, and for how long the process had stood still by then.
type moment struct {
	now   time.Time
	stood time.Duration
}

func newAwake(now func() time.Time) *awake { return &awake{now: now, last: moment{now: now()}} }

// look returns the moment.
func (a *awake) look() moment {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	a.last.stood += max(0, now.Sub(a.last.now)-stoodAfter)
	a.last.now = now
	return a.last
}

// begin makes somebody look now and then, until end.
func (a *awake) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.senders++
	a.arm()
}

func (a *awake) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.senders--
}

// arm sets the timer, if it is needed and not set. The caller holds a.mu.
func (a *awake) arm() {
	if a.ticks || a.senders == 0 {
		return
	}
	a.ticks = true
	time.AfterFunc(lookEvery, func() {
		a.look()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ticks = false
		a.arm()
	})
}
