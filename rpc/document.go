package rpc

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/query"
)

// parseJSON reads a document into m, which is empty. It refuses what it does not understand, and its error names the
// place. After an error m is incomplete and must not be used. The memory of m is charged to c before it is allocated.
func parseJSON(c *charge, b []byte, m protobuf.Message) *proto.Error {
	done, busy := c.slot(len(b))
	if busy != nil {
		return asError(busy)
	}
	defer done()
	l, err := newLexer(b)
	if err != nil {
		return err
	}
	if l.peek() == 0 && l.i == len(b) {
		return proto.ErrBadRequest.Errorf("empty body: a JSON object is expected")
	}
	d := document{lexer: l, charge: c}
	if err := d.message(m.ProtoReflect()); err != nil {
		return err
	}
	return l.end()
}

// document is a JSON text that is being read. Its path is the current place, for errors.
type document struct {
	*lexer
	path    jsonPath
	depth   int // of the objects that have begun: each keeps a part of the stack until it ends
	charge  *charge
	weight  int64 // bytes of memory that the message takes so far
	charged int64 // bytes charged for it, some of them in advance
}

// chargeStep is how many bytes are charged at a time, so that small documents are charged once.
const chargeStep = 64 << 10

// weigh charges for n more bytes of the message. It is called before they are allocated.
func (d *document) weigh(n int64) *proto.Error {
	d.weight += n
	if d.weight <= d.charged {
		return nil
	}
	if err := proto.CheckWeight(d.weight); err != nil {
		return err
	}
	step := max(d.weight-d.charged, chargeStep)
	if err := d.charge.add(step); err != nil {
		return asError(err)
	}
	d.charged += step
	return nil
}

func (d *document) message(m protoreflect.Message) *proto.Error {
	if d.peek() != '{' {
		return d.mismatch(proto.ErrBadRequest, "an object"+fieldsOf(m.Descriptor()))
	}
	if d.depth == proto.DocumentDepthMax {
		return proto.ErrBadRequest.Errorf("%s: more than %d objects in each other, which is the limit", d.path.text(), proto.DocumentDepthMax).
			WithHint("a question can be sent as text; store parts of an expression under keys")
	}
	d.depth++
	defer func() { d.depth-- }()
	d.i++
	if d.take('}') {
		return nil
	}
	var seen [64]bool // by index of the field; no message of ours has more
	for {
		if err := d.member(m, &seen); err != nil {
			return err
		}
		if d.take('}') {
			return nil
		}
		if err := d.expect(','); err != nil {
			return err
		}
	}
}

// idempotencyForm is how an idempotency key is written.
const idempotencyForm = `{"issued_at_us": "2026-11-26T08:00:00Z", "hi": "1", "lo": "2"}, ` +
	`with the time at which it was made and 128 random bits in two numbers`

// fieldsOf names the fields of an idempotency key, since some callers write it as a string.
func fieldsOf(md protoreflect.MessageDescriptor) string {
	if md.FullName() != "ebb.v1.IdempotencyKey" {
		return ""
	}
	return " as " + idempotencyForm
}

// member reads one "name": value.
func (d *document) member(m protoreflect.Message, seen *[64]bool) *proto.Error {
	if d.peek() != '"' {
		return d.unexpected("a field name")
	}
	name, err := d.str()
	if err != nil {
		return err
	}
	if err := d.expect(':'); err != nil {
		return err
	}
	fd, binary := fieldByName(m.Descriptor(), name), false
	if text, cut := strings.CutSuffix(name, base64Suffix); fd == nil && cut {
		fd = fieldByName(m.Descriptor(), text)
		binary = fd != nil && fd.Kind() == protoreflect.BytesKind && !fd.IsList()
	}
	if fd == nil || !binary && strings.HasSuffix(name, base64Suffix) {
		return d.unknownField(m.Descriptor(), name)
	}
	mark := d.path.push(string(fd.Name()))
	defer d.path.pop(mark)
	if seen[fd.Index()] {
		return proto.ErrBadRequest.Errorf("%s is given twice", d.path.text())
	}
	seen[fd.Index()] = true
	if d.peek() == 'n' {
		return d.keyword("null")
	}
	if other := chosen(m, fd); other != nil {
		return proto.ErrBadRequest.Errorf("%s: only one of %s may be given", d.path.text(), oneofNames(fd.ContainingOneof()))
	}
	if binary {
		return d.base64(m, fd)
	}
	return d.field(m, fd)
}

