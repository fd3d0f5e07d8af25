// Package fail names the moments at which a process may die, so that tests can make it die, fail or wait exactly there.
//
// Code calls p.Hit("wal.sync") next to each durable step and returns the error. If no point is armed, or *Points is
// nil, that costs a load and a branch.
package fail

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrKilled is what every Hit returns after a Kill action has run: a dead process takes no further step, at any point.
var ErrKilled = errors.New("killed at a failpoint")

// Points is one process's set of failpoints. The zero value is ready, and a nil
// *Points never fires.
type Points struct {
	active atomic.Bool // a point is armed, or hits are recorded, or the process was killed

	mu        sync.Mutex // guards what follows; never held while an action runs
	recording bool
	killed    bool
	hits      map[string]int
	armed     map[string]*arm
}

// arm is an armed action.
type arm struct {
	left   int // hits until it fires; 0 fires at every hit
	action Action
}

// Action is what an armed point does. It runs without locks held and may block;
// Hit returns its error.
type Action func(p *Points) error

// Error makes a point return err.
func Error(err error) Action { return func(*Points) error { return err } }

// Kill makes a point call die, after which every Hit of these Points returns
// ErrKilled. In a real process die does not return; in a simulated one it takes
// the disk's image as a power cut would leave it.
func Kill(die func()) Action {
	return func(p *Points) error {
		p.mu.Lock()
		again := p.killed
		p.killed = true
		p.mu.Unlock()
		if !again && die != nil {
			die()
		}
		return ErrKilled
	}
}

// Block makes a point send on reached (unless it is nil or full) and wait until
// release is closed.
func Block(reached chan<- struct{}, release <-chan struct{}) Action {
	return func(*Points) error {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-release
		return nil
	}
}

// Hit reports that the named point is reached. It returns nil unless the point's action fails, or the process was
// killed.
func (p *Points) Hit(name string) error {
	if p == nil || !p.active.Load() {
		return nil
	}
	return p.hit(name)
}

func (p *Points) hit(name string) error {
	p.mu.Lock()
	if p.killed {
		p.mu.Unlock()
		return ErrKilled
	}
	if p.recording {
		p.hits[name]++
	}
	action := p.fire(name)
	p.mu.Unlock()
	if action == nil {
		return nil
	}
	return action(p)
}

// fire returns the action due at this hit. p.mu is held.
func (p *Points) fire(name string) Action {
	a := p.armed[name]
	if a == nil {
		return nil
	}
	if a.left == 0 {
		return a.action
	}
	a.left--
	if a.left > 0 {
		return nil
	}
	delete(p.armed, name)
	return a.action
}

// Arm sets the action of the named point for its n-th hit from now, once; with n = 0 for every hit. It replaces an
// earlier action of that point.
func (p *Points) Arm(name string, n int, action Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == nil {
		p.armed = make(map[string]*arm)
	}
	p.armed[name] = &arm{left: n, action: action}
	p.active.Store(true)
}

// Disarm removes the action of the named point.
func (p *Points) Disarm(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.armed, name)
}

// Killed reports whether a Kill action has run.
func (p *Points) Killed() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// Record starts to count hits. A test can so list every point that a workload passes, and then die at each of them.
func (p *Points) Record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recording = true
	p.hits = make(map[string]int)
	p.active.Store(true)
}

// Hits returns how often each point was hit since Record.
func (p *Points) Hits() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.hits)
}

// Names returns the points hit since Record, sorted.
func (p *Points) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.hits))
}
