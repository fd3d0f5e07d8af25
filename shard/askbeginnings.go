package shard

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Rates of a namespace on event time begin with the events of all its shards. So they depend neither on where keys lie
// nor on the number of shards. A shard knows the active periods of its own events. The united periods of several shards
// are the periods of all their events together: an event in a gap only joins its neighbours. So the node that is asked
// for a trend asks every shard for its periods, and decides from their union when rates begin:
//
//	shard 1    x          xx xx
//	shard 2                  xxxx xx x
//	together   x          xxxxxxxxxxx x
//	           2          1                   now
//
// A shard without periods gives a fixed beginning: after a change of the half-life, after a second half-life was turned
// on later, or from builds that kept no periods. Among the fixed beginnings, and the one of the periods, the one with
// the longest exposure holds, as everywhere.

// partBeginnings is the part in which a shard returns when rates of a namespace begin:
//
//	beginnings  'b'  seed side side    of the namespace, and of its slow namespace; seed is that of its hashes, 8 bytes little
//	                                   endian
//	side     =  uvarint(version)       0: unknown here, and no more
//	            decay(1) uvarint(half-life)
//	            uvarint(epoch) uvarint(now)          of its event clock
//	            uvarint(began) uvarint(from) had     as this shard alone says; had is a double, 8 bytes little endian
//	            uvarint(n) { uvarint(first) uvarint(last) uvarint(events) }    active periods, the latest first
const partBeginnings = 'b'

// sideBegins is when rates begin in one shard, under one half-life.
type sideBegins struct {
	version, epoch, seed uint64
	params               sketch.Params // decay and half-life
	now                  sketch.Tick
	watched              watched
	active               activePeriods
}

// Beginnings are the answers of shards about when rates of a namespace begin, under its half-life and under the second
// one.
type Beginnings struct{ sides [2][]sideBegins }

func (f *frame) askBeginnings(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	b := binary.LittleEndian.AppendUint64([]byte{partBeginnings}, 0)
	if ns == nil {
		return f.answerPart(append(b, 0, 0), f.evaluation(nil, 0, at))
	}
	binary.LittleEndian.PutUint64(b[1:], ns.seed)
	b = ns.appendBeginning(b)
	if slow := f.slowOf(ns); slow != nil {
		b = slow.appendBeginning(b)
	} else {
		b = append(b, 0)
	}
	return f.answerPart(b, f.evaluation(ns, 0, at))
}

func (ns *namespace) appendBeginning(b []byte) []byte {
	p := ns.params()
	b = binary.AppendUvarint(b, ns.definition.GetVersion())
	b = binary.AppendUvarint(append(b, byte(p.Decay)), uint64(p.HalfLife))
	b = binary.AppendUvarint(binary.AppendUvarint(b, ns.clockEpoch()), uint64(ns.eventTime))
	b = ns.appendWatched(b)
	b = binary.AppendUvarint(b, uint64(len(ns.active)))
	for _, p := range ns.active {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.first)), uint64(p.last))
		b = binary.AppendUvarint(b, p.events)
	}
	return b
}

// ReadBeginnings reads the answers of shards. It leaves out answers of builds that do not know the question.
func ReadBeginnings(answers []*ebbv1.ShardAnswer) (*Beginnings, error) {
	out := &Beginnings{}
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		switch kind := r.byte(); {
		case kind == partTrend && !r.bad:
			continue
		case kind != partBeginnings || len(r.rest) < 8:
			return nil, errPart(i)
		}
		seed := binary.LittleEndian.Uint64(r.rest)
		r.rest = r.rest[8:]
		for side := range out.sides {
			if b := r.sideBegins(); b.version > 0 {
				b.seed = seed
				out.sides[side] = append(out.sides[side], b)
			}
		}
		if r.bad || len(r.rest) > 0 {
			return nil, errPart(i)
		}
	}
	newest := slices.MaxFunc(append(slices.Clone(out.sides[0]), sideBegins{}), func(a, b sideBegins) int {
		return cmp.Compare(a.version, b.version)
	})
	for side := range out.sides { // data of a namespace that was purged is not for its successor
		out.sides[side] = slices.DeleteFunc(out.sides[side], func(b sideBegins) bool { return b.seed != newest.seed })
	}
	return out, nil
}

