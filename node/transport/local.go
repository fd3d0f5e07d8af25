package transport

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// Local hands this replica's Raft a request of its own node, as if a peer had
// sent it, and returns when it was answered. Raft has no other way to be told
// to step down, or to ask for votes now.
func (g *Group) Local(request any) error {
	timer := time.NewTimer(g.mux.cfg.ControlTimeout)
	defer timer.Stop()
	answer := make(chan raft.RPCResponse, 1)
	select {
	case g.consumer <- raft.RPC{Command: request, RespChan: answer}:
	case <-timer.C:
		return proto.ErrDeadline.Errorf("group %d takes no requests", g.id)
	case <-g.ctx.Done():
		return raft.ErrTransportShutdown
	}
	select {
	case a := <-answer:
		return a.Error
	case <-timer.C:
		return proto.ErrDeadline.Errorf("group %d does not answer", g.id)
	case <-g.ctx.Done():
		return raft.ErrTransportShutdown
	}
}
