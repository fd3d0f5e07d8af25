package rpc

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The JSON of ebb's messages differs from protobuf's own mapping where that
// would be a burden to people:
//
//	bytes           a string, not base64; what is not UTF-8 has its name and _base64, which is read too, and is NOT_UTF8 in a list
//	int64, uint64   a number (a string beyond 2^53); times also as RFC 3339, durations as "90s" or "30d" when read;
//	                times of requests before 1973-03-03 in RFC 3339 alone: see microsLeast
//	fixed64, seeds  always a string: they are random bits, not quantities
//	enum            "half_life", not "DECAY_HALF_LIFE"; both are read
//	names           as in the .proto; lowerCamelCase is read too
//	zero values     written, so that an answer always has the same shape
//	unset message, optional or oneof    left out, and so is a question's or an increment's time when 0: 0 is read as 1970
//	ebb.v1.Error    {"code":"EBB-2002", ...} without what it does not say

// numberMax is the largest integer that every JSON reader holds exactly.
const numberMax = 1 << 53

// appendJSON appends the JSON of m.
func appendJSON(b []byte, m protobuf.Message) ([]byte, error) {
	w := jsonWriter{b: b}
	err := w.message(m.ProtoReflect())
	return w.b, err
}

// jsonWriter appends JSON to b. Its path is the current place, for errors. grow charges for memory when there are more
// than room bytes; nil charges nothing.
type jsonWriter struct {
	b    []byte
	path jsonPath
	room int
	grow func(bytes int) error
}

// charge charges for half as many bytes again as there are, and for the copy that is made when the slice grows: in all
// two to three times what is written.
func (w *jsonWriter) charge() error {
	if w.grow == nil || len(w.b) <= w.room {
		return nil
	}
	if err := w.grow(len(w.b)); err != nil {
		return err
	}
	w.room = len(w.b) + len(w.b)/2
	return nil
}

func (w *jsonWriter) message(m protoreflect.Message) error {
	if e, ok := m.Interface().(*ebbv1.Error); ok {
		w.b = appendErrorJSON(w.b, e)
		return nil
	}
	w.b = append(w.b, '{')
	fields := m.Descriptor().Fields()
	first := true
	for i := range fields.Len() {
		fd := fields.Get(i)
		if (fd.HasPresence() || isMoment(fd)) && !m.Has(fd) {
			continue
		}
		if !first {
			w.b = append(w.b, ',')
		}
		first = false
		w.b = append(w.b, '"')
		w.b = append(w.b, fd.Name()...)
		if isBinary(fd, m.Get(fd)) {
			w.b = append(w.b, base64Suffix+`":"`...)
			w.b = base64.StdEncoding.AppendEncode(w.b, m.Get(fd).Bytes())
			w.b = append(w.b, '"')
			continue
		}
		w.b = append(w.b, '"', ':')
		if err := w.field(fd, m.Get(fd)); err != nil {
			return err
		}
	}
	w.b = append(w.b, '}')
	return nil
}

// base64Suffix ends the name of a field whose value is not text.
const base64Suffix = "_base64"

// isBinary reports whether a value is not text. Elements of a list have no name of their own that could show it.
func isBinary(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return fd.Kind() == protoreflect.BytesKind && !fd.IsList() && !utf8.Valid(v.Bytes())
}

func (w *jsonWriter) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	mark := w.path.push(string(fd.Name()))
	defer w.path.pop(mark)
	if !fd.IsList() {
		return w.value(fd, v)
	}
	w.b = append(w.b, '[')
	for i := range v.List().Len() {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		if err := w.charge(); err != nil {
			return err
		}
		mark := w.path.pushIndex(i)
		if err := w.value(fd, v.List().Get(i)); err != nil {
			return err
		}
		w.path.pop(mark)
	}
	w.b = append(w.b, ']')
	return nil
}

func (w *jsonWriter) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return w.message(v.Message())
	case protoreflect.BytesKind:
		return w.bytes(v.Bytes())
	case protoreflect.StringKind:
		w.b = appendString(w.b, v.String())
	case protoreflect.BoolKind:
		w.b = strconv.AppendBool(w.b, v.Bool())
	case protoreflect.DoubleKind:
		w.b = appendDouble(w.b, v.Float())
	case protoreflect.EnumKind:
		w.b = appendString(w.b, enumText(fd.Enum(), v.Enum()))
	case protoreflect.Uint32Kind:
		w.b = strconv.AppendUint(w.b, v.Uint(), 10)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		w.b = appendQuotedIf(w.b, isBits(fd) || v.Uint() > numberMax, strconv.AppendUint(nil, v.Uint(), 10))
	case protoreflect.Int64Kind:
		if isEarly(v.Int()) && isWritten(fd) {
			w.b = appendString(w.b, time.UnixMicro(v.Int()).UTC().Format(time.RFC3339Nano))
			return nil
		}
		big := v.Int() > numberMax || v.Int() < -numberMax
		w.b = appendQuotedIf(w.b, big, strconv.AppendInt(nil, v.Int(), 10))
	default:
		return proto.ErrInternal.Errorf("%s: no JSON for fields of kind %s", fd.FullName(), fd.Kind())
	}
	return nil
}

