package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// aheadLen is how many increments are looked at before they are applied.
const aheadLen = 32

// lookahead holds the next increments of a batch, and where their keys are. What an increment reads (index, record, name,
// bins) each depends on what was read before, and nothing of it is near the processor when there are millions of keys: one
// after the other waits for memory five times. Read for all of them step by step, and then applied, they wait together.
type lookahead struct {
	increments [aheadLen]incoming
	// now is the clock of the namespace that the batch goes to, for its distributions.
	now sketch.Now
	// seen is what was read, for nothing: a compiler leaves out what nobody uses.
	seen uint64
}

// incoming is an increment that is going to be applied.
type incoming struct {
	proto.IncrementWire
	tag uint32 // of the key
	// found is the key's number plus one, if it was there when the index had seen so many changes.
	found   uint32
	changes uint32
	record  *record // of the key found, for writing
}

// parse takes the next increments off a batch, and reads what they are going to
// need. It returns how many there are.
func (s *State) parse(ns *namespace, raw []byte) (n int, rest []byte) {
	a := &s.ahead
	for n < aheadLen && len(raw) > 0 {
		raw = nextIncrement(raw, &a.increments[n].IncrementWire)
		n++
	}
	s.readAhead(ns, a.increments[:n])
	return n, raw
}

// readAhead finds the keys of increments. Each of its loops reads, for all of them, what the one before has made known, and no branch
// in a loop depends on what that loop reads: or the processor would wait where it could read on.
func (s *State) readAhead(ns *namespace, next []incoming) {
	x := &s.keys.index
	if x.size == 0 {
		return
	}
	seen := uint64(0)
	for i := range next {
		in := &next[i]
		in.tag = tagOf(in.Key, ns.seed)
		seen += x.slot(in.tag & (x.size - 1))
	}
	for i := range next {
		in := &next[i]
		in.changes, in.found, in.record = x.changes, x.likely(in.tag), nil
		if in.found != 0 {
			in.record = s.summaries.records.edit(in.found-1, s.epoch)
		}
	}
	for i := range next {
		if r := next[i].record; r != nil {
			seen += r[0]
		}
	}
	for i := range next {
		if r := next[i].record; r != nil {
			seen += uint64(s.keys.bytes.bytes(r.place())[0])
			if block := r.block(); block != 0 {
				seen += uint64(s.summaries.bins.runs[block>>8].epoch)
			}
		}
	}
	for i := range next {
		if r := next[i].record; r != nil && r.block() != 0 {
			block := s.summaries.bins.at(r.block())
			seen += block[0] + block[min(len(block)-1, 8)] + block[min(len(block)-1, 16)]
		}
	}
	for i := range next {
		if in := &next[i]; in.record != nil && !s.keys.named(in.record, ns.space, in.Key) {
			in.found = 0 // another one with this hash
		}
	}
	s.ahead.seen += seen
}

// handle returns the key of an increment for writing, as touch does.
func (s *State) handle(ns *namespace, clock sketch.Tick, in *incoming) (key uint32, empty bool) {
	if in.found != 0 && in.changes == s.keys.index.changes {
		return in.found - 1, s.revive(ns, clock, in.found-1)
	}
	return s.touch(ns, clock, in.Key)
}

// nowOf is the namespace's clock for its distributions.
func (s *State) nowOf(ns *namespace, clock sketch.Tick) *sketch.Now {
	if s.ahead.now.At() != clock {
		s.ahead.now = ns.params().Now(clock)
	}
	return &s.ahead.now
}
