package proc

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Network is a switch in this process between machines; each machine has one port. It forwards IP packets, and applies
// the rules that are set for packets from one port to another.
type Network struct {
	mu    sync.RWMutex       // guards what follows
	rules map[[2]int]Weather // from, to
	rng   *rand.Rand

	site *networkSite
}

// Weather is the rule for packets on their way from one machine to another.
type Weather struct {
	Cut       bool
	Delay     time.Duration
	Jitter    time.Duration // a random further delay, up to this
	Loss      float64       // share of packets
	Duplicate float64
}

// Set sets the rule for packets from one machine to another, by the numbers of the machines.
func (n *Network) Set(from, to int, w Weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[[2]int{from, to}] = w
}

// Isolate cuts one machine off from some others, in both directions.
func (n *Network) Isolate(one int, others []int) {
	for _, other := range others {
		if other != one {
			n.Set(one, other, Weather{Cut: true})
			n.Set(other, one, Weather{Cut: true})
		}
	}
}

// Heal removes all rules.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
}

// fate decides what happens to a packet. It returns the delay of each copy, and no delay if the packet is lost.
func (n *Network) fate(from, to int) (copies []time.Duration) {
	n.mu.RLock()
	w, known := n.rules[[2]int{from, to}]
	n.mu.RUnlock()
	if !known || w == (Weather{}) {
		return undelayed
	}
	if w.Cut {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rng.Float64() < w.Loss {
		return nil
	}
	copies = append(copies, n.late(w))
	if n.rng.Float64() < w.Duplicate {
		copies = append(copies, n.late(w))
	}
	return copies
}

// late draws a delay. n.mu is held.
func (n *Network) late(w Weather) time.Duration {
	if w.Jitter <= 0 {
		return w.Delay
	}
	return w.Delay + time.Duration(n.rng.Int64N(int64(w.Jitter)))
}

var undelayed = []time.Duration{0}
