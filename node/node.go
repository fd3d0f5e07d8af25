package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

// stopAllMax is how long all groups may take to stop. After that the log is closed, so that calls that wait for a
// stalled disk fail.
const stopAllMax = 10 * time.Second

// Node is one running process of a cluster.
type Node struct {
	cfg             Config
	logger          *slog.Logger
	repeats         *repeats
	started         time.Time
	again           bool        // this node had replicas before this start
	whole           atomic.Bool // this node has had all its replicas at some time since this start
	phase           *phase
	counts          counts
	unions          *unions // of period bitmaps
	memoryAdmission *memoryAdmission
	diskAdmission   *diskAdmission
	budgeted        atomic.Pointer[budgets] // as the table has them
	restores        chan struct{}           // limits snapshots decoded at a time
	audits          *audits
	repairs         chan repair
	// checksums limits the checksums that are computed for callers that compare replicas.
	checksums checksums
	// continuousUptime is measured as long as the node may have no shards yet.
	continuousUptime continuousUptime

	dir         *datadir
	tables      *tables
	listeners   *listeners
	log         *wal.Log
	directory   *directory
	mux         *transport.Mux
	keeper      *timekeeper
	peers       *rpc.Peers
	events      *events
	stall       *diskStall
	pace        *pacer
	statuses    *statusCache
	leaders     *cluster.Leaders
	namespaces  *namespaceCache
	fresh       *freshTable
	backend     *backend
	router      *cluster.Router
	coordinator *cluster.Coordinator
	servers     *servers
	inflight    inflightTracker
	watches     *rpc.Watches // of all interfaces
	answers     *budget.Pool // memory of answers, of all requests
	kept        *budget.Pool // memory of the last answers of watches
	trust       *trust.Store // nil: no TLS
	duplicates  *duplicateChecker
	handshakes  *handshakes
	checks      *transport.Checks // of connections in the clear
	gossipKeys  *gossipKeys       // nil: gossip is in the clear
	access      *rpc.Access

	groups     atomic.Pointer[groups]            // nil until this node has replicas
	damaged    atomic.Pointer[[]*damagedReplica] // damaged replicas that are not replaced yet; nil: there were none
	planner    *planner
	lostDisks  lostDisks
	knownPeers *knownPeers
	// recollection is what peers remember of this node's logs, and what this node remembers of theirs.
	recollection *recollection
	// snapshots is nil until this node has replicas.
	snapshots *snapshotter
	balancer  atomic.Pointer[balancer]

	ctx    context.Context // ends when the node stops
	cancel context.CancelFunc
	wg     sync.WaitGroup
	over   sync.Once // Close or Kill
	failed sync.Once // fatal
	broken atomic.Bool
}

