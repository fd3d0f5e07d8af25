package shard

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// ID is the number of a shard, from 1.
type ID uint32

func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Behaviour versions. Each changes what Apply does, from the entry on that switches it on.
const (
	// BehaviourNamespaces is the version since which sessions, ordered sources and idempotency keys belong to the
	// namespace of the command that created them. A session also has a secret. Older ones have no namespace and keep
	// the old rule: a session until it expires or a command shows a secret, a key until it is too old, a source until
	// it is dropped (see openSource).
	BehaviourNamespaces = 2

	// BehaviourDeletion is the version since which a namespace can be deleted and purged. The limit on bodies applies
	// to the bytes they hold, no longer to the bytes they could hold when full.
	BehaviourDeletion = 3

	// BehaviourOrderFree is the version since which the order of events does not change what summaries count, within
	// the loss that they report (see sketch.Params.OrderFree). The floors clamp and prior keep bins for good.
	BehaviourOrderFree = 4

	// BehaviourWindows is the version since which a new distinct with a window records when each of its parts was last
	// seen. A new bloom that forgets grows with bursts. Older keys stay as they are.
	BehaviourWindows = 5

	// BehaviourSets is the version since which all nodes can read the sets of more than sketch.SetDecayedKMax members
	// that a question makes of several sets. They can also read parts of its answer that state what missing sets may
	// have held.
	BehaviourSets = BehaviourWindows

	// BehaviourMorris is the version since which a new Morris counter keeps the variance of its rounding.
	BehaviourMorris = BehaviourWindows

	// BehaviourBounded is the version since which counts under linear decay report how much too low late events may
	// have made them.
	BehaviourBounded = BehaviourWindows

	// BehaviourSketches is the version since which images merge with what keys hold, and large images come in pieces.
	BehaviourSketches = BehaviourWindows

	// BehaviourEventClocks is the version since which the event clocks of shards follow each other, and events dated
	// too far ahead are refused.
	BehaviourEventClocks = BehaviourWindows
	// BehaviourSetHash is the version since which a namespace may hash the members of its sets by murmur3. Hashes can
	// be written to sets and read from them.
	BehaviourSetHash = BehaviourWindows

	// BehaviourBeginnings is the version since which a rate does not depend on the order of events: see activePeriods.
	BehaviourBeginnings = BehaviourWindows

	// BehaviourFaint is the version since which an event that no longer weighs anything still makes a bin, where the
	// floor keeps bins for good.
	BehaviourFaint = 6

	// BehaviourUnited is the version since which a shard keeps the active periods of a namespace also when keys come
	// from elsewhere or its clock is set back. So all shards together give the time at which rates begin.
	BehaviourUnited = BehaviourFaint

	// BehaviourHolderDrops is the version since which a drop of a source may carry the identity of its holder. Such a
	// drop changes nothing unless the epoch of the holder is the current one.
	BehaviourHolderDrops = BehaviourFaint

	// BehaviourImages is the version since which an image with other settings is converted at a time that the shard's
	// clock has reached. This holds also where the settings begin later, as those of a namespace without events do
	// under an event clock. Bins of merged images get their ids in the order of their names.
	BehaviourImages = 7

	// BehaviourSlowKeys is the version since which a key exists as long as it counts something under either half-life
	// of its namespace, see slowkeys.go.
	BehaviourSlowKeys = BehaviourImages

	// BehaviourGone is the version since which a namespace records what keys may have held that were gone when its
	// settings changed, see gone.go. A change of settings also finds keys of other kinds than distributions gone. A
	// quantile lives until the present threshold, if that is lower than its own.
	BehaviourGone = BehaviourImages

	// BehaviourFullQuantiles is the version since which a value that finds no bucket is refused as one bin too many, no
	// longer as a bad amount.
	BehaviourFullQuantiles = BehaviourImages

	// BehaviourGoneBack is the version since which a namespace records what keys may have held that were gone when its
	// event clock was set back. It also records the shortest half-life that keys may have had.
	BehaviourGoneBack = 8

	// BehaviourAdds is the version since which an image that is merged into a key is added to what the key may have
	// held. Commands remove keys by the event clock as it was before the command. Deleted keys stay deleted when the
	// clock goes back. A row that was refused because its time is still to come is judged again.
	BehaviourAdds = 9

	// BehaviourMax is the newest version that this package implements.
	BehaviourMax = BehaviourAdds
)

