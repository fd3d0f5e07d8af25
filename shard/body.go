package shard

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"github.com/twmb/murmur3"
	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// body is what a key holds that is no distribution: a summary of package
// sketch, made to the size and the half-life that its namespace had then.
type body interface {
	form() form
	// add takes an event.
	add(e *event) error
	// last is the time of the latest event as far as it matters, and death one
	// from which on nothing is left, MaxTick for never.
	last() sketch.Tick
	death(threshold float64) sketch.Tick
	// suits says whether a namespace may have made it.
	suits(ns *namespace) bool
	// merge adds what another of the same form holds.
	merge(o body) error
	clone() body
	// Held is about how many bytes it takes: a function of its state, for it decides what is refused. Reserved is what
	// decided before BehaviourDeletion: of some kinds, how many bytes it takes when it is full.
	Held() int
	Reserved() int
	// Size is how many bytes it takes now, itself included: unlike Held it counts what is allocated and not used.
	Size() int
	appendBinary(b []byte) []byte
	decode(b []byte) (rest []byte, err error)
	// answer fills in an answer to a question that asks for nothing else than it
	// knows. The answer keeps none of the body's memory.
	answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary)
}

// born is a body whose key may have held an earlier one that has died.
type born interface {
	// Born says when it began, and what the earlier one may have held, see sketch.Params.Held.
	Born(now sketch.Tick, held float64)
}

// losing is a body whose counts may be short of what an earlier one of the same key held when it had died.
type losing interface {
	born
	// Lost is how much is missing at most.
	Lost(at sketch.Tick) float64
}

// lostBy is what the counts of a body may be short of.
func lostBy(b body, at sketch.Tick) float64 {
	switch l := b.(type) {
	case losing:
		return l.Lost(at)
	case *quantile:
		return l.At(at).Lost
	}
	return 0
}

// lostBodies is what a body that is not there at a time may have held of anything when it had died.
func lostBodies(p *sketch.Params, at sketch.Tick) float64 {
	as := bodyParams(p)
	return as.LostAtBirth(at)
}

// bodyParams are settings with the threshold below which bodies die.
func bodyParams(p *sketch.Params) sketch.Params {
	as := *p
	as.Threshold = lifeline(p)
	if !as.Gone.Grown {
		as.Gone.Count = min(as.Gone.Count, lifelineMax*8/7) // it is that of distributions
	}
	return as
}

// sparse is a body whose bytes do not tell how large it may grow: of bits and cells it writes down those that are set.
type sparse interface {
	// decodeWithin is decode that refuses what takes more room than that, in bytes, once it is full, of what is not
	// written down in full. It takes memory in proportion to its bytes.
	decodeWithin(b []byte, room int) (rest []byte, err error)
}

// roomFactor is how many times the length of its bytes a body may take in any namespace when it is full: more than
// one whose generations or cells are full takes, with the empty generation that comes after them.
const roomFactor = 64

// room is how much memory a body of a form may take when it is full, and comes as so many bytes: as much as one that
// is made here, or in proportion to its bytes. What is decided by it does not depend on the behaviour version.
func (ns *namespace) room(f form, bytes int) int {
	room := roomFactor * bytes
	if f.since() > 0 {
		return room + ns.roomOf(f)
	}
	switch b := newBody(f.kind(), ns, 0).(type) {
	case nil:
	case *linear:
		room += b.ReservedMost()
	default:
		room += b.Reserved()
	}
	return room
}

// roomOf is room for a body of a form that is new since BehaviourWindows, with few bytes.
func (ns *namespace) roomOf(f form) int {
	size, hash := ns.definition.GetSizes(), sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed}
	switch f {
	case formMorrisMeasured:
		return newMorris(0, size, true).Reserved()
	case formBloomTimed:
		b := newBloomTimed(max(ns.params().HalfLife, sketch.BloomTimedParts), size, hash)
		return b.ReservedMost()
	}
	window := max(sketch.Tick(ns.definition.GetWindowUs()), 1)
	b := newDistinctSliding(window, int(size.GetDistinctPrecision()), hash)
	return b.ReservedMost()
}

