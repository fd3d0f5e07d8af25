package cluster

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Control is the state machine of the control group, group 0: node records, placement, namespaces and tokens. Its state
// depends on its log alone: no clock, no I/O, no randomness. One goroutine applies; any number may read Table at the
// same time.
type Control struct {
	applied uint64
	table   atomic.Pointer[Table] // swapped whole, never written to
	// changes counts, by namespace, the changes after which shards begin a new era. Shards keep a list of eras, so
	// their number is limited. A shard that skips versions never sees more changes than are counted here, so it never
	// refuses one.
	changes map[string]uint32
	purges  purges
	clients clientChanges
	limits  ControlLimits
}

// ControlLimits bound how much history the control group keeps. They affect results, so all its members must use the
// same limits.
type ControlLimits struct {
	HalfLifeChanges uint32 // per namespace: changes of its half-life, or of anything else that SameArithmetic compares
	ClientChanges   int    // see clientChanges
}

// DefaultControlLimits returns the limits of production.
func DefaultControlLimits() ControlLimits {
	return ControlLimits{HalfLifeChanges: proto.HalfLifeChangesMax, ClientChanges: clientChangesMax}
}

// SetLimits replaces the default limits. It must be called before the first entry is applied.
func (c *Control) SetLimits(l ControlLimits) { c.limits = l }

// NewControl returns the state before the first entry: a table without cluster
// id, nodes, shards and namespaces.
func NewControl() *Control {
	c := &Control{changes: make(map[string]uint32), purges: make(purges), limits: DefaultControlLimits()}
	empty, err := NewTable(&ebbv1.Table{})
	if err != nil {
		panic(err) // invariant: the empty table is complete
	}
	c.table.Store(empty)
	return c
}

// Table returns the current table. It never changes; later entries make new ones.
func (c *Control) Table() *Table { return c.table.Load() }

// Applied returns the index of the last entry applied. Only the goroutine that
// applies may call it.
func (c *Control) Applied() uint64 { return c.applied }

// CheckControlCommand returns why Apply would panic on raw: CORRUPT if it is malformed, NEWER_VERSION if a newer
// version wrote it. Proposers check before they append.
func CheckControlCommand(raw []byte) *proto.Error {
	_, err := parseControlCommand(raw)
	return err
}

func parseControlCommand(raw []byte) (*ebbv1.ControlCommand, *proto.Error) {
	cmd := new(ebbv1.ControlCommand)
	if err := pb.Unmarshal(raw, cmd); err != nil {
		return nil, proto.ErrCorrupt.Errorf("control command of %d bytes: %v", len(raw), err)
	}
	switch {
	case cmd.Body == nil && len(cmd.ProtoReflect().GetUnknown()) > 0:
		return nil, proto.ErrNewerVersion.Errorf("control command of a kind that this version does not know")
	case cmd.Body == nil:
		return nil, proto.ErrCorrupt.Errorf("control command without a body")
	}
	return cmd, nil
}

// Apply applies one entry of the log and returns its result; nil for an entry that was applied before. The result also
// reports refusals. Apply panics on committed bytes that CheckControlCommand refuses: otherwise this replica would
// diverge from the others.
func (c *Control) Apply(index uint64, raw []byte) *ebbv1.ControlResult {
	if index <= c.applied {
		return nil
	}
	cmd, err := parseControlCommand(raw)
	if err != nil {
		panic(fmt.Sprintf("control log, entry %d: %v", index, err))
	}
	c.applied = index
	key := c.keyOf(cmd)
	var result *ebbv1.ControlResult
	if before, ok := c.clients.find(key); key != nil && ok {
		result = c.repeated(cmd, before)
	} else {
		if result, err = c.execute(cmd); key != nil {
			c.clients = c.clients.with(key, err, c.limits.ClientChanges)
		}
		result.Error = err.Wire()
	}
	result.Epoch = c.Table().Epoch()
	result.ClusterId = c.Table().ClusterID()
	return result
}

