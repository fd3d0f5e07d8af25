package shard

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The deletion of a namespace reaches a shard as a newer definition. From then on the shard takes no writes to it and
// answers no questions about it; its keys stay, and fade as time passes. A newer definition without a deletion reverts
// that.
//
// When the definition says that the namespace is being purged, the leader proposes PurgeNamespace commands. Each does a
// bounded amount of work and returns where the next one continues. They visit all places where a shard holds something
// of a namespace, one after the other:
//
//	keys -> partitions of the dictionary -> orphans -> sources -> sessions -> idempotency keys -> emptied
//
// Nothing is added to a namespace that is being purged, so one round finds all of it. A new leader begins again:
// nothing is left where its predecessor has been.
//
// An emptied namespace keeps its definition: it refuses older ones, which may still be on their way. A newer one
// without a deletion is the definition of a new namespace of that name.

// Stages of a purge, in the upper half of PurgeNamespace.from. In the lower half there is a slot.
const (
	purgeKeys = iota
	purgeDictPartitions
	purgeOrphans
	purgeSources
	purgeSessions
	purgeAnswered
	purgeEnd

	purgeStageShift = 32
)

// purgeWork is how much one PurgeNamespace does: a few milliseconds.
const purgeWork = 1 << 14

// Work that a purge takes, in slots that are looked at.
const (
	purgeKeyWork    = 16 // to drop a key
	purgeBinsWork   = 4  // bins of it for one
	purgeLeavesWork = 4  // pages of ids for one
)

// deleted says whether a namespace is deleted: it takes no writes and answers no questions.
func (ns *namespace) deleted() bool { return ns.definition.GetDeletion() != nil }

// find returns a namespace by its name as lookup does, deleted or not.
func (f *frame) find(name []byte) *namespace {
	if len(name) == 0 {
		name = defaultNamespace
	}
	space, ok := f.spaces[string(name)]
	if !ok {
		return nil
	}
	return f.namespaces[space]
}

// refuseDeleted returns the error for a command or a question about a deleted namespace; nil if it is not deleted.
func (f *frame) refuseDeleted(name []byte) *proto.Error {
	if ns := f.find(name); ns != nil && ns.deleted() {
		return proto.ErrDeleted(ns.definition).WithShard(uint32(f.id))
	}
	return nil
}

// takenWhenDeleted says whether a shard takes a command about a deleted namespace. Other commands are refused before
// their identity is looked at: a repetition after an undelete is applied.
func takenWhenDeleted(kind protowire.Number) bool {
	switch kind {
	case proto.FieldCommandDefineNamespace, fieldCommandCloseSession, fieldCommandDropSource,
		fieldCommandBehaviour, fieldCommandTick, fieldCommandAudit, fieldCommandPurge:
		return true
	}
	return false
}

// purge applies a PurgeNamespace command.
func (s *State) purge(c *command) *ebbv1.CommandResult {
	var cmd ebbv1.PurgeNamespace
	ns := s.find(c.namespace)
	if pb.Unmarshal(c.body, &cmd) != nil || s.behaviour < BehaviourDeletion {
		return failed(errMalformedCommand())
	}
	if ns == nil || ns.definition.GetVersion() != cmd.Version || !ns.definition.GetDeletion().GetPurging() {
		return failed(proto.ErrBadRequest.Errorf("shard %d does not purge version %d of namespace %s", s.id, cmd.Version, quote(c.namespace)))
	}
	p := purger{s: s, ns: s.editNamespace(ns.space), work: purgeWork}
	if ns.slow != 0 {
		p.slow = s.editNamespace(ns.slow)
	}
	stage, slot := cmd.From>>purgeStageShift, uint32(cmd.From)
	for p.work > 0 && stage < purgeEnd {
		if slot = p.stage(stage, slot); slot == 0 {
			stage++
		}
	}
	if stage >= purgeEnd && !p.empty() { // the caller began in the middle
		stage, slot = purgeKeys, 0
	}
	p.ns.emptied = p.ns.emptied || stage >= purgeEnd
	s.paid += purgeWork / purgeKeyWork // for compacting what is left in pages, also when the shard is emptied
	return &ebbv1.CommandResult{
		Purge: &ebbv1.PurgeProgress{Next: stage<<purgeStageShift | uint64(slot), Dropped: p.dropped, Done: p.ns.emptied},
	}
}

