package proto

import (
	"math/bits"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Weigh computes from the bytes of a message, before decoding, how much memory the decoded message takes. It reads tags
// and lengths only.
//
//	weight = Go struct of each message + slots of each list + contents of strings, bytes and numbers
//
// An empty element takes two bytes on the wire and over a hundred in memory. So a limit on the bytes of a message does
// not bound the memory of the decoded message: the elements must be counted first. Everything follows from the
// descriptors, so that a new field of a message is weighed and limited without a change here.

const (
	// DecodedBytesMax is how many bytes of memory one decoded request may take.
	DecodedBytesMax = 8 * MessageBytesMax
	// ElementsMax is how many messages a repeated field may hold if it has no limit of its own.
	ElementsMax = 1 << 16
	// NestedMax is how deep messages may be nested. The protobuf library has the same limit.
	NestedMax = 10_000
)

// elementLimits are the limits of repeated fields of requests that have their own limits. The checks of requests use
// the same limits, and also count totals over several fields.
var elementLimits = map[protoreflect.FullName]elementLimit{
	"ebb.v1.IncrementRequest.increments":         {BatchOpsMax, ErrBatchTooLarge},
	"ebb.v1.Increments.increments":               {BatchOpsMax, ErrBatchTooLarge},
	"ebb.v1.BitsRequest.changes":                 {BitChangesMax, ErrBatchTooLarge},
	"ebb.v1.BitChange.ids":                       {BitIDsMax, ErrBatchTooLarge},
	"ebb.v1.BitChange.names":                     {BitIDsMax, ErrBatchTooLarge},
	"ebb.v1.BitEdits.edits":                      {BitEditsMax, ErrBatchTooLarge},
	"ebb.v1.ApplyRequest.commands":               {BatchOpsMax, ErrBatchTooLarge},
	"ebb.v1.DeleteRequest.keys":                  {KeysPerAskMax, ErrBadCount},
	"ebb.v1.ExpireRequest.keys":                  {KeysPerAskMax, ErrBadCount},
	"ebb.v1.DeleteKeys.keys":                     {KeysPerAskMax, ErrBadCount},
	"ebb.v1.ExpireKeys.keys":                     {KeysPerAskMax, ErrBadCount},
	"ebb.v1.RestoreNamespacesRequest.namespaces": {NamespacesMax, ErrBatchTooLarge},
	"ebb.v1.SnapshotRequest.have":                {SnapshotHaveMax, ErrBatchTooLarge},
	"ebb.v1.HomeSwept.numbers":                   {HomeSweptMax, ErrBadCount},
	"ebb.v1.AskRequest.questions":                {QuestionsMax, ErrBadCount},
	"ebb.v1.ShardAskRequest.questions":           {QuestionsMax * ShardsMax, ErrBadCount},
	"ebb.v1.StatusRequest.checksums":             {ShardsMax, ErrBadCount},
	"ebb.v1.ReadIndexRequest.shards":             {ShardsMax, ErrBadRequest},
	"ebb.v1.ReadIndexRequest.applied":            {ShardsMax, ErrBadRequest},
	"ebb.v1.DistributionQuestion.keys":           {KeysPerAskMax, ErrBadCount},
	"ebb.v1.SummaryQuestion.keys":                {KeysPerAskMax, ErrBadCount},
	"ebb.v1.SummaryQuestion.bins":                {BatchOpsMax, ErrBadCount},
	"ebb.v1.SummaryQuestion.quantiles":           {BatchOpsMax, ErrBadCount},
	"ebb.v1.SurpriseQuestion.keys":               {KeysPerAskMax, ErrBadCount},
	"ebb.v1.SurpriseQuestion.against":            {KeysPerAskMax, ErrBadCount},
	"ebb.v1.SurpriseQuestion.bins":               {BatchOpsMax, ErrBadCount},
	"ebb.v1.TrendQuestion.keys":                  {KeysPerAskMax, ErrBadCount},
	"ebb.v1.TrendQuestion.bins":                  {BatchOpsMax, ErrBadCount},
	"ebb.v1.BinList.bins":                        {BatchOpsMax, ErrBadCount},
	"ebb.v1.OverlapQuestion.keys":                {GraphKeysMax, ErrBadCount},
	"ebb.v1.OverlapQuestion.of":                  {GraphKeysMax, ErrBadCount},
	"ebb.v1.GraphQuestion.keys":                  {GraphKeysMax, ErrBadCount},
	"ebb.v1.NamesQuestion.names":                 {NamesMax, ErrBadCount},
	"ebb.v1.NamesQuestion.ids":                   {NamedIDsMax, ErrBadCount},
	"ebb.v1.BitmapIds.ids":                       {BitContainsMax, ErrBadCount},
	"ebb.v1.BitmapIds.names":                     {BitContainsMax, ErrBadCount},
	"ebb.v1.BitmapExprs.of":                      {BitTermsMax, ErrBadCount},
	"ebb.v1.BitmapAtLeast.of":                    {BitTermsMax, ErrBadCount},
	"ebb.v1.BitmapGroupsQuestion.keys":           {BitGroupsMax, ErrQueryTooCostly},
	"ebb.v1.BitmapCohortQuestion.periods":        {BitCohortMax, ErrQueryTooCostly},
}

type elementLimit struct {
	most int
	code *Error
}

// CheckElements refuses n elements of a repeated field if that is above its limit.
func CheckElements(fd protoreflect.FieldDescriptor, n int) *Error { return slotOf(fd).check(n) }

// check refuses n elements of the list if that is above its limit.
func (s *slot) check(n int) *Error {
	if n <= s.most {
		return nil
	}
	return s.code.Errorf("more than %d %s: that is the limit of %s", s.most, s.name, s.of).
		WithHint("send it in several requests")
}

// messageLayout describes the memory of a message type, as its descriptor gives it.
type messageLayout struct {
	size  int64  // bytes of its Go struct
	flat  bool   // it has neither lists nor messages, so that its bytes bound what it holds
	slots []slot // by field number; a field without a slot is unknown
	lists int    // the number of its lists
}

// slot describes a field.
type slot struct {
	kind slotKind
	wide int   // bytes of a number in a packed list; 0: varints
	list int   // its number among the lists of the message, from 1; 0: it does not repeat
	each int64 // bytes of each element, or of the value, without its contents
	most int   // elements
	code *Error
	name protoreflect.Name
	of   protoreflect.Name
	sub  *messageLayout // of a message
}

type slotKind byte

const (
	slotNone   slotKind = iota
	slotNumber          // every type but text and messages
	slotText            // string or bytes
	slotMessage
)

// Bytes of an element of a list, doubled for the growth of the list, and of a value stored outside of its struct.
const (
	pointerBytes = 2 * 8
	textBytes    = 2 * 24
	numberBytes  = 2 * 8
	optionBytes  = 8
	oneofBytes   = 32
)

var layouts sync.Map // protoreflect.FullName -> *messageLayout

// layoutOf returns the layout of a type. The first call makes it, with the layouts of all types that it holds.
func layoutOf(md protoreflect.MessageDescriptor) *messageLayout {
	if l, ok := layouts.Load(md.FullName()); ok {
		return l.(*messageLayout)
	}
	made := make(map[protoreflect.FullName]*messageLayout)
	newLayout(md, made)
	for name, l := range made {
		layouts.LoadOrStore(name, l) // layouts made at the same time are equal
	}
	return made[md.FullName()]
}

// newLayout adds the layout of a type to made, unless it is there.
func newLayout(md protoreflect.MessageDescriptor, made map[protoreflect.FullName]*messageLayout) *messageLayout {
	if l := made[md.FullName()]; l != nil {
		return l
	}
	l := &messageLayout{size: structBytes(md), flat: true}
	made[md.FullName()] = l
	fields := md.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		s := newSlot(fd)
		if fd.Message() != nil {
			s.sub = newLayout(fd.Message(), made)
		}
		if fd.IsList() || fd.IsMap() {
			l.lists++
			s.list = l.lists
		}
		l.flat = l.flat && s.list == 0 && s.kind != slotMessage
		for len(l.slots) <= int(fd.Number()) {
			l.slots = append(l.slots, slot{})
		}
		l.slots[fd.Number()] = s
	}
	return l
}