// BehaviourOf returns the behaviour version of shards in a cluster with this storage version; 0, the version of an
// empty log, if the storage version has none.
func BehaviourOf(storage uint32) uint32 {
	switch {
	case storage >= proto.VersionAdds:
		return BehaviourAdds
	case storage >= proto.VersionGoneBack:
		return BehaviourGoneBack
	case storage >= proto.VersionImages:
		return BehaviourImages
	case storage >= proto.VersionFaint:
		return BehaviourFaint
	case storage >= proto.VersionWindows:
		return BehaviourWindows
	case storage >= proto.VersionOrderFree:
		return BehaviourOrderFree
	case storage >= proto.VersionDeletion:
		return BehaviourDeletion
	case storage >= proto.VersionNamespaces:
		return BehaviourNamespaces
	}
	return 0
}

// clockMax bounds the shard's clock, so that sums of times cannot overflow. Entries with a later stamp, past the year
// 4253, do not move the clock.
const clockMax = sketch.Tick(1) << 56

// frame is the part of a state that a view has: all that is replicated, and the indexes that find a key by its name.
type frame struct {
	id          ID
	epoch       uint32 // of copy-on-write, begun by each freeze; not replicated
	applied     uint64
	now         sketch.Tick
	behaviour   uint32
	lastSession uint64
	lastEpoch   uint64 // given to a source

	namespaces []*namespace
	spaces     map[string]uint16 // by name; a view shares it, see addNamespace

	bins           binTable
	keys           keyIndex
	summaries      summaries       // by key
	expiries       expiries        // by key
	dictPartitions []dictPartition // of namespaces, in the order in which they began

	sessions slotTable[session]
	sources  slotTable[source]
	answered slotTable[answered]
	orphans  slotTable[orphan]

	staged   staging // the pieces of a restore so far
	uploads  uploads // large images that are on their way
	restored string  // the name of the restore that this state began with; "" for none

	unions map[windowID][]*CachedUnion // that a view was given, see View.Use
}

// State is the state machine of one shard. See the package comment for who may
// call what at the same time.
type State struct {
	frame
	limits Limits
	mem    Memory

	// Derived from the frame, and not part of the replicated state:
	spacesShared    bool          // a view has frame.spaces
	cleanups        *cleanupQueue // keys of namespaces on wall time
	eventCleanups   []*cleanupQueue
	sessionSlots    map[uint64]uint32
	sessionExpiries heap
	sessionPlaces   []uint32
	sourceSlots     map[sourceName]uint32
	keySlots        map[idempotencyKey]uint32
	orphanSlots     map[uint64]uint32 // by generation
	answerExpiries  heap
	keyPlaces       []uint32
	answeredBytes   int
	bodyBytes       int // of all bodies, see held
	prefetch        prefetcher
	gathered        uint32        // keys before this one have been looked at, see gather; 0 between two rounds
	editor          *bitmapEditor // nil before the first edit
	dropping        []uint16      // slow namespaces that may have keys to drop
	removedBins     []uint32      // scratch: bins that a summary is removing
	applying        uint64        // the index of the entry that is being applied
	drawn           uint64        // how many chances the entry has drawn
	paid            int           // commands other than increments pay for gather as much as so many increments
	compared        int           // bytes of keys that the entry's commands have compared with checksums
	looked          int           // bins that the entry has looked through to make room in full distributions
	successor       *State        // see Successor
	asked           Audit         // by the last entry that asked for one, see Audited
}

// New returns the state of a shard whose log is empty.
func New(id ID, mem Memory) *State {
	s := &State{
		frame: frame{
			id:        id,
			epoch:     1,
			spaces:    map[string]uint16{},
			bins:      newBinTable(mem),
			summaries: newSummaries(mem),
		},
		limits:       DefaultLimits(),
		mem:          mem,
		sessionSlots: map[uint64]uint32{},
		sourceSlots:  map[sourceName]uint32{},
		keySlots:     map[idempotencyKey]uint32{},
		orphanSlots:  map[uint64]uint32{},
	}
	s.keys = newKeyIndex(mem, &s.summaries)
	s.cleanups = s.newCleanupQueue()
	s.sessionExpiries.places = &s.sessionPlaces
	s.answerExpiries.places = &s.keyPlaces
	return s
}

func (s *State) newCleanupQueue() *cleanupQueue {
	return &cleanupQueue{of: &s.summaries, epoch: &s.epoch}
}

