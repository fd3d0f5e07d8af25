package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/cluster"
)

// namespacesShown is the number of namespaces with metrics: each becomes a time series that stays.
const namespacesShown = 20

// collector reads a node's state when its metrics are collected.
type collector struct {
	n *Node
}

func newCollector(n *Node) *collector { return &collector{n} }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ebb_node_"+name, help, labels, nil)
}

var (
	descPhase        = describe("phase", "1 for the phase that the node is in.", "phase")
	descLed          = describe("shards_led", "Groups that this node leads, the control group included.")
	descReplicas     = describe("replicas", "Groups of which this node has a member.")
	descLeaderless   = describe("shards_without_leader", "Groups here that know no leader.")
	descUnapplied    = describe("entries_unapplied", "Entries known to be committed and not yet applied, over all groups here.")
	descKeys         = describe("keys", "Keys held by the shards here.")
	descToSweep      = describe("bitmaps_to_sweep", "Bitmaps placed by slice that are gone and have parts to be swept, of the shards that this node leads.")
	descLogBytes     = describe("log_bytes", "Size of the log on disk.")
	descLogLive      = describe("log_live_bytes", "Bytes of log entries that groups still hold.")
	descLogSegments  = describe("log_segments", "Segments of the log.")
	descLogWritten   = describe("log_written_bytes_total", "Bytes written to the log.")
	descSyncs        = describe("log_syncs_total", "Syncs of the log.")
	descSyncSeconds  = describe("log_sync_seconds_total", "Time spent in syncs of the log, with the writes before them.")
	descSyncMax      = describe("log_sync_max_seconds", "The longest sync of the log so far.")
	descDiskSlow     = describe("disk_slow", "1 while this node's disk is so slow that it hands over what it leads.")
	descDiskHandover = describe("disk_slow_handovers_total", "Groups that this node handed over because its disk was slow.")
	descSyncWaiting  = describe("log_sync_waiting_seconds", "How long the oldest sync has been waiting.")
	descProposals    = describe("proposals_total", "Entries proposed by this node.")
	descProposed     = describe("proposed_commands_total", "Commands in them.")
	descProposedSize = describe("proposed_bytes_total", "Bytes in them.")
	descWaiting      = describe("waiting_bytes", "Bytes of commands that wait for an entry.")
	descOverloads    = describe("overloads_total", "Commands refused because too much waited.")
	descExpired      = describe("expired_commands_total", "Commands that were not proposed because no caller waited for them any more.")
	descApplies      = describe("applied_entries_total", "Entries applied to shards.")
	descApplied      = describe("applied_commands_total", "Commands in them.")
	descAppliedSize  = describe("applied_bytes_total", "Bytes in them.")
	descApplyTime    = describe("apply_seconds", "How long shards took to apply an entry.")
	descQuestions    = describe("questions_total", "Questions answered by shards.")
	descViews        = describe("questions_on_views_total", "Questions so expensive that they were answered on a frozen view.")
	descIDs          = describe("bitmap_ids_changed_total", "Ids that commands put into bitmaps, took out or stored, with repetitions.")
	descPieces       = describe("bitmap_pieces_total", "Pieces of questions about bitmaps that were answered at once.")
	descUnionBytes   = describe("bitmap_unions_bytes", "Bytes of unions of periods that are kept for windows.")
	descUnions       = describe("bitmap_unions", "Unions of periods that are kept for windows.")
	descUnionsMade   = describe("bitmap_unions_made_total", "Unions of periods that were made.")
	descUnionsGone   = describe("bitmap_unions_evicted_total", "Of them, those that made way for others.")
	descUnionsOld    = describe("bitmap_unions_outdated_total", "Of them, those of which a bitmap changed.")
	descWindows      = describe("bitmap_windows_total", "Windows of periods in questions to shards.")
	descWindowsHit   = describe("bitmap_windows_answered_total", "Of them, those that unions were there for.")
	descMemoryUsed   = describe("memory_used_bytes", "Memory that this node takes: pages in use, and what lives on Go's heap.")
	descMemoryLimit  = describe("memory_limit_bytes", "Memory that this process may take; 0 without a limit.")
	descMemoryFull   = describe("memory_full", "1 while this node refuses what would make its shards larger.")
	descPressed      = describe("memory_pressed", "1 while this node refuses namespaces that take more than their share of it.")
	descOverBudget   = describe("budget_refusals_total", "Commands refused for their namespace's budget, or its share of a node.", "reason")
	descHeldBytes    = describe("namespace_bytes", "About what a namespace takes here; of the largest.", "namespace")
	descHeldKeys     = describe("namespace_keys", "Keys of a namespace in shards led here; of the largest.", "namespace")
	descNoMemory     = describe("memory_refusals_total", "Commands refused because this node, or another that holds the shard, had no memory left for more.")
	descDiskFree     = describe("disk_free_bytes", "Free bytes where the data directory is.")
	descDiskFull     = describe("disk_full", "1 while this node refuses what would make its shards larger because its disk is full.")
	descDiskReserve  = describe("disk_reserve_bytes", "Bytes of the disk that are held back for when it is full.")
	descNoDisk       = describe("disk_refusals_total", "Commands refused because the disk of this node, or of another that holds the shard, was full.")
	descAnswers      = describe("answer_memory_bytes", "Memory that is charged for answers of requests under way, until they have left this node.")
	descAnswersMax   = describe("answer_memory_limit_bytes", "Memory that answers may take together: a request for more waits, and is then refused with EBB-1004.")
	descAnswersWait  = describe("answer_memory_waits_total", "How often a request waited for memory for its answers.")
	descAnswersNot   = describe("answer_memory_refusals_total", "How often a request was refused because there was none.")
	descWatchKept    = describe("watch_memory_bytes", "Memory of the last answers of watches, with which the next are compared.")
	descAudits       = describe("audits_total", "Comparisons of the replicas of a shard that this node led.")
	descDiverged     = describe("replicas_diverged_total", "Replicas found to differ from the majority of their shard, by this node as leader.")
	descUndecided    = describe("audits_undecided_total", "Comparisons at which replicas differed and no majority agreed.")
	descRepairing    = describe("replicas_quarantined", "Replicas here that differ from the majority of their shard and are being repaired.")
	descShort        = describe("replicas_short", "Replicas here that lack what they acknowledged, and do not vote.")
	descRepairs      = describe("replicas_repaired_total", "Replicas here that took the state of their leader.")
	descHedges       = describe("hedges_total", "Calls to other nodes that were made a second time, to other replicas, because the first was slow.")
	descHedgesWon    = describe("hedges_won_total", "Of them, those that answered first.")
	descRounds       = describe("read_rounds_total", "Confirmations of leadership for reads.")
	descSnapshots    = describe("snapshots_total", "Snapshots taken.")
	descSnapBytes    = describe("snapshot_bytes_total", "Bytes in them.")
	descSnapWritten  = describe("snapshot_written_bytes_total", "Bytes written to disk for snapshots, taken or installed: what no older one has, and lists.")
	descSnapReused   = describe("snapshot_reused_bytes_total", "Bytes of snapshots, taken or installed, that older ones had on disk.")
	descInstallSent  = describe("snapshot_install_sent_bytes_total", "Bytes of snapshots that went to replicas on other nodes.")
	descInstallHad   = describe("snapshot_install_skipped_bytes_total", "Bytes of such snapshots that stayed here: the replicas had them.")
	descScrubs       = describe("scrubs_total", "Times that all snapshots and the log on this node's disk were read again.")
	descScrubbed     = describe("scrubbed_bytes_total", "Bytes read for that.")
	descConnDamages  = describe("connections_damaged_total", "Connections between nodes in the clear that were closed because what came on them had another checksum.")
	descDamages      = describe("damages_found_total", "Snapshots, and times that segments of the log, were found damaged by it.")
	descInstallWait  = describe("snapshot_install_waited_seconds_total", "Time that such snapshots waited so as to stay below --move-rate.")
	descInstallCame  = describe("snapshot_install_received_bytes_total", "Bytes of snapshots that came from other nodes.")
	descInstallHeld  = describe("snapshot_install_held_bytes_total", "Bytes of such snapshots that did not have to come: they were here.")
	descInstalls     = describe("snapshot_installs", "Snapshots on their way to other nodes (out), and from them (in).", "direction")
	descSnapSeconds  = describe("snapshot_seconds_total", "Time spent on them.")
	descMovesBegun   = describe("moves_begun_total", "Moves of replicas that this node began as leader of the control group.")
	descMovesDone    = describe("moves_settled_total", "Memberships of groups that this node led when they had become what the table wants.")
	descMoveSteps    = describe("move_steps_total", "Changes of memberships made by this node as leader of groups.")
	descMoveFailures = describe("move_failures_total", "Of the steps of moves, those that failed and are tried again.")
	descLeaps        = describe("membership_leaps", "Configurations here that changed several servers at once.")
	descMoving       = describe("shards_moving", "Groups whose membership is being changed, in the whole cluster.")
	descRefused      = describe("gossip_refused_total", "Packets, streams and members of gossip that were refused.", "reason")
	descDupChecks    = describe("rivals_asked_total", "Requests sent because of duplicates or foreign clusters in gossip.")
	descDupUnproven  = describe("rivals_unproven_total", "Duplicates in gossip that did not end this node.")
	descOffset       = describe("clock_offset_seconds", "How far a peer's clock is ahead of this node's.", "peer")
)

