package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// bits applies a batch of edits of bitmaps, of an ordered source if src is not nil. Each edit is applied or refused by
// itself.
func (s *State) bits(c *command, src *source) *ebbv1.CommandResult {
	r := &ebbv1.CommandResult{}
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	ns = s.editNamespace(ns.space)
	if s.editor == nil {
		s.editor = new(bitmapEditor)
	}
	late := proto.BySlice(ns.definition) && sketch.Tick(proto.BitEditsUntil(c.body)) < s.now
	index, before, span := uint32(0), uint64(0), uint64(0)
	proto.BitEdits(c.body, func(e *proto.BitEditWire) bool {
		code, fresh := ebbv1.Code(0), true
		if src != nil {
			code, fresh = src.admit(e.Offset, before)
			before = max(before, e.Offset)
		}
		if fresh {
			var changed uint64
			span += e.Span()
			changed, code = s.editBits(ns, e, span, late)
			r.Changed += changed
			if src != nil {
				src.decided(e.Offset, code, s.limits.SourceRefusals)
			}
		}
		switch {
		case code != 0:
			r.Refused = append(r.Refused, &ebbv1.Refusal{Index: index, Error: refusedEdit(ns, e, code).WithShard(uint32(s.id)).Wire()})
		case fresh:
			r.Applied++
		default:
			r.Duplicates++
		}
		index++
		return true
	})
	return r
}

// recallBits makes the result again for a repetition of a batch of edits.
func (f *frame) recallBits(m dedupResult, c *command) *ebbv1.CommandResult {
	r := &ebbv1.CommandResult{Changed: uint64(m.applied)}
	var edits []proto.BitEditWire
	proto.BitEdits(c.body, func(e *proto.BitEditWire) bool {
		edits = append(edits, *e)
		return true
	})
	if m.more == "" {
		r.Applied = uint64(len(edits))
		return r
	}
	b, ns := f.recallHead(m, r), f.lookup(c.namespace)
	for index := uint64(0); len(b.rest) > 0 && !b.bad; {
		index += b.uvarint()
		run, code := b.uvarint(), ebbv1.Code(b.uvarint())
		for ; run > 0 && index < uint64(len(edits)); run-- {
			err := refusedEdit(ns, &edits[index], code).WithShard(uint32(f.id))
			r.Refused = append(r.Refused, &ebbv1.Refusal{Index: uint32(index), Error: err.Wire()})
			index++
		}
	}
	if r.Error == nil {
		r.Applied = uint64(len(edits) - len(r.Refused))
	}
	return r
}

// editBits applies one edit, or returns the code of its refusal. span is how many ids the ranges of its command cover,
// up to and including this one. late says that the command is too late to edit parts.
func (s *State) editBits(ns *namespace, e *proto.BitEditWire, span uint64, late bool) (changed uint64, code ebbv1.Code) {
	if err := e.Check(); err != nil {
		return 0, err.Code
	}
	t := s.editor
	var ok bool
	if t.ids, ok = proto.DecodeBitIDs(t.ids[:0], e.IDs, proto.BitIDsMax); !ok || span > proto.BitRangeMax {
		return 0, ebbv1.Code_CODE_BAD_REQUEST
	}
	if ns.params().Decay == sketch.Linear {
		return 0, ebbv1.Code_CODE_WRONG_KIND
	}
	if proto.BySlice(ns.definition) && e.Fresh == proto.IsPartName(e.Key) {
		return 0, ebbv1.Code_CODE_WRONG_SHARD
	}
	if e.Fresh && proto.BySlice(ns.definition) {
		if err := proto.CheckSliceKey(e.Key); err != nil {
			return 0, err.Code // there would be no name for its parts, nor an orphan of it
		}
	}
	if late && !e.Fresh {
		return 0, ebbv1.Code_CODE_BAD_TIME
	}
	if numbered(ns, e) {
		return 0, ebbv1.Code_CODE_BAD_REQUEST
	}
	clock := ns.clock(s.now)
	if e.Fresh {
		if key, ok := s.findKey(ns, e.Key); ok && s.alive(ns, key, clock) {
			return 0, 0
		}
	}
	key, created := s.touch(ns, clock, e.Key)
	if !created && s.kind(key) != ebbv1.Kind_KIND_BITMAP {
		return 0, ebbv1.Code_CODE_WRONG_KIND
	}
	if !created && e.Op != ebbv1.BitOp_BIT_OP_CLEAR && s.summaries.bins.full(s.summaries.record(key).bitmap(), s.limits.BitmapBytes/8) {
		return 0, ebbv1.Code_CODE_RESOURCE_EXHAUSTED
	}
	sum := s.loadForWrite(key)
	v := sum.bitmap()
	if v == nil {
		v = &bitmapValue{pages: &s.summaries.bins}
		sum.body = v
	}
	before := v.pages.used
	t.begin(v.pages, s.epoch, v.head)
	if e.Ranged {
		changed = uint64(t.editRange(bitmap.Op(e.Op), e.First, e.Last))
	} else {
		changed = uint64(t.edit(bitmap.Op(e.Op), t.ids))
	}
	if v.head = t.head; changed > 0 {
		v.edited = 0
	}
	s.summaries.charge(ns.space, before)
	s.put(key, &sum)
	switch {
	case v.head.ids == 0:
		s.dropKey(ns, key, &sum)
	case created:
		s.schedule(ns, key, &sum, clock)
	}
	return changed, 0
}

