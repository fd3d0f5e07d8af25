package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	// purgeEvery is how often a node looks for deleted namespaces.
	purgeEvery = time.Second
	// purgeTimeout is how long the purge of one shard may take at a time. The next purge continues where it ended.
	purgeTimeout = 30 * time.Second
	// purgeReportEvery is how long a leader waits before it reports again that a shard is purged, while the table still
	// has the namespace.
	purgeReportEvery = 10 * time.Second
	// purgeGatherMax bounds the entries that free pages after a purge: one round over 16 million keys.
	purgeGatherMax = 1 << 12
	// giveBackAfter is how long after the last purge a node returns memory to the system: what the purge leaves is
	// garbage by then.
	giveBackAfter = 5 * time.Second
	// purgeEnded is the place in a purge at which all is purged, and only pages are freed.
	purgeEnded = 1 << 62
)

// purger brings deletions and new settings of namespaces to the shards that this node leads, and purges namespaces
// whose grace time is over: see cluster/control_deletion.go and shard/purge.go. It keeps nothing that a new leader of a
// shard would need.
type purger struct {
	replicas func() []*replica
	table    func() *cluster.Table
	// learnClock refreshes the event clock of a namespace, which goes into the log before new settings.
	learnClock func(ctx context.Context, r *replica, namespace string)
	// report reports to the control leader what a shard has purged.
	report func(ctx context.Context, purged *ebbv1.NamespacesPurged) error
	// giveBack returns unused memory to the system; nil: not done.
	giveBack func()
	logger   *slog.Logger
	every    time.Duration

	giveBackAt time.Time // zero: no purge has ended since the last time; only look uses it
	purging    bool      // a namespace is being purged; only look uses it

	mu       sync.Mutex // guards what follows
	reported map[purgedShard]time.Time
	places   map[purgedShard]uint64 // where purges continue that were interrupted
	inStep   map[uint32]shardStep   // by group: when the shard had the settings of all namespaces that it knows
}

// shardStep is the table's epoch and the term in which a shard was compared with the table.
type shardStep struct{ epoch, term uint64 }

type purgedShard struct {
	group   uint32
	name    string
	version uint64
}

func (p *purger) run(ctx context.Context) {
	watch(ctx, p.every, func() { p.look(ctx) })
}

func (p *purger) look(ctx context.Context) {
	table := p.table()
	deleted := table.DeletedNamespaces()
	p.settle(time.Now(), deleted)
	p.mu.Lock()
	if len(deleted) == 0 || p.reported == nil {
		p.reported, p.places = make(map[purgedShard]time.Time), make(map[purgedShard]uint64)
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
			wg.Go(func() { p.catchUp(ctx, r, table, now) })
		}
		if len(deleted) > 0 {
			wg.Go(func() { p.shard(ctx, r, deleted) })
		}
	}
	wg.Wait()
}

// settle calls giveBack some time after the last purge, also for purges of shards that other nodes lead.
func (p *purger) settle(now time.Time, deleted []*ebbv1.Namespace) {
	was := p.purging
	p.purging = slices.ContainsFunc(deleted, func(ns *ebbv1.Namespace) bool { return ns.GetDeletion().GetPurging() })
	switch {
	case p.purging:
		p.giveBackAt = time.Time{}
	case was:
		p.giveBackAt = now.Add(giveBackAfter)
	case !p.giveBackAt.IsZero() && !now.Before(p.giveBackAt):
		p.giveBackAt = time.Time{}
		if p.giveBack != nil {
			p.giveBack()
		}
	}
}

func (p *purger) step(group uint32) shardStep {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inStep[group]
}

