package cluster

import (
	"cmp"
	"slices"
	"strings"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ControlShard is the number of the control group. Data shards count from 1.
const ControlShard = 0

// Table is the replicated state of the control group at one epoch: nodes, placement, namespaces and tokens. It is
// immutable, and any number of goroutines may read it. Callers must not write to what its methods return.
type Table struct {
	wire       *ebbv1.Table                 // in canonical order: nodes and namespaces by name, placement by shard
	nodes      map[string]*ebbv1.NodeRecord // by name
	namespaces map[string]*ebbv1.Namespace  // by name, deleted or not
	live       []*ebbv1.Namespace           // by name
	deleted    []*ebbv1.Namespace           // by name
	placement  []*ebbv1.ShardRecord         // by shard: 0 is the control group, 1 to P hold data
	hosted     map[string]map[uint32]uint64 // node -> shard -> replica id
	tokens     *Tokens
}

// NewTable makes a Table from its wire form, which it copies. It returns an error if the placement is not complete:
// every shard must occur once, with replicas on known nodes and the preferred leader among them.
func NewTable(wire *ebbv1.Table) (*Table, error) {
	if wire == nil {
		wire = new(ebbv1.Table)
	}
	return indexTable(pb.Clone(wire).(*ebbv1.Table))
}

// indexTable makes a Table that keeps and sorts wire, without a copy.
func indexTable(wire *ebbv1.Table) (*Table, error) {
	t := &Table{
		wire:       wire,
		nodes:      make(map[string]*ebbv1.NodeRecord, len(wire.GetNodes())),
		namespaces: make(map[string]*ebbv1.Namespace, len(wire.GetNamespaces())),
		hosted:     make(map[string]map[uint32]uint64, len(wire.GetNodes())),
	}
	t.sort()
	wire.ReplicasGiven = replicasGiven(wire)
	if err := t.indexNames(); err != nil {
		return nil, err
	}
	if err := t.indexPlacement(); err != nil {
		return nil, err
	}
	if err := t.indexTokens(); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Table) sort() {
	slices.SortFunc(t.wire.Nodes, func(a, b *ebbv1.NodeRecord) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.SortFunc(t.wire.Namespaces, func(a, b *ebbv1.Namespace) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.SortFunc(t.wire.Placement, func(a, b *ebbv1.ShardRecord) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
}

func (t *Table) indexNames() error {
	for _, node := range t.wire.Nodes {
		if err := CheckNodeName(node.GetName()); err != nil {
			return err
		}
		if t.nodes[node.GetName()] != nil {
			return proto.ErrDuplicateNode.Errorf("table names node %s twice", node.GetName())
		}
		t.nodes[node.GetName()] = node
		t.hosted[node.GetName()] = make(map[uint32]uint64)
	}
	for _, ns := range t.wire.Namespaces {
		if t.namespaces[ns.GetName()] != nil {
			return proto.ErrBadRequest.Errorf("table names namespace %s twice", ns.GetName())
		}
		t.namespaces[ns.GetName()] = ns
		if ns.GetDeletion() == nil {
			t.live = append(t.live, ns)
		} else {
			t.deleted = append(t.deleted, ns)
		}
	}
	return nil
}

func (t *Table) indexPlacement() error {
	if t.wire.Shards > proto.ShardsMax {
		return proto.ErrBadRequest.Errorf("table of %d shards: the limit is %d", t.wire.Shards, proto.ShardsMax)
	}
	if len(t.wire.Placement) == 0 && t.wire.Shards == 0 {
		return nil
	}
	if len(t.wire.Placement) != int(t.wire.Shards)+1 {
		return proto.ErrBadRequest.Errorf("table places %d groups: %d shards and the control group need %d", len(t.wire.Placement), t.wire.Shards, t.wire.Shards+1)
	}
	for i, record := range t.wire.Placement {
		if record.GetShard() != uint32(i) {
			return proto.ErrBadRequest.Errorf("table lacks shard %d", i)
		}
		if err := t.indexShard(record); err != nil {
			return err
		}
	}
	t.placement = t.wire.Placement
	return nil
}

func (t *Table) indexShard(record *ebbv1.ShardRecord) error {
	shard := record.GetShard()
	for _, replica := range record.GetReplicas() {
		on, known := t.hosted[replica.GetNode()]
		if !known {
			return proto.ErrBadRequest.Errorf("shard %d has a replica on unknown node %q", shard, replica.GetNode())
		}
		if replica.GetLeaving() {
			if _, other := on[shard]; !other {
				on[shard] = replica.GetId()
			}
			continue
		}
		if slices.ContainsFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool {
			return r != replica && r.GetNode() == replica.GetNode() && !r.GetLeaving()
		}) {
			return proto.ErrBadRequest.Errorf("shard %d has two replicas on node %s", shard, replica.GetNode())
		}
		on[shard] = replica.GetId()
	}
	if _, ok := t.hosted[record.GetPreferred()][shard]; !ok {
		return proto.ErrBadRequest.Errorf("shard %d prefers node %q, which has no replica of it", shard, record.GetPreferred())
	}
	return nil
}

// Wire returns the table in wire form. The message is shared: copy it before changing anything.
func (t *Table) Wire() *ebbv1.Table { return t.wire }

// ClusterID returns the identity of the cluster; "" before there is one.
func (t *Table) ClusterID() string { return t.wire.GetClusterId() }

// Epoch returns the number of this table; it grows with every change.
func (t *Table) Epoch() uint64 { return t.wire.GetEpoch() }

// Shards returns P, the number of data shards; 0 before the cluster is founded.
func (t *Table) Shards() uint32 { return t.wire.GetShards() }

// Replication returns how many replicas a data shard should have.
func (t *Table) Replication() uint32 { return t.wire.GetReplication() }

// Nodes returns all node records, by name.
func (t *Table) Nodes() []*ebbv1.NodeRecord { return t.wire.GetNodes() }

// Node returns the record of a node; nil if there is none of that name.
func (t *Table) Node(name string) *ebbv1.NodeRecord { return t.nodes[name] }

// Namespaces returns all namespaces that are not deleted, by name.
func (t *Table) Namespaces() []*ebbv1.Namespace { return t.live }

// Namespace returns the settings of a namespace; the empty name stands for "default". It returns nil if the namespace
// does not exist, or is deleted.
func (t *Table) Namespace(name string) *ebbv1.Namespace {
	if ns := t.Defined(name); ns.GetDeletion() == nil {
		return ns
	}
	return nil
}

// Has reports whether shard is one of the table's groups, the control group included.
func (t *Table) Has(shard uint32) bool { return int(shard) < len(t.placement) }

// Shard returns the record of a group; nil if there is none of that number.
func (t *Table) Shard(shard uint32) *ebbv1.ShardRecord {
	if !t.Has(shard) {
		return nil
	}
	return t.placement[shard]
}

// Replicas returns the replicas of a group, the preferred leader's first.
func (t *Table) Replicas(shard uint32) []*ebbv1.ReplicaRecord { return t.Shard(shard).GetReplicas() }

// Preferred returns the node that should lead a group; "" if there is no such group.
func (t *Table) Preferred(shard uint32) string { return t.Shard(shard).GetPreferred() }

// ReplicaOn returns the id of a node's replica of a group, and whether it has one.
func (t *Table) ReplicaOn(node string, shard uint32) (id uint64, ok bool) {
	id, ok = t.hosted[node][shard]
	return id, ok
}

// ShardOf returns the shard of a key. The table must have shards.
func (t *Table) ShardOf(namespace string, key []byte) uint32 {
	if namespace == "" {
		namespace = proto.DefaultNamespace
	}
	return proto.ShardOf(namespace, key, t.Shards())
}

// after returns the node to ask next when the given node does not answer: the node of the replica that follows in the
// shard's list. It returns the preferred leader if the given node holds no replica.
func (t *Table) after(shard uint32, node string) string {
	replicas := t.Replicas(shard)
	for i, replica := range replicas {
		if replica.GetNode() == node {
			return replicas[(i+1)%len(replicas)].GetNode()
		}
	}
	return t.Preferred(shard)
}

// nodeNameLenMax leaves room for the boot id in gossip and for the replica id in Raft addresses.
const nodeNameLenMax = 64

// CheckNodeName returns an error for a name that is empty, too long, or has characters that addresses use otherwise:
// '/' separates a replica id from the name, '+' a boot id.
func CheckNodeName(name string) *proto.Error {
	if name == "" || len(name) > nodeNameLenMax {
		return proto.ErrBadRequest.Errorf("node name of %d bytes: it has 1 to %d", len(name), nodeNameLenMax)
	}
	for i := range len(name) {
		c := name[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !ok {
			return proto.ErrBadRequest.Errorf("node name %q: only letters, digits, '-', '_' and '.' are allowed", name)
		}
	}
	return nil
}
