package shard

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A slow key is one that only the slow namespace still counts: under the first half-life it has faded. From
// BehaviourSlowKeys on, lists, commands and copies find it, as a distribution that counts nothing. Nothing of it is
// stored in the first namespace: it has the number of the slow namespace's key, and the next event makes a new key
// there.

// there returns the key of a name that is alive at a time: the key in the namespace, or else a slow key.
func (f *frame) there(ns *namespace, name []byte, at sketch.Tick) (key uint32, ok bool) {
	if key, ok := f.findKey(ns, name); ok && f.alive(ns, key, at) {
		return key, true
	}
	if slow := f.slowKeys(ns); slow != nil {
		key, ok = f.findKey(slow, name)
		return key, ok && f.alive(slow, key, at)
	}
	return 0, false
}

// slowKeys is the slow namespace that may have slow keys of a namespace, nil if there are none.
func (f *frame) slowKeys(ns *namespace) *namespace {
	if f.behaviour < BehaviourSlowKeys {
		return nil
	}
	return f.slowOf(ns)
}

// pair updates the number of slow keys (alone) when a key is added to a namespace or to its slow namespace, or removed
// from it. change is 1 or -1.
func (s *State) pair(ns *namespace, tag uint32, name []byte, change int) {
	switch {
	case ns.isSlow:
		if _, own := s.keys.find(tag, s.summaries.held[ns.space].owner, name); !own {
			ns.alone += uint32(change)
		}
	case ns.slow != 0:
		if _, too := s.keys.find(tag, ns.slow, name); too {
			s.editNamespace(ns.slow).alone -= uint32(change)
		}
	}
}

// pairAll counts the keys of slow namespaces when all have been read.
func (s *State) pairAll() {
	if !slices.ContainsFunc(s.namespaces, func(ns *namespace) bool { return ns.isSlow && ns.keys > 0 }) {
		return
	}
	var name []byte
	for key := range s.summaries.keys.all {
		if ns := s.namespaces[s.keys.space(key)]; ns.isSlow {
			name = s.keys.appendName(name[:0], key)
			s.pair(ns, tagOf(name, ns.seed), name, 1)
		}
	}
}

// lists says whether a key of any namespace is alive in ns at a time, as its own key or as a slow key. slow is
// slowKeys(ns).
func (f *frame) lists(ns, slow *namespace, key uint32, at sketch.Tick) bool {
	switch space := f.keys.space(key); {
	case space == ns.space:
		return f.alive(ns, key, at)
	case slow == nil || space != slow.space || !f.alive(slow, key, at):
		return false
	}
	var room [proto.KeyLenMax]byte
	own, ok := f.findKey(ns, f.keys.appendName(room[:0], key))
	return !ok || !f.alive(ns, own, at)
}

// isSlow says whether a key that was found in a namespace is a slow key.
func (f *frame) isSlow(ns *namespace, key uint32) bool { return f.keys.space(key) != ns.space }

// counted is the summary of a key that was found, as its namespace counts: an empty one for a slow key.
func (f *frame) counted(ns *namespace, key uint32) summary {
	if f.isSlow(ns, key) {
		return summary{era: ns.presentEra(), space: ns.space}
	}
	return f.summary(key)
}

// fades returns the time from which on a key is gone if nothing is added; MaxTick for never. death is when its first
// count dies.
func (f *frame) fades(ns *namespace, name []byte, death, at sketch.Tick) sketch.Tick {
	slow := f.slowKeys(ns)
	if slow == nil {
		return death
	}
	if key, ok := f.findKey(slow, name); ok {
		sum := f.summary(key)
		if d := f.present(slow, &sum, at); d != nil {
			death = max(death, d.Death(slow.params()))
		}
	}
	return death
}

// lasting returns the key whose counts show whether a key has changed: the key itself, or the key in the slow
// namespace. The slow namespace counts every event too. Where its half-life is the longer one, it does not fade before
// the first count. So a key that fades between two steps of a rename has not changed.
func (f *frame) lasting(ns *namespace, key uint32) uint32 {
	slow := f.slowKeys(ns)
	if slow == nil || f.isSlow(ns, key) || slow.params().HalfLife < ns.params().HalfLife ||
		f.kind(key) != ebbv1.Kind_KIND_DISTRIBUTION {
		return key
	}
	other, ok := f.findKey(slow, f.keys.bytesOf(key))
	if !ok || !f.alive(slow, other, slow.clock(f.now)) || f.imageLeast(other) > f.comparable() {
		return key
	}
	return other
}

// checksum shows whether a key has changed, see lasting.
func (f *frame) checksum(ns *namespace, key uint32) uint64 {
	return f.wholeChecksum(ns, f.lasting(ns, key))
}

// wholeChecksum is the checksum of all that a key holds; for a slow key, of its counts and of the time when it expires.
func (f *frame) wholeChecksum(ns *namespace, key uint32) uint64 {
	if !f.isSlow(ns, key) {
		return xxh3.Hash(f.appendContent(nil, ns, key))
	}
	sum := f.summary(key)
	return slowChecksum(f.expiries.at(key), f.appendCounts(nil, f.namespaces[sum.space], &sum))
}

func slowChecksum(expiry sketch.Tick, counts []byte) uint64 {
	return xxh3.HashSeed(counts, uint64(expiry))
}
