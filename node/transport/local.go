package transport

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// Local passes a request to this replica's Raft as if a peer had sent it, and waits for the answer. Raft has no other
// interface to make it step down, or start an election now.
func (g *Group) Local(request any) error {
	_, err := g.ownRaft(request, g.mux.cfg.ControlTimeout)
	return err
}

// ownRaft is Local with a time limit, and returns the answer.
func (g *Group) ownRaft(request any, most time.Duration) (any, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	answer := make(chan raft.RPCResponse, 1)
	select {
	case g.consumer <- raft.RPC{Command: request, RespChan: answer}:
	case <-timer.C:
		return nil, proto.ErrDeadline.Errorf("group %d takes no requests", g.id)
	case <-g.ctx.Done():
		return nil, raft.ErrTransportShutdown
	}
	select {
	case a := <-answer:
		return a.Response, a.Error
	case <-timer.C:
		return nil, proto.ErrDeadline.Errorf("group %d does not answer", g.id)
	case <-g.ctx.Done():
		return nil, raft.ErrTransportShutdown
	}
}
