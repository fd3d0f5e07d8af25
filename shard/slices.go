package shard

import (
	"github.com/ebbdb/ebb/proto"
)

// isPart says whether a key is not one that anybody made, but a part of a bitmap that is placed by slice: see proto.PartName.
func (f *frame) isPart(ns *namespace, key uint32) bool {
	return proto.BySlice(ns.definition) && proto.IsPartName(f.keys.bytesOf(key))
}

// bitmapsOnly refuses all other kinds in a namespace that places bitmaps by slice.
func bitmapsOnly(ns *namespace) *proto.Error {
	return proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice, and holds nothing else", ns.definition.GetName()).
		WithHint("keep other kinds in another namespace: ebb namespace create NAME")
}

// fixedNames refuses to rename a bitmap whose parts in other shards bear its name.
func fixedNames(ns *namespace) *proto.Error {
	return proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice: they cannot be renamed, for their parts lie in all shards under their names", ns.definition.GetName()).
		WithHint("make the other one, and delete the first")
}