// numbered says whether an edit has plain numbers where ids stand for strings. The home of a bitmap that is placed by
// slice always holds a number.
func numbered(ns *namespace, e *proto.BitEditWire) bool {
	return proto.HasDictionary(ns.definition) && !e.Named && (!e.Fresh || !proto.BySlice(ns.definition))
}

// refusedEdit writes the error of a refusal. It depends only on the code and the edit, so that a repetition gets the
// same error.
func refusedEdit(ns *namespace, e *proto.BitEditWire, code ebbv1.Code) *proto.Error {
	if err := e.Check(); err != nil && err.Code == code {
		return err
	}
	if err := proto.CheckSliceKey(e.Key); err != nil && err.Code == code {
		return err
	}
	switch {
	case code == ebbv1.Code_CODE_WRONG_KIND && ns != nil && ns.params().Decay == sketch.Linear:
		return proto.ErrWrongKind.Errorf("bits of key %s: a namespace under linear decay holds distributions only", quote(e.Key))
	case code == ebbv1.Code_CODE_WRONG_SHARD:
		return proto.ErrWrongShard.Errorf("bits of key %s: the namespace places bitmaps by slice, and this shard has part of them only", quote(e.Key)).
			WithHint("send the change to any node: Bits, or ebb bits set")
	case code == ebbv1.Code_CODE_BAD_TIME:
		return proto.ErrBadTime.Errorf("bits of key %s: the command is too late, or says not until when it is good", quote(e.Key)).
			WithHint("send the change again; if that is of no use, look at the clocks of the nodes")
	case code == ebbv1.Code_CODE_WRONG_KIND:
		return proto.ErrWrongKind.Errorf("bits of key %s: it holds another kind than a bitmap", quote(e.Key)).
			WithHint("a key keeps the kind of its first write until it has faded; choose another key")
	case code == ebbv1.Code_CODE_BAD_REQUEST && ns != nil && numbered(ns, e):
		return proto.ErrHasDictionary(ns.definition.GetName())
	case code == ebbv1.Code_CODE_RESOURCE_EXHAUSTED:
		return proto.ErrResourceExhausted.Errorf("bits of key %s: the bitmap has reached its limit of %d MiB in a shard", quote(e.Key), proto.BitmapBytesMax>>20).
			WithHint("cut it into several, by period or by a prefix of the ids, or place bitmaps by slice: ebb namespace create NAME --bitmap-placement slice")
	case code == ebbv1.Code_CODE_BAD_REQUEST:
		return proto.ErrBadRequest.Errorf("bits of key %s: its ids do not ascend, there are more than a command may have, or its offset does not grow", quote(e.Key))
	}
	return &proto.Error{Code: code, Message: "refused"}
}
