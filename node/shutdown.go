package node

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ebbdb/ebb/proto"
)

// handOverAllMax is how long a closing node may take to hand over what it leads. A Kubernetes pod has 30 s to end.
const handOverAllMax = 8 * time.Second

// auditDrainMax is how long a closing node waits for lines of the audit log that are not on its disk yet.
const auditDrainMax = 2 * time.Second

// Close hands over what this node leads, and stops. It takes a fraction of a second if the other nodes are well, and a
// few seconds at most if they are not:
//
//	not ready -> goodbye by gossip -> leaders handed over -> new requests refused ->
//	requests in flight answered -> groups stopped -> audit log written -> log closed
//
// The goodbye comes first, so that no node hands a shard back. Gossip runs until the leaders have moved, so that
// nothing is handed to nodes that leave as well. While leaders move, requests are served as usual. When the servers
// refuse new requests, those in flight find a leader on another node.
func (n *Node) Close() (err error) {
	n.over.Do(func() {
		start := time.Now()
		n.phase.enter(phaseStopping, "hands over its shards")
		n.watches.Close() // they would never end
		if g := n.directory.gossip.Load(); g != nil {
			g.Leave()
		}
		kept := n.handOverAll()
		if g := n.directory.gossip.Load(); g != nil {
			_ = g.Close() // the others know that this node leaves
		}
		over := time.Now()
		n.inflight.close()
		n.servers.shut(&n.inflight)
		n.logger.Info("handed over and answered", "still_led", kept, "handing_over", over.Sub(start).Round(time.Millisecond), "answering", time.Since(over).Round(time.Millisecond))
		n.cancel()
		err = n.halt()
		n.mux.Close()
		n.servers.drain()
		if left := n.access.Drain(auditDrainMax); left > 0 {
			n.logger.Error("the audit log lacks lines: its disk did not take them before the node ended", "lines", left)
		}
		err = errors.Join(err, n.stop())
	})
	return err
}

// handOverAll hands over every group that this node leads, if others can take it, and returns how many groups it still
// leads.
func (n *Node) handOverAll() (kept int) {
	b, g := n.balancer.Load(), n.groups.Load()
	if b == nil || g == nil || n.broken.Load() {
		return 0
	}
	deadline := time.Now().Add(handOverAllMax)
	b.leaveAll(handOverAllMax)
	eventually(time.Until(deadline), func() bool {
		if _, leads := g.control.leading(); !leads || !othersAlive(g.control.member, b.node, b.alive) {
			return true
		}
		heir, ok := g.control.heir("", b.alive)
		return ok && g.control.cede(heir)
	})
	for _, m := range g.members {
		if _, leads := m.leading(); leads {
			kept++
		}
	}
	return kept
}

// inflightTracker counts gRPC requests in flight, and lets none begin once it is closed. Streams of other nodes, and
// watches, do not pass through it.
type inflightTracker struct {
	count  atomic.Int64
	closed atomic.Bool
}

func (g *inflightTracker) close() { g.closed.Store(true) }

// unary is an interceptor of a gRPC server. A request that it refuses was not served, and may be sent to another node.
func (g *inflightTracker) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	g.count.Add(1)
	defer g.count.Add(-1)
	if g.closed.Load() && info.FullMethod != grpc_health_v1.Health_Check_FullMethodName {
		return nil, proto.ErrShuttingDown.Errorf("the node is stopping")
	}
	return handler(ctx, req)
}

// shut lets no public request begin, and waits for those in flight. The streams of other nodes and the admin server
// continue.
func (s *servers) shut(g *inflightTracker) {
	ctx, cancel := context.WithTimeout(context.Background(), drainMax)
	defer cancel()
	shutdown(ctx, s.http)
	eventually(drainMax, func() bool { return g.count.Load() == 0 })
}

func shutdown(ctx context.Context, h *http.Server) {
	if h != nil && h.Shutdown(ctx) != nil {
		_ = h.Close() // the caller has to retry requests that were cut off
	}
}