// execute carries out a command.
func (c *Control) execute(cmd *ebbv1.ControlCommand) (result *ebbv1.ControlResult, err *proto.Error) {
	result = new(ebbv1.ControlResult)
	switch body := cmd.Body.(type) {
	case *ebbv1.ControlCommand_InitCluster:
		err = c.initCluster(body.InitCluster)
	case *ebbv1.ControlCommand_SetNamespace:
		result.Namespace, err = c.setNamespace(body.SetNamespace)
	case *ebbv1.ControlCommand_PutNode:
		err = c.putNode(body.PutNode.GetRecord())
	case *ebbv1.ControlCommand_JoinNode:
		result.Replica, err = c.joinNode(body.JoinNode)
	case *ebbv1.ControlCommand_SetNodeState:
		err = c.setNodeState(body.SetNodeState)
	case *ebbv1.ControlCommand_SetTargets:
		err = c.setTargets(body.SetTargets)
	case *ebbv1.ControlCommand_BeginMove:
		err = c.beginMove(body.BeginMove)
	case *ebbv1.ControlCommand_SettleShard:
		err = c.settleShard(body.SettleShard)
	case *ebbv1.ControlCommand_SetReplication:
		err = c.setReplication(body.SetReplication)
	case *ebbv1.ControlCommand_RestoreNamespaces:
		err = c.restoreNamespaces(body.RestoreNamespaces)
	case *ebbv1.ControlCommand_RaiseVersion:
		err = c.raiseVersion(body.RaiseVersion)
	case *ebbv1.ControlCommand_PutToken:
		err = c.putToken(body.PutToken)
	case *ebbv1.ControlCommand_DropToken:
		err = c.dropToken(body.DropToken)
	case *ebbv1.ControlCommand_DeleteNamespace:
		result.Namespace, err = c.deleteNamespace(body.DeleteNamespace)
	case *ebbv1.ControlCommand_UndeleteNamespace:
		result.Namespace, err = c.undeleteNamespace(body.UndeleteNamespace)
	case *ebbv1.ControlCommand_BeginPurge:
		err = c.beginPurge(body.BeginPurge)
	case *ebbv1.ControlCommand_NamespacesPurged:
		err = c.namespacesPurged(body.NamespacesPurged)
	case *ebbv1.ControlCommand_LoseReplica:
		err = c.loseReplica(body.LoseReplica)
	case *ebbv1.ControlCommand_RecoverShard:
		err = c.recoverShard(body.RecoverShard)
	}
	return result, err
}

// initCluster gives the cluster its identity. Every node of a bootstrap may propose it; the first command takes effect,
// and the results of the others return the same identity.
func (c *Control) initCluster(cmd *ebbv1.InitCluster) *proto.Error {
	if c.Table().ClusterID() != "" {
		return nil
	}
	if cmd.GetClusterId() == "" {
		return proto.ErrBadRequest.Errorf("a cluster needs an id")
	}
	table, err := NewTable(cmd.GetTable())
	if err != nil {
		return proto.AsError(err)
	}
	if table.Shards() == 0 {
		return proto.ErrBadRequest.Errorf("a cluster needs at least one shard")
	}
	wire := edit(table)
	wire.ClusterId = cmd.GetClusterId()
	standard := proto.DefaultNamespaceSettings()
	standard.Name = proto.DefaultNamespace
	standard.Version = 1
	standard.HashSeed = hashSeed(wire.ClusterId, standard.Name)
	wire.Namespaces = []*ebbv1.Namespace{standard}
	c.changes, c.purges, c.clients = make(map[string]uint32), make(purges), nil
	c.swap(wire)
	return nil
}

// setNamespace returns the namespace as it is after the command.
func (c *Control) setNamespace(req *ebbv1.SetNamespaceRequest) (*ebbv1.Namespace, *proto.Error) {
	table := c.Table()
	if table.ClusterID() == "" {
		return nil, proto.ErrStarting.Errorf("the cluster has no identity yet")
	}
	name := req.GetNamespace().GetName()
	if err := proto.CheckNamespaceName(name); err != nil {
		return nil, err
	}
	have := table.Defined(name)
	if have.GetDeletion() != nil {
		return nil, proto.ErrStillDeleted(have)
	}
	if req.GetNamespace().GetDeletion() != nil {
		return nil, proto.ErrBadNamespace.Errorf("namespace %s: settings do not delete a namespace", name).
			WithHint("ebb namespace delete " + name)
	}
	if have != nil && req.GetCreate() {
		return nil, proto.ErrNamespaceExists.Errorf("namespace %s exists", name)
	}
	want, err := c.mergeNamespace(req.GetNamespace(), have)
	if err != nil {
		return nil, err
	}
	if have != nil && pb.Equal(want, have) {
		return have, nil
	}
	if err := c.countChange(want, have); err != nil {
		return nil, err
	}
	want.Version++
	wire := edit(table)
	wire.Namespaces = put(wire.Namespaces, want, (*ebbv1.Namespace).GetName)
	c.swap(wire)
	return want, nil
}