func newSlot(fd protoreflect.FieldDescriptor) slot {
	s := slot{kind: slotNumber, most: DecodedBytesMax, code: ErrBatchTooLarge}
	s.name, s.of = fd.Name(), fd.ContainingMessage().Name()
	switch {
	case fd.Message() != nil:
		s.kind, s.most, s.each = slotMessage, ElementsMax, pointerBytes
	case fd.Kind() == protoreflect.BytesKind || fd.Kind() == protoreflect.StringKind:
		s.kind = slotText
		if fd.IsList() {
			s.each = textBytes
		}
	case fd.IsList():
		s.each, s.wide = numberBytes, wideOf(fd.Kind())
	case fd.HasPresence():
		s.each = optionBytes
	}
	if fd.ContainingOneof() != nil && !fd.HasOptionalKeyword() {
		s.each += oneofBytes
	}
	if l, ok := elementLimits[fd.FullName()]; ok {
		s.most, s.code = l.most, l.code
	}
	return s
}

// slotOf returns the slot of a field. This build must have the field's message.
func slotOf(fd protoreflect.FieldDescriptor) *slot {
	return &layoutOf(fd.ContainingMessage()).slots[fd.Number()]
}

// structBytes are the bytes that Go allocates for a message before its fields are set.
func structBytes(md protoreflect.MessageDescriptor) int64 {
	const unknown = 256 // for a type without a Go struct in this build
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil {
		return unknown
	}
	t := reflect.TypeOf(mt.Zero().Interface())
	if t.Kind() != reflect.Pointer {
		return unknown
	}
	return roundBytes(int64(t.Elem().Size()))
}

