package node

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// vigil has replicas elect another leader when the node of theirs has been silent for an election timeout. Raft alone
// looks at its own random times, which come one to three timeouts after the last word, and two followers must have looked
// before one of them is elected. It knows of a node and not of its groups, so that one that is late is left to Raft.
type vigil struct {
	timeout time.Duration                        // of elections
	silent  func(atLeast time.Duration) []string // the nodes of which nothing has come
	members func() []*member

	last  time.Time // when it looked
	until time.Time // when it looks at others again
}

// every is how often it looks: the twentieth part that it may come too late.
func (v *vigil) every() time.Duration { return v.timeout / 20 }

// look rouses the followers of nodes that are silent. When it comes late itself, this process has not run, and what was said meanwhile is still to be read, by sessions that may have
// to be opened again first: it accuses nobody for an election timeout.
func (v *vigil) look() {
	now := time.Now()
	if !v.last.IsZero() && now.Sub(v.last) > 3*v.every() {
		v.until = now.Add(v.timeout)
	}
	v.last = now
	if now.Before(v.until) {
		return
	}
	silent := v.silent(v.timeout)
	if len(silent) == 0 {
		return
	}
	for _, m := range v.members() {
		if leader := m.leader(); leader != "" && slices.Contains(silent, leader) {
			m.rouse()
		}
	}
}

// rouse makes a follower look now whether its leader has been silent for too long. Raft has no call for it; but it looks when
// its timeout becomes shorter.
func (m *member) rouse() {
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
		m.logger.Error("cannot look for a leader", "error", err)
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
