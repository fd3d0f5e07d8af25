package shard

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Kinds that keep which bins have occurred.

// distinct counts the different bins that it has seen, for good.
type distinct struct{ sketch.Distinct }

func (d *distinct) form() form { return formDistinct }

func (d *distinct) add(e *event) error {
	d.Add(e.hash())
	return nil
}

func (d *distinct) last() sketch.Tick               { return 0 }
func (d *distinct) death(float64) sketch.Tick       { return sketch.MaxTick }
func (d *distinct) suits(ns *namespace) bool        { return d.Params().Hash.Seed == ns.seed }
func (d *distinct) clone() body                     { return &distinct{d.Clone()} }
func (d *distinct) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *distinct) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *distinct) merge(o body) error {
	return mergeAs(o, func(other *distinct) error { return d.Merge(&other.Distinct) })
}

func (d *distinct) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	n, stdErr := d.Estimate()
	out.Total = about(q, n, stdErr)
}

// distinctDecayed counts the different bins that were there lately, by a half-life.
type distinctDecayed struct{ sketch.DistinctDecayed }

func (d *distinctDecayed) form() form { return formDistinctDecayed }

func (d *distinctDecayed) add(e *event) error {
	d.Add(e.now, e.at, e.hash())
	return nil
}

func (d *distinctDecayed) last() sketch.Tick                   { return d.Last() }
func (d *distinctDecayed) death(threshold float64) sketch.Tick { return d.Death(threshold) }
func (d *distinctDecayed) suits(ns *namespace) bool            { return d.Params().Hash.Seed == ns.seed }

func (d *distinctDecayed) clone() body                     { return &distinctDecayed{d.Clone()} }
func (d *distinctDecayed) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *distinctDecayed) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *distinctDecayed) merge(o body) error {
	return mergeAs(o, func(other *distinctDecayed) error { return d.Merge(&other.DistinctDecayed) })
}

func (d *distinctDecayed) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	n, stdErr := d.Estimate(at)
	out.Total = wider(about(q, n, stdErr), d.Lost(at))
}

// linear counts what it has seen, and keeps the names while there are few. With a half-life it ends as a whole when its
// latest event has faded: a set of bits cannot forget one member.
type linear struct {
	sketch.LinearCounter
	halfLife sketch.Tick // 0: for good
	latest   sketch.Tick // event; 0 without a half-life
}

func (l *linear) form() form { return formLinear }

func (l *linear) add(e *event) error {
	if l.halfLife > 0 {
		l.latest = max(l.latest, e.at)
	}
	return l.Add(e.hash(), e.bin)
}

func (l *linear) last() sketch.Tick { return l.latest }

// Reached implements timed.
func (l *linear) Reached() sketch.Tick { return l.latest }

func (l *linear) death(threshold float64) sketch.Tick {
	return sketch.Faded(1, l.latest, l.halfLife, threshold)
}

func (l *linear) suits(ns *namespace) bool { return l.Params().Hash.Seed == ns.seed }

func (l *linear) clone() body {
	return &linear{LinearCounter: l.Clone(), halfLife: l.halfLife, latest: l.latest}
}

// appendBinary writes half-life and latest event, as uvarints, and the counter.
func (l *linear) appendBinary(b []byte) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(l.halfLife)), uint64(l.latest))
	return l.AppendBinary(b)
}

func (l *linear) decode(b []byte) ([]byte, error) { return l.decodeWithin(b, sketch.LinearBytesMax) }

func (l *linear) decodeWithin(b []byte, room int) ([]byte, error) {
	r := reader{rest: b}
	halfLife, latest := r.uvarint(), r.uvarint()
	if r.bad || halfLife > uint64(sketch.HalfLifeMax) || latest > uint64(clockMax) || halfLife == 0 && latest != 0 {
		return nil, sketch.ErrCorrupt
	}
	rest, err := l.DecodeWithin(r.rest, room)
	if err == nil {
		l.halfLife, l.latest = sketch.Tick(halfLife), sketch.Tick(latest)
	}
	return rest, err
}

func (l *linear) merge(o body) error {
	other, ok := o.(*linear)
	switch {
	case !ok || (l.halfLife == 0) != (other.halfLife == 0):
		return errOtherForm
	case l.halfLife != other.halfLife:
		return errOtherHalfLife
	}
	if err := l.Merge(&other.LinearCounter); err != nil {
		return err
	}
	l.latest = max(l.latest, other.latest)
	return nil
}

