package shard

// keyIndex interns the names of keys, as a binTable does the names of bins. A key's name and namespace are in its
// record, so to find a key is to read its record.
type keyIndex struct {
	of    *summaries
	index index
}

func newKeyIndex(mem Memory, of *summaries) keyIndex {
	return keyIndex{of: of, index: index{slots: pages{mem: mem}}}
}

// bytesOf returns a copy of a key's name.
func (k *keyIndex) bytesOf(key uint32) []byte { return k.appendName(nil, key) }

// appendName appends a key's name to b.
func (k *keyIndex) appendName(b []byte, key uint32) []byte { return k.of.record(key).appendName(b) }

// space is the number of a key's namespace.
func (k *keyIndex) space(key uint32) uint16 { return k.of.record(key).space() }

// find looks up a key of a namespace.
func (k *keyIndex) find(tag uint32, space uint16, b []byte) (key uint32, ok bool) {
	return k.index.find(tag, func(key uint32) bool { return k.is(key, space, b) })
}

// is says whether a key has this name in this namespace.
func (k *keyIndex) is(key uint32, space uint16, b []byte) bool { return k.of.record(key).is(space, b) }

// add interns a name that is new.
func (k *keyIndex) add(tag uint32, space uint16, b []byte, epoch uint32) uint32 {
	key := k.of.keys.add(epoch)
	k.adopt(key, tag, space, b, epoch)
	return key
}

// adopt gives a slot without a name its name.
func (k *keyIndex) adopt(key, tag uint32, space uint16, b []byte, epoch uint32) {
	k.of.begin(key, space, b, headWords, 0, epoch) // a distribution without bins
	k.index.insert(tag, key, epoch)
}

// drop removes a key, its record and what it holds.
func (k *keyIndex) drop(key, tag, epoch uint32) {
	k.index.remove(tag, key, epoch)
	k.of.end(key, epoch)
	k.of.keys.drop(key, epoch)
}

// rename gives a key another name. No key may have that name yet.
func (k *keyIndex) rename(key, tag, newTag uint32, b []byte, epoch uint32) {
	k.index.remove(tag, key, epoch)
	k.of.rename(key, b, epoch)
	k.index.insert(newTag, key, epoch)
}

// frozen returns the index for a view, with the view's summaries.
func (k *keyIndex) frozen(of *summaries) keyIndex {
	return keyIndex{of: of, index: k.index.frozen()}
}
