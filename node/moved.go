package node

import (
	"context"
	"sync"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// measure adds to moves that bring data how many bytes of it their new replicas have, as their nodes report. It adds
// nothing for a node that does not answer.
func (n *Node) measure(ctx context.Context, moves []*ebbv1.Move) {
	to := make(map[string][]*ebbv1.Move)
	for _, m := range moves {
		if m.GetPhase() == "joining" {
			to[m.GetTo()] = append(to[m.GetTo()], m)
		}
	}
	var asking sync.WaitGroup
	for node, moves := range to {
		asking.Go(func() {
			status := n.statusOn(ctx, node)
			for _, m := range moves {
				if r := replicaOf(status, m.GetShard()); r != nil {
					m.SentBytes, m.HeldBytes, m.LeftBytes = r.GetReceivedBytes(), r.GetHeldBytes(), r.GetComingBytes()
				}
			}
		})
	}
	asking.Wait()
}