func (l *linear) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	e := l.Estimate()
	out.Over = e.Over
	switch {
	case e.Exact:
		out.Total = exactly(e.Count)
	case e.Saturated:
		out.Total = atLeast(q, e.Count)
	default:
		low, high := l.Between(e, sureness(q))
		out.Total = &ebbv1.Estimate{
			Value: e.Count, StdError: e.StandardError, Low: low, High: high, Confidence: sureness(q),
		}
	}
	if !q.GetMembers() {
		return
	}
	members, _ := l.Members(nil)
	for _, m := range members {
		out.Members = append(out.Members, bytes.Clone(m))
	}
	slices.SortFunc(out.Members, bytes.Compare)
}

// bloom can tell whether a bin has ever occurred.
type bloom struct{ sketch.BloomScalable }

func (f *bloom) form() form { return formBloom }

func (f *bloom) add(e *event) error {
	f.Add(e.hash())
	return nil
}

func (f *bloom) last() sketch.Tick               { return 0 }
func (f *bloom) death(float64) sketch.Tick       { return sketch.MaxTick }
func (f *bloom) suits(ns *namespace) bool        { return f.Params().Hash.Seed == ns.seed }
func (f *bloom) clone() body                     { return &bloom{f.Clone()} }
func (f *bloom) appendBinary(b []byte) []byte    { return f.AppendBinary(b) }
func (f *bloom) decode(b []byte) ([]byte, error) { return f.Decode(b) }

func (f *bloom) decodeWithin(b []byte, room int) ([]byte, error) { return f.DecodeWithin(b, room) }

func (f *bloom) merge(o body) error {
	return mergeAs(o, func(other *bloom) error { return f.Merge(&other.BloomScalable) })
}

func (f *bloom) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	s := f.State()
	answerBloomWithin(q, s, out)
	for _, bin := range q.GetBins() {
		found := f.Has(hashOf(bin, f.Params().Hash.Seed)).Found
		out.Memberships = append(out.Memberships, membership(found, s))
	}
}

// bloomExpiring can tell whether a bin has occurred within the last half-life.
type bloomExpiring struct{ sketch.BloomExpiring }

func (f *bloomExpiring) form() form { return formBloomExpiring }

func (f *bloomExpiring) add(e *event) error {
	f.Add(e.now, e.at, e.hash())
	return nil
}

func (f *bloomExpiring) last() sketch.Tick               { return f.Last() }
func (f *bloomExpiring) death(float64) sketch.Tick       { return f.Death() }
func (f *bloomExpiring) suits(ns *namespace) bool        { return f.Params().Hash.Seed == ns.seed }
func (f *bloomExpiring) clone() body                     { return &bloomExpiring{f.Clone()} }
func (f *bloomExpiring) appendBinary(b []byte) []byte    { return f.AppendBinary(b) }
func (f *bloomExpiring) decode(b []byte) ([]byte, error) { return f.Decode(b) }

func (f *bloomExpiring) decodeWithin(b []byte, room int) ([]byte, error) {
	return f.DecodeWithin(b, room)
}

func (f *bloomExpiring) merge(o body) error {
	return mergeAs(o, func(other *bloomExpiring) error { return f.Merge(&other.BloomExpiring) })
}

func (f *bloomExpiring) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	s := f.State(at)
	answerBloomWithin(q, s, out)
	for _, bin := range q.GetBins() {
		found := f.Has(at, hashOf(bin, f.Params().Hash.Seed)).Found
		out.Memberships = append(out.Memberships, membership(found, s))
	}
}

func answerBloom(q *ebbv1.SummaryQuestion, s sketch.BloomState, out *ebbv1.Summary) {
	out.Total, out.Over = about(q, s.Keys, s.KeysError), s.Over
	if s.FalseRate > 1-1e-9 { // so full that the bits no longer show how many keys there are
		out.Total = atLeast(q, s.Keys)
	}
}

func membership(found bool, s sketch.BloomState) *ebbv1.Membership {
	if !found {
		return &ebbv1.Membership{}
	}
	return &ebbv1.Membership{Contained: true, FalseRate: s.FalseRate}
}
