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

// body is what a key holds if it is not a distribution. It is made with the size and the half-life that its namespace
// has at that time.
type body interface {
	form() form
	// add takes an event.
	add(e *event) error
	// last is the time of the latest event, as far as it matters. death is a time from which on nothing is left;
	// MaxTick if there is none.
	last() sketch.Tick
	death(threshold float64) sketch.Tick
	// suits says whether a namespace may have made the body.
	suits(ns *namespace) bool
	// merge adds what another body of the same form holds.
	merge(o body) error
	clone() body
	// Held is about how many bytes the body takes. It is a function of the replicated state, since it decides which
	// events are refused. Reserved decided that before BehaviourDeletion: for some kinds it is how many bytes a full
	// body takes.
	Held() int
	Reserved() int
	// Size is how many bytes the body takes now, itself included. Unlike Held, it counts memory that is allocated and
	// not used.
	Size() int
	appendBinary(b []byte) []byte
	decode(b []byte) (rest []byte, err error)
	// answer fills in the answer to a question that asks only for what the body knows. The answer keeps none of the
	// body's memory.
	answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary)
}

// born is a body whose key may have held an earlier body that has died.
type born interface {
	// Born records when the body began, and what the earlier body may have held, see sketch.Params.Held.
	Born(now sketch.Tick, held float64)
}

// losing is a body whose counts may be too low by what an earlier body of the same key held when it died.
type losing interface {
	born
	// Lost is the most that may be missing.
	Lost(at sketch.Tick) float64
}

// lostBy returns the most by which the counts of a body may be too low.
func lostBy(b body, at sketch.Tick) float64 {
	switch l := b.(type) {
	case losing:
		return l.Lost(at)
	case *quantile:
		return l.At(at).Lost
	}
	return 0
}

// lostBodies returns how much a missing body may have held of anything when it died, as of a time.
func lostBodies(p *sketch.Params, at sketch.Tick) float64 {
	as := bodyParams(p)
	return as.LostAtBirth(at)
}

// bodyParams returns settings with the threshold below which bodies die.
func bodyParams(p *sketch.Params) sketch.Params {
	as := *p
	as.Threshold = lifeline(p)
	if !as.Gone.Grown {
		as.Gone.Count = min(as.Gone.Count, lifelineMax*8/7) // it is that of distributions
	}
	return as
}

// sparse is a body whose encoding does not tell how large it may grow, since only bits and cells that are set are
// encoded.
type sparse interface {
	// decodeWithin is decode with a limit in bytes. It refuses a body whose sparsely encoded parts take more than room
	// when they are full. It takes memory in proportion to b.
	decodeWithin(b []byte, room int) (rest []byte, err error)
}

// roomFactor is how many times the length of its encoding a full body may take in any namespace. That is more than a
// body takes whose generations or cells are full, with the empty generation that comes after them.
const roomFactor = 64

// room returns how much memory a body of a form may take when it is full, given the length of its encoding: as much as
// a body made by this namespace, and an amount in proportion to the encoding. Decisions made by it do not depend on the
// behaviour version.
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

// roomOf returns how much memory a full body takes that this namespace makes, for a form that is new since
// BehaviourWindows.
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

// form identifies the type of a body in snapshots and parts, so a value never changes its meaning. A kind has one form
// that forgets and one that does not, where they differ.
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

// since is the first behaviour version whose log may contain a form.
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

// kind returns the kind of a form, as users see it.
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
	chance  uint64 // decides what a sketch leaves to chance; see State.chance
	all     bool   // count it however little it weighs, see sketch.Params.OrderFree
}

func eventOf(ns *namespace, clock, t sketch.Tick, in *proto.IncrementWire) event {
	return event{
		now: clock, at: t, bin: in.Bin, seed: ns.seed, amount: in.Amount, value: in.Value, text: in.Text,
		all: ns.params().OrderFree, murmur: proto.ByMurmur3(ns.definition),
	}
}

func (e *event) hash() uint64 { return hashOf(e.bin, e.seed) }

// hashOf returns the hash that newBody gives its sketches as a parameter: xxh3 of the bin, by the namespace's seed.
func hashOf(bin []byte, seed uint64) uint64 { return xxh3.HashSeed(bin, seed) }

// setHash is how members of a namespace's sets are hashed.
func (ns *namespace) setHash() sketch.Hash {
	if proto.ByMurmur3(ns.definition) {
		return sketch.Hash{ID: sketch.HashMurmur3}
	}
	return sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed}
}

// hashedAs says whether a set's hash is the hash of the namespace. Hashes other than murmur3 are compared by their seed
// alone, as before there was a choice.
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

// newBody makes an empty body with the sizes of its namespace, in the form of a behaviour version. It returns nil if
// the namespace cannot hold the kind: under linear decay there are only distributions.
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