// base64 reads bytes that may not be text.
func (d *document) base64(m protoreflect.Message, fd protoreflect.FieldDescriptor) *proto.Error {
	s, err := d.text(fd)
	if err != nil {
		return err
	}
	b, wrong := base64.StdEncoding.DecodeString(s)
	if wrong != nil {
		return complaint(fd).Errorf("%s: %s is not base64", d.path.text()+base64Suffix, quote(s))
	}
	m.Set(fd, protoreflect.ValueOfBytes(b))
	return nil
}

// chosen is the other field of fd's oneof that is set already, if any.
func chosen(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if fd.ContainingOneof() == nil {
		return nil
	}
	return m.WhichOneof(fd.ContainingOneof())
}

func oneofNames(od protoreflect.OneofDescriptor) string {
	var names []string
	for i := range od.Fields().Len() {
		names = append(names, string(od.Fields().Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

func fieldByName(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByName(protoreflect.Name(name)); fd != nil {
		return fd
	}
	return md.Fields().ByJSONName(name)
}

func (d *document) unknownField(md protoreflect.MessageDescriptor, name string) *proto.Error {
	var names []string
	for i := range md.Fields().Len() {
		names = append(names, string(md.Fields().Get(i).Name()))
	}
	where := ""
	if len(d.path) > 0 {
		where = " in " + d.path.text()
	}
	return proto.ErrBadRequest.Errorf("unknown field %s%s", quote(name), where).WithHint(didYouMean(name, names))
}

func (d *document) field(m protoreflect.Message, fd protoreflect.FieldDescriptor) *proto.Error {
	switch {
	case fd.IsList():
		return d.list(m.Mutable(fd).List(), fd)
	case fd.Message() != nil:
		if err := d.weigh(proto.ElementWeight(fd)); err != nil {
			return err
		}
		return d.message(m.Mutable(fd).Message())
	}
	v, err := d.scalar(fd)
	if err != nil {
		return err
	}
	m.Set(fd, v)
	return nil
}

func (d *document) list(l protoreflect.List, fd protoreflect.FieldDescriptor) *proto.Error {
	if d.peek() != '[' {
		return d.mismatch(complaint(fd), "an array")
	}
	d.i++
	if d.take(']') {
		return nil
	}
	for {
		if err := d.element(l, fd); err != nil {
			return err
		}
		if d.take(']') {
			return nil
		}
		if err := d.expect(','); err != nil {
			return err
		}
	}
}

func (d *document) element(l protoreflect.List, fd protoreflect.FieldDescriptor) *proto.Error {
	mark := d.path.pushIndex(l.Len())
	defer d.path.pop(mark)
	if err := proto.CheckElements(fd, l.Len()+1); err != nil {
		return err
	}
	if fd.Message() != nil {
		if err := d.weigh(proto.ElementWeight(fd)); err != nil {
			return err
		}
		return d.message(l.AppendMutable().Message())
	}
	v, err := d.scalar(fd)
	if err != nil {
		return err
	}
	l.Append(v)
	return nil
}

func (d *document) scalar(fd protoreflect.FieldDescriptor) (protoreflect.Value, *proto.Error) {
	switch fd.Kind() {
	case protoreflect.BytesKind:
		s, err := d.text(fd)
		if err == nil {
			err = d.weigh(proto.TextWeight(fd, len(s)))
		}
		if err != nil {
			return protoreflect.Value{}, err
		}
		return protoreflect.ValueOfBytes([]byte(s)), nil
	case protoreflect.StringKind:
		s, err := d.text(fd)
		return protoreflect.ValueOfString(s), err
	case protoreflect.BoolKind:
		return d.boolean(fd)
	}
	s, err := d.numeral(fd)
	if err == nil {
		err = d.weigh(proto.ElementWeight(fd))
	}
	if err != nil {
		return protoreflect.Value{}, err
	}
	v, err := parseNumeral(fd, s)
	if err != nil {
		err.Message = d.path.text() + ": " + err.Message
	}
	return v, err
}

func (d *document) text(fd protoreflect.FieldDescriptor) (string, *proto.Error) {
	if d.peek() != '"' {
		return "", d.mismatch(complaint(fd), "a string")
	}
	s, err := d.str()
	if err == nil {
		err = d.weigh(proto.TextWeight(fd, len(s)))
	}
	return s, err
}

func (d *document) boolean(fd protoreflect.FieldDescriptor) (protoreflect.Value, *proto.Error) {
	switch d.peek() {
	case 't':
		return protoreflect.ValueOfBool(true), d.keyword("true")
	case 'f':
		return protoreflect.ValueOfBool(false), d.keyword("false")
	}
	return protoreflect.Value{}, d.mismatch(complaint(fd), "true or false")
}

// numeral reads the text of a number, or of a string that stands for one.
func (d *document) numeral(fd protoreflect.FieldDescriptor) (string, *proto.Error) {
	switch c := d.peek(); {
	case c == '"':
		return d.str()
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	}
	return "", d.mismatch(complaint(fd), numeralShape(fd))
}

func (d *document) mismatch(sentinel *proto.Error, want string) *proto.Error {
	got := "the end of the document"
	switch c := d.peek(); {
	case c == '{':
		got = "an object"
	case c == '[':
		got = "an array"
	case c == '"':
		got = "a string"
	case c == 't' || c == 'f':
		got = "a boolean"
	case c == 'n':
		got = "null"
	case c == '-' || c >= '0' && c <= '9':
		got = "a number"
	case c != 0:
		return d.unexpected(want)
	}
	return sentinel.Errorf("%s: it must be %s, not %s", d.path.text(), want, got)
}

// numeralShape describes in words what a field takes.
func numeralShape(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.Enum() != nil:
		return "one of " + strings.Join(enumNames(fd.Enum()), ", ")
	case fd.Kind() == protoreflect.DoubleKind:
		return "a number"
	case isDuration(fd):
		return `an integer (microseconds) or a duration such as "90s" or "30d"`
	case isTime(fd):
		return "an integer (microseconds since 1970, from 1973-03-03 on) or an RFC 3339 time"
	}
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		return "an integer from 0 to 4294967295"
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return "an integer from 0 to 18446744073709551615"
	}
	return "an integer"
}

// complaint is the sentinel for bad values of a field, so that the same mistake has the same code in every interface.
func complaint(fd protoreflect.FieldDescriptor) *proto.Error {
	switch name := string(fd.Name()); {
	case name == "key" || name == "keys" || name == "against" || name == "pattern" || name == "patterns" || name == "against_patterns" || name == "after" || name == "to" || name == "phrases" || name == "into":
		return proto.ErrBadKey
	case name == "bin" || name == "bins" && fd.Kind() == protoreflect.BytesKind:
		return proto.ErrBadBin
	case name == "amount" || name == "value":
		return proto.ErrBadAmount
	case name == "top":
		return proto.ErrBadCount
	case name == "half_life_us" || name == "slow_half_life_us":
		return proto.ErrBadHalfLife
	case isTime(fd):
		return proto.ErrBadTime
	case fd.ContainingMessage().Name() == "Namespace" || fd.ContainingMessage().Name() == "Sizes":
		return proto.ErrBadNamespace
	}
	return proto.ErrBadRequest
}

func isTime(fd protoreflect.FieldDescriptor) bool {
	return strings.HasSuffix(string(fd.Name()), "_us") && !isDuration(fd)
}

// isMoment reports whether a field is a time of a request that means now when it is 0. If a caller writes 0, it means
// the beginning of 1970: the microsecond after it, as in the Go client.
func isMoment(fd protoreflect.FieldDescriptor) bool {
	return fd.FullName() == "ebb.v1.Increment.time_us" || fd.FullName() == "ebb.v1.ExpireRequest.at_us" || fd.FullName() == "ebb.v1.FeedRequest.time_us" ||
		fd.Name() == "as_of_us" && strings.HasSuffix(string(fd.ContainingMessage().Name()), "Question")
}

func isDuration(fd protoreflect.FieldDescriptor) bool {
	switch fd.Name() {
	case "half_life_us", "slow_half_life_us", "fast_half_life_us", "max_staleness_us", "min_interval_us", "retry_after_us",
		"window_us", "span_us", "ttl_us", "grace_us", "sync_us":
		return true
	}
	return false
}

// parseNumeral reads the text of an enum, an integer or a float of fd's kind.
func parseNumeral(fd protoreflect.FieldDescriptor, s string) (protoreflect.Value, *proto.Error) {
	var v protoreflect.Value
	var ok bool
	switch fd.Kind() {
	case protoreflect.EnumKind:
		v, ok = parseEnum(fd.Enum(), s)
	case protoreflect.DoubleKind:
		v, ok = parseDouble(s)
	case protoreflect.Uint32Kind:
		if fd.Name() == "top" {
			return parseTop(s)
		}
		u, err := parseUint(s, math.MaxUint32)
		v, ok = protoreflect.ValueOfUint32(uint32(u)), err == nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		u, err := parseUint(s, math.MaxUint64)
		v, ok = protoreflect.ValueOfUint64(u), err == nil
	case protoreflect.Int64Kind:
		return parseInt64(fd, s)
	}
	if !ok {
		return v, complaint(fd).Errorf("%s is not %s", quote(s), numeralShape(fd))
	}
	return v, nil
}

// parseTop checks the limits of n, which are narrower than those of its field.
func parseTop(s string) (protoreflect.Value, *proto.Error) {
	n, err := parseInt(s)
	if err != nil {
		return protoreflect.Value{}, proto.ErrBadCount.Errorf("n = %s: it must be an integer from 1 to %d", clip(s), proto.TopMax)
	}
	if err := proto.CheckTop(n); err != nil {
		return protoreflect.Value{}, err
	}
	return protoreflect.ValueOfUint32(uint32(n)), nil
}

func parseInt64(fd protoreflect.FieldDescriptor, s string) (protoreflect.Value, *proto.Error) {
	n, err := parseInt(s)
	switch {
	case err == nil && isWritten(fd):
		if err := checkMicros(n); err != nil {
			return protoreflect.Value{}, err
		}
	case err == nil:
	case isDuration(fd):
		n, err = query.ParseDuration(s)
	case isTime(fd):
		if proto.HasLeapSecond(s) {
			return protoreflect.Value{}, complaint(fd).Errorf("%s: %s", quote(s), proto.LeapSecond)
		}
		at, wrong := proto.ParseTime(s)
		n, err = at.UnixMicro(), wrong
	}
	if err != nil {
		return protoreflect.Value{}, complaint(fd).Errorf("%s is not %s", quote(s), numeralShape(fd))
	}
	// A zero that is written is not a zero that is left out.
	if fd.Name() == "half_life_us" {
		if err := proto.CheckHalfLife(n); err != nil {
			return protoreflect.Value{}, err
		}
	}
	if isMoment(fd) && n == 0 {
		n = 1
	}
	return protoreflect.ValueOfInt64(n), nil
}

// parseInt also accepts 1e6 and 2.0, which JSON does not distinguish from integers.
func parseInt(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n, nil
	}
	f, ferr := proto.ParseNumber(s)
	if ferr != nil || f != math.Trunc(f) || math.Abs(f) > numberMax {
		return 0, err
	}
	return int64(f), nil
}

func parseUint(s string, limit uint64) (uint64, error) {
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		n, ierr := parseInt(s)
		if ierr != nil || n < 0 {
			return 0, err
		}
		u = uint64(n)
	}
	if u > limit {
		return 0, strconv.ErrRange
	}
	return u, nil
}

