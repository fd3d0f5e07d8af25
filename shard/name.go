package shard

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// name is one interned name: a key, or a bin.
type name struct {
	place place
	tag   uint32
	// refs counts the bins that use this name; 1 for a key.
	refs uint32
	// space is the namespace of a key; 0 for a bin.
	space uint16
}

// dictionary interns names: bytes to a small id and back. Ids are part of the
// replicated state.
type dictionary struct {
	names roster[name]
	bytes arena
	index index
}

func newDictionary(mem Memory) dictionary {
	return dictionary{bytes: arena{pages: pages{mem: mem}}, index: index{slots: pages{mem: mem}}}
}

// tagOf hashes a name. The seed keeps those who choose names from choosing
// where they fall.
func tagOf(b []byte, seed uint64) uint32 { return uint32(xxh3.HashSeed(b, seed) >> 32) }

func (d *dictionary) bytesOf(id uint32) []byte { return d.bytes.bytes(d.names.at(id).place) }

func (d *dictionary) find(tag uint32, space uint16, b []byte) (id uint32, ok bool) {
	return d.index.find(tag, func(id uint32) bool {
		n := d.names.at(id)
		return n.tag == tag && n.space == space && bytes.Equal(d.bytes.bytes(n.place), b)
	})
}

// add interns a name that find did not find, without references.
func (d *dictionary) add(tag uint32, space uint16, b []byte, epoch uint32) uint32 {
	id := d.names.add(epoch)
	*d.names.edit(id, epoch) = name{place: d.bytes.put(b, epoch), tag: tag, space: space}
	d.index.insert(tag, id, epoch)
	return id
}

func (d *dictionary) drop(id, epoch uint32) {
	n := *d.names.at(id)
	d.index.remove(n.tag, id, epoch)
	d.bytes.drop(n.place, epoch)
	d.names.drop(id, epoch)
}

func (d *dictionary) retain(id, epoch uint32) { d.names.edit(id, epoch).refs++ }

// release takes a reference away; a name without references goes.
func (d *dictionary) release(id, epoch uint32) {
	n := d.names.edit(id, epoch)
	n.refs--
	if n.refs == 0 {
		d.drop(id, epoch)
	}
}

func (d *dictionary) frozen() dictionary {
	return dictionary{names: d.names.frozen(), bytes: d.bytes.frozen(), index: d.index.frozen()}
}
