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

// What a message takes once it is decoded is known from its bytes, before it is decoded: Weigh reads tags and lengths
// only.
//
//	weight = Go struct of each message + slots of each list + contents of strings, bytes and numbers
//
// An empty element takes two bytes on the wire and over a hundred in memory. So a limit on the bytes of a message does
// not bound what decoding it takes: the elements have to be counted first. All of it follows from the descriptors, so
// that a field that is added to a message is weighed and limited without a word here.

const (
	// DecodedBytesMax is how many bytes of memory one request may take once it is decoded.
	DecodedBytesMax = 8 * MessageBytesMax
	// ElementsMax is how many messages one repeated field holds that has no limit of its own.
	ElementsMax = 1 << 16
	// NestedMax is how many messages stand in each other. It is the limit of the protobuf library, too.
	NestedMax = 10_000
)

// elementLimits are the repeated fields of requests with limits of their own. The checks of requests have the same
// limits, and count also what stands in several fields.
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

// CheckElements refuses n elements of a repeated field that are too many of it.
func CheckElements(fd protoreflect.FieldDescriptor, n int) *Error { return slotOf(fd).check(n) }

// check refuses n elements of the list.
func (s *slot) check(n int) *Error {
	if n <= s.most {
		return nil
	}
	return s.code.Errorf("more than %d %s: that is the limit of %s", s.most, s.name, s.of).
		WithHint("send it in several requests")
}

// messageLayout is what a type of message takes in memory, by its descriptor.
type messageLayout struct {
	size  int64  // bytes of its Go struct
	flat  bool   // it has neither lists nor messages, so that its bytes bound what it holds
	slots []slot // by field number; of others there are none
	lists int    // how many lists it has
}

// slot is what is known of a field.
type slot struct {
	kind slotKind
	wide int   // bytes of a number in a packed list; 0: it is a varint
	list int   // its number among the lists of the message, from 1; 0: it does not repeat
	each int64 // bytes that each element, or the value, takes apart from its contents
	most int   // elements
	code *Error
	name protoreflect.Name
	of   protoreflect.Name
	sub  *messageLayout // of a message
}

type slotKind byte

const (
	slotNone   slotKind = iota
	slotNumber          // any that is no text
	slotText            // string or bytes
	slotMessage
)

// Bytes of an element of a list, twice for the growth of the list, and of what a value outside of its struct takes.
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
		layouts.LoadOrStore(name, l) // two that are made at once are equal
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

// slotOf returns what is known of a field of a message that this build has.
func slotOf(fd protoreflect.FieldDescriptor) *slot {
	return &layoutOf(fd.ContainingMessage()).slots[fd.Number()]
}

// structBytes are those that Go takes for a message, before its fields are set.
func structBytes(md protoreflect.MessageDescriptor) int64 {
	const unknown = 256 // of a type that this build has no Go struct for
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

// roundBytes is what Go takes for so many bytes, or a little more.
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

// TextWeight is how many bytes of memory a text or bytes take, in a list or not.
func TextWeight(fd protoreflect.FieldDescriptor, n int) int64 {
	return slotOf(fd).each + roundBytes(int64(n))
}

// ElementWeight is how many bytes of memory a message, or a number, takes as the value of a field or an element of it,
// without what it holds.
func ElementWeight(fd protoreflect.FieldDescriptor) int64 {
	s := slotOf(fd)
	if s.kind == slotMessage {
		return s.each + s.sub.size
	}
	return s.each
}

// Weigh returns how many bytes of memory a serialised message of a type takes once it is decoded. It refuses what has
// too many elements, is malformed, or takes more than DecodedBytesMax. It allocates nothing unless it refuses, and
// reads of elements that hold no lists the length alone.
func Weigh(raw []byte, md protoreflect.MessageDescriptor) (int64, *Error) {
	l := layoutOf(md)
	total, err := l.weigh(raw, l.size, 0)
	if err == errNotProtobuf {
		err = ErrBadRequest.Errorf("malformed %s: not a valid protobuf message", md.Name())
	}
	return total, err
}

// errNotProtobuf stands for malformed bytes, until it is known of what.
var errNotProtobuf = &Error{Code: ErrBadRequest.Code, Message: "not a valid protobuf message"}

// listsMost is how many lists a message has; a test holds it to all of them.
const listsMost = 16

// weigh adds to total what raw takes.
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
			total += 2 * int64(size) // kept as it is
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

// nextField takes a field apart: its number, its type, its value if that has a length, and all of its bytes; fewer than
// 0 if it is malformed.
func nextField(raw []byte) (num protowire.Number, typ protowire.Type, value []byte, size int) {
	if len(raw) >= 2 && raw[0] < 0x80 && raw[0]&7 == byte(protowire.BytesType) && raw[1] < 0x80 { // nearly all
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

// weigh adds to total what a message takes as a value of the field.
func (s *slot) weigh(value []byte, total int64, depth int) (int64, *Error) {
	sub := s.sub
	total += s.each + sub.size
	if sub.flat {
		return total + 2*int64(len(value)), nil
	}
	return sub.weigh(value, total, depth+1)
}

// wideOf is how many bytes a number has in a packed list; 0: it is a varint.
func wideOf(kind protoreflect.Kind) int {
	switch kind {
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return 8
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return 4
	}
	return 0
}

// packed is how many varints a packed list has.
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

// Decode reads a serialised message into m, which is empty, unless Weigh refuses it.
func Decode(raw []byte, m pb.Message) *Error {
	if _, err := Weigh(raw, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	if pb.Unmarshal(raw, m) != nil {
		return errMalformed(string(m.ProtoReflect().Descriptor().Name()))
	}
	return nil
}

// CheckWeight refuses what takes too many bytes of memory once it is decoded.
func CheckWeight(total int64) *Error {
	if total > DecodedBytesMax {
		return errDecodedTooLarge()
	}
	return nil
}
