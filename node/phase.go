package node

import (
	"log/slog"
	"sync"
	"time"
)

// Phases of a node, in the order in which it passes them. Their names are those
// of NodeStatus.
const (
	phaseStarting  = "starting"  // opens its log
	phaseJoining   = "joining"   // waits for the other founders
	phaseRestoring = "restoring" // reads snapshots
	phaseReplaying = "replaying" // applies what the log has on top of them
	phaseServing   = "serving"
	phaseStopping  = "stopping"
)

const (
	// progressEvery is how often a long phase logs its progress.
	progressEvery = time.Second
	// reminderEvery is how often a phase without progress logs its state again.
	reminderEvery = 10 * time.Second
)

// phase is what a node is doing. It logs each change, so that the log shows why a start takes long.
type phase struct {
	logger *slog.Logger
	ready  chan struct{} // closed when the node serves for the first time

	mu           sync.Mutex // guards what follows
	name         string
	detail       string
	since        time.Time
	logged       time.Time // when it was last logged, and with what detail
	loggedDetail string
	served       time.Time // when it served first; zero before
}

func newPhase(logger *slog.Logger) *phase {
	now := time.Now()
	return &phase{logger: logger, ready: make(chan struct{}), name: phaseStarting, since: now, logged: now}
}

// enter begins a phase. If the node is in that phase already, it changes the detail. Nothing follows phaseStopping.
func (p *phase) enter(name, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.name == phaseStopping {
		return
	}
	every := progressEvery
	if p.loggedDetail == detail {
		every = reminderEvery
	}
	if p.name != name || now.Sub(p.logged) >= every {
		p.logged, p.loggedDetail = now, detail
		p.logger.Info("node is "+name, "detail", detail, "after", now.Sub(p.since).Round(time.Millisecond))
	}
	p.name, p.detail = name, detail
	if name == phaseServing && p.served.IsZero() {
		p.served = now
		close(p.ready)
	}
}

// now returns the phase and its detail.
func (p *phase) now() (name, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name, p.detail
}

// hasServed reports whether the node has served.
func (p *phase) hasServed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.served.IsZero()
}

// servesFor returns how long ago the node served for the first time; 0 if it has not.
func (p *phase) servesFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.served.IsZero() {
		return 0
	}
	return time.Since(p.served)
}