// SetLimits replaces the limits. Limits decide results, so all replicas have
// the same from their first entry on; simulated clusters use smaller ones.
func (s *State) SetLimits(l Limits) { s.limits = l }

// Applied returns the index of the last entry applied.
func (f *frame) Applied() uint64 { return f.applied }

// Now returns the shard's clock.
func (f *frame) Now() sketch.Tick { return f.now }

// Keys returns how many keys are kept, including faded ones that are not removed yet.
func (f *frame) Keys() uint64 {
	n := uint64(f.summaries.keys.live)
	for _, ns := range f.namespaces {
		if ns.isSlow {
			n -= uint64(ns.keys)
			if f.behaviour >= BehaviourSlowKeys && !ns.closed {
				n += uint64(ns.alone)
			}
		}
	}
	return n
}

// Behaviour returns the behaviour version in force, 0 before the first.
func (f *frame) Behaviour() uint32 { return f.behaviour }

// Apply applies one entry of the log, a serialised ebbv1.Entry, and appends one
// result for each of its commands. An entry at or below Applied is skipped and
// has no results, so that a log may be applied again over a state.
//
// It panics if the entry's own framing is corrupt: it was committed, so no
// replica may go on without it. A malformed command in a valid entry is
// answered with BAD_REQUEST and changes nothing.
func (s *State) Apply(index uint64, raw []byte, results []*ebbv1.CommandResult) []*ebbv1.CommandResult {
	s.asked = Audit{}
	if index <= s.applied {
		return results
	}
	s.applying, s.drawn, s.compared, s.paid, s.looked = index, 0, 0, 0, 0
	e := parseEntry(index, raw)
	if stamp := sketch.Tick(e.stamp); stamp <= clockMax {
		s.now = max(s.now, stamp)
	}
	cleanups, applied := cleanupsMin, 0
	for raw, ok := e.next(); ok; raw, ok = e.next() {
		r := s.command(raw)
		cleanups += 2 + 2*int(r.Applied)
		applied += int(r.Applied)
		results = append(results, r)
	}
	s.expire(cleanups)
	s.gather(gatherPace * (applied + s.paid))
	s.applied = index
	return results
}

// cleanupsMin is the least number of cleanups per entry. Each command adds more, so that removal keeps up with writes.
const cleanupsMin = 16

// gatherPace is how many keys gather looks at for each increment, to compact blocks.
const gatherPace = 4

// gather compacts blocks of bins when there are many holes between them. A round goes through all keys; one call looks
// at budget keys.
func (s *State) gather(budget int) {
	b := &s.summaries.bins
	if s.gathered == 0 && (budget == 0 || !b.fragmented()) {
		return
	}
	end := min(s.gathered+uint32(budget), s.summaries.keys.slots)
	for ; s.gathered < end; s.gathered++ {
		s.summaries.gather(s.gathered, s.epoch)
	}
	if s.gathered == s.summaries.keys.slots {
		s.gathered = 0
	}
}

func (s *State) expire(budget int) {
	s.cleanUp(s.cleanups, s.now, budget)
	s.expireSessions(budget)
	s.forgetKeys(budget)
	s.dropStale()
	s.uploads.expire(s.now)
}

// command applies one command, unless its identity shows that it was applied before.
func (s *State) command(raw []byte) *ebbv1.CommandResult {
	c, ok := parseCommand(raw)
	if !ok {
		return failed(proto.ErrBadRequest.Errorf("malformed command: not a command that this version knows"))
	}
	if c.kind == proto.FieldCommandRestore {
		return s.restoration(c.body)
	}
	if s.staged.name != "" && !allowedDuringRestore(c.kind) {
		return failed(s.beingRestored())
	}
	if err := s.refuseDeleted(c.namespace); err != nil && !takenWhenDeleted(c.kind) {
		return failed(err)
	}
	switch c.identity {
	case bySession:
		return s.onceInSession(&c)
	case bySource:
		return s.fromSource(&c)
	case byKey:
		return s.onceByKey(&c)
	}
	return s.body(&c)
}