// Open starts a node. It returns when the node listens and its log is open; Ready is closed when it serves. Errors that
// end the node after that go to Config.Fatal.
//
// Errors: LOCKED when another process has the data directory; NEWER_VERSION when this program cannot read its storage
// version; WRONG_CLUSTER when it belongs to another cluster; DISK when it cannot be written; CORRUPT when it is
// damaged; BAD_REQUEST for a setting that cannot work or an address that is taken.
func Open(ctx context.Context, given Config) (_ *Node, err error) {
	cfg := given.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, logger: cfg.Logger.With("node", cfg.Name), repeats: newRepeats(),
		started: cfg.Clock.Now(), unions: newUnions(cfg.UnionBytes), restores: make(chan struct{}, restoreWorkers()), checksums: newChecksums(),
	}
	n.phase = newPhase(n.logger)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var undo []func()
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			undo[i]()
		}
	}()
	undo = append(undo, n.cancel)

	if n.dir, err = openDatadir(cfg.FS, cfg.DataDir, cfg.Name, cfg.Storage); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = n.dir.close() })
	segment := cmp.Or(cfg.LogSegmentBytes, wal.SegmentBytesDefault)
	n.diskAdmission, err = openDiskAdmission(cfg.Name, cfg.FS, cfg.DataDir, cmp.Or(cfg.DiskReserve, reserveBytes), segment, n.logger)
	if err != nil {
		return nil, err
	}
	n.dir.fs = n.diskAdmission.reserve.All()
	n.again = n.dir.identity().Founded
	if err := n.dir.agree(&given); err != nil {
		return nil, err
	}
	n.cfg = n.dir.settle(cfg)
	if err := n.cfg.check(); err != nil {
		return nil, err
	}
	saved, err := n.dir.table()
	if err != nil {
		n.logger.Warn("the table of the last run cannot be read: the other nodes tell it again, and it is written anew", "file", n.dir.file(tableName), "err", err)
	}
	if err := n.cfg.checkProofs(saved); err != nil {
		return nil, err
	}
	n.tables = newTables(saved)
	n.watches = rpc.NewWatches(n.cfg.Registry)
	if err := n.openTrust(); err != nil {
		return nil, err
	}

	if n.listeners, err = listen(ctx, &n.cfg, func(host string) bool { return n.directory.has(host) }); err != nil {
		return nil, err
	}
	undo = append(undo, n.listeners.close)

	used, err := n.dir.used()
	if err != nil {
		return nil, err
	}
	n.log, err = wal.Open(wal.Config{
		FS: n.dir.fs, Dir: n.dir.file(walName), Logger: n.logger, Fail: cfg.Fail, Fatal: n.diskFailed, Existing: used,
		EndFile: n.dir.file(endName), SegmentBytes: n.diskAdmission.sizes.segment, TailBytes: segment, Short: n.diskAdmission.shortNow,
		BatchBytes: cfg.Limits.LogBatchBytes, EndSyncEvery: cfg.Limits.LogEndEvery,
	})
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", cfg.DataDir, err)
	}
	undo = append(undo, func() { _ = n.log.Close() })

	n.wire()
	undo = append(undo, func() { n.events.close(); n.mux.Close(); _ = n.peers.Close() })
	if err := n.gossip(ctx); err != nil {
		return nil, err
	}
	n.serve()
	n.run()
	return n, nil
}

// wire makes the parts of the node that do not listen.
func (n *Node) wire() {
	n.access = n.newAccess()
	n.directory = &directory{
		used: make(map[string]dialled), self: n.cfg.Name, own: addressOf(n.listeners.grpc), advertised: n.cfg.AdvertiseGRPC, connect: n.dial, table: n.Table,
	}
	election := cluster.ElectionTimeout(n.shardsAtMost())
	n.knownPeers = newKnownPeers(n.dir)
	n.recollection = newRecollection(n)
	n.mux = transport.New(transport.Config{
		Node: n.cfg.Name, ClusterID: n.clusterID, Dial: n.directory.dial, Now: n.cfg.Clock.Now,
		RecordContact: n.knownPeers.remember, Fail: n.cfg.Fail, Logger: n.logger, PingInterval: clockSample, ControlTimeout: controlTimeout(election), Coalesce: coalesce(election),
		DialOptions:  n.asNode(n.securedPeers()),
		SnapshotRate: max(0, n.cfg.MoveRate), ChunkBytes: n.cfg.Limits.ChunkBytes,
	})
	n.directory.linked = n.mux.Linked
	n.mux.SetReadIndexHandler(func(group uint32, replica, term uint64) bool {
		g := n.groups.Load()
		return g != nil && g.inTerm(group, replica, term)
	})
	n.keeper = newTimekeeper(n.cfg.Clock, n.mux.Offsets)
	n.peers = rpc.NewPeers(rpc.PeersConfig{Address: n.directory.grpc, Dial: n.dial, Options: n.peerOptions()})
	n.events = newEvents()
	n.stall = newDiskStall()
	n.pace = newPacer(n.log.LongestSync, n.logger)
	n.statuses = newStatusCache(func(node string) *ebbv1.NodeStatus { return n.statusOn(n.ctx, node) })
	n.leaders = cluster.NewLeaders(n.shardsAtMost())
	n.namespaces = newNamespaceCache(n.Table, n.askNamespaces, n.cfg.Limits.UnknownNames)
	n.fresh = &freshTable{ask: n.leaderEpoch, await: n.awaitEpoch}
	n.answers = budget.New("answers", budget.SizeFor(n.cfg.MemoryLimit))
	n.answers.CollectWith(runtime.GC)
	n.kept = budget.New("the last answers of watches", n.answers.Size()/keptShare)
	n.memoryAdmission = newMemoryAdmission(n.cfg.Name, n.cfg.MemoryLimit, n.cfg.used, n.mux, n.logger)
	n.connectMemoryAdmission(n.memoryAdmission)
	n.diskAdmission.peers = n.mux
	n.diskAdmission.peersUnderstand = func() bool { return n.Table().Version() >= proto.VersionDiskFull }
	n.audits, n.repairs = newAudits(n.cfg.Limits.AuditsAtOnce), make(chan repair, proto.ShardsMax)
	n.backend = &backend{node: n.cfg.Name, keeper: n.keeper, namespaces: n.namespaces, confirm: n.fresh.confirm, stall: n.stall, memoryAdmission: n.memoryAdmission, diskAdmission: n.diskAdmission, lead: n.readIndex, audits: n.audits, repairs: n.repairs, differs: n.dir.differs, count: &n.counts.read}
	n.coordinator = cluster.NewCoordinator(cluster.CoordinatorConfig{
		Node: n.cfg.Name, Table: n.Table, Leaders: n.leaders, Local: n.backend, Peers: remote{n.peers},
		Now: n.cfg.Clock.Now, Limits: n.cfg.Limits.Ask, Confirm: n.fresh.confirm,
	})
	n.backend.clocks = n.coordinator
	n.planner = newPlanner(n)
	n.duplicates = newDuplicateChecker(n)
	n.cfg.Registry.MustRegister(newCollector(n))
}