// mustBody returns the body. An error panics, since the parameters are known to be in range.
func mustBody(b body, err error) body {
	if err != nil {
		panic("shard: " + err.Error())
	}
	return b
}

// kind returns the kind of what a key holds.
func (sum *summary) kind() ebbv1.Kind {
	if sum.body == nil {
		return ebbv1.Kind_KIND_DISTRIBUTION
	}
	return sum.body.form().kind()
}

// kind returns the kind of what a key holds, without loading it.
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

// addToBody adds an event to a key that holds another kind than a distribution, or is new and is to hold one.
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

// held is how many bytes of a body are counted in bodyBytes.
func (f *frame) held(b body) int {
	if f.behaviour >= BehaviourDeletion {
		return b.Held()
	}
	return b.Reserved()
}

// recount counts the bytes of all bodies again, by the rule of the behaviour in force.
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

// roomFor refuses a new body that would exceed the limit. It refuses any event once existing bodies exceed the limit by
// an eighth.
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

// fits refuses an event that lacks what its form is written with, such as a value or a text.
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

// chance returns a pseudo-random number, another one for each event: a hash of the shard, the entry's index in the log
// and how many numbers were drawn before in the same entry.
//
// It is a function of the log, so that all replicas draw the same numbers, also a replica that starts from a snapshot.
// It is not a function of the event. Events that are equal in all, even in their time, must not be rounded alike.
// Otherwise a thousand of them in one entry would all be rounded up or all down. Shards draw different numbers, or the
// errors of counters with the same writes would add up when they are merged. The seed of the namespace makes the
// numbers unpredictable.
func (s *State) chance(ns *namespace) uint64 {
	var b [20]byte
	binary.LittleEndian.PutUint32(b[:], uint32(s.id))
	binary.LittleEndian.PutUint64(b[4:], s.applying)
	binary.LittleEndian.PutUint64(b[12:], s.drawn)
	s.drawn++
	return xxh3.HashSeed(b[:], ns.seed)
}

// lifeline is how much must be left of a body for its key to live. The threshold of a namespace is made for the counts
// of a distribution. A threshold above 1 removes bins that came once, and would remove a distinct or a bloom together
// with its members. So one event keeps a key of another kind for a half-life at least.
func lifeline(p *sketch.Params) float64 { return min(p.Threshold, lifelineMax) }

const lifelineMax = 0.5

// ended says whether nothing is left of a body at a time.
func ended(b body, p *sketch.Params, at sketch.Tick) bool {
	death := deathOf(b, p)
	return death != sketch.MaxTick && death <= at
}

// deathOf returns the time from which on nothing is left of a body.
func deathOf(b body, p *sketch.Params) sketch.Tick {
	if q, ok := b.(*quantile); ok && p.Lowers {
		return q.DeathBelow(lifeline(p))
	}
	return b.death(lifeline(p))
}

// lapsed says whether nothing is left of a body that was last touched in an era. If nothing was left when settings
// changed, it stays so: later settings do not bring the body back. Nothing is left either if the clock was set back,
// see rewound.
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

// mergeAs merges a body of the same form, and refuses any other.
func mergeAs[B body](o body, merge func(B) error) error {
	other, ok := o.(B)
	if !ok {
		return errOtherForm
	}
	return merge(other)
}

// unmerged returns, for an answer, the error that says why a body does not merge with others.
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

// upTo returns the estimate for a count that is too low by at most lost, and otherwise exact but for the rounding of
// weights.
func upTo(value, lost float64) *ebbv1.Estimate {
	slack := proto.RoundingOf(value)
	return &ebbv1.Estimate{Value: value, Low: value - slack, High: value + lost + slack, Confidence: certain}
}

// about returns an estimate with a standard error, and the interval for a question's confidence.
func about(q *ebbv1.SummaryQuestion, value, stdErr float64) *ebbv1.Estimate {
	low, high := sketch.Around(value, stdErr, sureness(q))
	return &ebbv1.Estimate{Value: value, StdError: stdErr, Low: low, High: high, Confidence: sureness(q)}
}

// atLeast is an estimate with only a lower bound known.
func atLeast(q *ebbv1.SummaryQuestion, value float64) *ebbv1.Estimate {
	return &ebbv1.Estimate{Value: value, Low: value, High: math.MaxFloat64, Confidence: sureness(q)}
}

// atMost returns an estimate that is too low by at most lost and, with this confidence, too high by at most err.
// Amounts are never negative, and neither is the lower bound.
func atMost(value, err, lost, confidence float64) *ebbv1.Estimate {
	if err == 0 {
		confidence = certain
	}
	slack := proto.RoundingOf(value)
	low := max(0, value-err-slack)
	return &ebbv1.Estimate{Value: value, Low: low, High: value + lost + slack, Confidence: confidence}
}

// wider raises the upper bound of an estimate by what was lost.
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