// Describe implements prometheus.Collector. It describes nothing, since peers come and go.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	name, _ := c.n.phase.now()
	gauge(descPhase, 1, name)
	c.groups(gauge)
	c.log(gauge, count)
	k := &c.n.counts
	count(descProposals, k.propose.entries.Load())
	count(descProposed, k.propose.commands.Load())
	count(descProposedSize, k.propose.bytes.Load())
	gauge(descWaiting, float64(k.propose.waiting.Load()))
	count(descOverloads, k.propose.overloads.Load())
	count(descExpired, k.propose.expired.Load())
	count(descApplies, k.apply.entries.Load())
	count(descApplied, k.apply.commands.Load())
	count(descAppliedSize, k.apply.bytes.Load())
	atMost, n, seconds := k.apply.took.histogram()
	to <- prometheus.MustNewConstHistogram(descApplyTime, n, seconds, atMost)
	count(descQuestions, k.read.questions.Load())
	count(descViews, k.read.views.Load())
	count(descIDs, k.apply.ids.Load())
	count(descPieces, k.read.pieces.Load())
	c.unions(gauge, count)
	c.memory(to, gauge, count)
	c.disk(gauge, count)
	count(descAudits, k.audit.audits.Load())
	count(descDiverged, k.audit.diverged.Load())
	count(descUndecided, k.audit.undecided.Load())
	gauge(descRepairing, float64(k.audit.repairing.Load()))
	gauge(descShort, float64(c.n.groups.Load().short()))
	count(descRepairs, k.audit.repairs.Load())
	sent, won := c.n.coordinator.Hedges()
	count(descHedges, sent)
	count(descHedgesWon, won)
	count(descRounds, k.read.rounds.Load())
	count(descMovesBegun, k.moves.begun.Load())
	count(descMovesDone, k.moves.settled.Load())
	count(descMoveSteps, k.moves.steps.Load())
	count(descMoveFailures, k.moves.failed.Load())
	gauge(descLeaps, float64(c.n.MembershipLeaps()))
	table, moving := c.n.Table(), 0
	for id := range table.Shards() + 1 {
		if table.UnderWay(id) {
			moving++
		}
	}
	gauge(descMoving, float64(moving))
	count(descSnapshots, k.snapshot.snapshots.Load())
	count(descSnapBytes, k.snapshot.bytes.Load())
	count(descSnapWritten, k.snapshot.files.Written.Load())
	installs := c.n.mux.Installs()
	count(descInstallSent, installs.Sent)
	count(descInstallHad, installs.Skipped)
	to <- prometheus.MustNewConstMetric(descInstallWait, prometheus.CounterValue, installs.Waited.Seconds())
	count(descScrubs, k.scrub.passes.Load())
	count(descScrubbed, k.scrub.bytes.Load())
	count(descConnDamages, c.n.checks.Damaged())
	count(descDupChecks, c.n.duplicates.asked.Load())
	count(descDupUnproven, c.n.duplicates.unproven.Load())
	if g := c.n.directory.gossip.Load(); g != nil {
		for _, why := range cluster.GossipRefusals {
			to <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(g.Refused(why)), string(why))
		}
	}
	count(descDamages, k.scrub.damages.Load())
	count(descInstallCame, k.snapshot.came.Load())
	count(descInstallHeld, k.snapshot.held.Load())
	gauge(descInstalls, float64(installs.Out), "out")
	gauge(descInstalls, float64(installs.In), "in")
	count(descSnapReused, k.snapshot.files.Reused.Load())
	to <- prometheus.MustNewConstMetric(descSnapSeconds, prometheus.CounterValue, float64(k.snapshot.nanos.Load())/1e9)
	for peer, offset := range c.n.mux.Offsets(time.Time{}) {
		gauge(descOffset, offset.Seconds(), peer)
	}
}