// purger does the work of one command.
type purger struct {
	s        *State
	ns, slow *namespace // slow is nil without a slow namespace
	work     int        // that is left
	dropped  uint64
}

// empty says whether the shard has no keys and no strings of the namespace.
func (p *purger) empty() bool {
	return p.ns.keys == 0 && len(p.ns.dictPartitions) == 0 && (p.slow == nil || p.slow.keys == 0)
}

// stage continues a stage at a slot. It returns the slot at which it has stopped, or 0 at the end of the stage.
func (p *purger) stage(stage uint64, slot uint32) uint32 {
	switch stage {
	case purgeKeys:
		return p.keys(slot)
	case purgeDictPartitions:
		return p.dictPartitions()
	case purgeOrphans:
		return purgeSlotTable(p, &p.s.orphans, slot, func(slot uint32, r *orphan) bool { return r.space == p.ns.space }, p.s.dropOrphan)
	case purgeSources:
		return purgeSlotTable(p, &p.s.sources, slot, func(_ uint32, src *source) bool { return p.owns(src.namespace) }, p.s.forgetSource)
	case purgeSessions:
		return purgeSlotTable(p, &p.s.sessions, slot, func(_ uint32, w *session) bool { return p.owns(w.namespace) }, p.s.dropSession)
	default:
		return purgeSlotTable(p, &p.s.answered, slot, func(_ uint32, a *answered) bool { return p.owns(a.key.namespace) }, p.s.forgetAnswered)
	}
}

func (p *purger) owns(namespace string) bool { return namespace == p.ns.definition.GetName() }

// keys drops keys of the namespace and of its slow namespace.
func (p *purger) keys(key uint32) uint32 {
	s := p.s
	slots := s.summaries.keys.slots
	for ; key < slots && p.work > 0 && (p.ns.keys > 0 || p.slow != nil && p.slow.keys > 0); key++ {
		p.work--
		if !s.summaries.keys.alive(key) {
			continue
		}
		switch space := s.summaries.record(key).space(); {
		case space == p.ns.space:
			p.dropKey(p.ns, key)
			p.dropped++
		case p.slow != nil && space == p.slow.space:
			p.dropKey(p.slow, key)
		}
	}
	if p.work > 0 {
		return 0
	}
	return key
}

func (p *purger) dropKey(ns *namespace, key uint32) {
	sum := p.s.loadForWrite(key)
	p.work -= purgeKeyWork + sum.dist.Len()/purgeBinsWork
	if v := sum.bitmap(); v != nil {
		p.work -= int(v.head.leaves) / purgeLeavesWork
	}
	p.s.dropKey(ns, key, &sum)
}

// dictPartitions drops partitions of the dictionary. A partition is dropped as a whole: it is a list of pages to free.
func (p *purger) dictPartitions() uint32 {
	for len(p.ns.dictPartitions) > 0 && p.work > 0 {
		at := p.ns.dictPartitions[len(p.ns.dictPartitions)-1]
		p.work -= int(p.s.dictPartitions[at].text.len()+p.s.dictPartitions[at].places.len()) + purgeKeyWork
		p.s.dropDictPartition(at)
	}
	if len(p.ns.dictPartitions) == 0 {
		return 0
	}
	return 1
}

// dropDictPartition drops a partition of a dictionary. The partitions behind it move up, so that all stay in the order
// in which they began.
func (s *State) dropDictPartition(at int) {
	l := &s.dictPartitions[at]
	s.summaries.holder(l.space).dictPages -= l.pages()
	l.text.free()
	l.places.free()
	l.index.slots.free()
	s.dictPartitions = append(s.dictPartitions[:at:at], s.dictPartitions[at+1:]...)
	for space, ns := range s.namespaces {
		if len(ns.dictPartitions) == 0 || ns.dictPartitions[len(ns.dictPartitions)-1] < at {
			continue
		}
		moved := make([]int, 0, len(ns.dictPartitions)) // views share the old one
		for _, i := range ns.dictPartitions {
			switch {
			case i < at:
				moved = append(moved, i)
			case i > at:
				moved = append(moved, i-1)
			}
		}
		s.editNamespace(uint16(space)).dictPartitions = moved
	}
}