// form tells bodies apart in snapshots and parts: their values never change
// their meaning. A kind has one that forgets and one that does not, where these
// are different things.
type form uint8

const (
	formDistribution form = iota // no body at all
	formDistinct
	formDistinctDecayed
	formCountMin
	formQuantile
	formTopK
	formLinear
	formMorris
	formBloom
	formBloomExpiring
	formSet
	formSetDecayed

	formString          form = 12
	formPhrases         form = 13
	formDistinctWindow  form = 14
	formBitmap          form = 15
	formDistinctSliding form = 16
	formBloomTimed      form = 17
	formMorrisMeasured  form = 18
)

// since is the behaviour from which on a form may be in a log.
func (f form) since() uint32 {
	if f >= formDistinctSliding {
		return BehaviourWindows
	}
	return 0
}

// forms makes an empty body of each form, to be decoded into.
var forms = map[form]func() body{
	formDistinct:        func() body { return new(distinct) },
	formDistinctDecayed: func() body { return new(distinctDecayed) },
	formCountMin:        func() body { return new(countMin) },
	formQuantile:        func() body { return new(quantile) },
	formTopK:            func() body { return new(topK) },
	formLinear:          func() body { return new(linear) },
	formMorris:          func() body { return emptyMorris(false) },
	formMorrisMeasured:  func() body { return emptyMorris(true) },
	formBloom:           func() body { return new(bloom) },
	formBloomExpiring:   func() body { return new(bloomExpiring) },
	formString:          func() body { return new(stringValue) },
	formPhrases:         func() body { return new(phrases) },
	formDistinctWindow:  func() body { return new(distinctWindow) },
	formDistinctSliding: func() body { return new(distinctSliding) },
	formBloomTimed:      func() body { return new(bloomTimed) },
	formSet:             func() body { return new(set) },
	formSetDecayed:      func() body { return new(setDecayed) },
	formBitmap:          func() body { return new(bitmapValue) },
}

// kind is what the outside calls a form.
func (f form) kind() ebbv1.Kind {
	switch f {
	case formDistinct, formDistinctDecayed, formDistinctWindow, formDistinctSliding:
		return ebbv1.Kind_KIND_DISTINCT
	case formCountMin:
		return ebbv1.Kind_KIND_COUNTMIN
	case formQuantile:
		return ebbv1.Kind_KIND_QUANTILE
	case formTopK:
		return ebbv1.Kind_KIND_TOPK
	case formLinear:
		return ebbv1.Kind_KIND_LINEAR
	case formMorris, formMorrisMeasured:
		return ebbv1.Kind_KIND_MORRIS
	case formBloom, formBloomExpiring, formBloomTimed:
		return ebbv1.Kind_KIND_BLOOM
	case formSet, formSetDecayed:
		return ebbv1.Kind_KIND_SET
	case formString:
		return ebbv1.Kind_KIND_STRING
	case formPhrases:
		return ebbv1.Kind_KIND_PHRASES
	case formBitmap:
		return ebbv1.Kind_KIND_BITMAP
	}
	return ebbv1.Kind_KIND_DISTRIBUTION
}

// event is an increment on its way into a body.
type event struct {
	now, at sketch.Tick
	bin     []byte // of the log: copy it to keep it
	seed    uint64 // of the namespace
	murmur  bool   // its sets are hashed by murmur3
	amount  float64
	value   float64
	text    []byte // of the log
	chance  uint64 // what decides whatever is left to chance; see State.chance
	all     bool   // count it however little it weighs, see sketch.Params.OrderFree
}

func eventOf(ns *namespace, clock, t sketch.Tick, in *proto.IncrementWire) event {
	return event{
		now: clock, at: t, bin: in.Bin, seed: ns.seed, amount: in.Amount, value: in.Value, text: in.Text,
		all: ns.params().OrderFree, murmur: proto.ByMurmur3(ns.definition),
	}
}

func (e *event) hash() uint64 { return hashOf(e.bin, e.seed) }

