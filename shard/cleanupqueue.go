package shard

import "github.com/ebbdb/ebb/sketch"

// cleanupQueue orders keys by the time of their next cleanup, then by number. The order is total, so the result does
// not depend on the order of insertion. The times are copies of those in the records, so that a comparison reads no
// record. The directory has each key's position in the queue, plus one: a key is in one queue at most. The order is
// derived and not part of the replicated state.
type cleanupQueue struct {
	of    *summaries
	epoch *uint32      // in which the directory is written
	keys  cleanupArray // a binary heap
	n     uint32
}

// keyCleanup is a key and when its cleanup is due.
type keyCleanup struct {
	at  sketch.Tick
	key uint32
}

func (a keyCleanup) before(b keyCleanup) bool { return a.at < b.at || a.at == b.at && a.key < b.key }

// cleanupArray is an array of cleanups, of 12 bytes each, that grows without being copied.
type cleanupArray []*cleanupLeaf

type cleanupLeaf struct {
	at  [cleanupLeafLen]sketch.Tick
	key [cleanupLeafLen]uint32
}

const cleanupLeafLen = 1024

func (q cleanupArray) at(i uint32) keyCleanup {
	leaf, i := q[i/cleanupLeafLen], i%cleanupLeafLen
	return keyCleanup{leaf.at[i], leaf.key[i]}
}

func (q *cleanupArray) set(i uint32, v keyCleanup) {
	for uint32(len(*q)) <= i/cleanupLeafLen {
		*q = append(*q, new(cleanupLeaf))
	}
	leaf, i := (*q)[i/cleanupLeafLen], i%cleanupLeafLen
	leaf.at[i], leaf.key[i] = v.at, v.key
}

// shrink frees leaves that are well past the first n.
func (q *cleanupArray) shrink(n uint32) {
	if leaves := n/cleanupLeafLen + 2; uint32(len(*q)) > leaves {
		clear((*q)[leaves:])
		*q = (*q)[:leaves]
	}
}

// top returns the key of the next cleanup and its time.
func (v *cleanupQueue) top() (key uint32, at sketch.Tick, ok bool) {
	if v.n == 0 {
		return 0, 0, false
	}
	first := v.keys.at(0)
	return first.key, first.at, true
}

// set adds a key, or moves it after its time has changed.
func (v *cleanupQueue) set(key uint32) {
	i, ok := v.find(key)
	if !ok {
		i = v.n
		v.n++
	}
	here := keyCleanup{v.of.record(key).due(), key}
	v.down(v.up(i, here), here)
}

// add adds a key that is not in the queue. After all calls of add, order must be called before anything else.
func (v *cleanupQueue) add(key uint32, at sketch.Tick) {
	v.put(v.n, keyCleanup{at, key})
	v.n++
}

// order puts keys that were added into their order.
func (v *cleanupQueue) order() {
	for i := v.n / 2; i > 0; i-- {
		v.down(i-1, v.keys.at(i-1))
	}
}

// remove removes a key, if it is in the queue.
func (v *cleanupQueue) remove(key uint32) {
	i, ok := v.find(key)
	if !ok {
		return
	}
	v.n--
	last := v.keys.at(v.n)
	v.of.keys.setCleanupAt(key, 0, *v.epoch)
	v.keys.shrink(v.n)
	if last.key != key {
		v.down(v.up(i, last), last)
	}
}

// find returns the position of a key.
func (v *cleanupQueue) find(key uint32) (i uint32, ok bool) {
	place := v.of.keys.cleanupAt(key)
	return place - 1, place != 0 && place <= v.n && v.keys.at(place-1).key == key
}

func (v *cleanupQueue) put(i uint32, here keyCleanup) {
	v.keys.set(i, here)
	v.of.keys.setCleanupAt(here.key, i+1, *v.epoch)
}

// up moves a key, which belongs at i or further up, to its position.
func (v *cleanupQueue) up(i uint32, here keyCleanup) uint32 {
	for i > 0 {
		parent := v.keys.at((i - 1) / 2)
		if !here.before(parent) {
			break
		}
		v.put(i, parent)
		i = (i - 1) / 2
	}
	v.put(i, here)
	return i
}

// down moves a key, which belongs at i or further down, to its position.
func (v *cleanupQueue) down(i uint32, here keyCleanup) {
	for {
		child := 2*i + 1
		if child >= v.n {
			break
		}
		least := v.keys.at(child)
		if child+1 < v.n {
			if right := v.keys.at(child + 1); right.before(least) {
				child, least = child+1, right
			}
		}
		if !least.before(here) {
			break
		}
		v.put(i, least)
		i = child
	}
	v.put(i, here)
}
