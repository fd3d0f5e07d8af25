package shard

import (
	"encoding/binary"
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Parts of the answers to an OverlapQuestion and a GraphQuestion are the sets that a shard holds, each with its name,
// without members:
//
//	sets      'o' or 'g'  uvarint(at) { uvarint(len) name  form  size error  uvarint(len) body }
//
// 'O' and 'G' have a double before at: what each missing key may have held when it died (see lostBodies). form 0 is a
// missing key, without any more fields. size and its standard error are doubles, 8 bytes little endian. The bodies of a
// graph are made as small as the question says. Answers about all sets are always computed from such parts, also by a
// shard that has all the keys.
const (
	partOverlap = 'o'
	partGraph   = 'g'

	// partMissed is subtracted from the letter of a part that has what missing keys may have held.
	partMissed = 'o' - 'O'
)

// namedSet is a set under comparison.
type namedSet struct {
	name   []byte
	size   sketch.SetEstimate
	body   body    // a set or a setDecayed; nil: the key is missing
	missed float64 // what a missing set may have held
}

// askSets answers with a part, or with the answer that is computed from the part alone. small makes a body small enough
// for a part with so many bodies.
func (f *frame) askSets(q *ebbv1.ShardQuestion, kind byte, asOf int64, at sketch.Tick, room int, small func(b body, of int) body) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(asOf), at)
	if err := f.tooCostly(q); err != nil {
		return f.unanswered(err)
	}
	var sets []namedSet
	for _, name := range proto.QuestionKeys(q.Question) {
		s, err := f.setNamed(ns, name, at)
		if err != nil {
			return f.unanswered(err)
		}
		sets = append(sets, s)
	}
	sets, err := f.setsMatching(sets, ns, q.Question, at, room)
	if err != nil {
		return f.unanswered(err)
	}
	part := binary.AppendUvarint(appendMissed(kind, sets), uint64(at))
	for _, s := range sets {
		if s.body != nil {
			s.body = small(s.body, len(sets))
		}
		part = s.append(part)
	}
	answer := f.answerPart(part, at)
	if q.Partial || answer.Error != nil {
		return answer
	}
	whole, failed := Merge(q.Question, []*ebbv1.ShardAnswer{answer})
	if failed != nil {
		return f.unanswered(proto.AsError(failed))
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: whole}, AsOfUs: int64(at)}
}

// appendMissed begins a part of sets.
func appendMissed(kind byte, sets []namedSet) []byte {
	missed := 0.0 // the same of each
	for _, s := range sets {
		missed = max(missed, s.missed)
	}
	if missed == 0 {
		return []byte{kind}
	}
	return binary.LittleEndian.AppendUint64([]byte{kind - partMissed}, math.Float64bits(missed))
}

// setsMatching adds to sets those whose keys match the patterns of a question, without the keys that it names.
func (f *frame) setsMatching(sets []namedSet, ns *namespace, q *ebbv1.Question, at sketch.Tick, room int) ([]namedSet, *proto.Error) {
	texts := proto.QuestionPatterns(q)
	if ns == nil || len(texts) == 0 {
		return sets, nil
	}
	named, cost := f.slotsOf(ns, proto.QuestionKeys(q)), 0
	err := f.matching(ns, compilePatterns(texts), at, func(key uint32) *proto.Error {
		if named[key] || f.kind(key) != ebbv1.Kind_KIND_SET {
			return nil
		}
		if len(sets) == proto.GraphKeysMax {
			return tooManySets(len(sets) + 1)
		}
		cost += f.totalCost(key)
		if heldCopies*bytesPerCost*cost > room {
			return errNoRoom
		}
		b := f.summary(key).body
		sets = append(sets, namedSet{name: f.keys.bytesOf(key), body: b, size: sizeOf(b, at)})
		return f.overCost(cost)
	})
	return sets, err
}

// setNamed finds a set as of a time.
func (f *frame) setNamed(ns *namespace, name []byte, at sketch.Tick) (namedSet, *proto.Error) {
	out := namedSet{name: name}
	if ns == nil {
		return out, nil
	}
	key, ok := f.findKey(ns, name)
	if !ok || !f.alive(ns, key, at) {
		if f.behaviour >= BehaviourSets {
			out.missed = lostBodies(ns.params(), at)
		}
		return out, nil
	}
	sum := f.summary(key)
	if sum.kind() != ebbv1.Kind_KIND_SET {
		err := proto.ErrWrongKind.Errorf("key %s is a %s, and only sets are compared", quote(name), proto.KindName(sum.kind()))
		if sum.kind() == ebbv1.Kind_KIND_BITMAP {
			return out, err.WithHint("count(a & b) is how many ids two bitmaps share, count(a | b) how many either has")
		}
		return out, err.WithHint("write it with kind set")
	}
	out.body, out.size = sum.body, sizeOf(sum.body, at)
	return out, nil
}

