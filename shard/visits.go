package shard

import "github.com/ebbdb/ebb/sketch"

// visits orders keys by the time of their next visit, which stands in their
// records, then by number: a total order, so that what comes out does not
// depend on how it went in. Where in the order a key is, plus one, stands in its record too: a key
// is among the visits of one namespace at most. The order takes 4 bytes a key beside the records, is
// derived and not part of the replicated state.
type visits struct {
	records *records
	epoch   *uint32  // in which records are written
	keys    sequence // a binary heap
	n       uint32
}

// sequence is an array of numbers that grows without being copied.
type sequence []*[sequenceLeaf]uint32

const sequenceLeaf = 1024

func (q sequence) at(i uint32) uint32 { return q[i/sequenceLeaf][i%sequenceLeaf] }

func (q *sequence) set(i, v uint32) {
	for uint32(len(*q)) <= i/sequenceLeaf {
		*q = append(*q, new([sequenceLeaf]uint32))
	}
	(*q)[i/sequenceLeaf][i%sequenceLeaf] = v
}

// shrink lets go of what is well past the first n.
func (q *sequence) shrink(n uint32) {
	if leaves := n/sequenceLeaf + 2; uint32(len(*q)) > leaves {
		clear((*q)[leaves:])
		*q = (*q)[:leaves]
	}
}

// top returns the key of the next visit and its time.
func (v *visits) top() (key uint32, at sketch.Tick, ok bool) {
	if v.n == 0 {
		return 0, 0, false
	}
	key = v.keys.at(0)
	return key, v.records.at(key).due(), true
}

// set puts a key in, or moves it after its time has changed.
func (v *visits) set(key uint32) {
	i, ok := v.find(key)
	if !ok {
		i = v.n
		v.n++
	}
	v.down(v.up(i, key), key)
}

// remove takes a key out, if it is there.
func (v *visits) remove(key uint32) {
	i, ok := v.find(key)
	if !ok {
		return
	}
	v.n--
	last := v.keys.at(v.n)
	v.setPlace(key, 0)
	v.keys.shrink(v.n)
	if last != key {
		v.down(v.up(i, last), last)
	}
}

// find returns where a key stands.
func (v *visits) find(key uint32) (i uint32, ok bool) {
	place := v.records.at(key).visit()
	return place - 1, place != 0 && place <= v.n && v.keys.at(place-1) == key
}

func (v *visits) before(a, b uint32) bool {
	s, t := v.records.at(a).due(), v.records.at(b).due()
	return s < t || s == t && a < b
}

func (v *visits) put(i, key uint32) {
	v.keys.set(i, key)
	v.setPlace(key, i+1)
}

func (v *visits) setPlace(key, place uint32) { v.records.edit(key, *v.epoch).setVisit(place) }

// up moves a key that shall stand at i or further up.
func (v *visits) up(i, key uint32) uint32 {
	for i > 0 {
		parent := v.keys.at((i - 1) / 2)
		if !v.before(key, parent) {
			break
		}
		v.put(i, parent)
		i = (i - 1) / 2
	}
	v.put(i, key)
	return i
}

// down moves a key that shall stand at i or further down.
func (v *visits) down(i, key uint32) {
	for {
		child := 2*i + 1
		if child >= v.n {
			break
		}
		least := v.keys.at(child)
		if child+1 < v.n {
			if right := v.keys.at(child + 1); v.before(right, least) {
				child, least = child+1, right
			}
		}
		if !v.before(least, key) {
			break
		}
		v.put(i, least)
		i = child
	}
	v.put(i, key)
}