// shardsAtMost is the most shards that the cluster may have. A node that joins does not know their number yet.
func (n *Node) shardsAtMost() uint32 {
	if n.cfg.joins {
		return proto.ShardsMax
	}
	return n.cfg.Shards
}

// gossip joins the other nodes. In a cluster of one node without Join addresses, a failure is no error if Config.Gossip
// is the default: gossip is then off, and no other node can join.
func (n *Node) gossip(ctx context.Context) error {
	if n.cfg.Gossip == Off {
		return nil
	}
	err := n.openGossip(ctx)
	if err != nil && n.cfg.BootstrapExpect == 1 && len(n.cfg.Join) == 0 && n.cfg.Gossip == DefaultGossip {
		n.logger.Warn("gossip is off, so that no other node can join this one", "err", err)
		return nil
	}
	return err
}

func (n *Node) openGossip(ctx context.Context) error {
	listen, err := numeric(n.cfg.Gossip)
	if err != nil {
		return err
	}
	record := n.record()
	g, err := cluster.OpenGossip(ctx, cluster.GossipConfig{
		Node: n.cfg.Name, Boot: uint64(n.started.UnixMicro()),
		GRPC: unnamed(record.GetGrpcAddress()), HTTP: unnamed(record.GetHttpAddress()), Version: n.cfg.Version, Disk: record.GetDisk(),
		Network: n.cfg.Network, Resolve: resolver(n.cfg.Network), Listen: listen, Addr: n.cfg.AdvertiseGossip, Join: n.cfg.Join, Known: n.directory.known, Keys: n.gossipKeys.first(),
		Cluster: n.clusterID, DiskOf: func(node string) string { return n.Table().Node(node).GetDisk() }, OnForeignCluster: n.misjoined, OnDuplicate: n.duplicate, Logger: n.logger,
		Proven:        n.directory.connectedAt,
		ExchangeEvery: n.cfg.Limits.GossipExchangeEvery, RejoinEvery: n.cfg.Limits.GossipRejoinEvery,
	})
	if err != nil {
		return proto.ErrBadRequest.Errorf("gossip: %v", err).WithHint("choose a free address of this machine with --gossip")
	}
	n.directory.gossip.Store(g)
	return nil
}