func sizeOf(b body, at sketch.Tick) sketch.SetEstimate {
	if s, plain := b.(*set); plain {
		return s.Estimate()
	}
	return b.(*setDecayed).Estimate(at)
}

// nameless returns a copy of a set with at most k hashes and no members.
func nameless(b body, k int) body {
	if s, plain := b.(*set); plain {
		return &set{s.Reduced(k)}
	}
	return &setDecayed{b.(*setDecayed).Reduced(k)}
}

func (s *namedSet) append(b []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(s.name))), s.name...)
	if s.body == nil {
		return append(b, byte(formDistribution))
	}
	b = append(b, byte(s.body.form()))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.size.Value))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.size.StdErr))
	raw := s.body.appendBinary(nil)
	return append(binary.AppendUvarint(b, uint64(len(raw))), raw...)
}

// gathered is the sets of all parts.
type gathered struct {
	at   sketch.Tick
	sets map[string]namedSet
}

func gather(kind byte, answers []*ebbv1.ShardAnswer) (*gathered, *proto.Error) {
	g := &gathered{sets: map[string]namedSet{}}
	var times []sketch.Tick
	var parts [][]namedSet
	for i, a := range answers {
		at, sets, ok := decodeSets(kind, a.GetPart())
		if !ok {
			return nil, proto.AsError(errPart(i))
		}
		g.at = max(g.at, at)
		times, parts = append(times, at), append(parts, sets)
	}
	for i, sets := range parts {
		for _, s := range sets {
			s.fade(times[i], g.at)
			if g.sets[string(s.name)].body == nil { // where patterns ask all shards, most do not have it
				g.sets[string(s.name)] = s
			}
		}
	}
	return g, nil
}

// fade scales the size to a later time.
func (s *namedSet) fade(from, to sketch.Tick) {
	d, decays := s.body.(*setDecayed)
	if !decays || from == to {
		return
	}
	left := 0.0
	if before := d.Estimate(from).Value; before > 0 {
		left = d.Estimate(to).Value / before
	}
	s.size = sketch.SetEstimate{Value: s.size.Value * left, StdErr: s.size.StdErr * left}
}

func decodeSets(kind byte, raw []byte) (at sketch.Tick, sets []namedSet, ok bool) {
	r := reader{rest: raw}
	is, missed := r.byte(), 0.0
	if is == kind-partMissed {
		is, missed = kind, r.float()
		r.bad = r.bad || !(missed > 0 && missed <= math.MaxFloat64)
	}
	at = sketch.Tick(r.uvarint())
	if r.bad || is != kind || at < 0 || at > clockMax {
		return 0, nil, false
	}
	for len(r.rest) > 0 {
		s := namedSet{name: r.bytes()}
		if f := form(r.byte()); f != formDistribution {
			s.size = sketch.SetEstimate{Value: r.float(), StdErr: r.float()}
			raw := r.bytes()
			if r.bad || f.kind() != ebbv1.Kind_KIND_SET || !(s.size.Value >= 0 && number(s.size.Value) && s.size.StdErr >= 0 && number(s.size.StdErr)) {
				return 0, nil, false
			}
			if s.body, ok = decodeBody(f, raw); !ok {
				return 0, nil, false
			}
		} else {
			s.missed = missed
		}
		if r.bad {
			return 0, nil, false
		}
		sets = append(sets, s)
	}
	return at, sets, true
}

// alike is sets of one form: one of the lists is empty, and both are if there is no set.
type alike struct {
	plain  []*sketch.Set
	ebbing []*sketch.SetDecayed
}

// sameForm returns the sets, with an empty one for each that is missing. It refuses sets of different forms.
func sameForm(sets []namedSet) (alike, *proto.Error) {
	var first body
	for _, s := range sets {
		switch {
		case s.body == nil:
		case first == nil:
			first = s.body
		case first.form() != s.body.form():
			return alike{}, unmerged("key "+quote(s.name), errOtherForm)
		case halfLifeOf(first) != halfLifeOf(s.body):
			return alike{}, unmerged("key "+quote(s.name), errOtherHalfLife)
		}
	}
	var out alike
	for _, s := range sets {
		switch b := s.body.(type) {
		case *set:
			out.plain = append(out.plain, &b.Set)
		case *setDecayed:
			out.ebbing = append(out.ebbing, &b.SetDecayed)
		default:
			out.addEmpty(first)
		}
	}
	return out, nil
}

// addEmpty adds an empty set that can be compared with like.
func (a *alike) addEmpty(like body) {
	switch b := like.(type) {
	case *set:
		empty, _ := sketch.NewSet(b.Params())
		a.plain = append(a.plain, &empty)
	case *setDecayed:
		empty, _ := sketch.NewSetDecayed(b.Params())
		a.ebbing = append(a.ebbing, &empty)
	}
}

// sized returns the set with its size, as an answer has it.
func (s *namedSet) sized(confidence float64) *ebbv1.SizedSet {
	return &ebbv1.SizedSet{Key: s.name, Found: s.body != nil, Size: estimated(confidence, s.size)}
}