// roundBytes is what Go allocates for n bytes, or a little more.
func roundBytes(n int64) int64 {
	switch {
	case n == 0:
		return 0
	case n <= 128:
		return (n + 15) &^ 15
	}
	step := int64(1) << max(0, bits.Len64(uint64(n-1))-4) // an eighth of the next power of two
	return (n + step - 1) &^ (step - 1)
}

// TextWeight is how many bytes of memory a string or bytes value of length n takes, in a list or not.
func TextWeight(fd protoreflect.FieldDescriptor, n int) int64 {
	return slotOf(fd).each + roundBytes(int64(n))
}

// ElementWeight is how many bytes of memory a message or a number takes as the value or an element of a field, without
// the contents of the message.
func ElementWeight(fd protoreflect.FieldDescriptor) int64 {
	s := slotOf(fd)
	if s.kind == slotMessage {
		return s.each + s.sub.size
	}
	return s.each
}

// Weigh returns how many bytes of memory a serialised message of a type takes once it is decoded. It returns an error
// if a list has too many elements, if the message is malformed, or if it takes more than DecodedBytesMax. It allocates
// only for an error. For elements without lists it reads only the length.
func Weigh(raw []byte, md protoreflect.MessageDescriptor) (int64, *Error) {
	l := layoutOf(md)
	total, err := l.weigh(raw, l.size, 0)
	if err == errNotProtobuf {
		err = ErrBadRequest.Errorf("malformed %s: not a valid protobuf message", md.Name())
	}
	return total, err
}

// errNotProtobuf is the error for malformed bytes, until Weigh replaces it by one that names the message.
var errNotProtobuf = &Error{Code: ErrBadRequest.Code, Message: "not a valid protobuf message"}

// listsMost bounds the number of lists in a message; a test checks it for all messages.
const listsMost = 16

