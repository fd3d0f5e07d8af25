package proc

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// lookEvery is how often the trial looks which nodes lead. lookMax is how long an answer may take: nodes that are cut
// off give none.
const lookEvery, lookMax = time.Second, 2 * time.Second

// reigns are the leaders that were seen, with their shards and times.
type reigns struct {
	all  []swarm.Reign
	last map[uint32]int // in all, by shard
}

// see records the leaders that nodes report at a moment. If several nodes report that they lead a shard, the one with
// the highest term counts. If the same node led in the same term before, it has led all the time since.
func (r *reigns) see(at time.Duration, nodes []*ebbv1.NodeStatus) {
	now := make(map[uint32]swarm.Reign)
	for _, n := range nodes {
		for _, replica := range n.GetReplicas() {
			shard, term := replica.GetShard(), replica.GetTerm()
			if replica.GetRole() == "leader" && term > now[shard].Term {
				now[shard] = swarm.Reign{Shard: shard, Node: n.GetNode().GetName(), Term: term, From: at, To: at}
			}
		}
	}
	for shard, led := range now {
		i, known := r.last[shard]
		switch {
		case known && led.Term < r.all[i].Term: // this node has not learnt of the newer leader yet
		case known && led.Term == r.all[i].Term && led.Node == r.all[i].Node:
			r.all[i].To = at
		default:
			if r.last == nil {
				r.last = make(map[uint32]int)
			}
			r.last[shard] = len(r.all)
			r.all = append(r.all, led)
		}
	}
}

// watchLeaders records which nodes lead, until ctx ends.
func (w *world) watchLeaders(ctx context.Context, seen *reigns) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked, cancel := context.WithTimeout(ctx, lookMax)
		status, err := w.admin.Status(asked)
		cancel()
		if err == nil {
			seen.see(w.now(), status.GetNodes())
		}
	}
}
