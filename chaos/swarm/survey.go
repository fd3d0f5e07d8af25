package swarm

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// surveyor asks many keys at once and allows partial answers. An answer must have everything that was acknowledged in
// the shards that it says it includes.
type surveyor struct {
	w   *world
	rng *rand.Rand
}

func newSurveyor(w *world) *surveyor { return &surveyor{w, w.rng(5000)} }

func (s *surveyor) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(s.rng, 500, 4000))
	defer cancel()
	n := s.w.counts
	floors := make([]float64, spread)
	var keys []string
	n.mu.Lock()
	for k := range spread {
		floors[k] = n.keys[k].acked
		keys = append(keys, keyName(k))
	}
	n.mu.Unlock()
	d, err := c.Merged(ctx, countsNamespace, keys, 1, ebb.AllowPartial())
	s.w.read(err == nil)
	if err != nil {
		return
	}
	floor, ceiling := 0.0, 0.0
	n.mu.Lock()
	for k := range spread {
		shard := proto.ShardOf(countsNamespace, []byte(keyName(k)), s.w.plan.Shards)
		if !slices.Contains(d.Coverage.ShardsFailed, shard) && !slices.Contains(d.Coverage.ShardsStale, shard) {
			floor += floors[k]
		}
		ceiling += n.keys[k].ceiling()
	}
	n.mu.Unlock()
	s.w.hold("coverage-honest", d.Z >= floor && d.Z <= ceiling, "%d of %d shards (failed: %v) say %v, and %v was acknowledged before in those, and at most %v sent to all",
		d.Coverage.ShardsAnswered, d.Coverage.ShardsTotal, d.Coverage.ShardsFailed, d.Z, floor, ceiling)
}

func (s *surveyor) settle(context.Context, *ebb.Client) {}

// heal checks, after all was mended, that nodes become ready, writes are acknowledged, and preferred leaders lead
// again.
func (w *world) heal() {
	ctx, cancel := context.WithTimeout(context.Background(), readyMax)
	defer cancel()
	err := w.c.Ready(ctx)
	w.hold("restarts", err == nil, "%v", err)
	began := w.now()
	before := w.acknowledged()
	for w.acknowledged() < before+5 && w.now()-began < healMax {
		time.Sleep(50 * time.Millisecond)
	}
	w.hold("healed-writes", w.acknowledged() >= before+5, "%d commands were acknowledged in the %v after all was mended", w.acknowledged()-before, healMax)
	if !w.plan.Home || w.manySkewed {
		return
	}
	w.waiting.Store(true)
	astray := w.astray()
	for deadline := time.Now().Add(homeMax); astray != "" && time.Now().Before(deadline); astray = w.astray() {
		time.Sleep(250 * time.Millisecond)
	}
	w.hold("leaders-home", astray == "", "%v after all was mended, %s", homeMax, astray)
}

// astray describes a shard that its preferred node does not lead; empty if there is none.
func (w *world) astray() string {
	table := w.table()
	if table == nil {
		return "nobody knows a table"
	}
	for shard := uint32(1); shard <= w.plan.Shards; shard++ {
		leader := w.c.Leader(shard)
		if want := table.Preferred(shard); want != "" && (leader < 0 || w.c.Name(leader) != want) {
			return sprint("shard %d is led by node %d, and not by %s", shard, leader, want)
		}
	}
	return ""
}

func (w *world) acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.verdict.Tally.Acked
}

// settle makes the last checks, when all is mended and all clients have stopped.
func (w *world) settle(clients []client) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for k := range kinds {
		w.counts.settle(ctx, w.admin, k)
	}
	for _, c := range clients {
		c.settle(ctx, w.admin)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second) // purges take time
	defer cancel()
	w.listed(ctx)
	err := w.c.Agree(ctx)
	if !w.hold("replicas-equal", err == nil, "%v", err) {
		w.tellReplicas()
	}
	w.compare()
	if shard, ahead := w.c.Ahead(); !w.manySkewed {
		w.hold("clock-true", ahead <= 500*time.Millisecond, "the clock of shard %d is %v ahead of the time", shard, ahead)
	}
}

// tellReplicas adds the status of every replica to the story, to explain why replicas differ.
func (w *world) tellReplicas() {
	for i := range w.c.Nodes() {
		n := w.c.Node(i)
		if n == nil {
			continue
		}
		for _, r := range n.Status().GetReplicas() {
			w.tell("%s is %s of shard %d in term %d, led by %q: last %d, committed %d, applied %d", w.c.Name(i),
				r.GetRole(), r.GetShard(), r.GetTerm(), r.GetLeader(), r.GetLastIndex(), r.GetCommitIndex(), r.GetAppliedIndex())
		}
	}
}

// listed checks that every key with an acknowledged write is in the list of all keys.
func (w *world) listed(ctx context.Context) {
	have := map[string]bool{}
	for key, err := range w.admin.Keys(ctx, countsNamespace, ebb.KeysQuery{}) {
		if !w.hold("healed-reads", err == nil, "list the keys when all was mended: %v", err) {
			return
		}
		have[key.Key] = true
	}
	for k := range kinds {
		if w.counts.ackedOf(k) > 0 {
			w.hold("keys-listed", have[keyName(k)], "%s has something acknowledged, and is not listed", keyName(k))
		}
	}
}

// judgeCollapses checks that no node ended without an excuse.
func (w *world) judgeCollapses() {
	collapses := w.c.Collapses()
	w.hold("no-collapse", true, "")
	for _, c := range collapses {
		w.line(LineNode, "%v", c)
		w.hold("no-collapse", w.excused(c.Node, c), "%v", c)
	}
}