func (c *collector) memory(
	to chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64),
) {
	r, full := c.n.memoryAdmission, 0.0
	if r.full() {
		full = 1
	}
	gauge(descMemoryUsed, float64(r.used()))
	gauge(descMemoryLimit, float64(r.limit))
	gauge(descMemoryFull, full)
	count(descNoMemory, r.refusals.Load())
	pressed := 0.0
	if r.pressed() {
		pressed = 1
	}
	gauge(descPressed, pressed)
	for reason, n := range map[string]uint64{"budget": r.budgetRefusals.Load(), "share": r.shareRefusals.Load()} {
		to <- prometheus.MustNewConstMetric(descOverBudget, prometheus.CounterValue, float64(n), reason)
	}
	for _, ns := range r.usage.largest(namespacesShown) {
		gauge(descHeldBytes, float64(ns.GetHeld()), ns.GetName())
		gauge(descHeldKeys, float64(ns.GetKeys()), ns.GetName())
	}
	gauge(descAnswers, float64(c.n.answers.Used()))
	gauge(descAnswersMax, float64(c.n.answers.Size()))
	count(descAnswersWait, c.n.answers.Waits())
	count(descAnswersNot, c.n.answers.Refusals())
	gauge(descWatchKept, float64(c.n.kept.Used()))
}

