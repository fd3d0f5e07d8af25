package shard

import "github.com/ebbdb/ebb/sketch"

// visits orders keys by the time of their next visit, then by number: a total order, so that what comes out does not
// depend on how it went in. The times are those of the records; they are copied here so that to compare two is not to look for
// both records. Where in the order a key is, plus one, stands in the directory: a key is among the visits of one namespace at most. The order is
// derived and not part of the replicated state.
type visits struct {
	of    *summaries
	epoch *uint32  // in which the directory is written
	keys  sequence // a binary heap
	n     uint32
}

// visit is a key and when it is due.
type visit struct {
	at  sketch.Tick
	key uint32
}

func (a visit) before(b visit) bool { return a.at < b.at || a.at == b.at && a.key < b.key }

// sequence is an array of visits, of 12 bytes each, that grows without being copied.
type sequence []*sequencePart

type sequencePart struct {
	at  [sequenceLeaf]sketch.Tick
	key [sequenceLeaf]uint32
}

const sequenceLeaf = 1024

func (q sequence) at(i uint32) visit {
	leaf, i := q[i/sequenceLeaf], i%sequenceLeaf
	return visit{leaf.at[i], leaf.key[i]}
}

func (q *sequence) set(i uint32, v visit) {
	for uint32(len(*q)) <= i/sequenceLeaf {
		*q = append(*q, new(sequencePart))
	}
	leaf, i := (*q)[i/sequenceLeaf], i%sequenceLeaf
	leaf.at[i], leaf.key[i] = v.at, v.key
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
	first := v.keys.at(0)
	return first.key, first.at, true
}

// set puts a key in, or moves it after its time has changed.
func (v *visits) set(key uint32) {
	i, ok := v.find(key)
	if !ok {
		i = v.n
		v.n++
	}
	here := visit{v.of.record(key).due(), key}
	v.down(v.up(i, here), here)
}

// add puts in a key that is not there, and order comes before anything else is done with them.
func (v *visits) add(key uint32, at sketch.Tick) {
	v.put(v.n, visit{at, key})
	v.n++
}

// order puts those that were added into their order.
func (v *visits) order() {
	for i := v.n / 2; i > 0; i-- {
		v.down(i-1, v.keys.at(i-1))
	}
}

// remove takes a key out, if it is there.
func (v *visits) remove(key uint32) {
	i, ok := v.find(key)
	if !ok {
		return
	}
	v.n--
	last := v.keys.at(v.n)
	v.of.keys.setVisit(key, 0, *v.epoch)
	v.keys.shrink(v.n)
	if last.key != key {
		v.down(v.up(i, last), last)
	}
}

// find returns where a key stands.
func (v *visits) find(key uint32) (i uint32, ok bool) {
	place := v.of.keys.visit(key)
	return place - 1, place != 0 && place <= v.n && v.keys.at(place-1).key == key
}

func (v *visits) put(i uint32, here visit) {
	v.keys.set(i, here)
	v.of.keys.setVisit(here.key, i+1, *v.epoch)
}

// up moves a key that shall stand at i or further up.
func (v *visits) up(i uint32, here visit) uint32 {
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

// down moves a key that shall stand at i or further down.
func (v *visits) down(i uint32, here visit) {
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