// body is the switch on the kind of a command.
func (s *State) body(c *command) *ebbv1.CommandResult {
	switch c.kind {
	case proto.FieldCommandIncrements:
		return s.increments(c, nil)
	case proto.FieldCommandDefineNamespace:
		return s.define(c.body)
	case fieldCommandOpenSession:
		return s.openSession(c)
	case fieldCommandCloseSession:
		return s.closeSession(c)
	case fieldCommandOpenSource:
		return s.openSource(c)
	case fieldCommandDropSource:
		return s.dropSource(c)
	case fieldCommandBehaviour:
		return s.behave(c.body)
	case proto.FieldCommandDelete, proto.FieldCommandPut, proto.FieldCommandExpire:
		return s.keysCommand(c)
	case proto.FieldCommandBits:
		return s.bits(c, nil)
	case proto.FieldCommandStore:
		return s.storeBitmap(c)
	case proto.FieldCommandNames:
		return s.names(c)
	case proto.FieldCommandHome:
		return s.home(c)
	case fieldCommandPurge:
		return s.purge(c)
	case proto.FieldCommandPutPiece:
		return s.putPiece(c)
	case proto.FieldCommandEventClock:
		return s.advance(c)
	case fieldCommandAudit:
		s.audit(c.body)
	}
	return &ebbv1.CommandResult{} // an audit, or a tick: the entry's stamp has done its work
}

// behave switches to a newer behaviour.
func (s *State) behave(body []byte) *ebbv1.CommandResult {
	version := uint64(0)
	fields(body, func(num protowire.Number, v uint64, _ []byte) {
		if num == fieldBehaviourVersion {
			version = v
		}
	})
	if version > BehaviourMax {
		panic(fmt.Sprintf("shard %d: this binary knows behaviour up to %d; the log asks for %d; upgrade", s.id, BehaviourMax, version))
	}
	s.setBehaviour(max(s.behaviour, uint32(version)))
	return &ebbv1.CommandResult{}
}

// setBehaviour puts a behaviour in force. At BehaviourDeletion it counts the bytes of all bodies again: no other entry
// takes time in proportion to the number of bodies.
func (s *State) setBehaviour(version uint32) {
	recount := s.behaviour < BehaviourDeletion && version >= BehaviourDeletion
	before := s.behaviour
	if s.behaviour = version; recount {
		s.recount()
	}
	if version < BehaviourOrderFree || before >= version {
		return
	}
	for space := range s.namespaces {
		ns := s.editNamespace(uint16(space))
		for i := range ns.eras {
			ns.eras[i].params.OrderFree = version >= BehaviourOrderFree
			ns.eras[i].params.Bounded = version >= BehaviourBounded
			ns.eras[i].params.KeepsFaint = version >= BehaviourFaint
			ns.eras[i].params.Lowers = version >= BehaviourGone
		}
	}
}

// lookup returns a namespace by its name, "default" when empty. It returns nil if the namespace is deleted, or not
// known to this shard.
func (f *frame) lookup(name []byte) *namespace {
	if ns := f.find(name); ns != nil && !ns.deleted() {
		return ns
	}
	return nil
}

// namespaceName returns the name of a namespace, "default" for the empty name. It makes no copy if the shard knows the
// namespace.
func (f *frame) namespaceName(name []byte) string {
	if ns := f.find(name); ns != nil {
		return ns.definition.GetName()
	}
	if len(name) == 0 {
		return proto.DefaultNamespace
	}
	return string(name)
}

// sameNamespace says whether a command's namespace, which may be empty, has this name.
func sameNamespace(name string, of []byte) bool {
	return name == string(of) || len(of) == 0 && name == proto.DefaultNamespace
}

// Freeze returns a view of the present state. It copies the tables that say where data lies, but not the data: data is
// copied when it is next written.
func (s *State) Freeze() *View {
	v := &View{frame: s.frame, release: s.mem.Hold()}
	v.namespaces = slices.Clone(s.namespaces)
	v.summaries, v.expiries = s.summaries.frozen(), s.expiries.frozen()
	v.bins, v.keys = s.bins.frozen(), s.keys.frozen(&v.summaries)
	v.dictPartitions = make([]dictPartition, len(s.dictPartitions))
	for i := range s.dictPartitions {
		v.dictPartitions[i] = s.dictPartitions[i].frozen()
	}
	v.sessions, v.sources, v.answered, v.orphans = s.sessions.frozen(), s.sources.frozen(), s.answered.frozen(), s.orphans.frozen()
	s.spacesShared = true
	s.epoch++
	return v
}

// ownSpaces makes the map of namespaces private.
func (s *State) ownSpaces() {
	if s.spacesShared {
		s.spaces, s.spacesShared = maps.Clone(s.spaces), false
	}
}
