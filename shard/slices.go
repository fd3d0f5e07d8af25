package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// isPart says whether a key was not made by a user, but is a part of a bitmap that is placed by slice: see
// proto.PartName.
func isPart(ns *namespace, name []byte) bool {
	return proto.BySlice(ns.definition) && proto.IsPartName(name)
}

// bitmapsOnly refuses all other kinds in a namespace that places bitmaps by slice.
func bitmapsOnly(ns *namespace) *proto.Error {
	return proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice, and holds nothing else", ns.definition.GetName()).
		WithHint("keep other kinds in another namespace: ebb namespace create NAME")
}

// fixedNames refuses to rename a bitmap, since its parts in other shards have its name.
func fixedNames(ns *namespace) *proto.Error {
	return proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice: they cannot be renamed, for their parts lie in all shards under their names", ns.definition.GetName()).
		WithHint("make the other one, and delete the first")
}

// ownSlices is the slices of some ids that lie in one shard, where bitmaps are placed by slice.
type ownSlices struct {
	bitmap.Cursor
	namespace     string
	shard, shards uint32
}

// Seek skips slices that lie in other shards.
func (o *ownSlices) Seek(slice uint64) (at uint64, ok bool) {
	for {
		if at, ok = o.Cursor.Seek(slice); !ok || proto.SliceShardOf(o.namespace, at, o.shards) == o.shard {
			return at, ok
		}
		if slice = at + 1; slice > sliceMax {
			return 0, false
		}
	}
}
