package shard

import "github.com/ebbdb/ebb/proto"

// aheadLen is how many increments are looked at before they are applied.
const aheadLen = 32

// aheadKeys is from how many keys on that is worth while: below, everything is in the processor's caches.
const aheadKeys = 1 << 12

// lookahead holds the next increments of a batch. What an increment reads (index,
// name, record, bins) each depends on what was read before, and nothing of it is
// near the processor when there are millions of keys: one after the other waits
// for memory five times. Read for all of them step by step, and then
// applied, they wait together.
type lookahead struct {
	increments [aheadLen]proto.IncrementWire
	keys       [aheadLen]uint32
	// seen is what was read, for nothing: a compiler leaves out what nobody uses.
	seen uint64
}

// parse takes the next increments off a batch, and reads what they are going to
// need. It returns how many there are.
func (s *State) parse(ns *namespace, raw []byte) (n int, rest []byte) {
	a := &s.ahead
	for n < aheadLen && len(raw) > 0 {
		raw = nextIncrement(raw, &a.increments[n])
		n++
	}
	if s.keys.names.live >= aheadKeys {
		s.readAhead(ns, n)
	}
	return n, raw
}

func (s *State) readAhead(ns *namespace, n int) {
	a, x := &s.ahead, &s.keys.index
	var tags [aheadLen]uint32
	seen := uint64(0)
	for i := range n {
		tags[i] = tagOf(a.increments[i].Key, ns.seed)
		seen += x.slot(tags[i] & (x.size - 1))
	}
	keys := a.keys[:0]
	for _, tag := range tags[:n] {
		if key, ok := x.find(tag, isLikely); ok {
			keys = append(keys, key)
			seen += uint64(s.keys.names.at(key).use) + s.summaries.records.at(key)[2]
		}
	}
	for _, key := range keys {
		seen += uint64(s.keys.bytesOf(key)[0])
		r := s.summaries.records.at(key)
		if where := blockRef(r.where()); where != 0 && r.form() != recordBody {
			block := s.summaries.bins.at(where)
			seen += block[0] + block[min(len(block)/2, 32)] + block[min(len(block)-1, 14)]
		}
	}
	a.seen += seen
}

// isLikely takes the first key whose hash agrees.
func isLikely(uint32) bool { return true }
