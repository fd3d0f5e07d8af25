package node

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// leaderFailureDetector triggers elections when the node of a leader has been silent for an election timeout. Raft
// alone checks at random times, one to three timeouts after the last message, and two followers must have checked
// before one is elected. The detector sees nodes, not groups: a single group that is late is left to Raft.
type leaderFailureDetector struct {
	timeout time.Duration                        // of elections
	silent  func(atLeast time.Duration) []string // nodes that have sent nothing for that long
	members func() []*member

	lastLook    time.Time
	pausedUntil time.Time // no elections before
}

// every returns the interval of look: detection is late by at most a twentieth of the timeout.
func (d *leaderFailureDetector) every() time.Duration { return d.timeout / 20 }

// look triggers elections of the groups that a silent node leads. When look itself is late, this process has not run:
// messages wait to be read, and sessions may have to be opened again first. Then it pauses for an election timeout.
func (d *leaderFailureDetector) look() {
	now := time.Now()
	if !d.lastLook.IsZero() && now.Sub(d.lastLook) > 3*d.every() {
		d.pausedUntil = now.Add(d.timeout)
	}
	d.lastLook = now
	if now.Before(d.pausedUntil) {
		return
	}
	silent := d.silent(d.timeout)
	if len(silent) == 0 {
		return
	}
	for _, m := range d.members() {
		if leader := m.leader(); leader != "" && slices.Contains(silent, leader) {
			m.triggerElection()
		}
	}
}

// triggerElection makes a follower check now whether its leader has been silent for too long. Raft has no call for it,
// but it checks when its timeout becomes shorter.
func (m *member) triggerElection() {
	i := m.now.Load()
	follows := i != nil && m.lacks.Load() == nil && i.raft.State() == raft.Follower
	if !follows || time.Since(i.raft.LastContact()) < m.timeout {
		return
	}
	err := i.reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = m.timeout+1, m.timeout+1 })
	if err == nil {
		err = i.reload(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = m.timeout, m.timeout })
	}
	if err != nil {
		m.logger.Error("cannot trigger an election", "error", err)
	}
}

// reload changes settings of Raft, one caller after the other.
func (i *incarnation) reload(change func(*raft.ReloadableConfig)) error {
	i.conf.Lock()
	defer i.conf.Unlock()
	c := i.raft.ReloadableConfig()
	change(&c)
	return i.raft.ReloadConfig(c)
}
