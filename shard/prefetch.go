package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// prefetchLen is how many increments are looked at before they are applied.
const prefetchLen = 32

// lineWords is how many words come from memory together.
const lineWords = 8

// prefetchLines is how many lines of a record are read: its head, its name, and about ten bins.
const prefetchLines = 4

// prefetcher reads the next increments of a batch, and the memory of their keys, before they are applied. An increment
// reads index, directory and record, and each read depends on the one before. With millions of keys none of these is in
// a cache of the processor. Increments that are applied one after the other wait for memory at each step. The
// prefetcher reads each step for all increments together, so that they wait together.
type prefetcher struct {
	increments [prefetchLen]incoming
	// now is the clock of the batch's namespace, for its distributions.
	now sketch.Now
	// seen is a sum of what was read. It has no use, but the compiler leaves out a read without a use.
	seen uint64
}

// incoming is an increment that is about to be applied.
type incoming struct {
	proto.IncrementWire
	tag uint32 // of the key
	// found is the key's number plus one, if the key existed when the index had this count of changes.
	found   uint32
	changes uint32
	block   blockRef
	// record is the record of the key found, for writing, valid while the slab has this count of moves.
	record record
	moved  uint32
}

// parse takes the next increments from a batch, and reads the memory that they are going to need. It returns how many
// there are.
func (s *State) parse(ns *namespace, raw []byte) (n int, rest []byte) {
	a := &s.prefetch
	for n < prefetchLen && len(raw) > 0 {
		raw = nextIncrement(raw, &a.increments[n].IncrementWire)
		n++
	}
	s.prefetchKeys(ns, a.increments[:n])
	return n, raw
}

// lines are addresses in memory that are going to be needed.
type lines[T byte | uint32 | uint64] struct {
	at [prefetchLines * prefetchLen]*T
	n  int
}

func (l *lines[T]) add(p *T) {
	l.at[l.n] = p
	l.n++
}

// read reads them all. Its loop has nothing else. So a processor, which looks a few hundred instructions ahead, waits
// for all of them together.
func (l *lines[T]) read() (seen uint64) {
	for _, p := range l.at[:l.n] {
		seen += uint64(*p)
	}
	l.n = 0
	return seen
}

// prefetchKeys finds the keys of increments. Each of its loops collects, for all increments, the addresses that the
// loop before has made known. Then they are read.
func (s *State) prefetchKeys(ns *namespace, next []incoming) {
	x, keys, bins := &s.keys.index, &s.summaries.keys, &s.summaries.bins
	if x.size == 0 {
		return
	}
	var bytes lines[byte]
	var numbers lines[uint32]
	var words lines[uint64]
	for i := range next {
		in := &next[i]
		in.tag = tagOf(in.Key, ns.seed)
		bytes.add(x.at(x.home(in.tag)))
	}
	s.prefetch.seen += bytes.read()
	for i := range next {
		in := &next[i]
		in.changes, in.found = x.changes, x.likely(in.tag)
		if in.found != 0 {
			words.add(keys.at(in.found - 1))
		}
	}
	s.prefetch.seen += words.read()
	for i := range next {
		if in := &next[i]; in.found != 0 {
			in.block = keys.block(in.found - 1)
			numbers.add(&bins.runs[in.block>>8].epoch)
		}
	}
	s.prefetch.seen += numbers.read()
	for i := range next {
		if in := &next[i]; in.found != 0 {
			in.record = bins.edit(in.block, s.epoch)
			for line := 0; line < min(len(in.record), prefetchLines*lineWords); line += lineWords {
				words.add(&in.record[line])
			}
		}
	}
	s.prefetch.seen += words.read()
	for i := range next {
		in := &next[i]
		if in.found == 0 {
			continue
		}
		if in.moved = bins.moved; !in.record.is(ns.space, in.Key) {
			in.found = 0 // another one with this hash
		}
	}
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
	if s.prefetch.now.At() != clock {
		s.prefetch.now = ns.params().Now(clock)
	}
	return &s.prefetch.now
}