// catchUp brings the settings of namespaces to a shard that has older ones. The next write to the shard would do so
// too. Without a write, its keys would be read by the old settings, such as a half-life that was changed.
func (p *purger) catchUp(ctx context.Context, r *replica, table *cluster.Table, now shardStep) {
	for _, known := range r.state.definitions() {
		if ns := table.Namespace(known.GetName()); ns != nil && changed(known, ns) {
			p.learnClock(ctx, r, known.GetName())
			if err := r.define(ctx, known.GetName()); err != nil {
				p.logger.Debug("cannot tell a shard the settings of a namespace yet",
					"shard", r.group, "namespace", known.GetName(), "err", err)
				return
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inStep[r.group] = now
}

// changed reports whether a table has later settings of a namespace than a shard knows. A restore into another cluster
// raises only the version, which is no change. Budgets do not concern shards.
func changed(known, now *ebbv1.Namespace) bool {
	if known.GetVersion() >= now.GetVersion() {
		return false
	}
	return !protobuf.Equal(settingsOf(known), settingsOf(now))
}

// settingsOf returns a definition without its version and budget, and with a value for each setting: a setting that is
// left out means the same as its default.
func settingsOf(ns *ebbv1.Namespace) *ebbv1.Namespace {
	none, never := int64(0), false
	least := proto.DefaultNamespaceSettings()
	least.AllowNegative, least.SlowHalfLifeUs, least.WindowUs = &never, &none, &none
	settings := proto.FillNamespace(protobuf.CloneOf(ns), least)
	settings.Version, settings.Budget = 0, nil
	return settings
}

// define brings the definition of a namespace into the log of a shard that this replica leads, if the shard lacks it.
// The definition precedes the first command that names the namespace.
func (r *replica) define(ctx context.Context, name string) error {
	_, err := r.proposeCommand(ctx, &ebbv1.Command{Namespace: name, Body: &ebbv1.Command_Tick{Tick: new(ebbv1.Tick)}})
	return err
}

// shard brings the deletions of the table to one shard, and reports what is purged.
func (p *purger) shard(ctx context.Context, r *replica, deleted []*ebbv1.Namespace) {
	purged := &ebbv1.NamespacesPurged{Shard: r.group}
	for _, ns := range deleted {
		if ctx.Err() != nil {
			return
		}
		done, err := p.namespace(ctx, r.group, purgedReplica{r}, ns)
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

// purgeTarget is what a purge needs of a shard that this node leads.
type purgeTarget interface {
	// deletion returns what the shard knows of the deletion of a namespace.
	deletion(namespace string) shard.Deletion
	// holed reports whether further entries can free pages.
	holed() bool
	// define brings the definition of a namespace into the log.
	define(ctx context.Context, namespace string) error
	// proposeCommand puts a command into the log and waits for its result.
	proposeCommand(ctx context.Context, command *ebbv1.Command) (*ebbv1.CommandResult, error)
}

// purgedReplica is the purgeTarget of a replica.
type purgedReplica struct{ *replica }

func (r purgedReplica) deletion(namespace string) shard.Deletion { return r.state.deletion(namespace) }
func (r purgedReplica) holed() bool                              { return r.state.holed() }

// namespace makes a shard learn that a namespace is deleted, and purges it if its grace time is over. It reports
// whether the shard holds nothing of it. If ctx ends a purge, the next call continues where it was. In a shard of many
// keys, a purge that began again each time would never end.
func (p *purger) namespace(
	ctx context.Context, group uint32, r purgeTarget, ns *ebbv1.Namespace,
) (done bool, err error) {
	has := r.deletion(ns.GetName())
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
	p.logger.Info("purge namespace",
		"shard", group, "namespace", ns.GetName(), "version", ns.GetVersion(), "keys", has.Keys)
	here := purgedShard{group, ns.GetName(), ns.GetVersion()}
	for from := p.place(here); !done; entries++ {
		result, err := r.proposeCommand(ctx, purgeCommand(ns, from))
		if err != nil {
			return false, err
		}
		from, done = result.GetPurge().GetNext(), result.GetPurge().GetDone()
		dropped += result.GetPurge().GetDropped()
		p.setPlace(here, from)
	}
	for i := 0; i < purgeGatherMax && r.holed(); i++ {
		if _, err := r.proposeCommand(ctx, purgeCommand(ns, purgeEnded)); err != nil {
			return false, err // all is purged: the next look reports it, and later writes free pages
		}
		entries++
	}
	p.logger.Info("namespace purged", "shard", group, "namespace", ns.GetName(), "version", ns.GetVersion(),
		"keys", dropped, "entries", entries, "took", time.Since(began).Round(time.Millisecond))
	return true, nil
}

// place returns the place at which a purge continues; 0 if it begins.
func (p *purger) place(of purgedShard) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.places[of]
}

func (p *purger) setPlace(of purgedShard, from uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.places == nil {
		p.places = make(map[purgedShard]uint64)
	}
	p.places[of] = from
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
	result := c.wait(ctx, r.stall.begun())[0]
	if err := proto.FromWire(result.GetError()); err != nil {
		return nil, err
	}
	return result, nil
}

// medianUS returns the time of day by the median clock of the control group's voters, in microseconds since 1970. It is
// not known while too few clocks are known.
func (c *control) medianUS(keeper *timekeeper) (us int64, known bool) {
	_, voters := c.voters()
	return keeper.median(c.node, voters)
}

// timeOfDeletion returns the time at which a namespace is deleted or restored: the median of the clocks, which ends its
// grace time too. A leader whose own clock is an hour behind would shorten the grace time by an hour.
func (c *control) timeOfDeletion(ctx context.Context, keeper *timekeeper) (us int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockWait)
	defer cancel()
	known := false
	if err := await(ctx, clockPoll, func() bool { us, known = c.medianUS(keeper); return known }); err != nil {
		return 0, errClockUnknown
	}
	return us, nil
}

// beginPurges ends the grace time of namespaces, on the control leader and by the median of the voters' clocks.
func (n *Node) beginPurges(ctx context.Context) {
	c := n.groups.Load().control
	if _, leads := c.leading(); !leads {
		return
	}
	now, known := c.medianUS(n.keeper)
	if !known {
		return // a clock that is ahead would end grace times too early
	}
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

// reportPurged reports to the control leader what a shard has purged.
func (n *Node) reportPurged(ctx context.Context, purged *ebbv1.NamespacesPurged) error {
	_, err := n.manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Purged{Purged: purged}})
	return err
}
