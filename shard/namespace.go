package shard

import (
	"slices"
	"strings"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// namespace is this shard's own copy of a namespace: Apply reads no other.
type namespace struct {
	space      uint16 // its number here; the space of its keys' names
	definition *ebbv1.Namespace
	seed       uint64

	// eventTime is the clock of a namespace on event time: the largest time of an event that was applied, or refused
	// only for lack of room. It includes times in other shards, as far as the log has them. It goes back only when an
	// operator sets it: see eventclock.go.
	eventTime sketch.Tick
	keys      uint32
	// signed: negative amounts are or were allowed, so a write may bring a
	// summary's death nearer.
	signed bool

	// began is when the namespace began to count: the clock at its definition, or the first event after that if there
	// was no clock yet. exposure is what it has counted since (see sketch.Exposure). Where there are active periods,
	// both come from them: see watched.
	began    sketch.Tick
	exposure sketch.Exposure
	active   activePeriods

	slow   uint16 // the space of its slow namespace, 0 if it has never had one; see slow.go
	isSlow bool   // it is a slow namespace
	closed bool   // it is a slow namespace, and its namespace has no second half-life
	alone  uint32 // of a slow namespace: how many of its keys its namespace does not have; see slowkeys.go

	dictPartitions []int // of its dictionary: numbers in frame.dictPartitions
	emptied        bool  // it is purged: nothing is left but its definition, see purge.go

	// eras is the chain of settings of its keys; the last one is the present one. A key records the era of its last
	// touch, and is converted through the eras that follow. Eras at the front without keys are dropped.
	eras    []era
	eraBase uint32 // number of eras[0]

	epoch uint32 // of copy-on-write
}

// era is a time in which stored values of a namespace keep their meaning (see proto.SameArithmetic).
type era struct {
	params sketch.Params // settings that do not affect stored values have their latest value
	from   sketch.Tick   // the namespace's clock from which it holds
	keys   uint32        // how many keys were last touched in it
	fresh  bool          // of a slow namespace: no key of an earlier era lives on in it
	// rewound: the event clock was set back to from. A key with a write of a later time does not live on in this era.
	rewound bool
}

func (ns *namespace) present() *era { return &ns.eras[len(ns.eras)-1] }

func (ns *namespace) presentEra() uint32 { return ns.eraBase + uint32(len(ns.eras)) - 1 }

func (ns *namespace) params() *sketch.Params { return &ns.present().params }

func (ns *namespace) onEventTime() bool {
	return ns.definition.GetClock() == ebbv1.Clock_CLOCK_EVENT
}

// clock returns the namespace's time, given the shard's.
func (ns *namespace) clock(now sketch.Tick) sketch.Tick {
	if ns.onEventTime() {
		return ns.eventTime
	}
	return now
}

// convert takes a distribution last touched in one era into the present one,
// and reports whether it lived through every change.
func (ns *namespace) convert(d *sketch.Distribution, touched uint32) (alive bool) {
	for i := touched - ns.eraBase + 1; i < uint32(len(ns.eras)); i++ {
		last, next := &ns.eras[i-1], &ns.eras[i]
		if next.fresh || next.rewound && d.Reached(&last.params) > next.from || vanished(&last.params, d, next.from) {
			return false
		}
		d.Convert(&last.params, &next.params, next.from)
	}
	return true
}

// count moves a key from one era to another; noEra stands for a key that is new or removed. It drops eras at the front
// without keys.
func (ns *namespace) count(from, to uint32) {
	if from != noEra {
		ns.eras[from-ns.eraBase].keys--
		ns.keys--
	}
	if to != noEra {
		ns.eras[to-ns.eraBase].keys++
		ns.keys++
	}
	gone := 0
	for gone < len(ns.eras)-1 && ns.eras[gone].keys == 0 {
		gone++
	}
	if gone > 0 {
		ns.eras = slices.Clone(ns.eras[gone:])
		ns.eraBase += uint32(gone)
	}
}

const noEra = ^uint32(0)

func (ns *namespace) clone(epoch uint32) *namespace {
	c := *ns
	c.eras = slices.Clone(ns.eras)
	c.active = slices.Clone(ns.active)
	c.epoch = epoch
	return &c
}

// paramsOf returns the parameters that a definition gives to distributions.
func (f *frame) paramsOf(def *ebbv1.Namespace) sketch.Params {
	return sketch.Params{
		Decay:         decays[def.GetDecay()],
		HalfLife:      sketch.Tick(def.GetHalfLifeUs()),
		Floor:         floors[def.GetFloor()],
		Threshold:     def.GetThreshold(),
		Prior:         def.GetPrior(),
		Compact:       def.GetPrecision() == ebbv1.Precision_PRECISION_COMPACT,
		AllowNegative: def.GetAllowNegative(),
		BinsMax:       int(def.GetBinsMax()),
		OrderFree:     f.behaviour >= BehaviourOrderFree,
		Bounded:       f.behaviour >= BehaviourBounded,
		KeepsFaint:    f.behaviour >= BehaviourFaint,
		Lowers:        f.behaviour >= BehaviourGone,
	}
}

var decays = [...]sketch.Decay{
	ebbv1.Decay_DECAY_HALF_LIFE: sketch.HalfLife,
	ebbv1.Decay_DECAY_LINEAR:    sketch.Linear,
	ebbv1.Decay_DECAY_NONE:      sketch.None,
}

var floors = [...]sketch.Floor{
	ebbv1.Floor_FLOOR_PRUNE: sketch.Prune,
	ebbv1.Floor_FLOOR_CLAMP: sketch.Clamp,
	ebbv1.Floor_FLOOR_PRIOR: sketch.Prior,
}

// define applies a DefineNamespace command. Versions that are not newer than
// the known one change nothing.
func (s *State) define(body []byte) *ebbv1.CommandResult {
	def := new(ebbv1.Namespace)
	if err := pb.Unmarshal(body, def); err != nil {
		return failed(proto.ErrBadRequest.Errorf("malformed namespace definition"))
	}
	def.Budget = nil // leaders check it before they propose, and snapshots do not have it
	if s.behaviour < BehaviourEventClocks {
		def.MaxJumpUs, def.ClockSetting = nil, nil
	}
	if def.GetClockSetting().GetEpoch() == 0 {
		def.ClockSetting = nil // it sets nothing
	}
	proto.FillNamespace(def, proto.DefaultNamespaceSettings())
	version := uint32(proto.VersionAdds)
	if s.behaviour < BehaviourAdds {
		version-- // as earlier behaviour versions do
	}
	if err := proto.CheckNamespaceAt(def, version); err != nil {
		return failed(err)
	}
	if err := proto.CheckSecondHalfLife(def); err != nil {
		return failed(err)
	}
	if err := s.checkDeletion(def); err != nil {
		return failed(err)
	}
	if err := s.checkSetHash(def); err != nil {
		return failed(err)
	}
	space, known := s.spaces[def.GetName()]
	if !known {
		return s.newNamespace(def)
	}
	if def.GetVersion() <= s.namespaces[space].definition.GetVersion() {
		return &ebbv1.CommandResult{}
	}
	ns := s.editNamespace(space)
	switch {
	case ns.emptied && !def.GetDeletion().GetPurging():
		s.rebirth(ns, def)
		return &ebbv1.CommandResult{}
	case ns.definition.GetDeletion() != nil && def.Deletion == nil && def.GetHashSeed() != ns.seed:
		return failed(proto.ErrBadNamespace.Errorf("namespace %s: shard %d holds keys of one of that name which was deleted", def.GetName(), s.id))
	}
	if !s.eraFits(ns, def) {
		// The control group counts the same changes and accepts no more of them.
		return failed(proto.ErrBadNamespace.Errorf("namespace %s: its keys remember at most %d changes of settings", def.GetName(), s.limits.HalfLifeChanges).
			WithHint("older changes are forgotten as keys are written or die"))
	}
	s.redefine(ns, def)
	s.followSlow(ns)
	return &ebbv1.CommandResult{}
}

// checkDeletion refuses the definition of a deleted namespace until the behaviour version has deletion.
func (s *State) checkDeletion(def *ebbv1.Namespace) *proto.Error {
	if def.GetDeletion() != nil && s.behaviour < BehaviourDeletion {
		return proto.ErrBadNamespace.Errorf("namespace %s: a shard deletes namespaces from behaviour version %d on, and has %d",
			def.GetName(), BehaviourDeletion, s.behaviour)
	}
	return proto.CheckDeletion(def)
}

// checkSetHash refuses the definition of a namespace that hashes by murmur3 until the behaviour version has that hash.
func (s *State) checkSetHash(def *ebbv1.Namespace) *proto.Error {
	if proto.ByMurmur3(def) && s.behaviour < BehaviourSetHash {
		return proto.ErrBadNamespace.Errorf("namespace %s: shards know set hashes from behaviour version %d on, this has %d",
			def.GetName(), BehaviourSetHash, s.behaviour)
	}
	return nil
}

func (s *State) newNamespace(def *ebbv1.Namespace) *ebbv1.CommandResult {
	if len(s.spaces) >= s.limits.Namespaces {
		if old := s.replaceable(); old != nil {
			s.rebirth(s.editNamespace(old.space), def)
			return &ebbv1.CommandResult{}
		}
		return failed(proto.ErrBadNamespace.Errorf("namespace %s is one too many: a shard knows at most %d", def.GetName(), s.limits.Namespaces))
	}
	ns := &namespace{
		definition: def,
		signed:     def.GetAllowNegative(),
		seed:       def.GetHashSeed(),
		eras:       []era{{params: s.paramsOf(def), from: s.now}},
	}
	s.begin(ns)
	s.addNamespace(ns)
	s.followSlow(ns)
	return &ebbv1.CommandResult{}
}

// begin begins the time of a namespace that is new.
func (s *State) begin(ns *namespace) {
	if ns.onEventTime() { // it begins to count with its first event
		ns.eventTime = s.settingOf(ns.definition)
		return
	}
	ns.began = ns.clock(s.now)
	ns.exposure.From = ns.began
}

func (s *State) addNamespace(ns *namespace) {
	s.ownSpaces()
	ns.space = uint16(len(s.namespaces))
	ns.epoch = s.epoch
	if !ns.isSlow {
		s.spaces[ns.definition.GetName()] = ns.space
	}
	s.namespaces = append(s.namespaces, ns)
	s.summaries.account(ns.definition.GetName(), ns.space, s.owner(ns))
	s.eventCleanups = append(s.eventCleanups, s.newCleanupQueue())
}

// owner returns the space to which the keys of a new namespace are charged. For a slow namespace it is the space of the
// namespace for which it counts.
func (s *State) owner(ns *namespace) uint16 {
	if ns.isSlow {
		return s.spaces[strings.TrimSuffix(ns.definition.GetName(), slowSuffix)]
	}
	return ns.space
}

// redefine changes the settings. If stored values change their meaning, they do so at the namespace's clock, whenever a
// key is next touched.
func (s *State) redefine(ns *namespace, def *ebbv1.Namespace) {
	if s.setsClock(ns, def) {
		ns.setClock(s.settingOf(def), s.behaviour)
	}
	clock := ns.clock(s.now)
	params := s.paramsOf(def)
	if proto.SameArithmetic(ns.definition, def) {
		params.Gone = ns.params().Gone
		ns.present().params = params
	} else {
		ns.fixBeginning()
		if s.behaviour < BehaviourUnited || ns.began != 0 { // else it has counted nothing yet
			ns.exposure = sketch.Exposure{From: clock, Had: ns.exposure.At(ns.params(), clock)}
		}
		s.followGone(ns, &params, clock)
		ns.eras = append(ns.eras, era{params: params, from: clock})
		ns.count(noEra, noEra)
	}
	def.HashSeed, def.Dictionary = ns.seed, ns.definition.GetDictionary()
	def.SetHash = ns.definition.SetHash
	ns.signed = ns.signed || def.GetAllowNegative()
	ns.definition = def
	// The clock does not go back, not even when the namespace changes to another clock.
	ns.eventTime = max(ns.eventTime, clock)
}

// countedOnce records the time of the first event of a namespace that had no time before. Before BehaviourBeginnings it
// also records the time of an earlier event, see reachesBack.
func (ns *namespace) countedOnce(t sketch.Tick) {
	if ns.began == 0 || t < ns.began && ns.reachesBack(t) {
		ns.began, ns.exposure.From = t, t
	}
}

// earlyMin is how much earlier than the first event another one may always be.
const earlyMin = sketch.Tick(60e6)

// reachesBack says whether an event before the first one moves the beginning of the count. It does if the time that was
// counted becomes at most twice as long. Since BehaviourBeginnings this depends on all events, see activePeriods.
func (ns *namespace) reachesBack(t sketch.Tick) bool {
	return ns.beginsWithEvents() && t >= ns.began-max(ns.eventTime-ns.began, earlyMin)
}

// editNamespace returns a namespace for writing.
func (s *State) editNamespace(space uint16) *namespace {
	ns := s.namespaces[space]
	if ns.epoch != s.epoch {
		ns = ns.clone(s.epoch)
		s.namespaces[space] = ns
	}
	return ns
}

// NamespaceVersion returns the version of a namespace's definition that this
// shard knows, 0 if it knows none.
func (s *State) NamespaceVersion(name string) uint64 {
	space, ok := s.spaces[name]
	if !ok {
		return 0
	}
	return s.namespaces[space].definition.GetVersion()
}

// NamespaceGeneration returns the version and the hash seed of a namespace as this shard has it, deleted or not; 0 if
// it knows none of that name. A namespace that was purged and made anew has another seed, unless its maker chose the
// same.
func (s *State) NamespaceGeneration(name string) (version, seed uint64) {
	space, ok := s.spaces[name]
	if !ok {
		return 0, 0
	}
	return s.namespaces[space].definition.GetVersion(), s.namespaces[space].seed
}

// Inhabited returns the definition under which this shard has keys of a namespace, nil if it has none. The caller must
// not change it.
func (s *State) Inhabited(name string) *ebbv1.Namespace {
	space, ok := s.spaces[name]
	if !ok {
		return nil
	}
	ns := s.namespaces[space]
	if slow := s.slowKeys(ns); ns.keys == 0 && (slow == nil || slow.keys == 0) {
		return nil
	}
	return ns.definition
}
