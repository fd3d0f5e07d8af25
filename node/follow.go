package node

import (
	"context"
	"sync"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ReadIndex returns how far replicas on other nodes must have applied the logs of shards that this node leads before
// they answer. Each barrier begins after the request came. So a replica that has applied that much has everything that
// was acknowledged before.
func (b *backend) ReadIndex(ctx context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	resp := &ebbv1.ReadIndexResponse{Results: make([]*ebbv1.ReadIndex, len(req.GetShards()))}
	rounds := make([]*readRound, len(req.GetShards()))
	replicas := make([]*replica, len(rounds))
	for i, number := range req.GetShards() {
		r, err := b.replica(number)
		if err == nil {
			if _, leads := r.leading(); !leads {
				err = r.notLeader()
			}
		}
		if err != nil {
			resp.Results[i] = &ebbv1.ReadIndex{Error: err.Wire()}
			continue
		}
		replicas[i], rounds[i] = r, r.barrier.join()
	}
	for i, round := range rounds {
		if round == nil {
			continue
		}
		if err := replicas[i].barrier.pass(ctx, round); err != nil {
			resp.Results[i] = &ebbv1.ReadIndex{Error: proto.AsError(err).Wire()}
			continue
		}
		resp.Results[i] = &ebbv1.ReadIndex{Index: round.index}
		if req.GetApplied()[i] < round.index {
			replicas[i].proposer.tick() // heartbeats carry no commit index: on an idle shard the other one would hear of it with the next entry
		}
	}
	return resp, nil
}

// follow makes the reads on replicas that do not lead wait until these are as far as their leaders were after the
// request came. It makes one call to each node that leads some of them.
func (b *backend) follow(ctx context.Context, reads shardReads) {
	var wg sync.WaitGroup
	led := map[string][]*shardRead{}
	for i := range reads {
		if g := &reads[i]; g.follows {
			leader := g.replica.leader()
			if leader == "" || leader == b.node {
				g.err = g.replica.notLeader()
				continue
			}
			led[leader] = append(led[leader], g)
		}
	}
	for leader, list := range led {
		wg.Go(func() { b.catchUp(ctx, leader, list) })
	}
	wg.Wait()
}

// catchUp makes reads wait for the read indexes of one node, which leads their groups.
func (b *backend) catchUp(ctx context.Context, leader string, reads []*shardRead) {
	req := &ebbv1.ReadIndexRequest{}
	for _, g := range reads {
		req.Shards = append(req.Shards, g.shard)
		req.Applied = append(req.Applied, g.replica.state.index())
	}
	resp, err := b.lead(ctx, leader, req)
	for i, g := range reads {
		switch {
		case err != nil:
			g.err = proto.AsError(err)
		case resp.GetResults()[i].GetError() != nil:
			g.err = proto.FromWire(resp.GetResults()[i].GetError())
		case g.replica.awaitIndex(ctx, resp.GetResults()[i].GetIndex()) != nil:
			g.err = errDeadline(g.shard)
		}
	}
}