func (r *reader) sideBegins() (b sideBegins) {
	if b.version = r.uvarint(); b.version == 0 {
		return b
	}
	b.params = sketch.Params{Decay: sketch.Decay(r.byte()), HalfLife: sketch.Tick(r.uvarint()), Floor: sketch.Prune}
	b.epoch, b.now = r.uvarint(), sketch.Tick(r.uvarint())
	b.watched = watched{sketch.Tick(r.uvarint()), sketch.Exposure{From: sketch.Tick(r.uvarint()), Had: r.float()}}
	n := r.uvarint()
	if n > activeMax {
		r.bad = true
		return b
	}
	for range n {
		p := activePeriod{first: sketch.Tick(r.uvarint()), last: sketch.Tick(r.uvarint()), events: r.uvarint()}
		b.active = append(b.active, p)
	}
	t := tally{began: b.watched.began, exposure: b.watched.exposure}
	r.bad = r.bad || !validParams(&b.params) || b.now < 0 || b.now > clockMax || !t.valid() || !b.active.valid(b.now)
	return b
}

// united returns the periods of all events of a side, and the time for which they are joined.
func (b *Beginnings) united(side int) (all activePeriods, now sketch.Tick) {
	epoch := uint64(0)
	for _, s := range b.sides[side] {
		if s.epoch > epoch {
			epoch, now = s.epoch, 0
		}
		if s.epoch == epoch {
			now = max(now, s.now)
		}
	}
	for _, s := range b.sides[side] {
		all = append(all, s.active.until(now)...) // a shard may not know yet that the clock was set back
	}
	return all.united(now), now
}

// of returns when rates begin on a side, and the exposure under params at a time; known is false if no shard knows.
func (b *Beginnings) of(side int, p *sketch.Params, at sketch.Tick) (w watched, known bool) {
	if b == nil {
		return w, false
	}
	if all, now := b.united(side); len(all) > 0 {
		w.began = all.began(now)
		w.exposure.From = w.began
	}
	for _, s := range b.sides[side] {
		if len(s.active) > 0 || s.watched.began == 0 || s.params.Decay != p.Decay || s.params.HalfLife != p.HalfLife {
			continue
		}
		w.longer(s.watched.since(), p, at)
	}
	return w, w.began != 0
}

// since corrects a fixed beginning. Until storage version 12, a shard that had no event when the half-life was changed
// stored that it had counted for ever by then.
func (w watched) since() watched {
	if w.exposure.From <= w.began {
		w.exposure.Had = 0
	}
	return w
}

// longer takes the exposure of another shard if it is longer, and its beginning if it is earlier.
func (w *watched) longer(o watched, p *sketch.Params, at sketch.Tick) {
	if w.began == 0 || o.exposure.At(p, at) > w.exposure.At(p, at) {
		w.exposure = o.exposure
	}
	if w.began == 0 || o.began < w.began {
		w.began = o.began
	}
}

// MergeTrend is Merge for a question about a trend, in a namespace whose shards have answered when rates begin. If
// begin is nil or does not have that time, it comes from the parts.
func MergeTrend(q *ebbv1.Question, answers []*ebbv1.ShardAnswer, begin *Beginnings) (*ebbv1.Answer, error) {
	for _, a := range answers {
		if a.GetError() != nil {
			return nil, proto.FromWire(a.Error)
		}
	}
	return mergeTrends(q.GetTrend(), answers, begin)
}

// Date writes into the image of a key when rates of its namespace begin, in place of what the key's shard wrote. If the
// image is from before the rates began, that time is left empty. Images of other kinds stay as they are.
func (b *Beginnings) Date(img []byte) []byte {
	r := reader{rest: img}
	magic, version := r.byte(), r.byte()
	at := sketch.Tick(r.uvarint())
	content := r.bytes()
	if r.bad || magic != imageMagic || version != imageBothVersion {
		return img
	}
	head := img[:len(img)-len(r.rest)]
	c, inner := image{at: at}, image{}
	sides := [2]watched{c.decodeWatched(&r), c.decodeWatched(&r)}
	if r.bad || !inner.decodeContent(content, func(form, int) int { return 0 }) || inner.body != nil {
		return img
	}
	rest := r.rest
	slow := reader{rest: rest}
	params := [2]*sketch.Params{&inner.params, slow.countsParams()}
	if slow.bad {
		return img
	}
	out := slices.Clone(head)
	for side, w := range sides {
		if known, ok := b.of(side, params[side], at); ok {
			if w = known; w.began > at || w.exposure.From > at {
				w = watched{}
			}
		}
		out = appendWatched(out, w.began, w.exposure)
	}
	return append(out, rest...)
}

// countsParams reads the settings of the counts of an image, as far as exposures depend on them.
func (r *reader) countsParams() *sketch.Params {
	p := &sketch.Params{Decay: sketch.Decay(r.byte())}
	r.byte()
	p.HalfLife = sketch.Tick(r.uvarint())
	r.bad = r.bad || p.Decay < sketch.HalfLife || p.Decay > sketch.None || p.HalfLife < 0 ||
		p.HalfLife > proto.HalfLifeMaxUS
	return p
}

func appendWatched(b []byte, began sketch.Tick, exposure sketch.Exposure) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(began)), uint64(exposure.From))
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(exposure.Had))
}
