package node

import "sync/atomic"

// proposeMetrics counts what all proposers of a node do.
type proposeMetrics struct {
	entries, commands, bytes, overloads atomic.Uint64
}

func (m *proposeMetrics) sent(bytes, commands int) {
	m.entries.Add(1)
	m.commands.Add(uint64(commands))
	m.bytes.Add(uint64(bytes))
}

func (m *proposeMetrics) overloaded() { m.overloads.Add(1) }
