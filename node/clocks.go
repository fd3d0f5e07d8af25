package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// clocksEvery is how often a node tells the others which event clocks have moved. A node is behind by this and the
	// time of a call.
	clocksEvery = 250 * time.Millisecond
	// clocksTimeout is how long such a call may take. Other nodes are told meanwhile.
	clocksTimeout = time.Second
)

// clockPeer is another node as far as event clocks go.
type clockPeer interface {
	Clocks(ctx context.Context, req *ebbv1.ClocksRequest) (*ebbv1.ClocksResponse, error)
}

// clockTeller tells the other nodes of event clocks that have moved, whoever moved them, so that one that cannot hear a
// leader hears it from a third. The first call to a node asks for all that it has heard of. Nothing is said while there
// is no namespace with an event clock, or none has moved.
type clockTeller struct {
	clocks *cluster.EventClocks
	table  func() *cluster.Table
	others func() []string
	peer   func(name string) (clockPeer, error)

	mu   sync.Mutex // guards what follows
	told map[string]*toldClocks
}

// toldClocks is what a node has been told. Only the call that is under way to it writes to it.
type toldClocks struct {
	greeted bool
	busy    bool // guarded by clockTeller.mu
	clocks  map[string]*ebbv1.EventClock
}

func (c *clockTeller) run(ctx context.Context) {
	var wg sync.WaitGroup
	watch(ctx, clocksEvery, func() { c.look(ctx, &wg) })
	wg.Wait()
}

// look begins a call to each node that is to be told something, unless one is under way.
func (c *clockTeller) look(ctx context.Context, wg *sync.WaitGroup) {
	table := c.table()
	if table.Version() < proto.VersionClocks || !slices.ContainsFunc(table.Namespaces(), proto.OnEventTime) {
		return
	}
	c.clocks.Keep(table)
	all, others := c.clocks.All(), c.others()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = make(map[string]*toldClocks)
	}
	for name := range c.told {
		if !slices.Contains(others, name) {
			delete(c.told, name)
		}
	}
	for _, name := range others {
		to := c.told[name]
		if to == nil {
			to = &toldClocks{clocks: make(map[string]*ebbv1.EventClock)}
			c.told[name] = to
		}
		if to.busy {
			continue
		}
		if news := to.news(all); len(news) > 0 || !to.greeted {
			to.busy = true
			wg.Go(func() { c.tell(ctx, name, to, news) })
		}
	}
}

// news are the clocks that a node has not been told yet.
func (t *toldClocks) news(all []*ebbv1.NamespaceClock) (list []*ebbv1.NamespaceClock) {
	for _, one := range all {
		if t.clocks[one.GetNamespace()] != one.GetClock() {
			list = append(list, one)
		}
	}
	return list
}

func (c *clockTeller) tell(ctx context.Context, name string, to *toldClocks, news []*ebbv1.NamespaceClock) {
	ctx, cancel := context.WithTimeout(ctx, clocksTimeout)
	defer cancel()
	err := c.call(ctx, name, to, news)
	c.mu.Lock()
	defer c.mu.Unlock()
	if to.busy = false; err != nil {
		to.greeted = false // it may have started anew
	}
}

func (c *clockTeller) call(ctx context.Context, name string, to *toldClocks, news []*ebbv1.NamespaceClock) error {
	peer, err := c.peer(name)
	if err != nil {
		return err
	}
	resp, err := peer.Clocks(ctx, &ebbv1.ClocksRequest{Clocks: news, All: !to.greeted})
	if err != nil {
		return err
	}
	to.greeted = true
	for _, one := range news {
		to.clocks[one.GetNamespace()] = one.GetClock()
	}
	hearClocks(c.clocks, resp.GetClocks())
	return nil
}

func hearClocks(clocks *cluster.EventClocks, list []*ebbv1.NamespaceClock) {
	for _, one := range list {
		clocks.Heard(one.GetNamespace(), one.GetClock())
	}
}

// Clocks takes in what another node has heard, and says what this one has.
func (v clusterView) Clocks(_ context.Context, req *ebbv1.ClocksRequest) (*ebbv1.ClocksResponse, error) {
	hearClocks(&v.n.clocks, req.GetClocks())
	if !req.GetAll() {
		return &ebbv1.ClocksResponse{}, nil
	}
	return &ebbv1.ClocksResponse{Clocks: v.n.clocks.All()}, nil
}

// SetNamespaceClock begins a new epoch of a namespace's event clock: in the control group, and by a question that only a
// shard which knows the epoch answers, in all shards.
func (v clusterView) SetNamespaceClock(
	ctx context.Context, req *ebbv1.SetNamespaceClockRequest,
) (resp *ebbv1.SetNamespaceClockResponse, err error) {
	n := v.n
	if now := n.keeper.nowUS(); req.GetNowUs() > now {
		return nil, proto.ErrBadTime.Errorf("time %s is ahead of the clock of node %s", time.UnixMicro(req.GetNowUs()).UTC().Format(time.RFC3339), n.cfg.Name).
			WithHint("a clock is set to a time that has come")
	}
	err = n.asControlLeader(ctx, func(c *control) error {
		result, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNamespaceClock{SetNamespaceClock: req}})
		resp = &ebbv1.SetNamespaceClockResponse{Namespace: result.GetNamespace()}
		return err
	}, func(ctx context.Context, leader controlPeer) (err error) {
		resp, err = leader.SetNamespaceClock(ctx, req)
		return err
	})
	if err != nil || forwarded(ctx) {
		return resp, err
	}
	n.awaitNamespace(ctx, resp.GetNamespace())
	answers, err := n.coordinator.Ask(ctx, &ebbv1.AskRequest{
		Questions:    []*ebbv1.Question{{Namespace: req.GetName(), Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}},
		AllowPartial: true,
	})
	if err != nil {
		return nil, err
	}
	coverage := answers.GetAnswers()[0].GetCoverage()
	resp.Shards, resp.Waits = coverage.GetShardsAnswered(), coverage.GetShardsFailed()
	return resp, nil
}

// behindClocks are the names of namespaces of which the shard has not heard that their clock was set.
func (m *shardMachine) behindClocks(table *cluster.Table) (names []string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, ns := range table.Namespaces() {
		if epoch := ns.GetClockSet().GetEpoch(); epoch > 0 && m.state.ClockEpochBehind(ns.GetName(), epoch) {
			names = append(names, ns.GetName())
		}
	}
	return names
}

// eventClock returns the event clock of a namespace as the shard has it; 0 where there is none.
func (m *shardMachine) eventClock(name []byte) (epoch uint64, nowUS int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, now := m.state.EventClock(name)
	return e, int64(now)
}

// reading implements proposals.
func (r *replica) reading(ns *ebbv1.Namespace) *ebbv1.EventClock {
	if !proto.OnEventTime(ns) {
		return nil
	}
	known := r.clocks.Of(ns.GetName())
	if known == nil {
		return nil
	}
	if epoch, now := r.state.eventClock([]byte(ns.GetName())); epoch == known.GetEpoch() && now >= known.GetNowUs() {
		return nil
	}
	return known
}