// hashOf is the hash that newBody promises its sketches: xxh3 of the bin, by the namespace's seed.
func hashOf(bin []byte, seed uint64) uint64 { return xxh3.HashSeed(bin, seed) }

// setHash is how members of a namespace's sets are hashed.
func (ns *namespace) setHash() sketch.Hash {
	if proto.ByMurmur3(ns.definition) {
		return sketch.Hash{ID: sketch.HashMurmur3}
	}
	return sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed}
}

// hashedAs says whether a set's hash is the one of a namespace. Of the others that are not murmur3 the seed alone
// decides, as it did before there was a choice.
func (ns *namespace) hashedAs(h sketch.Hash) bool {
	own := ns.setHash()
	return h.Seed == own.Seed && (h.ID == sketch.HashMurmur3) == (own.ID == sketch.HashMurmur3)
}

// memberHash is the hash of a member of a set.
func (e *event) memberHash() uint64 {
	if !e.murmur {
		return e.hash()
	}
	h, _ := murmur3.Sum128(e.bin)
	return h
}

// newBody makes an empty body to the sizes of its namespace, as a behaviour has it; nil if the namespace
// cannot hold the kind: a leaky bucket is a thing of distributions.
func newBody(kind ebbv1.Kind, ns *namespace, behaviour uint32) body {
	p, size := ns.params(), ns.definition.GetSizes()
	hash := sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed}
	halfLife := p.HalfLife
	switch p.Decay {
	case sketch.Linear:
		return nil
	case sketch.None:
		halfLife = 0
	}
	switch kind {
	case ebbv1.Kind_KIND_DISTINCT:
		if window := sketch.Tick(ns.definition.GetWindowUs()); window > 0 {
			if behaviour >= BehaviourWindows {
				return newDistinctSliding(window, int(size.GetDistinctPrecision()), hash)
			}
			return newDistinctWindow(window, int(size.GetDistinctPrecision()), hash)
		}
		if halfLife > 0 {
			d, err := sketch.NewDistinctDecayed(sketch.DistinctDecayedParams{Registers: 1 << size.GetDistinctPrecision(), HalfLife: halfLife, Hash: hash})
			return mustBody(&distinctDecayed{d}, err)
		}
		d, err := sketch.NewDistinct(sketch.DistinctParams{Precision: int(size.GetDistinctPrecision()), Hash: hash})
		return mustBody(&distinct{d}, err)
	case ebbv1.Kind_KIND_COUNTMIN:
		c, err := sketch.NewCountMin(sketch.CountMinParams{Epsilon: size.GetCountminEpsilon(), Delta: size.GetCountminDelta(), HalfLife: halfLife, Hash: hash})
		return mustBody(&countMin{c}, err)
	case ebbv1.Kind_KIND_QUANTILE:
		params := sketch.QuantileParams{Accuracy: size.GetQuantileError(), BucketsMax: int(size.GetQuantileBuckets()), HalfLife: halfLife, Compact: p.Compact}
		if halfLife > 0 {
			params.Threshold = lifeline(p) // without, it has no meaning, and would keep equal ones from merging
		}
		q, err := sketch.NewQuantile(params)
		return mustBody(&quantile{q}, err)
	case ebbv1.Kind_KIND_TOPK:
		k, err := sketch.NewTopK(sketch.TopKParams{K: int(size.GetTopkItems()), HalfLife: halfLife, Hash: hash})
		return mustBody(&topK{k}, err)
	case ebbv1.Kind_KIND_LINEAR:
		l, err := sketch.NewLinearCounter(sketch.LinearParams{Capacity: size.GetLinearCapacity(), StandardError: size.GetLinearError(), Members: true, Hash: hash})
		return mustBody(&linear{LinearCounter: l, halfLife: halfLife}, err)
	case ebbv1.Kind_KIND_MORRIS:
		return newMorris(halfLife, size, behaviour >= BehaviourMorris)
	case ebbv1.Kind_KIND_BLOOM:
		if halfLife > 0 && behaviour >= BehaviourWindows {
			return newBloomTimed(halfLife, size, hash)
		}
		if halfLife > 0 {
			f, err := sketch.NewBloomExpiring(sketch.BloomExpiringParams{
				Capacity: size.GetBloomCapacity(), FalseRate: size.GetBloomFalseRate(), Window: halfLife, Hash: hash,
			})
			return mustBody(&bloomExpiring{f}, err)
		}
		f, err := sketch.NewBloomScalable(sketch.BloomParams{Capacity: size.GetBloomCapacity(), FalseRate: size.GetBloomFalseRate(), Hash: hash})
		return mustBody(&bloom{f}, err)
	case ebbv1.Kind_KIND_SET:
		k := int(size.GetSetMembers())
		if halfLife > 0 {
			params := sketch.SetDecayedParams{K: k, HalfLife: halfLife, Members: true, Hash: ns.setHash()}
			s, err := sketch.NewSetDecayed(params)
			return mustBody(&setDecayed{s}, err)
		}
		s, err := sketch.NewSet(sketch.SetParams{K: k, Members: true, Signature: setSignature, Hash: ns.setHash()})
		return mustBody(&set{s}, err)
	case ebbv1.Kind_KIND_STRING:
		return &stringValue{}
	case ebbv1.Kind_KIND_PHRASES:
		p, err := sketch.NewPhrases(hash)
		return mustBody(&phrases{p}, err)
	}
	return nil
}

