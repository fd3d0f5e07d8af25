package node

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// local is a transport that hands a request to a replica as if a peer had sent it, and returns when the replica has
// answered.
type local interface {
	Local(request any) error
}

// leaveMax is how long stop waits for a leader to step down.
const leaveMax = time.Second

// leave makes a leader step down, so that entries in flight are answered at once, and not when the lease ends. Raft has
// no call for that. But a replica that gets a heartbeat from a leader in its own term becomes a follower. So leave
// sends the replica a heartbeat that names the replica itself, which changes nothing else.
func (m *member) leave() {
	i := m.now.Load()
	if i == nil || i.raft.State() != raft.Leader {
		return
	}
	l, ok := i.link.carrier.(local)
	if !ok {
		return
	}
	self := []byte(i.link.LocalAddr())
	_ = l.Local(&raft.AppendEntriesRequest{ // if the transport is closed, no entry is in flight
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(m.replica)), Addr: self},
		Term:      i.raft.CurrentTerm(),
		Leader:    self,
	})
	eventually(leaveMax, func() bool { return i.raft.State() != raft.Leader })
}

// campaign makes a member ask for votes at once, without waiting until heartbeats are missing. It is for new groups,
// whose members all wait, and for groups of one.
func (m *member) campaign() {
	i := m.now.Load()
	if i == nil || m.lacks.Load() != nil || i.raft.State() != raft.Follower {
		return
	}
	if l, ok := i.link.carrier.(local); ok {
		_ = l.Local(&raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ // if it fails, elections go their usual way
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(m.replica)), Addr: []byte(i.link.LocalAddr()),
		}})
	}
}

// Campaign makes this node's replica of a shard ask for votes at once, as if the leader had asked it to. Tests force
// changes of leaders with it. It does nothing if this node has no replica of the shard, or leads it.
func (n *Node) Campaign(shard uint32) {
	if r, err := n.backend.replica(shard); err == nil {
		r.campaign()
	}
}

// Compact takes a snapshot of this node's replica of a shard now, and keeps nothing of the log behind it. A follower
// that lacks an earlier entry must then get the snapshot. Tests need seconds with it for what otherwise takes MiB of
// log. It does nothing if this node has no replica of the shard.
func (n *Node) Compact(shard uint32) (err error) {
	if r, none := n.backend.replica(shard); none == nil && r.now.Load() != nil {
		_, err = r.snapshot(0)
	}
	if errors.Is(err, raft.ErrNothingNewToSnapshot) || errors.Is(err, raft.ErrRaftShutdown) {
		return nil
	}
	return err
}
