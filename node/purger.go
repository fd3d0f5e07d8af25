package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// purgeEvery is how often a node looks for deleted namespaces.
	purgeEvery = time.Second
	// purgeTimeout is how long the purge of one shard may take at a time. What it does not reach, the next one does.
	purgeTimeout = 30 * time.Second
	// purgeReportEvery is after how long a leader reports again that a shard is purged, while the table still has the
	// namespace.
	purgeReportEvery = 10 * time.Second
	// purgeGatherMax bounds the entries that give pages back after a purge: a round over 16 million keys.
	purgeGatherMax = 1 << 12
	// purgeEnded is the place in a purge at which all is purged, and only pages are given back.
	purgeEnded = 1 << 62
)

// purger tells the shards that this node leads which namespaces are deleted, and has them forget those that are being
// purged: see cluster/control_deletion.go and shard/purge.go. It keeps nothing that a new leader of a shard would need.
type purger struct {
	replicas func() []*replica
	table    func() *cluster.Table
	// report tells the control leader what a shard has purged.
	report func(ctx context.Context, purged *ebbv1.NamespacesPurged) error
	logger *slog.Logger

	mu       sync.Mutex // guards what follows
	reported map[purgedShard]time.Time
	inStep   map[uint32]shardStep // by group: when all that was undeleted is known there
}

// shardStep is a table and a term in which a shard was compared with it.
type shardStep struct{ epoch, term uint64 }

type purgedShard struct {
	group   uint32
	name    string
	version uint64
}

func (p *purger) run(ctx context.Context) {
	watch(ctx, purgeEvery, func() { p.look(ctx) })
}

