package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Kinds that hold texts, and do not fade.

// stringValue is the value that was written last, in the order of the log, not of the times of events.
//
//	string   uvarint(len) value
type stringValue struct{ value []byte }

var errValues = errors.New("values have no sum")

func (v *stringValue) form() form { return formString }

func (v *stringValue) add(e *event) error {
	v.value = bytes.Clone(e.text)
	return nil
}

func (v *stringValue) last() sketch.Tick         { return 0 }
func (v *stringValue) death(float64) sketch.Tick { return sketch.MaxTick }
func (v *stringValue) suits(*namespace) bool     { return true }
func (v *stringValue) merge(body) error          { return errValues }
func (v *stringValue) clone() body               { return &stringValue{v.value} } // values are replaced, never written to
func (v *stringValue) Held() int                 { return 48 + len(v.value) }
func (v *stringValue) Reserved() int             { return 48 + len(v.value) }
func (v *stringValue) Size() int                 { return 24 + cap(v.value) }

func (v *stringValue) appendBinary(b []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v.value))), v.value...)
}

func (v *stringValue) decode(b []byte) ([]byte, error) {
	r := reader{rest: b}
	value := r.bytes()
	if r.bad || len(value) > proto.TextLenMax || len(b)-len(r.rest) != len(binary.AppendUvarint(nil, uint64(len(value))))+len(value) {
		return nil, sketch.ErrCorrupt
	}
	v.value = bytes.Clone(value)
	return r.rest, nil
}

func (v *stringValue) answer(_ *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	out.Total, out.Text = exactly(1), bytes.Clone(v.value)
}

// phrases is a set of phrases to be found in texts.
type phrases struct{ sketch.Phrases }

func (p *phrases) form() form { return formPhrases }

// add adds a phrase, or removes it if the amount is below 0.
func (p *phrases) add(e *event) error {
	if e.amount < 0 {
		p.Remove(e.bin)
		return nil
	}
	_, err := p.Add(e.bin)
	return err
}

func (p *phrases) last() sketch.Tick { return 0 }

// death is 0 when no phrase is left, otherwise never.
func (p *phrases) death(float64) sketch.Tick {
	if p.Len() == 0 {
		return 0
	}
	return sketch.MaxTick
}

func (p *phrases) suits(ns *namespace) bool        { return p.Hash().Seed == ns.seed && p.Len() > 0 }
func (p *phrases) clone() body                     { return &phrases{p.Clone()} }
func (p *phrases) appendBinary(b []byte) []byte    { return p.AppendBinary(b) }
func (p *phrases) decode(b []byte) ([]byte, error) { return p.Decode(b) }
func (p *phrases) merge(o body) error {
	return mergeAs(o, func(o *phrases) error { return p.Merge(&o.Phrases) })
}

func (p *phrases) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	out.Total = exactly(float64(p.Len()))
	if q.GetMembers() {
		for _, member := range slices.Clip(p.Sorted()) {
			out.Members = append(out.Members, bytes.Clone(member))
		}
	}
}
