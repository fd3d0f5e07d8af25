package cluster

import (
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// restoredVersionMax is the newest version that can be restored; it leaves room for later ones. Only operators may
// restore a version above RestoredVersionTrusted: otherwise an admin of a namespace could use up the room.
const (
	restoredVersionMax     = 1<<63 - 1
	RestoredVersionTrusted = 1 << 40
)

// restoreNamespaces restores all namespaces of a backup, or none if one cannot be restored. Each replaces the namespace
// of the same name, if there is one. The new versions are above those of the backup's shards and of this cluster, so
// that every shard takes them as new.
func (c *Control) restoreNamespaces(req *ebbv1.RestoreNamespacesRequest) *proto.Error {
	table := c.Table()
	if err := table.CheckRestore(req.GetNamespaces()); err != nil {
		return err
	}
	if req.GetDroppedVersion() > restoredVersionMax {
		return proto.ErrBadNamespace.Errorf("%d is no version that a purged namespace can have had", req.GetDroppedVersion())
	}
	deletion := func(ns *ebbv1.Namespace) bool { return ns.GetDeletion() != nil }
	if req.GetDroppedVersion() > 0 || slices.ContainsFunc(req.GetNamespaces(), deletion) {
		if err := checkDeletionVersion(table); err != nil {
			return err
		}
	}
	wire := edit(table)
	changes := make(map[string]uint32, len(req.GetNamespaces()))
	for _, ns := range req.GetNamespaces() {
		want := table.toRestore(ns)
		if want == nil {
			continue // restored before
		}
		if d := want.GetDeletion(); d != nil && !d.GetPurging() {
			// Its grace time begins again: in the backup it may have passed.
			d.PurgeUs = max(d.PurgeUs, req.GetNowUs()+min(d.PurgeUs-d.DeletedUs, proto.GraceMaxUS))
		}
		// The backup does not say which changes began an era, so every change counts.
		changes[want.Name] = uint32(min(want.Version, proto.HalfLifeChangesMax))
		want.Version++
		wire.Namespaces = put(wire.Namespaces, want, (*ebbv1.Namespace).GetName)
	}
	dropped := max(wire.DroppedVersion, req.GetDroppedVersion())
	if len(changes) == 0 && dropped == wire.DroppedVersion {
		return nil
	}
	wire.DroppedVersion = dropped
	for name, n := range changes {
		delete(c.purges, name) // they belong to another version
		c.changes[name] = max(c.changes[name], n)
	}
	c.swap(wire)
	return nil
}

// toRestore returns how a namespace of a backup is stored, with the highest version that it had in the backup or here;
// nil if it is already restored.
func (t *Table) toRestore(ns *ebbv1.Namespace) *ebbv1.Namespace {
	want := pb.CloneOf(ns)
	want.ProtoReflect().SetUnknown(nil)
	forgetNewer(t.Version(), want)
	have := t.Defined(want.Name)
	if have == nil {
		want.Version = max(want.Version, t.DroppedVersion()) // shards may still know one of that name
	} else if want.Budget == nil {
		want.Budget = have.Budget
	}
	if have != nil && have.Version > want.Version {
		want.Version = have.Version
		if d := have.GetDeletion(); d != nil && want.GetDeletion() != nil {
			// The time of the purge is decided here; and a purge that began since is not a change either.
			want.Deletion = pb.CloneOf(d)
		}
		if pb.Equal(want, have) {
			return nil
		}
	}
	return want
}

// Unrestored returns the namespaces of a backup that are not restored in this table.
func (t *Table) Unrestored(namespaces []*ebbv1.Namespace) (left []*ebbv1.Namespace) {
	for _, ns := range namespaces {
		if t.toRestore(ns) != nil {
			left = append(left, ns)
		}
	}
	return left
}

// DeletedAnew returns the namespaces of a backup, with the grace time of deleted ones begun at nowUS, in microseconds
// since 1970. With the original time of deletion, an old deletion would last longer than proto.CheckDeletion allows: no
// shard would accept it, and the namespace would never be purged.
func DeletedAnew(namespaces []*ebbv1.Namespace, nowUS int64) []*ebbv1.Namespace {
	out := slices.Clone(namespaces)
	for i, ns := range out {
		d := ns.GetDeletion()
		if d == nil || d.GetPurging() {
			continue
		}
		grace := min(max(d.GetPurgeUs()-d.GetDeletedUs(), 0), proto.GraceMaxUS)
		if d.GetPurgeUs() >= nowUS+grace {
			continue // none of it has passed
		}
		out[i] = pb.CloneOf(ns)
		out[i].Deletion = &ebbv1.NamespaceDeletion{DeletedUs: nowUS, PurgeUs: nowUS + grace}
	}
	return out
}

// CheckRestore returns an error if not all namespaces of a backup can be restored into this table. A caller that splits
// a request calls it before the first part.
func (t *Table) CheckRestore(namespaces []*ebbv1.Namespace) *proto.Error {
	if t.ClusterID() == "" {
		return proto.ErrStarting.Errorf("the cluster has no identity yet")
	}
	fresh := make(map[string]bool)
	for _, ns := range namespaces {
		if err := checkRestored(ns, t.Version()); err != nil {
			return err
		}
		have := t.Defined(ns.GetName())
		if have.GetDeletion().GetPurging() && ns.GetDeletion() == nil {
			return proto.ErrStillDeleted(have)
		}
		if have == nil {
			fresh[ns.GetName()] = true
		} else if t.Version() >= proto.VersionSetHash && proto.ByMurmur3(have) != proto.ByMurmur3(ns) {
			return proto.ErrBadNamespace.Errorf("namespace %s hashes members of sets in another way than in the backup",
				ns.GetName()).WithHint("delete it first: ebb namespace delete")
		}
	}
	if n := len(t.AllNamespaces()) + len(fresh); n > proto.NamespacesMax {
		return proto.ErrBadNamespace.Errorf("with those of the backup there are %d namespaces: the limit is %d", n, proto.NamespacesMax)
	}
	return nil
}

func checkRestored(ns *ebbv1.Namespace, version uint32) *proto.Error {
	if err := proto.CheckNamespaceName(ns.GetName()); err != nil {
		return err
	}
	if ns.GetHashSeed() == 0 || ns.GetVersion() == 0 || ns.GetVersion() > restoredVersionMax {
		return proto.ErrBadNamespace.Errorf("namespace %s: no hash seed or version that it can have", ns.GetName())
	}
	if err := proto.CheckNamespaceAt(ns, version); err != nil {
		return err
	}
	if err := proto.CheckDeletion(ns); err != nil {
		return err
	}
	return proto.CheckSecondHalfLife(ns)
}
