package shard

import (
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Kinds that can be compared: sets.

// setSignature is how many registers every set has, so that all can be compared.
const setSignature = 1024

// membersDefault is how many members of a set an answer names when the question gives no limit.
const membersDefault = 100

// set keeps what it has seen, for good.
type set struct{ sketch.Set }

func (s *set) form() form { return formSet }

func (s *set) add(e *event) error {
	s.Add(e.memberHash(), e.bin)
	return nil
}

func (s *set) last() sketch.Tick               { return 0 }
func (s *set) death(float64) sketch.Tick       { return sketch.MaxTick }
func (s *set) suits(ns *namespace) bool        { return ns.hashedAs(s.Params().Hash) }
func (s *set) clone() body                     { return &set{s.Clone()} }
func (s *set) appendBinary(b []byte) []byte    { return s.AppendBinary(b) }
func (s *set) decode(b []byte) ([]byte, error) { return s.Decode(b) }

func (s *set) merge(o body) error {
	return mergeAs(o, func(other *set) error { return s.Merge(&other.Set) })
}

func (s *set) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	out.Total = estimated(q.GetConfidence(), s.Estimate())
	if q.GetMembers() {
		out.Members = byName(kept(s.Members(limitOf(q))))
	}
}

// setDecayed keeps what was there lately, by a half-life.
type setDecayed struct{ sketch.SetDecayed }

func (s *setDecayed) form() form { return formSetDecayed }

func (s *setDecayed) add(e *event) error {
	s.Add(e.now, e.at, e.memberHash(), e.bin)
	return nil
}

func (s *setDecayed) last() sketch.Tick                   { return s.Last() }
func (s *setDecayed) death(threshold float64) sketch.Tick { return s.Death(threshold) }
func (s *setDecayed) suits(ns *namespace) bool            { return ns.hashedAs(s.Params().Hash) }
func (s *setDecayed) clone() body                         { return &setDecayed{s.Clone()} }
func (s *setDecayed) appendBinary(b []byte) []byte        { return s.AppendBinary(b) }
func (s *setDecayed) decode(b []byte) ([]byte, error)     { return s.Decode(b) }

func (s *setDecayed) merge(o body) error {
	return mergeAs(o, func(other *setDecayed) error { return s.Merge(&other.SetDecayed) })
}

func (s *setDecayed) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	out.Total = wider(estimated(q.GetConfidence(), s.Estimate(at)), s.Lost(at))
	if q.GetMembers() {
		out.Members = byName(kept(s.Members(limitOf(q))))
	}
}

// estimated converts an estimate of a sketch to one of an answer.
func estimated(confidence float64, e sketch.SetEstimate) *ebbv1.Estimate {
	if e.StdErr == 0 {
		return exactly(e.Value)
	}
	sure := sureness(&ebbv1.SummaryQuestion{Confidence: confidence})
	low, high := e.Interval(sure)
	return &ebbv1.Estimate{Value: e.Value, StdError: e.StdErr, Low: low, High: high, Confidence: sure}
}

// kept returns the members up to the first whose name a union did not keep.
func kept(members []string) []string {
	if i := slices.Index(members, ""); i >= 0 {
		return members[:i]
	}
	return members
}

func limitOf(q *ebbv1.SummaryQuestion) int {
	if q.GetLimit() == 0 {
		return membersDefault
	}
	return int(q.GetLimit())
}

func byName(members []string) (names [][]byte) {
	slices.Sort(members)
	for _, m := range members {
		names = append(names, []byte(m))
	}
	return names
}