// parseDouble accepts infinities and NaN, under protobuf's names and as overflows. The document does not decide whether
// a field may have them.
func parseDouble(s string) (protoreflect.Value, bool) {
	f, err := proto.ParseNumber(s)
	if err != nil && !math.IsInf(f, 0) {
		return protoreflect.Value{}, false
	}
	return protoreflect.ValueOfFloat64(f), true
}

// parseEnum reads half_life, half-life, DECAY_HALF_LIFE or 1.
func parseEnum(ed protoreflect.EnumDescriptor, s string) (protoreflect.Value, bool) {
	name := strings.ReplaceAll(strings.ToUpper(s), "-", "_")
	for _, n := range []string{name, enumPrefix(ed) + name} {
		if v := ed.Values().ByName(protoreflect.Name(n)); v != nil {
			return protoreflect.ValueOfEnum(v.Number()), true
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if v := ed.Values().ByNumber(protoreflect.EnumNumber(n)); err == nil && v != nil {
		return protoreflect.ValueOfEnum(v.Number()), true
	}
	return protoreflect.Value{}, false
}

// quote returns what a caller sent, cut to a length that fits a message.
func quote(s string) string { return strconv.Quote(clip(s)) }

// shownMax is how many bytes of a caller's text messages show.
const shownMax = 40

func clip(s string) string { return clipTo(s, shownMax) }

func clipTo(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
