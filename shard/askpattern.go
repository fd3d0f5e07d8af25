package shard

import (
	"encoding/binary"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A part of a question with patterns begins with how many keys matched: those of the question, and those of its
// baseline.
//
//	matched   'e'  uvarint(keys) uvarint(keys of the baseline)
//	          the part itself
const partMatched = 'e'

func appendMatched(b []byte, patterns [][]byte, matched ...uint64) []byte {
	if len(patterns) == 0 {
		return b
	}
	b = append(b, partMatched)
	for i := range 2 {
		n := uint64(0)
		if i < len(matched) {
			n = matched[i]
		}
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// matchCost is the cost to look through the names of all keys, in bins.
func (f *frame) matchCost() int { return keyCost * int(f.summaries.keys.slots) }

// keyCost is the cost to match one name, in bins read.
const keyCost = 16

// matching yields the keys of a namespace that are alive and match, in the order of their slots.
func (f *frame) matching(ns *namespace, p *patterns, at sketch.Tick, yield func(key uint32) *proto.Error) *proto.Error {
	slow := f.slowKeys(ns)
	var name []byte
	for key := range f.summaries.keys.all {
		own := !f.isSlow(ns, key)
		if !own && !f.lists(ns, slow, key, at) { // first, for few are and a match takes steps
			continue
		}
		if name = f.keys.appendName(name[:0], key); isPart(ns, name) || !p.match(name) || own && !f.alive(ns, key, at) {
			continue
		}
		if err := yield(key); err != nil {
			return err
		}
	}
	return p.exhausted()
}

// foldAll adds up the keys named and the distributions that match, each once. binCost is the cost of a bin. fits says
// whether there is room for a sum of so many bins.
func (f *frame) foldAll(
	t *total, ns *namespace, keys, texts [][]byte, partial bool, binCost int, fits func(bins int) bool,
) *proto.Error {
	if err := f.fold(t, ns, keys, partial || len(texts) > 0); err != nil || len(texts) == 0 {
		return err
	}
	named, cost := f.slotsOf(ns, keys), 0
	return f.matching(ns, compilePatterns(texts), t.at, func(key uint32) *proto.Error {
		if f.kind(key) != ebbv1.Kind_KIND_DISTRIBUTION {
			return nil
		}
		if t.matched++; named[key] {
			return nil
		}
		if f.isSlow(ns, key) {
			t.missed += ns.params().LostAtBirth(t.at)
			return nil
		}
		cost += binCost * f.totalCost(key)
		if err := f.overCost(cost); err != nil {
			return err
		}
		if bins := f.summaries.record(key).bins(); t.dist != nil && !fits(t.dist.Len()+bins) || !fits(bins) {
			return errNoRoom
		}
		return f.foldKey(t, ns, key)
	})
}

// addMatching adds to a union the keys that match and are not named, without distributions. fits says whether there is
// room for a union that holds so many bytes.
func (f *frame) addMatching(
	u *summaryMerger, ns *namespace, keys, texts [][]byte, fits func(held int) bool,
) *proto.Error {
	if len(texts) == 0 {
		return nil
	}
	named, cost := f.slotsOf(ns, keys), 0
	return f.matching(ns, compilePatterns(texts), u.at, func(key uint32) *proto.Error {
		if f.kind(key) == ebbv1.Kind_KIND_DISTRIBUTION {
			return nil
		}
		if u.matched++; named[key] {
			return nil
		}
		cost += f.totalCost(key)
		if err := f.overCost(cost); err != nil {
			return err
		}
		if !fits(u.heldWith(f.summary(key).body)) {
			return errNoRoom
		}
		return f.addSlot(u, key)
	})
}

func (f *frame) slotsOf(ns *namespace, names [][]byte) map[uint32]bool {
	slots := map[uint32]bool{}
	for _, of := range []*namespace{ns, f.slowKeys(ns)} {
		for _, name := range names {
			if of == nil {
				break
			}
			if key, ok := f.findKey(of, name); ok {
				slots[key] = true
			}
		}
	}
	return slots
}

// mergeMatched folds parts of a question with patterns.
func mergeMatched(q *ebbv1.Question, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	var matched [2]uint64
	inner := make([]*ebbv1.ShardAnswer, len(answers))
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		kind := r.byte()
		for side := range matched {
			matched[side] += r.uvarint()
		}
		if r.bad || kind != partMatched {
			return nil, errPart(i)
		}
		inner[i] = &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: r.rest}, AsOfUs: a.GetAsOfUs()}
	}
	out, err := mergeParts(q, inner)
	if err != nil {
		return nil, err
	}
	switch v := out.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		v.Distribution.Matched = matched[0]
	case *ebbv1.Answer_Summary:
		v.Summary.Matched = matched[0]
	case *ebbv1.Answer_Surprise:
		v.Surprise.Matched, v.Surprise.AgainstMatched = matched[0], matched[1]
	}
	return out, nil
}