func (c *collector) disk(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64)) {
	r, full := c.n.diskAdmission, 0.0
	if r.short() {
		full = 1
	}
	held, _ := r.reserve.Held()
	gauge(descDiskFree, float64(r.free.Load()))
	gauge(descDiskFull, full)
	gauge(descDiskReserve, float64(held))
	count(descNoDisk, r.refusals.Load())
}

func (c *collector) unions(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64)) {
	s := c.n.unions.stats()
	gauge(descUnionBytes, float64(s.Bytes))
	gauge(descUnions, float64(s.Kept))
	count(descUnionsMade, s.Made)
	count(descUnionsGone, s.Evicted)
	count(descUnionsOld, s.Outdated)
	count(descWindows, s.Windows)
	count(descWindowsHit, s.Answered)
}

func (c *collector) groups(gauge func(*prometheus.Desc, float64, ...string)) {
	var led, leaderless, replicas, unapplied, keys, toSweep float64
	if g := c.n.groups.Load(); g != nil {
		for _, m := range g.members {
			s := m.status()
			if s == nil {
				continue
			}
			replicas++
			unapplied += float64(s.CommitIndex - min(s.CommitIndex, s.AppliedIndex))
			if _, leads := m.leading(); leads {
				led++
			}
			if s.Leader == "" {
				leaderless++
			}
		}
		for _, r := range g.replicas {
			keys += float64(r.state.keys())
			if _, leads := r.leading(); leads {
				toSweep += float64(r.state.orphans.Load())
			}
		}
	}
	gauge(descLed, led)
	gauge(descReplicas, replicas)
	gauge(descLeaderless, leaderless)
	gauge(descUnapplied, unapplied)
	gauge(descKeys, keys)
	gauge(descToSweep, toSweep)
}

func (c *collector) log(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64)) {
	s := c.n.log.Stats()
	gauge(descLogBytes, float64(s.Bytes))
	gauge(descLogLive, float64(s.LiveBytes))
	gauge(descLogSegments, float64(s.Segments))
	count(descLogWritten, uint64(s.Written))
	count(descSyncs, uint64(s.Batches))
	gauge(descSyncSeconds, s.SyncTime.Seconds())
	gauge(descSyncMax, s.SyncMax.Seconds())
	gauge(descSyncWaiting, c.n.log.OldestWaitingSync().Seconds())
	slow := 0.0
	if c.n.pace.now().slow {
		slow = 1
	}
	gauge(descDiskSlow, slow)
	count(descDiskHandover, c.n.counts.slowDiskHandovers.Load())
}