// mergeNamespace fills in the settings that the request leaves out, from the present namespace or, for a new one, from
// the defaults. Then it checks all settings.
func (c *Control) mergeNamespace(request, have *ebbv1.Namespace) (*ebbv1.Namespace, *proto.Error) {
	table := c.Table()
	want := pb.Clone(request).(*ebbv1.Namespace)
	want.ProtoReflect().SetUnknown(nil)
	base := have
	if have == nil {
		if len(table.AllNamespaces()) >= proto.NamespacesMax {
			return nil, proto.ErrBadNamespace.Errorf("namespace %s: there are %d already, which is the limit", want.Name, proto.NamespacesMax)
		}
		base = proto.DefaultNamespaceSettings()
		base.Version, base.HashSeed = table.reborn(want.Name)
		if d := want.Dictionary; d != nil {
			if d.Parts != 0 && d.Parts != table.Shards() {
				return nil, proto.ErrBadNamespace.Errorf("namespace %s: a dictionary of %d parts: it has as many as there are shards, which are %d", want.Name, d.Parts, table.Shards())
			}
			want.Dictionary = &ebbv1.Dictionary{Parts: table.Shards()}
		}
	} else if want.HashSeed != 0 && want.HashSeed != have.HashSeed {
		return nil, proto.ErrBadNamespace.Errorf("namespace %s: its hash seed cannot change", want.Name)
	}
	if have != nil && want.BitmapPlacement != 0 && proto.BySlice(want) != proto.BySlice(have) {
		return nil, proto.ErrBadNamespace.Errorf("namespace %s: where its bitmaps lie cannot change", want.Name).
			WithHint("create another namespace with --bitmap-placement, and copy them: ebb bits export, ebb bits load")
	}
	if d := want.Dictionary; have != nil && d != nil && (have.Dictionary == nil || d.Parts != 0 && d.Parts != have.Dictionary.Parts) {
		return nil, proto.ErrBadNamespace.Errorf("namespace %s: whether its ids stand for strings cannot change", want.Name).
			WithHint("create another namespace with --dictionary")
	} else if have != nil {
		want.Dictionary = have.Dictionary
	}
	forgetNewer(table.Version(), want)
	if have != nil && want.GetSetHash() != 0 && proto.ByMurmur3(want) != proto.ByMurmur3(have) {
		return nil, proto.ErrBadNamespace.Errorf("namespace %s: the hash of its sets cannot change", want.Name).
			WithHint("create another namespace with --set-hash")
	}
	want.Version = base.Version
	if err := c.mergeClock(want, have, base.Version); err != nil {
		return nil, err
	}
	proto.FillNamespace(want, base)
	switch {
	case have != nil:
		want.SetHash = have.SetHash
	case !proto.ByMurmur3(want):
		want.SetHash = nil
	}
	if err := proto.CheckNamespaceAt(want, table.Version()); err != nil {
		return nil, err
	}
	return want, proto.CheckSecondHalfLife(want)
}

// forgetNewer removes settings that nodes of older builds would drop silently. Such nodes may be members under this
// storage version, and all replicas of the control group must decide the same. The node that receives such a request
// refuses it (see node).
func forgetNewer(version uint32, ns *ebbv1.Namespace) {
	if version < proto.VersionDeletion {
		ns.Budget = nil
	}
	if version < proto.VersionEventClocks {
		ns.MaxJumpUs, ns.ClockSetting = nil, nil
	}
	if version < proto.VersionSetHash {
		ns.SetHash = nil
	}
}

// setsClock reports whether a change sets the event clock of a namespace to a time.
func setsClock(want, have *ebbv1.Namespace) bool {
	set := want.GetClockSetting()
	return set.GetTimeUs() != 0 && set.GetEpoch() != have.GetClockSetting().GetEpoch()
}