// numeric makes the address that gossip listens on. Gossip needs an IP address.
func numeric(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", proto.ErrBadRequest.Errorf("gossip address %q is not host:port", address)
	}
	switch host {
	case "":
		host = "0.0.0.0"
	case "localhost":
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return "", proto.ErrBadRequest.Errorf("gossip address %q: %q is not an IP address", address, host)
	}
	return net.JoinHostPort(host, port), nil
}

// serve starts the gRPC, HTTP and admin servers.
func (n *Node) serve() {
	n.router = cluster.NewRouter(cluster.RouterConfig{
		Node: n.cfg.Name, Table: n.Table, Leaders: n.leaders, Local: n.backend, Peers: remote{n.peers},
		Now: n.cfg.Clock.Now, Limits: n.cfg.Limits.Ask, Confirm: n.fresh.confirm,
	})
	door := cluster.NewKeys(n.router, n.coordinator)
	budget := rpc.NewBudget(n.cfg.MemoryLimit, n.cfg.Registry)
	services := rpc.Services{
		Router: n.router, Coordinator: n.coordinator, Keys: door, Queries: cluster.NewQueries(door),
		Local: n.backend, Cluster: clusterView{n}, Backups: newBackups(n),
		Node: n.cfg.Name, Version: n.cfg.Version, Ready: n.Readiness, Started: n.startup, Logger: n.logger, Traces: n.cfg.Traces,
		Access: n.access, Watches: n.watches, Budget: budget, Answers: n.answers, Kept: n.kept,
		Registerer: n.cfg.Registry, Gatherer: n.cfg.Registry,
	}
	options := append(n.cfg.tracedServer(), n.securedServer(budget)...)
	options = append(options, grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20), grpc.ChainUnaryInterceptor(n.inflight.unary))
	g := rpc.NewGRPC(services, options...)
	n.mux.Register(g)
	public, admin := services, services
	public.Hosts, admin.Hosts = n.cfg.hosts(n.listeners.http), n.cfg.hosts(n.listeners.admin)
	n.servers = serve(n.listeners, g, n.http(rpc.NewHTTP(public)), n.cfg.adminHTTP(rpc.NewAdmin(admin), n.trust, n.handshakes))
}

// readIndex asks another node for the read indexes of shards that it leads.
func (n *Node) readIndex(ctx context.Context, node string, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	p, err := n.peers.Peer(node)
	if err != nil {
		return nil, err
	}
	return p.ReadIndex(ctx, req)
}

func (n *Node) fetchSnapshot(ctx context.Context, node string, id uint32, into io.Writer) (*ebbv1.SnapshotSummary, error) {
	p, err := n.peers.Peer(node)
	if err != nil {
		return nil, err
	}
	return p.Snapshot(ctx, id, into)
}

func (n *Node) askAudited(ctx context.Context, node string, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	p, err := n.peers.Peer(node)
	if err != nil {
		return nil, err
	}
	return p.Audited(ctx, req)
}

func (n *Node) askRepair(ctx context.Context, node string, req *ebbv1.RepairRequest) error {
	if node == n.cfg.Name {
		_, err := n.backend.Repair(ctx, req)
		return err
	}
	p, err := n.peers.Peer(node)
	if err != nil {
		return err
	}
	return p.Repair(ctx, req)
}

// remote finds other nodes for the router and the coordinator.
type remote struct{ peers *rpc.Peers }