// mustBody is the body, whose parameters are known to be in range.
func mustBody(b body, err error) body {
	if err != nil {
		panic("shard: " + err.Error())
	}
	return b
}

// kind is what a key holds.
func (sum *summary) kind() ebbv1.Kind {
	if sum.body == nil {
		return ebbv1.Kind_KIND_DISTRIBUTION
	}
	return sum.body.form().kind()
}

// kind is what a key holds, without reading it.
func (f *frame) kind(key uint32) ebbv1.Kind {
	r := f.summaries.record(key)
	switch {
	case r.form() == recordBitmap:
		return ebbv1.Kind_KIND_BITMAP
	case r.form() != recordBody:
		return ebbv1.Kind_KIND_DISTRIBUTION
	}
	return f.summaries.bodies.at(r.box()).body.form().kind()
}

// addToBody brings an event to a key that holds another kind than a
// distribution, or is new and shall.
func (s *State) addToBody(ns *namespace, key uint32, kind ebbv1.Kind, clock, t sketch.Tick, in *proto.IncrementWire) ebbv1.Code {
	sum := s.loadForWrite(key)
	created := sum.body == nil
	b := sum.body
	if created {
		b = newBody(kind, ns, s.behaviour)
		if l, ok := b.(born); ok && ns.params().OrderFree {
			as := bodyParams(ns.params())
			l.Born(clock, as.Held(clock))
		}
	}
	code := s.roomFor(b, created)
	if code == 0 {
		before := 0
		if !created {
			before = s.held(b)
		}
		if code = s.addEvent(ns, b, clock, t, in); code == 0 || !created {
			s.holdBody(ns.space, s.held(b)-before)
			sum.body = b
		}
	}
	if q, ok := b.(*quantile); ok && created && code == 0 && ns.params().Gone.Count > 0 {
		as := bodyParams(ns.params())
		q.Lack(clock, as.Held(clock))
	}
	switch {
	case created && code != 0:
		s.dropKey(ns, key, &sum)
	case code == 0 && (created || in.Amount < 0):
		return s.settle(ns, key, &sum, clock)
	}
	return code
}

// held is how many bytes a body counts in bodyBytes.
func (f *frame) held(b body) int {
	if f.behaviour >= BehaviourDeletion {
		return b.Held()
	}
	return b.Reserved()
}

// recount counts all bodies again, as they count by the behaviour in force.
func (s *State) recount() {
	s.bodyBytes = 0
	for space := range s.summaries.held {
		s.summaries.held[space].bodies = 0
	}
	for key := range s.summaries.keys.all {
		if r := s.summaries.record(key); r.form() == recordBody {
			s.holdBody(r.space(), s.held(s.summaries.bodies.at(r.box()).body))
		}
	}
}

