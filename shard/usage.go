package shard

// holding is what the keys of one namespace take in a shard. It follows from the replicated state and is not part of
// it: a replica that reads a snapshot counts again. Where a block lies may differ between replicas, so two of them may
// differ by some bytes, and nothing that Apply decides may depend on it.
//
// The words and the references change only in summaries, where blocks are put and dropped. So an increment of a bin
// that exists (see addExisting) costs nothing.
type holding struct {
	name      string // of the namespace
	owner     uint16 // where its keys are charged: the space itself, for a slow namespace the space of its namespace
	records   uint32 // of keys, with those of its slow namespace
	keys      uint32 // its own
	words     int    // of blocks: records, and the blocks of large bitmaps
	bodies    int    // bytes that bodies hold, see frame.held
	bins      int    // references to names of bins
	dictPages int    // pages of its dictionary of ids
}

const (
	// keyBytes is what a key takes in addition to its record: the index of names, the directory of records, and the
	// order of cleanups.
	keyBytes = 32
	// binSlotBytes is what the name of a bin takes in addition to its bytes and its place in the index.
	binSlotBytes = 16
)

// account begins to count a namespace.
func (s *summaries) account(name string, space, owner uint16) {
	s.held = append(s.held, holding{name: name, owner: owner})
}

// holder returns the holding to which the keys of a space are charged.
func (s *summaries) holder(space uint16) *holding { return &s.held[s.held[space].owner] }

// count counts a key that is added or removed.
func (s *summaries) count(space uint16, change int) {
	h := s.holder(space)
	h.records += uint32(change)
	if h.owner == space {
		h.keys += uint32(change)
	}
}

// charge adds the words that were put or dropped for a namespace since used was before.
func (s *summaries) charge(space uint16, before int) {
	if words := s.bins.used - before; words != 0 {
		s.holder(space).words += words
	}
}

// holdBody adds bytes, which may be negative, to what the bodies of a namespace hold.
func (s *State) holdBody(space uint16, bytes int) {
	s.bodyBytes += bytes
	s.summaries.holder(space).bodies += bytes
}

// addName adds a string to a dictionary that does not have it, and counts its pages.
func (s *State) addName(l *dictPartition, tag uint32, name encodedName) (number uint32) {
	before := l.pages()
	number = l.add(tag, name, s.epoch)
	if pages := l.pages() - before; pages != 0 {
		s.summaries.holder(l.space).dictPages += pages
	}
	return number
}

// pages is how many pages a dictPartition takes.
func (l *dictPartition) pages() int { return int(l.text.len() + l.places.len() + l.index.slots.len()) }

// memory is how many bytes the names of bins take.
func (d *binTable) memory() int {
	return int(d.bytes.pages.len()+d.index.slots.len())*PageBytes + int(d.names.live)*binSlotBytes
}

// Usage is how many keys and bytes a namespace has in a shard.
type Usage struct {
	Keys  uint64 // including faded ones that are not removed yet
	Bytes uint64 // an estimate
}

// Usage visits the namespaces that hold anything here. space is the number of the namespace in this state; after a
// purge another namespace may get the number. A call costs a few nanoseconds a namespace.
//
// Names of bins are shared: a namespace is charged for their bytes in proportion to its references. Sessions, sources
// and idempotency keys are not counted; their number is limited.
func (s *State) Usage(visit func(space int, name string, u Usage)) {
	total := 0
	for i := range s.summaries.held {
		total += s.summaries.held[i].bins
	}
	perBin := 0.0
	if total > 0 {
		perBin = float64(s.bins.memory()) / float64(total)
	}
	for space := range s.summaries.held {
		h := &s.summaries.held[space]
		if h.words == 0 && h.dictPages == 0 {
			continue
		}
		bytes := 8*h.words + h.bodies + keyBytes*int(h.records) + PageBytes*h.dictPages + int(perBin*float64(h.bins))
		keys := uint64(h.keys)
		if slow := s.slowKeys(s.namespaces[space]); slow != nil {
			keys += uint64(slow.alone)
		}
		visit(space, h.name, Usage{Keys: keys, Bytes: uint64(max(bytes, 0))})
	}
}