func (p *purger) look(ctx context.Context) {
	table := p.table()
	deleted := table.DeletedNamespaces()
	p.mu.Lock()
	if len(deleted) == 0 || p.reported == nil {
		p.reported = make(map[purgedShard]time.Time)
	}
	if p.inStep == nil {
		p.inStep = make(map[uint32]shardStep)
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, r := range p.replicas() {
		term, leads := r.leading()
		if !leads {
			continue
		}
		now := shardStep{table.Epoch(), term}
		if p.step(r.group) != now {
			wg.Go(func() { p.define(ctx, r, table, now) })
		}
		if len(deleted) > 0 {
			wg.Go(func() { p.shard(ctx, r, deleted) })
		}
	}
	wg.Wait()
}

func (p *purger) step(group uint32) shardStep {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inStep[group]
}

// define tells a shard of namespaces that were deleted and are not any more, and of event clocks that were set: writes
// would, and questions do not.
func (p *purger) define(ctx context.Context, r *replica, table *cluster.Table, now shardStep) {
	for _, name := range append(r.state.deletions(), r.state.behindClocks(table)...) {
		if ns := table.Namespace(name); ns != nil && r.state.version(name) < ns.GetVersion() {
			if err := r.define(ctx, name); err != nil {
				p.logger.Debug("namespace not defined yet", "shard", r.group, "namespace", name, "err", err)
				return
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inStep[r.group] = now
}

// define brings the definition of a namespace into the log of a shard that this replica leads, if the shard lacks it: it
// goes before the first command that names the namespace.
func (r *replica) define(ctx context.Context, name string) error {
	_, err := r.proposeCommand(ctx, &ebbv1.Command{Namespace: name, Body: &ebbv1.Command_Tick{Tick: new(ebbv1.Tick)}})
	return err
}

// shard brings one shard in step with the deletions of the table.
func (p *purger) shard(ctx context.Context, r *replica, deleted []*ebbv1.Namespace) {
	purged := &ebbv1.NamespacesPurged{Shard: r.group}
	for _, ns := range deleted {
		if ctx.Err() != nil {
			return
		}
		done, err := p.namespace(ctx, r, ns)
		if err != nil {
			p.logger.Debug("namespace not purged yet", "shard", r.group, "namespace", ns.GetName(), "err", err)
			return
		}
		if done && p.due(purgedShard{r.group, ns.GetName(), ns.GetVersion()}) {
			purged.Namespaces = append(purged.Namespaces, &ebbv1.NamespacesPurged_Purged{Name: ns.GetName(), Version: ns.GetVersion()})
		}
	}
	if len(purged.GetNamespaces()) == 0 {
		return
	}
	if err := p.report(ctx, purged); err != nil {
		p.logger.Debug("cannot report purged namespaces", "shard", r.group, "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range purged.GetNamespaces() {
		p.reported[purgedShard{r.group, one.GetName(), one.GetVersion()}] = time.Now()
	}
}

func (p *purger) due(one purgedShard) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, reported := p.reported[one]
	return !reported || time.Since(at) >= purgeReportEvery
}

// namespace tells a shard that a namespace is deleted, and purges it if it is to be. It reports whether the shard holds
// nothing of it.
func (p *purger) namespace(ctx context.Context, r *replica, ns *ebbv1.Namespace) (done bool, err error) {
	has := r.state.deletion(ns.GetName())
	if !ns.GetDeletion().GetPurging() {
		if has.Version >= ns.GetVersion() {
			return false, nil
		}
		return false, r.define(ctx, ns.GetName())
	}
	if has.Version >= ns.GetVersion() && has.Emptied {
		return true, nil
	}
	began, entries, dropped := time.Now(), 0, uint64(0)
	p.logger.Info("purge namespace", "shard", r.group, "namespace", ns.GetName(), "version", ns.GetVersion(), "keys", has.Keys)
	for from := uint64(0); !done; entries++ {
		result, err := r.proposeCommand(ctx, purgeCommand(ns, from))
		if err != nil {
			return false, err
		}
		from, done = result.GetPurge().GetNext(), result.GetPurge().GetDone()
		dropped += result.GetPurge().GetDropped()
	}
	for i := 0; i < purgeGatherMax && r.state.holed(); i++ {
		if _, err := r.proposeCommand(ctx, purgeCommand(ns, purgeEnded)); err != nil {
			return false, err // all is purged: the next look reports it, and later writes give pages back
		}
		entries++
	}
	p.logger.Info("namespace purged", "shard", r.group, "namespace", ns.GetName(), "version", ns.GetVersion(),
		"keys", dropped, "entries", entries, "took", time.Since(began).Round(time.Millisecond))
	return true, nil
}

func purgeCommand(ns *ebbv1.Namespace, from uint64) *ebbv1.Command {
	body := &ebbv1.Command_PurgeNamespace{PurgeNamespace: &ebbv1.PurgeNamespace{Version: ns.GetVersion(), From: from}}
	return &ebbv1.Command{Namespace: ns.GetName(), Body: body}
}

// proposeCommand puts a command into the log of a shard that this replica leads, and waits for its result.
func (r *replica) proposeCommand(ctx context.Context, command *ebbv1.Command) (*ebbv1.CommandResult, error) {
	raw, err := protobuf.Marshal(command)
	if err != nil {
		return nil, err
	}
	c := newCall(1)
	r.proposer.enqueue(c, 0, raw)
	r.proposer.kick()
	result := c.wait(ctx, r.disk.begun())[0]
	if err := proto.FromWire(result.GetError()); err != nil {
		return nil, err
	}
	return result, nil
}

// beginPurges ends the grace time of namespaces, on the control leader and by its clock.
func (n *Node) beginPurges(ctx context.Context) {
	c := n.groups.Load().control
	if _, leads := c.leading(); !leads {
		return
	}
	now := n.keeper.nowUS()
	for _, ns := range c.state.control.Table().DeletedNamespaces() {
		if ns.GetDeletion().GetPurging() || ns.GetDeletion().GetPurgeUs() > now {
			continue
		}
		begin := &ebbv1.BeginPurge{Name: ns.GetName(), Version: ns.GetVersion()}
		if _, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginPurge{BeginPurge: begin}}); err != nil {
			n.logger.Debug("cannot begin a purge", "namespace", ns.GetName(), "err", err)
			return
		}
		n.logger.Info("grace time of a deleted namespace is over", "namespace", ns.GetName())
	}
}

// reportPurged tells the control leader what a shard has purged.
func (n *Node) reportPurged(ctx context.Context, purged *ebbv1.NamespacesPurged) error {
	_, err := n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Purged{Purged: purged}})
	return err
}
