package shard

// nameOwnBytes is what the name of a bin takes in addition to its cells: its slots in the index (see index), among the
// names and among their links.
const nameOwnBytes = 12 + 8 + 4

// boxBytes is what a body takes in addition to itself: its place among the bodies, and its epoch.
const boxBytes = 24

// memoryOf is how many bytes a key takes in this replica now, in pages and on the heap. It counts the key's block, with
// its head and name, and the blocks of a large bitmap; its body; and its share of the indexes of all keys. The name of
// a bin that n keys have counts as an nth in each. Under two half-lives the key of the slow namespace counts too.
// Replicas may differ by some bytes.
func (f *frame) memoryOf(ns *namespace, key uint32) int {
	n := f.ownMemory(key)
	if slow := f.slowOf(ns); slow != nil && !f.isSlow(ns, key) {
		if other, ok := f.findKey(slow, f.keys.bytesOf(key)); ok {
			n += f.ownMemory(other)
		}
	}
	return n
}

func (f *frame) ownMemory(key uint32) int {
	sum := f.summary(key)
	n := 8*len(f.summaries.record(key)) + keyBytes
	if sum.body != nil {
		if n += sum.body.Size(); sum.bitmap() == nil {
			n += boxBytes
		}
		return n
	}
	shared := 0.0
	sum.dist.Each(func(bin uint32) {
		name := f.bins.names.at(bin)
		own := nameOwnBytes + cellBytes*int(cells(len(f.bins.bytesOf(bin))))
		shared += float64(own) / float64(max(1, name.use))
	})
	return n + int(shared)
}
