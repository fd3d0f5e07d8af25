package proto

import (
	"encoding/binary"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// WalkFields visits the fields of a serialised message until visit returns false. It passes numbers (varints and 64-bit
// numbers) as v and bytes as b; it skips other fields. It reports whether the message is well formed and all fields
// were visited.
func WalkFields(raw []byte, visit func(num protowire.Number, v uint64, b []byte) bool) bool {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return false
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(num, typ, raw); n < 0 {
			return false
		}
		more := true
		switch typ {
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(raw)
			more = visit(num, v, nil)
		case protowire.Fixed64Type:
			more = visit(num, binary.LittleEndian.Uint64(raw), nil)
		case protowire.BytesType:
			b, _ := protowire.ConsumeBytes(raw)
			more = visit(num, 0, b)
		}
		if !more {
			return false
		}
		raw = raw[n:]
	}
	return true
}

// shape is the wire format of a message's fields, by their numbers.
type shape []wireField

type wireField struct {
	known bool
	typ   protowire.Type
	// For a field of bytes: whether it is UTF-8 text, whether it is a message, and the shape of that message.
	text, message bool
	of            shape
}

// shapeOf is the shape of a message type. The type must not contain lists of numbers, which have two wire formats, nor
// a message of its own type.
func shapeOf(m pb.Message) shape { return describedShape(m.ProtoReflect().Descriptor()) }

func describedShape(d protoreflect.MessageDescriptor) shape {
	fields := d.Fields()
	var s shape
	for i := range fields.Len() {
		f := fields.Get(i)
		w := wireField{known: true, typ: protowire.VarintType}
		switch f.Kind() {
		case protoreflect.MessageKind:
			w.typ, w.message, w.of = protowire.BytesType, true, describedShape(f.Message())
		case protoreflect.StringKind:
			w.typ, w.text = protowire.BytesType, true
		case protoreflect.BytesKind:
			w.typ = protowire.BytesType
		case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
			w.typ = protowire.Fixed64Type
		case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
			w.typ = protowire.Fixed32Type
		}
		for len(s) <= int(f.Number()) {
			s = append(s, wireField{})
		}
		s[f.Number()] = w
	}
	return s
}

// fits reports whether [WalkFields] reads a message exactly as the generated code does, at each level of nesting. Every
// field has its own wire type (generated code skips other types, and WalkFields does not), no number exceeds
// [protowire.MaxValidNumber], and text is UTF-8. WalkFields accepts messages that break these rules, because logs may
// contain them. New messages must have only one reading.
func (s shape) fits(raw []byte) bool {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(num, typ, raw); n < 0 {
			return false
		}
		if int(num) < len(s) && s[num].known && !s[num].takes(typ, raw[:n]) {
			return false
		}
		raw = raw[n:]
	}
	return true
}

func (f wireField) takes(typ protowire.Type, value []byte) bool {
	if typ != f.typ || typ != protowire.BytesType {
		return typ == f.typ
	}
	b, _ := protowire.ConsumeBytes(value)
	switch {
	case f.text:
		return utf8.Valid(b)
	case f.message:
		return f.of.fits(b)
	}
	return true
}