// Backend implements cluster.Peers.
func (r remote) Backend(node string) (cluster.Backend, error) {
	p, err := r.peers.Peer(node)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the background tasks, and then the replicas.
func (n *Node) run() {
	disk := &diskWatch{oldest: n.log.OldestWaitingSync, mute: n.mute, fatal: n.fatal, logger: n.logger}
	n.wg.Go(func() { watch(n.ctx, clockSample, n.keeper.sample) })
	n.wg.Go(func() { watch(n.ctx, watchEvery, disk.look, n.memoryAdmission.look, n.diskAdmission.look) })
	n.wg.Go(func() { watch(n.ctx, paceEvery, n.pace.look) })
	if n.trust != nil || n.gossipKeys != nil {
		n.wg.Go(func() { watch(n.ctx, trustEvery, n.lookTrust) })
	}
	n.wg.Go(func() { n.duplicates.run(n.ctx) })
	n.wg.Go(func() { watch(n.ctx, saveAckedEvery, n.recollection.save) })
	n.wg.Go(func() {
		if err := n.tables.run(n.ctx, n.keep); err != nil {
			n.fatal(err)
		}
	})
	n.wg.Go(func() {
		if err := n.bringUp(n.ctx); err != nil && n.ctx.Err() == nil {
			n.fatal(err)
		}
	})
}

// mute keeps this node from leading anything, or allows it again.
func (n *Node) mute(on bool) {
	n.stall.set(on)
	n.mux.Mute(on)
}

// adopt makes g the groups of this node.
func (n *Node) adopt(g *groups) {
	n.balancer.Store(newBalancer(n.cfg.Name, func() []*replica { return n.groups.Load().replicas }, n.Table, n.directory.alive, n.sound, n.statuses.slow, n.logger))
	b := n.balancer.Load()
	b.every, b.after = n.cfg.Limits.BalanceEvery, n.cfg.Limits.BalanceAfter
	n.tables.control.Store(g.control.state.control)
	n.groups.Store(g)
}

// look starts the tasks that watch and maintain the groups.
func (n *Node) look(ctx context.Context, g *groups) {
	members := func() []*member { return n.groups.Load().members }
	groups := newGroupWatch(members, n.fatal, n.logger)
	n.snapshots = newSnapshotter(n.log, members, n.logger, &n.counts.snapshot)
	n.snapshots.limits = n.cfg.Limits.snapshots()
	n.snapshots.limits.least(n.cfg.SnapshotBytes)
	n.snapshots.limits.log = min(n.snapshots.limits.log, n.diskAdmission.sizes.log)
	n.snapshots.short = n.diskAdmission.short
	n.diskAdmission.needs.Store(n.snapshots)
	n.snapshots.stir = func(m *member) { n.stir(ctx, m) }
	if n.cfg.ScrubEvery > 0 {
		scrub := &scrubber{
			every: n.cfg.ScrubEvery, log: n.log, members: members, unsound: n.snapshots.unsound.Store, count: &n.counts.scrub,
			logger: n.logger, limiter: rate.NewLimiter(scrubRate, scrubBurst),
		}
		n.wg.Go(func() { scrub.run(ctx) })
	}
	n.wg.Go(func() { watch(ctx, watchEvery, n.attend, groups.look); groups.wg.Wait() })
	failures := &leaderFailureDetector{timeout: cluster.ElectionTimeout(n.dir.identity().Shards), silent: n.mux.Silent, members: members}
	n.wg.Go(func() { watch(ctx, failures.every(), failures.look) })
	n.wg.Go(func() { n.snapshots.run(ctx) })
	n.wg.Go(func() { n.balancer.Load().run(ctx) })
	slowDisks := newSlowDiskBalancer(n.cfg.Name, n.pace.now, n.groups.Load, n.directory.alive, n.statuses, &n.counts.slowDiskHandovers, n.logger)
	n.wg.Go(func() { watch(ctx, n.cfg.Limits.BalanceEvery, slowDisks.look) })
	sweeper := &sweeper{
		func() []*replica { return n.groups.Load().replicas }, n.router.Sweep, n.keeper, n.logger,
		n.cfg.Limits.SweepEvery, n.cfg.Limits.SweepAtOnce,
	}
	n.wg.Go(func() { sweeper.run(ctx) })
	purger := &purger{
		replicas: func() []*replica { return n.groups.Load().replicas }, table: n.Table, report: n.reportPurged,
		learnClock: n.backend.beforeSettings,
		giveBack:   n.cfg.GiveBack, logger: n.logger, every: n.cfg.Limits.PurgeEvery,
	}
	n.wg.Go(func() { purger.run(ctx) })
	auditor := &auditor{
		node: n.cfg.Name, replicas: func() []*replica { return n.groups.Load().replicas }, found: n.audits,
		ask: n.askAudited, repair: n.askRepair, count: &n.counts.audit, logger: n.logger,
		every: n.cfg.Limits.AuditEvery,
	}
	n.wg.Go(func() { auditor.run(ctx) })
	repairer := &repairer{
		dir: n.dir.file(quarantineDir), fs: n.diskAdmission.reserve.Most(), fail: n.cfg.Fail, count: &n.counts.audit, fetch: n.fetchSnapshot, others: n.skewed, lead: n.readIndex,
		sound: func(r *replica) error { return n.dir.differs(r.group, r.member.replica, 0) },
	}
	n.wg.Go(func() { repairer.run(ctx, n.repairs) })
	n.wg.Go(func() { g.control.register(ctx, n.cfg.Limits.RegisterEvery, n.records) })
	n.wg.Go(func() { watch(ctx, recallEvery, n.recollection.look) })
	n.wg.Go(func() { n.recollection.run(ctx) })
	reconciler := &replicaReconciler{n: n}
	n.wg.Go(func() { watch(ctx, n.cfg.Limits.ReconcileEvery, func() { reconciler.look(ctx) }) })
	mover := newMover(n)
	n.wg.Go(func() { watch(ctx, moveEvery, func() { mover.look(ctx) }); mover.wg.Wait() })
	n.wg.Go(func() { watch(ctx, n.cfg.Limits.PlanEvery, func() { n.planner.look(ctx) }) })
	n.wg.Go(func() { watch(ctx, n.cfg.Limits.ForgetEvery, n.forget) })
	n.wg.Go(func() { watch(ctx, n.cfg.Limits.UsageEvery, func() { n.askUsage(ctx) }) })
	upgrader := &versionUpgrader{n: n}
	n.wg.Go(func() {
		watch(ctx, n.cfg.Limits.RaiseEvery, func() { upgrader.look(ctx) }, func() { n.beginPurges(ctx) })
	})
}

// skewed asks the balancer to move a shard's leadership to a node with a better clock.
func (n *Node) skewed(r *replica) {
	if b := n.balancer.Load(); b != nil {
		b.skewed(r)
	}
}

// onNamespaceRejected logs that a namespace's settings are not in force in a shard.
func (n *Node) onNamespaceRejected(r *replica, ns *ebbv1.Namespace, refusal *ebbv1.Error) {
	const message = "a shard refuses a version of a namespace and stays at the one it has"
	if skipped, ok := n.repeats.due(message, time.Now()); ok {
		n.logger.Error(message, "shard", r.group, "namespace", ns.GetName(), "version", ns.GetVersion(), "has", r.version(ns.GetName()),
			"err", refusal.GetMessage(), "times_unsaid", skipped)
	}
}

// records returns the record of this node. It adds the records of other nodes whose replicas run, as they report them,
// if these differ from the table's.
func (n *Node) records(ctx context.Context) []*ebbv1.NodeRecord {
	records := []*ebbv1.NodeRecord{n.record()}
	table := n.Table()
	for _, m := range n.directory.members() {
		have := table.Node(m.Node)
		if m.Node == n.cfg.Name || !m.Alive || have == nil {
			continue
		}
		if reaches(have.GetGrpcAddress(), m.GRPC) && reaches(have.GetHttpAddress(), m.HTTP) && have.GetGossipAddress() == m.Gossip && have.GetVersion() == m.Version && have.GetEnrolled() && have.GetDisk() != "" {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, surveyMax)
		r, err := n.askStatus(ask, n.peers, m.Node)
		cancel()
		if err == nil && r.runs() && n.trusts(&r) {
			records = append(records, r.record)
		}
	}
	return records
}

// Table returns the cluster's table as this node knows it; it is empty before
// the cluster is born.
func (n *Node) Table() *cluster.Table { return n.tables.now() }

// clusterID returns the cluster's identity; "" before this node knows it.
func (n *Node) clusterID() string { return n.Table().ClusterID() }

// keep saves a table for the next start. It refuses the table of another cluster.
func (n *Node) keep(t *cluster.Table) error {
	id := n.dir.identity()
	if id.ClusterID != "" && id.ClusterID != t.ClusterID() {
		return proto.ErrWrongCluster.Errorf("data directory %s belongs to cluster %s, and its control group is that of cluster %s", n.cfg.DataDir, id.ClusterID, t.ClusterID())
	}
	if t.Shards() != id.Shards {
		return proto.ErrWrongCluster.Errorf("data directory %s is of a cluster of %d shards, and this one has %d", n.cfg.DataDir, id.Shards, t.Shards())
	}
	if err := n.adoptVersion(t.Version()); err != nil {
		return err
	}
	if err := n.cfg.checkProofs(t); err != nil {
		return err
	}
	if id.ClusterID == "" {
		if err := n.dir.update(func(id *identity) { id.ClusterID = t.ClusterID() }); err != nil {
			return err
		}
		if g := n.directory.gossip.Load(); g != nil {
			g.Announce()
		}
	}
	return n.dir.saveTable(t)
}

// Name returns the node's name.
func (n *Node) Name() string { return n.cfg.Name }

// Ready is closed when the node serves: its replicas run, know their leaders
// and have applied their logs.
func (n *Node) Ready() <-chan struct{} { return n.phase.ready }

// Addresses returns where the node listens.
func (n *Node) Addresses() Addresses {
	a := Addresses{GRPC: addressOf(n.listeners.grpc), HTTP: addressOf(n.listeners.http), Admin: addressOf(n.listeners.admin)}
	if g := n.directory.gossip.Load(); g != nil {
		a.Gossip = g.Addr()
	}
	return a
}

// diskFailed is called by the log when a write or sync failed.
func (n *Node) diskFailed(err error) {
	n.broken.Store(true)
	n.mute(true)
	n.fatal(diskError(n.cfg.DataDir, "log", err))
}

// fatal reports, once, that the node cannot continue. It does nothing while the node stops.
func (n *Node) fatal(err error) {
	if n.ctx.Err() != nil {
		return
	}
	n.failed.Do(func() {
		n.logger.Error("the node cannot go on", "err", err)
		n.cfg.Fatal(err)
	})
}

// Kill stops the node as a crash would, as far as other nodes can see: it hands nothing over, flushes nothing and
// announces nothing. It returns when nothing of the node runs any more.
func (n *Node) Kill() {
	n.over.Do(func() {
		n.phase.enter(phaseStopping, "killed")
		n.watches.Close()
		n.cancel()
		n.mux.Close()
		if g := n.directory.gossip.Load(); g != nil {
			_ = g.Kill() // the others have to detect it
		}
		cut := make(chan struct{})
		go func() { n.servers.kill(); close(cut) }()
		_ = n.halt() // what answers requests may wait for it
		<-cut
		_ = n.stop()
	})
}

// peerOptions are the options of every connection on which this node calls another one.
func (n *Node) peerOptions() []grpc.DialOption {
	return n.asNode(append(n.cfg.tracedPeers(), n.securedPeers()...))
}

// halt ends everything but the servers, after n.ctx has ended. The groups end first, since background tasks may wait
// for them. The groups in turn may wait for a disk that hangs. Groups that started during that time end last.
func (n *Node) halt() error {
	return errors.Join(n.letGo(n.stopGroups), n.letGo(n.wg.Wait), n.letGo(n.stopGroups))
}

// stopGroups stops all members.
func (n *Node) stopGroups() {
	if g := n.groups.Load(); g != nil {
		g.stop()
	}
}

// letGo returns when end does. If end takes too long, letGo closes the log, which releases goroutines that wait for a
// stalled or failed disk.
func (n *Node) letGo(end func()) error {
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	limit := stopAllMax
	if n.broken.Load() {
		limit = 0
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
	}
	err := n.log.Close()
	<-ended
	return err
}

// stop closes what is left, in the reverse order of Open.
func (n *Node) stop() error {
	n.events.close()
	n.audits.wg.Wait()
	n.knownPeers.wg.Wait()
	n.recollection.save()
	return errors.Join(n.peers.Close(), n.log.Close(), n.dir.close())
}