// mergeClock gives a setting of the event clock its epoch: the version that the namespace will have. base is its
// version before. A namespace that changes to an event clock also begins an epoch. Otherwise the clock of a deleted
// namespace of the same name could be taken for the new one's.
func (c *Control) mergeClock(want, have *ebbv1.Namespace, base uint64) *proto.Error {
	set := want.GetClockSetting()
	if c.Table().Version() < proto.VersionEventClocks {
		return nil
	}
	event := proto.OnEventTime(want) ||
		want.Clock == ebbv1.Clock_CLOCK_UNSPECIFIED && have != nil && proto.OnEventTime(have)
	switch {
	case set != nil && have != nil && pb.Equal(set, have.GetClockSetting()):
		want.ClockSetting = nil
	case set != nil && have != nil && set.GetEpoch() == 0:
		was := pb.CloneOf(have) // shards compare with their present settings
		was.ClockSetting = set
		if err := proto.CheckClockSetting(was); err != nil {
			return err
		}
		want.ClockSetting = &ebbv1.ClockSetting{Epoch: base + 1, TimeUs: set.GetTimeUs()}
	case set != nil && have != nil:
		return proto.ErrBadNamespace.Errorf("namespace %s: a setting of its clock says a time and no epoch", want.Name)
	case event && have.GetClockSetting() == nil:
		want.ClockSetting = &ebbv1.ClockSetting{Epoch: base + 1}
	default:
		want.ClockSetting = nil // it was copied from another namespace: the new one has its own clock
	}
	return nil
}

// countChange refuses a change of what stored values mean, if there were too many such changes.
func (c *Control) countChange(want, have *ebbv1.Namespace) *proto.Error {
	if have == nil || !setsClock(want, have) && proto.SameArithmetic(want, have) &&
		want.GetSlowHalfLifeUs() == have.GetSlowHalfLifeUs() {
		return nil
	}
	if c.changes[want.Name] >= c.limits.HalfLifeChanges {
		return proto.ErrBadNamespace.Errorf("namespace %s: its decay, half-lives, threshold, precision, allow_negative "+
			"or event clock changed %d times, which is the limit", want.Name, c.limits.HalfLifeChanges).WithHint("create another namespace with the settings that are wanted")
	}
	c.changes[want.Name]++
	return nil
}

// putNode replaces the record that a member keeps of itself. It refuses a node that is not a member, and one whose disk
// is not the recorded one: both have to join.
func (c *Control) putNode(record *ebbv1.NodeRecord) *proto.Error {
	table := c.Table()
	have := table.Node(record.GetName())
	if have == nil {
		return proto.ErrBadRequest.Errorf("node %q is not a member of the cluster", record.GetName())
	}
	want := pb.Clone(record).(*ebbv1.NodeRecord)
	want.ProtoReflect().SetUnknown(nil)
	want.Alive, want.State = false, have.GetState()
	if have.GetDisk() != "" && want.GetDisk() != have.GetDisk() {
		return errNodeExists(have)
	}
	if pb.Equal(want, have) {
		return nil
	}
	wire := edit(table)
	wire.Nodes = put(wire.Nodes, want, (*ebbv1.NodeRecord).GetName)
	c.swap(wire)
	return nil
}

// edit returns a wire table to change: the lists are copies, the records are
// shared with the table and must be replaced, not written to.
func edit(t *Table) *ebbv1.Table {
	return &ebbv1.Table{
		ClusterId: t.ClusterID(), Epoch: t.Epoch(), Shards: t.Shards(), Replication: t.Replication(),
		ReplicasGiven: t.wire.GetReplicasGiven(), Removed: t.wire.GetRemoved(), Version: t.wire.GetVersion(),
		DroppedVersion: t.wire.GetDroppedVersion(),
		Nodes:          slices.Clone(t.wire.Nodes),
		Placement:      slices.Clone(t.wire.Placement),
		Namespaces:     slices.Clone(t.wire.Namespaces),
		Tokens:         slices.Clone(t.wire.Tokens),
	}
}

func (c *Control) swap(wire *ebbv1.Table) {
	wire.Epoch++
	table, err := indexTable(wire)
	if err != nil {
		panic(fmt.Sprintf("control table of epoch %d: %v", wire.Epoch, err)) // invariant: edits keep a table complete
	}
	c.table.Store(table)
}

// put replaces the record of the same name in a list sorted by name, or inserts it.
func put[R any](list []R, record R, name func(R) string) []R {
	i := sort.Search(len(list), func(i int) bool { return name(list[i]) >= name(record) })
	if i < len(list) && name(list[i]) == name(record) {
		list[i] = record
		return list
	}
	return slices.Insert(list, i, record)
}

// hashSeed derives the seed of a namespace's hashes from the cluster's random id, so all replicas compute the same seed
// and other clusters another one. It is never 0.
func hashSeed(clusterID, name string) uint64 {
	b := binary.AppendUvarint(nil, uint64(len(clusterID)))
	b = append(b, clusterID...)
	b = append(b, name...)
	return max(xxh3.Hash(b), 1)
}
