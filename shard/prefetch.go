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

// prefetcher reads the next increments of a batch, and the memory of their keys, before they are applied. What an
// increment reads (index, directory, record) each depends on what was read before, and nothing of it is near the
// processor when there are millions of keys: one after the other waits for memory each time. Read for all of them step
// by step, and then applied, they wait together.
type prefetcher struct {
	increments [prefetchLen]incoming
	// now is the clock of the namespace that the batch goes to, for its distributions.
	now sketch.Now
	// seen is what was read, for nothing: the compiler leaves out a read without a use.
	seen uint64
}

// incoming is an increment that is going to be applied.
type incoming struct {
	proto.IncrementWire
	tag uint32 // of the key
	// found is the key's number plus one, if it was there when the index had seen so many changes.
	found   uint32
	changes uint32
	block   blockRef
	// record is that of the key found, for writing, if blocks had moved so often.
	record record
	moved  uint32
}

// parse takes the next increments off a batch, and reads what they are going to
// need. It returns how many there are.
func (s *State) parse(ns *namespace, raw []byte) (n int, rest []byte) {
	a := &s.prefetch
	for n < prefetchLen && len(raw) > 0 {
		raw = nextIncrement(raw, &a.increments[n].IncrementWire)
		n++
	}
	s.prefetchKeys(ns, a.increments[:n])
	return n, raw
}

// lines are places in memory that are going to be needed.
type lines[T byte | uint32 | uint64] struct {
	at [prefetchLines * prefetchLen]*T
	n  int
}

func (l *lines[T]) add(p *T) {
	l.at[l.n] = p
	l.n++
}

// read reads them all. There is nothing else in its loop, so that a processor, which looks a few hundred instructions
// ahead, waits for all of them together.
func (l *lines[T]) read() (seen uint64) {
	for _, p := range l.at[:l.n] {
		seen += uint64(*p)
	}
	l.n = 0
	return seen
}

// prefetchKeys finds the keys of increments. Each of its loops notes, for all of them, what the one before has made
// known, and then it is read.
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
