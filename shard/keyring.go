package shard

import "bytes"

// keyring interns the names of keys, as a dictionary does those of bins. Where a
// key's name lies, and its namespace, stand in its record: to find a key is to
// have it at hand.
type keyring struct {
	names   roster[struct{}]
	records *records
	bytes   arena
	index   index
}

func newKeyring(mem Memory, of *records) keyring {
	return keyring{records: of, bytes: arena{pages: pages{mem: mem}}, index: index{slots: pages{mem: mem}}}
}

func (k *keyring) bytesOf(key uint32) []byte { return k.bytes.bytes(k.records.at(key).place()) }

// space is the number of a key's namespace.
func (k *keyring) space(key uint32) uint16 { return k.records.at(key).space() }

// find looks up a key of a namespace.
func (k *keyring) find(tag uint32, space uint16, b []byte) (key uint32, ok bool) {
	return k.index.find(tag, func(key uint32) bool { return k.is(key, space, b) })
}

// is says whether a key has this name in this namespace.
func (k *keyring) is(key uint32, space uint16, b []byte) bool {
	return k.named(k.records.at(key), space, b)
}

// named says it of a record.
func (k *keyring) named(r *record, space uint16, b []byte) bool {
	return r.space() == space && bytes.Equal(k.bytes.bytes(r.place()), b)
}

// add interns a name that is not there.
func (k *keyring) add(tag uint32, space uint16, b []byte, epoch uint32) uint32 {
	key := k.names.add(epoch)
	k.adopt(key, tag, space, b, epoch)
	return key
}

// adopt gives a slot without a name its name.
func (k *keyring) adopt(key, tag uint32, space uint16, b []byte, epoch uint32) {
	k.records.reach(key, epoch)
	k.records.edit(key, epoch).name(space, k.bytes.put(b, epoch))
	k.index.insert(tag, key, epoch)
}

// drop lets go of a key and its record.
func (k *keyring) drop(key, tag, epoch uint32) {
	k.index.remove(tag, key, epoch)
	r := k.records.edit(key, epoch)
	k.bytes.drop(r.place(), epoch)
	*r = record{}
	k.names.drop(key, epoch)
}

// rename gives a key another name, which find did not find.
func (k *keyring) rename(key, tag, newTag uint32, b []byte, epoch uint32) {
	k.index.remove(tag, key, epoch)
	r := k.records.edit(key, epoch)
	k.bytes.drop(r.place(), epoch)
	r.name(r.space(), k.bytes.put(b, epoch))
	k.index.insert(newTag, key, epoch)
}

// frozen returns what a view keeps, beside records that it keeps.
func (k *keyring) frozen(of *records) keyring {
	return keyring{names: k.names.frozen(), records: of, bytes: k.bytes.frozen(), index: k.index.frozen()}
}
