package proto

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// WalkFields visits the fields of a serialised message, numbers (varints and
// those of 64 bits) as v and bytes as b, until visit says no; others are skipped. It reports whether
// the message is well formed and all were visited.
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

// validNumbers reports whether no field of a well-formed message has a number beyond [protowire.MaxValidNumber], nor one of the messages in it, whose numbers are named level by level. WalkFields passes
// over such fields, also in a log that has them; what comes in must be what everybody else can read.
func validNumbers(raw []byte, within ...protowire.Number) bool {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(num, typ, raw); n < 0 {
			return false
		}
		if len(within) > 0 && num == within[0] && typ == protowire.BytesType {
			if b, _ := protowire.ConsumeBytes(raw); !validNumbers(b, within[1:]...) {
				return false
			}
		}
		raw = raw[n:]
	}
	return true
}