// weigh adds the weight of raw to total.
func (l *messageLayout) weigh(raw []byte, total int64, depth int) (int64, *Error) {
	if depth > NestedMax {
		return total, ErrBadRequest.Errorf("more than %d messages in each other: that is the limit", NestedMax)
	}
	var counts [listsMost + 1]int
	for len(raw) > 0 {
		num, typ, value, size := nextField(raw)
		if size < 0 {
			return total, errNotProtobuf
		}
		raw = raw[size:]
		if int(num) >= len(l.slots) || l.slots[num].kind == slotNone {
			total += 2 * int64(size) // unknown fields are kept as bytes
		} else {
			s := &l.slots[num]
			elements := 1
			var err *Error
			switch {
			case typ != protowire.BytesType:
				total += s.each
			case s.kind == slotNumber && s.wide > 0:
				elements = len(value) / s.wide
				total += s.each * int64(elements)
			case s.kind == slotNumber:
				elements = packed(value)
				total += s.each * int64(elements)
			case s.kind == slotText:
				total += s.each + roundBytes(int64(len(value)))
			default:
				total, err = s.weigh(value, total, depth)
			}
			if err == nil && s.list > 0 {
				counts[s.list] += elements
				err = s.check(counts[s.list])
			}
			if err != nil {
				return total, err
			}
		}
		if total > DecodedBytesMax {
			return total, errDecodedTooLarge()
		}
	}
	return total, nil
}

// nextField splits off one field: its number, its type, its value if that has a length, and the size of the whole
// field. size is negative if the field is malformed.
func nextField(raw []byte) (num protowire.Number, typ protowire.Type, value []byte, size int) {
	if len(raw) >= 2 && raw[0] < 0x80 && raw[0]&7 == byte(protowire.BytesType) && raw[1] < 0x80 { // nearly all fields
		if size = int(raw[1]) + 2; size <= len(raw) {
			return protowire.Number(raw[0] >> 3), protowire.BytesType, raw[2:size:size], size
		}
	}
	num, typ, n := protowire.ConsumeTag(raw)
	if n < 0 {
		return 0, 0, nil, -1
	}
	m := 0
	if typ == protowire.BytesType {
		value, m = protowire.ConsumeBytes(raw[n:])
	} else {
		m = protowire.ConsumeFieldValue(num, typ, raw[n:])
	}
	if m < 0 {
		return 0, 0, nil, -1
	}
	return num, typ, value, n + m
}

// weigh adds to total the weight of a message that is the value of the field.
func (s *slot) weigh(value []byte, total int64, depth int) (int64, *Error) {
	sub := s.sub
	total += s.each + sub.size
	if sub.flat {
		return total + 2*int64(len(value)), nil
	}
	return sub.weigh(value, total, depth+1)
}

// wideOf is the size of a number in a packed list, in bytes; 0 for varints.
func wideOf(kind protoreflect.Kind) int {
	switch kind {
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return 8
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return 4
	}
	return 0
}

// packed is the number of varints in a packed list.
func packed(value []byte) (n int) {
	for _, c := range value {
		if c < 0x80 {
			n++
		}
	}
	return n
}

func errDecodedTooLarge() *Error {
	return ErrMessageTooLarge.Errorf("request of more than %d bytes once it is decoded: that is the limit", DecodedBytesMax).
		WithHint("send it in smaller batches")
}

// Decode reads a serialised message into m, which must be empty. It returns the error of Weigh if there is one.
func Decode(raw []byte, m pb.Message) *Error {
	if _, err := Weigh(raw, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	if pb.Unmarshal(raw, m) != nil {
		return errMalformed(string(m.ProtoReflect().Descriptor().Name()))
	}
	return nil
}

// CheckWeight refuses a decoded message of more than DecodedBytesMax.
func CheckWeight(total int64) *Error {
	if total > DecodedBytesMax {
		return errDecodedTooLarge()
	}
	return nil
}