// roomFor refuses a new body that would go over the budget, and any event where those
// that there are have outgrown it by an eighth.
func (s *State) roomFor(b body, created bool) ebbv1.Code {
	held, limit := s.bodyBytes, s.limits.BodyBytes
	if created && b != nil {
		held += s.held(b)
	} else {
		limit += limit / 8
	}
	if held > limit {
		return ebbv1.Code_CODE_RESOURCE_EXHAUSTED
	}
	return 0
}

func (s *State) addEvent(ns *namespace, b body, clock, t sketch.Tick, in *proto.IncrementWire) ebbv1.Code {
	switch {
	case b == nil:
		return ebbv1.Code_CODE_WRONG_KIND
	case in.Amount < 0 && b.form() != formPhrases:
		return ebbv1.Code_CODE_NEGATIVE_AMOUNT
	}
	if code := fits(b.form(), in); code != 0 {
		return code
	}
	e := eventOf(ns, clock, t, in)
	e.chance = s.chance(ns)
	switch err := b.add(&e); {
	case errors.Is(err, sketch.ErrOverflow):
		return ebbv1.Code_CODE_OVERFLOW
	case errors.Is(err, sketch.ErrFull), s.behaviour >= BehaviourFullQuantiles && errors.Is(err, sketch.ErrTooManyBins):
		return ebbv1.Code_CODE_TOO_MANY_BINS
	case err != nil:
		return ebbv1.Code_CODE_BAD_AMOUNT
	}
	return 0
}

// fits refuses an event that does not have what a form is written with.
func fits(f form, in *proto.IncrementWire) ebbv1.Code {
	switch {
	case f == formBitmap:
		return ebbv1.Code_CODE_WRONG_KIND
	case f == formQuantile && in.HasValue, f == formString && in.HasText:
		return 0
	case (f == formQuantile || f == formString) && in.Kind == 0:
		return ebbv1.Code_CODE_WRONG_KIND
	case f == formQuantile:
		return ebbv1.Code_CODE_BAD_AMOUNT
	case f == formString:
		return ebbv1.Code_CODE_BAD_REQUEST
	case len(in.Bin) == 0, f == formPhrases && !proto.HasTokens(in.Bin):
		return ebbv1.Code_CODE_BAD_BIN
	}
	return 0
}

// chance is a number that looks drawn at random, and is another for each event:
// a hash of the shard, the entry's index in the log and how many were drawn
// before in the same entry.
//
// It is a function of the log, so that replicas draw alike, also one that begins
// in the middle with a snapshot. It is not one of the event: events that are
// equal in all, even in their time, must not be rounded alike, or a thousand of
// them in one entry would all be rounded up or all down. Shards draw apart from
// each other, or the errors of counters that are written alike would add up when
// they are merged. The seed of the namespace keeps it from being foreseen.
func (s *State) chance(ns *namespace) uint64 {
	var b [20]byte
	binary.LittleEndian.PutUint32(b[:], uint32(s.id))
	binary.LittleEndian.PutUint64(b[4:], s.applying)
	binary.LittleEndian.PutUint64(b[12:], s.drawn)
	s.drawn++
	return xxh3.HashSeed(b[:], ns.seed)
}

// lifeline is what has to be left of a body for its key to live. The threshold of a namespace says which counts of a
// distribution are nothing: one above 1 takes bins away that came once, and would take a distinct or a bloom away with
// its members. So one event keeps a key of another kind for a half-life at least.
func lifeline(p *sketch.Params) float64 { return min(p.Threshold, lifelineMax) }

const lifelineMax = 0.5

// ended says whether nothing is left of a body at a time.
func ended(b body, p *sketch.Params, at sketch.Tick) bool {
	death := deathOf(b, p)
	return death != sketch.MaxTick && death <= at
}