// purgeSlotTable drops what belongs to the namespace, starting at a slot.
func purgeSlotTable[T any](p *purger, r *slotTable[T], slot uint32, is func(slot uint32, item *T) bool, drop func(slot uint32)) uint32 {
	for ; slot < r.slots && p.work > 0; slot++ {
		p.work--
		if r.alive(slot) && is(slot, r.at(slot)) {
			p.work -= purgeKeyWork
			drop(slot)
		}
	}
	if p.work > 0 {
		return 0
	}
	return slot
}

func (s *State) forgetSource(slot uint32) {
	delete(s.sourceSlots, s.sources.at(slot).sourceName)
	s.sources.drop(slot, s.epoch)
}

func (s *State) forgetAnswered(slot uint32) {
	a := s.answered.at(slot)
	delete(s.keySlots, a.key)
	s.answeredBytes -= len(a.result.more)
	s.answerExpiries.remove(slot)
	s.answered.drop(slot, s.epoch)
}

// rebirth replaces an emptied namespace with a new one, which has another definition and may have another name.
func (s *State) rebirth(ns *namespace, def *ebbv1.Namespace) {
	if had := ns.definition.GetName(); had != def.GetName() {
		s.ownSpaces()
		delete(s.spaces, had)
		s.spaces[def.GetName()] = ns.space
		s.summaries.held[ns.space].name = def.GetName()
	}
	slow := ns.slow
	*ns = namespace{
		space: ns.space, epoch: ns.epoch, slow: slow,
		definition: def, signed: def.GetAllowNegative(), seed: def.GetHashSeed(),
		eras: []era{{params: s.paramsOf(def), from: s.now}},
	}
	s.begin(ns)
	if slow != 0 {
		// The slow namespace stays with its namespace, closed and without keys, until there is a second half-life
		// again.
		c := s.editNamespace(slow)
		c.definition = pb.CloneOf(c.definition)
		c.definition.Name, c.definition.HashSeed = def.GetName()+slowSuffix, def.GetHashSeed()
		s.summaries.held[slow].name = c.definition.Name
		c.seed, c.closed, c.signed, c.eventTime = ns.seed, true, false, 0
		c.eras, c.eraBase = c.eras[len(c.eras)-1:len(c.eras):len(c.eras)], c.presentEra()
		c.eras[0].params = s.paramsOf(c.definition)
	}
	s.followSlow(ns)
}

// replaceable returns the emptied namespace that is to make room for a new one; nil if there is none. It is the one
// with the lowest version, which the fewest entries on their way can refer to.
func (s *State) replaceable() (oldest *namespace) {
	for _, ns := range s.namespaces {
		if !ns.emptied {
			continue
		}
		if oldest == nil || ns.definition.GetVersion() < oldest.definition.GetVersion() ||
			ns.definition.GetVersion() == oldest.definition.GetVersion() &&
				strings.Compare(ns.definition.GetName(), oldest.definition.GetName()) < 0 {
			oldest = ns
		}
	}
	return oldest
}

// Deletion is the state of a namespace's deletion in a shard.
type Deletion struct {
	Version uint64
	Purging bool
	Emptied bool   // the shard holds nothing of the namespace
	Keys    uint64 // keys that the shard holds
}

// Deletion returns the state of a namespace's deletion in this shard. For a namespace that is not deleted only Version
// and Keys mean something. For one that the shard does not know, nothing is set.
func (f *frame) Deletion(name string) Deletion {
	ns := f.find([]byte(name))
	if ns == nil {
		return Deletion{}
	}
	d := ns.definition.GetDeletion()
	return Deletion{Version: ns.definition.GetVersion(), Purging: d.GetPurging(), Emptied: ns.emptied, Keys: uint64(ns.keys)}
}

// Definitions returns the definitions of the namespaces that this shard knows, deleted or not, without those that it
// has emptied. They are the shard's own, and never change: callers must only read them.
func (f *frame) Definitions() (known []*ebbv1.Namespace) {
	for _, ns := range f.namespaces {
		if !ns.isSlow && !ns.emptied {
			known = append(known, ns.definition)
		}
	}
	return known
}

// Fragmented says whether there are holes between blocks that later entries will close.
func (s *State) Fragmented() bool { return s.gathered != 0 || s.summaries.bins.fragmented() }
