package proto

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// IncrementWire is an ebbv1.Increment parsed without allocation: Key and Bin
// point into the parsed bytes.
type IncrementWire struct {
	Key, Bin []byte
	Amount   float64 // 1 when absent
	TimeUS   int64
	Offset   uint64
	Kind     ebbv1.Kind
	Value    float64
	HasValue bool
	Text     []byte
	HasText  bool

	beyond bool // a field number is out of range, see shape.fits
}

// Parse reads one serialised Increment and reports whether it is well formed.
// Unknown fields are skipped.
func (in *IncrementWire) Parse(raw []byte) bool {
	*in = IncrementWire{Amount: 1}
	for raw = in.head(raw); len(raw) > 0; {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return false
		}
		raw = raw[n:]
		switch {
		case num == FieldIncrementKey && typ == protowire.BytesType:
			in.Key, n = protowire.ConsumeBytes(raw)
		case num == FieldIncrementBin && typ == protowire.BytesType:
			in.Bin, n = protowire.ConsumeBytes(raw)
		case num == FieldIncrementAmount && typ == protowire.Fixed64Type:
			var v uint64
			v, n = protowire.ConsumeFixed64(raw)
			in.Amount = math.Float64frombits(v)
		case num == FieldIncrementTimeUS && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(raw)
			in.TimeUS = int64(v)
		case num == FieldIncrementOffset && typ == protowire.VarintType:
			in.Offset, n = protowire.ConsumeVarint(raw)
		case num == FieldIncrementKind && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(raw)
			in.Kind = ebbv1.Kind(min(v, math.MaxInt32))
		case num == FieldIncrementValue && typ == protowire.Fixed64Type:
			var v uint64
			v, n = protowire.ConsumeFixed64(raw)
			in.Value, in.HasValue = math.Float64frombits(v), true
		case num == FieldIncrementText && typ == protowire.BytesType:
			in.Text, n = protowire.ConsumeBytes(raw)
			in.HasText = true
		default:
			n = protowire.ConsumeFieldValue(num, typ, raw)
			in.beyond = in.beyond || num > protowire.MaxValidNumber
		}
		if n < 0 {
			return false
		}
		raw = raw[n:]
	}
	return true
}

// amountTag is the first byte of an amount.
const amountTag = FieldIncrementAmount<<3 | byte(protowire.Fixed64Type)

// headEnds returns where the key and the bin of an increment end. It returns 0 unless the increment begins with a short
// key and a short bin, as AppendIncrement writes them; nearly all increments do.
func headEnds(raw []byte) (key, bin int) {
	if len(raw) < 4 || raw[0] != FieldIncrementKey<<3|byte(protowire.BytesType) || raw[1] >= 0x80 {
		return 0, 0
	}
	key = int(raw[1]) + 2
	if key+2 > len(raw) || raw[key] != FieldIncrementBin<<3|byte(protowire.BytesType) || raw[key+1] >= 0x80 {
		return 0, 0
	}
	if bin = key + 2 + int(raw[key+1]); bin > len(raw) {
		return 0, 0
	}
	return key, bin
}

// head reads a short key, a short bin and perhaps an amount. It returns the remaining bytes: raw itself if it begins
// otherwise.
func (in *IncrementWire) head(raw []byte) (rest []byte) {
	key, bin := headEnds(raw)
	if bin == 0 {
		return raw
	}
	in.Key, in.Bin = raw[2:key:key], raw[key+2:bin:bin]
	raw = raw[bin:]
	if len(raw) >= 9 && raw[0] == amountTag {
		in.Amount = math.Float64frombits(binary.LittleEndian.Uint64(raw[1:]))
		raw = raw[9:]
	}
	return raw
}

// WellFormedIncrement reports whether Parse accepts a serialised Increment. It does not parse the most usual
// increments.
func WellFormedIncrement(raw []byte) bool {
	_, bin := headEnds(raw)
	if bin > 0 && (bin == len(raw) || bin+9 == len(raw) && raw[bin] == amountTag) {
		return true
	}
	var in IncrementWire
	return in.Parse(raw)
}

// NextIncrement splits the bytes of one increment off a serialised Increments message. ok is false if the message is
// malformed.
func NextIncrement(raw []byte) (one, rest []byte, ok bool) {
	if len(raw) >= 2 && raw[0] == FieldIncrementsIncrements<<3|byte(protowire.BytesType) && raw[1] < 0x80 {
		end := int(raw[1]) + 2
		if end > len(raw) {
			return nil, nil, false
		}
		return raw[2:end:end], raw[end:], true
	}
	num, typ, n := protowire.ConsumeTag(raw)
	if n < 0 || num != FieldIncrementsIncrements || typ != protowire.BytesType {
		return nil, nil, false
	}
	one, m := protowire.ConsumeBytes(raw[n:])
	if m < 0 {
		return nil, nil, false
	}
	return one, raw[n+m:], true
}

// AppendIncrement appends in to a serialised Increments message, as field 1.
func AppendIncrement(b []byte, in *IncrementWire) []byte {
	b = protowire.AppendTag(b, FieldIncrementsIncrements, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(in.size()))
	b = protowire.AppendTag(b, FieldIncrementKey, protowire.BytesType)
	b = protowire.AppendBytes(b, in.Key)
	b = protowire.AppendTag(b, FieldIncrementBin, protowire.BytesType)
	b = protowire.AppendBytes(b, in.Bin)
	if in.Amount != 1 {
		b = protowire.AppendTag(b, FieldIncrementAmount, protowire.Fixed64Type)
		b = protowire.AppendFixed64(b, math.Float64bits(in.Amount))
	}
	if in.TimeUS != 0 {
		b = protowire.AppendTag(b, FieldIncrementTimeUS, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(in.TimeUS))
	}
	if in.Offset != 0 {
		b = protowire.AppendTag(b, FieldIncrementOffset, protowire.VarintType)
		b = protowire.AppendVarint(b, in.Offset)
	}
	if in.Kind != 0 {
		b = protowire.AppendTag(b, FieldIncrementKind, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(in.Kind))
	}
	if in.HasValue {
		b = protowire.AppendTag(b, FieldIncrementValue, protowire.Fixed64Type)
		b = protowire.AppendFixed64(b, math.Float64bits(in.Value))
	}
	if in.HasText {
		b = protowire.AppendTag(b, FieldIncrementText, protowire.BytesType)
		b = protowire.AppendBytes(b, in.Text)
	}
	return b
}

func (in *IncrementWire) size() int {
	n := 2 + protowire.SizeBytes(len(in.Key)) + protowire.SizeBytes(len(in.Bin))
	if in.Amount != 1 {
		n += 1 + 8
	}
	if in.TimeUS != 0 {
		n += 1 + protowire.SizeVarint(uint64(in.TimeUS))
	}
	if in.Offset != 0 {
		n += 1 + protowire.SizeVarint(in.Offset)
	}
	if in.Kind != 0 {
		n += 1 + protowire.SizeVarint(uint64(in.Kind))
	}
	if in.HasValue {
		n += 1 + 8
	}
	if in.HasText {
		n += 1 + protowire.SizeBytes(len(in.Text))
	}
	return n
}
