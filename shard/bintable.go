package shard

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// name is one interned name of a bin.
type name struct {
	place place
	use   uint32 // how many keys use it
}

// binTable interns the names of bins: bytes to a small id and back. Ids are
// part of the replicated state.
type binTable struct {
	names slotTable[name]
	bytes arena
	index index
}

func newBinTable(mem Memory) binTable {
	return binTable{bytes: arena{pages: pages{mem: mem}}, index: index{slots: pages{mem: mem}}}
}

// tagOf hashes a name. The seed keeps clients that choose names from choosing their positions.
func tagOf(b []byte, seed uint64) uint32 { return uint32(xxh3.HashSeed(b, seed) >> 32) }

func (d *binTable) bytesOf(id uint32) []byte { return d.bytes.bytes(d.names.at(id).place) }

// find looks up a bin.
func (d *binTable) find(tag uint32, b []byte) (id uint32, ok bool) {
	return d.index.find(tag, func(id uint32) bool { return bytes.Equal(d.bytesOf(id), b) })
}

// add interns a new name, which no key uses yet.
func (d *binTable) add(tag uint32, b []byte, epoch uint32) uint32 {
	id := d.names.add(epoch)
	d.adopt(id, tag, b, epoch)
	return id
}

// adopt gives a slot without a name its name.
func (d *binTable) adopt(id, tag uint32, b []byte, epoch uint32) {
	*d.names.edit(id, epoch) = name{place: d.bytes.put(b, epoch)}
	d.index.insert(tag, id, epoch)
}

func (d *binTable) drop(id, tag, epoch uint32) {
	d.index.remove(tag, id, epoch)
	d.bytes.drop(d.names.at(id).place, epoch)
	d.names.drop(id, epoch)
}

func (d *binTable) retain(id, epoch uint32) { d.names.edit(id, epoch).use++ }

// release removes one use of a bin, and drops a bin without uses.
func (d *binTable) release(id, epoch uint32) {
	n := d.names.edit(id, epoch)
	n.use--
	if n.use == 0 {
		d.drop(id, tagOf(d.bytesOf(id), 0), epoch)
	}
}

func (d *binTable) frozen() binTable {
	return binTable{names: d.names.frozen(), bytes: d.bytes.frozen(), index: d.index.frozen()}
}
