package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// bloomTimed can tell whether a bin has occurred within the last half-life, however many there were.
type bloomTimed struct{ sketch.BloomTimed }

func newBloomTimed(window sketch.Tick, size *ebbv1.Sizes, hash sketch.Hash) *bloomTimed {
	f, err := sketch.NewBloomTimed(sketch.BloomTimedParams{
		Capacity: size.GetBloomCapacity(), FalseRate: size.GetBloomFalseRate(), Window: window, Hash: hash,
	})
	mustBody(nil, err)
	return &bloomTimed{f}
}

func (f *bloomTimed) form() form { return formBloomTimed }

func (f *bloomTimed) add(e *event) error {
	f.Add(e.now, e.at, e.hash())
	return nil
}

func (f *bloomTimed) last() sketch.Tick               { return f.Last() }
func (f *bloomTimed) death(float64) sketch.Tick       { return f.Death() }
func (f *bloomTimed) suits(ns *namespace) bool        { return f.Params().Hash.Seed == ns.seed }
func (f *bloomTimed) clone() body                     { return &bloomTimed{f.Clone()} }
func (f *bloomTimed) appendBinary(b []byte) []byte    { return f.AppendBinary(b) }
func (f *bloomTimed) decode(b []byte) ([]byte, error) { return f.Decode(b) }

func (f *bloomTimed) decodeWithin(b []byte, room int) ([]byte, error) { return f.DecodeWithin(b, room) }

func (f *bloomTimed) merge(o body) error {
	return mergeAs(o, func(other *bloomTimed) error { return f.Merge(&other.BloomTimed) })
}

func (f *bloomTimed) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	s := f.State(at)
	answerBloomWithin(q, s, out)
	for _, bin := range q.GetBins() {
		found := f.Has(at, hashOf(bin, f.Params().Hash.Seed)).Found
		out.Memberships = append(out.Memberships, membership(found, s))
	}
}

// answerBloomWithin returns the number of keys of a bloom that may count a key twice, with an interval. If the bloom
// forgets, the interval is from the generation with the most keys to all generations. If it is merged, the interval is
// from one filter to all.
func answerBloomWithin(q *ebbv1.SummaryQuestion, s sketch.BloomState, out *ebbv1.Summary) {
	answerBloom(q, s, out)
	if out.Total.High < math.MaxFloat64 {
		low, _ := sketch.Around(s.KeysLeast, s.KeysError, sureness(q))
		_, high := sketch.Around(s.KeysMost, s.KeysError, sureness(q))
		out.Total.Low, out.Total.High = min(low, s.Keys), high
	}
}