func (w *jsonWriter) bytes(b []byte) error {
	if !utf8.Valid(b) {
		return proto.ErrNotUTF8.Errorf("%s is not UTF-8 and has no JSON: bytes %s", w.path.text(), hexHead(b)).
			WithHint("ask for it over gRPC, where keys and bins are bytes")
	}
	w.b = appendString(w.b, string(b))
	return nil
}

// isBits reports whether a field has 64 random bits. As a JSON number they would nearly always be wrong.
func isBits(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.Fixed64Kind || fd.Name() == "hash_seed"
}

func appendQuotedIf(b []byte, quote bool, digits []byte) []byte {
	if !quote {
		return append(b, digits...)
	}
	b = append(b, '"')
	b = append(b, digits...)
	return append(b, '"')
}

// appendDouble writes the shortest text that reads back as v.
func appendDouble(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Infinity"`...)
	}
	if a := math.Abs(v); a == 0 || a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, v, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-3] == '-' && b[n-2] == '0' { // 1e-07, which JavaScript writes 1e-7
		b = append(b[:n-2], b[n-1])
	}
	return b
}

// appendString writes s, which is UTF-8, as a JSON string. U+2028 and U+2029
// are escaped because JavaScript once took them for line ends.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, '\\', 'n')
		case r == '\r':
			b = append(b, '\\', 'r')
		case r == '\t':
			b = append(b, '\\', 't')
		case r < 0x20 || r == 0x7f || r == '\u2028' || r == '\u2029':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// appendErrorJSON writes an error as people read it.
func appendErrorJSON(b []byte, e *ebbv1.Error) []byte {
	b = append(b, `{"code":"`...)
	b = append(b, codeText(e.GetCode())...)
	b = append(b, `","message":`...)
	b = appendString(b, strings.ToValidUTF8(e.GetMessage(), "\ufffd"))
	if e.GetHint() != "" {
		b = append(b, `,"hint":`...)
		b = appendString(b, strings.ToValidUTF8(e.GetHint(), "\ufffd"))
	}
	if e.GetShard() != 0 {
		b = fmt.Appendf(b, `,"shard":%d`, e.GetShard())
	}
	if e.GetLeader() != "" {
		b = append(b, `,"leader":`...)
		b = appendString(b, e.GetLeader())
	}
	if e.GetRetryAfterUs() != 0 {
		b = fmt.Appendf(b, `,"retry_after_us":%d`, e.GetRetryAfterUs())
	}
	if e.GetColumn() > 0 {
		b = fmt.Appendf(b, `,"line":%d,"column":%d`, e.GetLine(), e.GetColumn())
	}
	return append(b, '}')
}

// enumText is the name of a value without the prefix of the enum: "half_life".
func enumText(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := ed.Values().ByNumber(n)
	if v == nil {
		return strconv.Itoa(int(n))
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(ed)))
}

func enumPrefix(ed protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(ed.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// enumNames are the texts of an enum's values, except the unspecified one.
func enumNames(ed protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range ed.Values().Len() {
		if n := ed.Values().Get(i).Number(); n != 0 {
			names = append(names, enumText(ed, n))
		}
	}
	return names
}

// hexHead shows the start of bytes that are not text.
func hexHead(b []byte) string {
	const head = 16
	if len(b) > head {
		return hex.EncodeToString(b[:head]) + fmt.Sprintf("... (%d bytes)", len(b))
	}
	return hex.EncodeToString(b)
}

// jsonPath is a place in a document: increments[3].amount.
type jsonPath []byte

func (p *jsonPath) push(name string) (mark int) {
	mark = len(*p)
	if mark > 0 {
		*p = append(*p, '.')
	}
	*p = append(*p, name...)
	return mark
}

func (p *jsonPath) pushIndex(i int) (mark int) {
	mark = len(*p)
	*p = append(*p, '[')
	*p = strconv.AppendInt(*p, int64(i), 10)
	*p = append(*p, ']')
	return mark
}

func (p *jsonPath) pop(mark int) { *p = (*p)[:mark] }

// text names the place. It leaves out the middle of a deep place, so that errors stay readable.
func (p jsonPath) text() string {
	const end = 100
	switch {
	case len(p) == 0:
		return "the document"
	case len(p) > 2*end:
		return string(p[:end]) + "..." + string(p[len(p)-end:])
	}
	return string(p)
}