// deathOf is from when on nothing is left of a body.
func deathOf(b body, p *sketch.Params) sketch.Tick {
	if q, ok := b.(*quantile); ok && p.Lowers {
		return q.DeathBelow(lifeline(p))
	}
	return b.death(lifeline(p))
}

// lapsed says whether nothing is left of a body that was last touched in an era: a change of settings found it so, and
// what follows does not bring it back; or the clock was set back, see rewound.
func (ns *namespace) lapsed(b body, touched uint32) bool {
	if b == nil || ns.rewound(b, touched) {
		return b != nil
	}
	for i := touched - ns.eraBase + 1; ns.params().Lowers && i < uint32(len(ns.eras)); i++ {
		if ended(b, &ns.eras[i-1].params, ns.eras[i].from) {
			return true
		}
	}
	return false
}

// Why bodies of one kind do not merge.
var (
	errOtherForm     = errors.New("one forgets and the other does not")
	errOtherHalfLife = errors.New("their half-lives differ")
	errOtherWindow   = errors.New("their windows differ")
)

// mergeAs merges what is of the same form.
func mergeAs[B body](o body, merge func(B) error) error {
	other, ok := o.(B)
	if !ok {
		return errOtherForm
	}
	return merge(other)
}

// unmerged is why a body does not merge with others, as an answer.
func unmerged(what string, err error) *proto.Error {
	if text, ok := sketch.Differences(err); ok {
		err = errors.New(text)
	}
	return unmergedImage(what, err)
}

// unmergedImage is unmerged as the result of a command. Replicas store it, so its text does not change.
func unmergedImage(what string, err error) *proto.Error {
	if errors.Is(err, sketch.ErrOverflow) {
		return proto.ErrOverflow.Errorf("%s: the sum with the others is larger than a summary can hold", what).WithHint("ask about fewer keys at once")
	}
	return proto.ErrUnmergeable.Errorf("%s does not merge with the others: %s", what, strings.TrimPrefix(err.Error(), sketch.ErrIncompatible.Error()+": ")).
		WithHint("keys merge that were made with one size and half-life, in one namespace; ask about the others by themselves")
}

func exactly(value float64) *ebbv1.Estimate {
	return &ebbv1.Estimate{Value: value, Low: value, High: value, Confidence: certain}
}

// upTo is a count that may be short of what was lost, and is certain but for the rounding of weights.
func upTo(value, lost float64) *ebbv1.Estimate {
	slack := proto.RoundingOf(value)
	return &ebbv1.Estimate{Value: value, Low: value - slack, High: value + lost + slack, Confidence: certain}
}

// about is an estimate with a standard error and the interval of a question's confidence.
func about(q *ebbv1.SummaryQuestion, value, stdErr float64) *ebbv1.Estimate {
	low, high := sketch.Around(value, stdErr, sureness(q))
	return &ebbv1.Estimate{Value: value, StdError: stdErr, Low: low, High: high, Confidence: sureness(q)}
}

// atLeast is an estimate with only a lower bound known.
func atLeast(q *ebbv1.SummaryQuestion, value float64) *ebbv1.Estimate {
	return &ebbv1.Estimate{Value: value, Low: value, High: math.MaxFloat64, Confidence: sureness(q)}
}

// atMost is an estimate that is too low by no more than what was lost, and with this confidence too high by no more
// than err. Amounts are never negative, and neither is the lower bound.
func atMost(value, err, lost, confidence float64) *ebbv1.Estimate {
	if err == 0 {
		confidence = certain
	}
	slack := proto.RoundingOf(value)
	low := max(0, value-err-slack)
	return &ebbv1.Estimate{Value: value, Low: low, High: value + lost + slack, Confidence: confidence}
}

// wider is an estimate whose truth may be more by what was lost.
func wider(e *ebbv1.Estimate, lost float64) *ebbv1.Estimate {
	e.High += lost
	return e
}

// certain is the confidence of bounds that always hold.
const certain = 1

func sureness(q *ebbv1.SummaryQuestion) float64 {
	if q.GetConfidence() == 0 {
		return proto.DefaultConfidence
	}
	return q.GetConfidence()
}
