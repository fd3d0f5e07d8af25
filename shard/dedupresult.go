package shard

import (
	"encoding/binary"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// dedupResult is the result of a command as the shard keeps it, to answer a repetition of the command.
//
// Almost every result is a count and nothing else. All else is kept in a few bytes:
//
//	more = uvarint(session) uvarint(epoch) uvarint(last offset; of a bitmap that was stored how many ids it has, if that is more than a count says)
//	       uvarint(code) [uvarint(len) message uvarint(len) hint]     the error, if code > 0
//	       { uvarint(gap) uvarint(run) uvarint(code) }                runs of refusals
//
// The text of a refusal is not kept: it is made again from the increment that the repetition carries.
type dedupResult struct {
	applied uint32 // up to countMax; of edits of bitmaps: how many ids they changed, and of one that was stored how many it has; recall counts how many were applied
	more    string // "" if there is no more to say
}

// countMax is the largest count that a dedupResult has. INVARIANT count-below-bit: 1 + the count leaves room for a
// session's extraBit, and is not 0.
const countMax = extraBit - 2

func dedupResultOf(c *command, r *ebbv1.CommandResult) dedupResult {
	m := dedupResult{applied: uint32(r.Applied)}
	switch c.kind {
	case proto.FieldCommandStore, proto.FieldCommandHome:
		if r.Error == nil && r.Changed > countMax {
			return dedupResult{more: string(headOf(&ebbv1.CommandResult{LastOffset: r.Changed}))}
		}
		m.applied = uint32(r.Changed)
	case proto.FieldCommandBits:
		m.applied = uint32(r.Changed) // up to proto.BitRangeMax and proto.BitIDsMax
	}
	if c.kind == proto.FieldCommandNames && r.Error == nil {
		return m // a repetition looks the strings up
	}
	if r.Error == nil && len(r.Refused) == 0 && r.Session == 0 && r.Epoch == 0 && r.LastOffset == 0 {
		return m
	}
	m.more = string(appendRefusals(headOf(r), r.Refused))
	return m
}

// headOf returns the bytes before the refusals, as recallHead reads them.
func headOf(r *ebbv1.CommandResult) []byte {
	b := binary.AppendUvarint(nil, r.Session)
	b = binary.AppendUvarint(b, r.Epoch)
	b = binary.AppendUvarint(b, r.LastOffset)
	b = binary.AppendUvarint(b, uint64(r.Error.GetCode()))
	if r.Error != nil {
		b = appendText(b, r.Error.Message)
		b = appendText(b, r.Error.Hint)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendRefusals(b []byte, refused []*ebbv1.Refusal) []byte {
	end := uint32(0)
	for i := 0; i < len(refused); {
		run := 1
		for i+run < len(refused) &&
			refused[i+run].Index == refused[i].Index+uint32(run) &&
			refused[i+run].Error.Code == refused[i].Error.Code {
			run++
		}
		b = binary.AppendUvarint(b, uint64(refused[i].Index-end))
		b = binary.AppendUvarint(b, uint64(run))
		b = binary.AppendUvarint(b, uint64(refused[i].Error.Code))
		end = refused[i].Index + uint32(run)
		i += run
	}
	return b
}

// recall makes the result of a command again, for its repetition.
func (f *frame) recall(m dedupResult, c *command) *ebbv1.CommandResult {
	if c.kind == proto.FieldCommandBits {
		return f.recallBits(m, c)
	}
	if c.kind == proto.FieldCommandStore || c.kind == proto.FieldCommandHome {
		return f.recallStored(m)
	}
	if c.kind == proto.FieldCommandNames && m.more == "" {
		return f.recallNames(c)
	}
	r := &ebbv1.CommandResult{Applied: uint64(m.applied)}
	if m.more == "" {
		return r
	}
	b := f.recallHead(m, r)
	ns := f.lookup(c.namespace)
	batch := batch{rest: c.body, is: c.kind == proto.FieldCommandIncrements}
	for index := uint32(0); len(b.rest) > 0 && !b.bad; {
		index += uint32(b.uvarint())
		run, code := b.uvarint(), ebbv1.Code(b.uvarint())
		for ; run > 0; run-- {
			r.Refused = append(r.Refused, f.refuse(ns, index, batch.at(index), code))
			index++
		}
	}
	return r
}

// recallHead reads the bytes before the refusals.
func (f *frame) recallHead(m dedupResult, r *ebbv1.CommandResult) reader {
	b := reader{rest: []byte(m.more)}
	r.Session, r.Epoch, r.LastOffset = b.uvarint(), b.uvarint(), b.uvarint()
	if code := b.uvarint(); code != 0 {
		r.Error = &ebbv1.Error{Code: ebbv1.Code(code), Message: string(b.bytes()), Hint: string(b.bytes()), Shard: uint32(f.id)}
	}
	return b
}

// wellFormedDedupResult checks bytes that came from outside.
func wellFormedDedupResult(more []byte) bool {
	if len(more) == 0 {
		return true
	}
	b := reader{rest: more}
	b.uvarint()
	b.uvarint()
	b.uvarint()
	if b.uvarint() != 0 {
		b.bytes()
		b.bytes()
	}
	for end := uint64(0); len(b.rest) > 0 && !b.bad; {
		gap, run, code := b.uvarint(), b.uvarint(), b.uvarint()
		if gap > indexMax || run == 0 || run > indexMax || end+gap+run > indexMax || code == 0 || code > codeMax {
			return false
		}
		end += gap + run
	}
	return !b.bad
}

const (
	// indexMax bounds the position of an increment in a command: well above
	// what an entry can hold.
	indexMax = 1 << 20
	codeMax  = 1 << 16
)

// batch walks a serialised batch of increments in order.
type batch struct {
	rest []byte
	is   bool // false: the command carries no batch
	next uint32
	in   proto.IncrementWire
}

// at returns increment i; an empty one if there is none. i must not be less than in an earlier call.
func (b *batch) at(i uint32) *proto.IncrementWire {
	for b.is && b.next <= i && len(b.rest) > 0 {
		b.rest = nextIncrement(b.rest, &b.in)
		b.next++
	}
	if b.next != i+1 {
		return &proto.IncrementWire{}
	}
	return &b.in
}

// reader reads values from bytes. It is bad once the bytes have run out.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// bytes takes a length and as many bytes; they point into the original.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func failed(err *proto.Error) *ebbv1.CommandResult {
	return &ebbv1.CommandResult{Error: err.Wire()}
}
