package cluster

import (
	"fmt"
	"math"
	"slices"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The life of a namespace. Each arrow is an entry of the control group's log and raises the namespace's version, so
// that shards learn of the change as they do of any other:
//
//	            DeleteNamespace             BeginPurge            NamespacesPurged of all shards
//	live ----------------------> in grace --------------> purging --------------------------------> gone
//	     <----------------------
//	            UndeleteNamespace
//
// Only the leader of the control group compares a clock with the end of the grace time. The proposed entry decides, so
// clocks of different nodes are never compared.
//
// INVARIANT reborn-above: a namespace that is created after others were purged has a version above all theirs. A shard
// keeps the definition of a purged namespace: it refuses older versions and treats a newer one as a new namespace.

// purges lists, by namespace that is being purged, the shards that hold nothing of it any more, in order. The lists are
// never written to: views share them.
type purges map[string][]uint32

func checkDeletionVersion(t *Table) *proto.Error {
	if t.ClusterID() == "" {
		return errStarting()
	}
	if t.Version() < proto.VersionDeletion {
		return proto.ErrStarting.Errorf("namespaces are deleted from storage version %d on, and %d is in force", proto.VersionDeletion, t.Version()).
			WithHint("upgrade all nodes, and wait some seconds: ebb status shows the version in force")
	}
	return nil
}

// deleteNamespace returns the namespace as it is after the command.
func (c *Control) deleteNamespace(cmd *ebbv1.DeleteNamespace) (*ebbv1.Namespace, *proto.Error) {
	table := c.Table()
	if err := checkDeletionVersion(table); err != nil {
		return nil, err
	}
	name := cmd.GetName()
	switch {
	case name == "" || name == proto.DefaultNamespace:
		return nil, proto.ErrBadNamespace.Errorf("namespace %s cannot be deleted", proto.DefaultNamespace).
			WithHint("delete its keys: ebb del KEY...")
	case cmd.GetGraceUs() < 0 || cmd.GetGraceUs() > proto.GraceMaxUS || cmd.GetNowUs() < 0 || cmd.GetNowUs() > math.MaxInt64-proto.GraceMaxUS:
		return nil, proto.ErrBadRequest.Errorf("grace of %s: it is 0 to %s", us(cmd.GetGraceUs()), us(proto.GraceMaxUS))
	}
	have := table.Defined(name)
	now := cmd.GetGraceUs() == 0
	switch d := have.GetDeletion(); {
	case have == nil:
		return nil, table.NamespaceNotFound(name)
	case d == nil:
		d = &ebbv1.NamespaceDeletion{DeletedUs: cmd.GetNowUs(), PurgeUs: cmd.GetNowUs() + cmd.GetGraceUs(), Purging: now}
		return c.changeDeletion(have, d), nil
	case now && !d.GetPurging():
		d = &ebbv1.NamespaceDeletion{DeletedUs: d.GetDeletedUs(), PurgeUs: min(d.GetPurgeUs(), cmd.GetNowUs()), Purging: true}
		return c.changeDeletion(have, d), nil
	}
	return have, nil
}

// undeleteNamespace returns the namespace as it is after the command. A namespace that is not deleted does not change.
func (c *Control) undeleteNamespace(req *ebbv1.UndeleteNamespaceRequest) (*ebbv1.Namespace, *proto.Error) {
	table := c.Table()
	if err := checkDeletionVersion(table); err != nil {
		return nil, err
	}
	have := table.Defined(req.GetName())
	switch d := have.GetDeletion(); {
	case have == nil:
		return nil, table.NamespaceNotFound(req.GetName())
	case d == nil:
		return have, nil
	case d.GetPurging():
		return nil, proto.ErrDeleted(have)
	}
	return c.changeDeletion(have, nil), nil
}

// beginPurge ends the grace time of a namespace, if the namespace has not changed since the command was proposed.
func (c *Control) beginPurge(cmd *ebbv1.BeginPurge) *proto.Error {
	have := c.Table().Deleted(cmd.GetName())
	if d := have.GetDeletion(); d != nil && !d.GetPurging() && have.GetVersion() == cmd.GetVersion() {
		c.changeDeletion(have, &ebbv1.NamespaceDeletion{DeletedUs: d.GetDeletedUs(), PurgeUs: d.GetPurgeUs(), Purging: true})
	}
	return nil // otherwise it was undeleted, or the command was proposed twice
}

func (c *Control) changeDeletion(have *ebbv1.Namespace, d *ebbv1.NamespaceDeletion) *ebbv1.Namespace {
	want := pb.CloneOf(have)
	want.Deletion = d
	want.Version++
	wire := edit(c.Table())
	wire.Namespaces = put(wire.Namespaces, want, (*ebbv1.Namespace).GetName)
	c.swap(wire)
	return want
}

// namespacesPurged records which namespaces a shard has purged. A namespace that all shards have purged leaves the
// table.
func (c *Control) namespacesPurged(cmd *ebbv1.NamespacesPurged) *proto.Error {
	table := c.Table()
	if cmd.GetShard() == 0 || !table.Has(cmd.GetShard()) {
		return proto.ErrBadRequest.Errorf("there is no shard %d", cmd.GetShard())
	}
	var gone []string
	dropped := table.DroppedVersion()
	for _, p := range cmd.GetNamespaces() {
		have := table.Deleted(p.GetName())
		if !have.GetDeletion().GetPurging() || have.GetVersion() != p.GetVersion() {
			continue // it was restored, or this was reported before
		}
		shards := c.purges[p.GetName()]
		i, known := slices.BinarySearch(shards, cmd.GetShard())
		if known {
			continue
		}
		shards = slices.Insert(slices.Clone(shards), i, cmd.GetShard())
		if len(shards) < int(table.Shards()) {
			c.purges[p.GetName()] = shards
			continue
		}
		gone = append(gone, p.GetName())
		dropped = max(dropped, have.GetVersion())
	}
	if len(gone) == 0 {
		return nil
	}
	wire := edit(table)
	wire.DroppedVersion = dropped
	wire.Namespaces = slices.DeleteFunc(wire.Namespaces, func(ns *ebbv1.Namespace) bool { return slices.Contains(gone, ns.GetName()) })
	for _, name := range gone {
		delete(c.purges, name)
		delete(c.changes, name)
	}
	c.swap(wire)
	return nil
}

// wire returns the purges as a snapshot stores them.
func (p purges) wire(t *Table) (list []*ebbv1.NamespacePurge) {
	for _, ns := range t.AllNamespaces() {
		if shards := p[ns.GetName()]; len(shards) > 0 {
			list = append(list, &ebbv1.NamespacePurge{Name: ns.GetName(), Shards: shards})
		}
	}
	return list
}

func parsePurges(t *Table, list []*ebbv1.NamespacePurge) (purges, error) {
	p := make(purges, len(list))
	for _, one := range list {
		shards := one.GetShards()
		sound := len(shards) > 0 && len(shards) < int(t.Shards()) && shards[0] > 0 && t.Has(shards[len(shards)-1])
		for i := 1; sound && i < len(shards); i++ {
			sound = shards[i-1] < shards[i]
		}
		if p[one.GetName()] != nil || !sound || !t.Deleted(one.GetName()).GetDeletion().GetPurging() {
			return nil, proto.ErrCorrupt.Errorf("control snapshot: the purge of namespace %q by %d shards", one.GetName(), len(shards))
		}
		p[one.GetName()] = shards
	}
	return p, nil
}

// Defined returns the settings of a namespace, deleted or not; nil if there is none of that name.
func (t *Table) Defined(name string) *ebbv1.Namespace {
	if name == "" {
		name = proto.DefaultNamespace
	}
	return t.namespaces[name]
}

// Deleted returns the settings of a namespace that is deleted; nil if there is none of that name.
func (t *Table) Deleted(name string) *ebbv1.Namespace {
	if ns := t.Defined(name); ns.GetDeletion() != nil {
		return ns
	}
	return nil
}

// AllNamespaces returns all namespaces, deleted or not, by name.
func (t *Table) AllNamespaces() []*ebbv1.Namespace { return t.wire.GetNamespaces() }

// DeletedNamespaces returns the deleted namespaces, by name.
func (t *Table) DeletedNamespaces() []*ebbv1.Namespace { return t.deleted }

// DroppedVersion returns the newest version that a purged namespace had.
func (t *Table) DroppedVersion() uint64 { return t.wire.GetDroppedVersion() }

// NamespaceNotFound returns the error for a namespace that cannot be used: it is deleted, or does not exist.
func (t *Table) NamespaceNotFound(name string) *proto.Error {
	if ns := t.Deleted(name); ns != nil {
		return proto.ErrDeleted(ns)
	}
	return proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", name).
		WithHint("create it: ebb namespace create " + name)
}

func us(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

// reborn returns the version and the hash seed from which a new namespace of this name starts. The version is raised by
// one before it takes effect.
func (t *Table) reborn(name string) (version, seed uint64) {
	version = t.DroppedVersion()
	if version == 0 {
		return 0, hashSeed(t.ClusterID(), name)
	}
	return version, hashSeed(fmt.Sprintf("%s/%d", t.ClusterID(), version), name)
}
