package proto_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// The hand-scanned field numbers are those of the descriptors.
func TestFieldNumbers(t *testing.T) {
	command := (&ebbv1.Command{}).ProtoReflect().Descriptor().Fields()
	increment := (&ebbv1.Increment{}).ProtoReflect().Descriptor().Fields()
	for _, c := range []struct {
		fields protoreflect.FieldDescriptors
		name   protoreflect.Name
		want   protoreflect.FieldNumber
	}{
		{command, "namespace", proto.FieldCommandNamespace},
		{command, "session", proto.FieldCommandSession},
		{command, "source", proto.FieldCommandSource},
		{command, "idempotency_key", proto.FieldCommandIdempotencyKey},
		{command, "increments", proto.FieldCommandIncrements},
		{command, "define_namespace", proto.FieldCommandDefineNamespace},
		{increment, "key", proto.FieldIncrementKey},
		{increment, "bin", proto.FieldIncrementBin},
		{increment, "amount", proto.FieldIncrementAmount},
		{increment, "time_us", proto.FieldIncrementTimeUS},
		{increment, "offset", proto.FieldIncrementOffset},
	} {
		if got := c.fields.ByName(c.name).Number(); got != c.want {
			t.Errorf("%s is field %d, the scanner reads %d", c.name, got, c.want)
		}
	}
}

// What AppendIncrement writes, both Parse and the generated code read back.
func TestAppendIncrementRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := proto.IncrementWire{
			Key:    rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "key"),
			Bin:    rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bin"),
			Amount: rapid.SampledFrom([]float64{1, 2, 0.5, -3, 1e15}).Draw(t, "amount"),
			TimeUS: rapid.Int64Range(0, math.MaxInt64).Draw(t, "time"),
			Offset: rapid.Uint64().Draw(t, "offset"),
		}
		var batch ebbv1.Increments
		raw := proto.AppendIncrement(nil, &in)
		if err := pb.Unmarshal(raw, &batch); err != nil {
			t.Fatal(err)
		}
		m := batch.GetIncrements()[0]
		one, err := pb.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var back proto.IncrementWire
		if !back.Parse(one) || string(back.Key) != string(in.Key) || string(back.Bin) != string(in.Bin) ||
			back.Amount != in.Amount || back.TimeUS != in.TimeUS || back.Offset != in.Offset {
			t.Fatalf("wrote %+v, read %+v", in, back)
		}
		if m.Amount == nil && in.Amount != 1 {
			t.Fatalf("amount %g lost", in.Amount)
		}
	})
}

// WellFormedIncrement says what Parse says, of increments and of what is nearly one.
func TestWellFormedIncrement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := proto.IncrementWire{
			Key:    rapid.SliceOfN(rapid.Byte(), 0, 130).Draw(t, "key"),
			Bin:    rapid.SliceOfN(rapid.Byte(), 0, 130).Draw(t, "bin"),
			Amount: rapid.SampledFrom([]float64{1, 2.5}).Draw(t, "amount"),
			TimeUS: rapid.SampledFrom([]int64{0, 1, math.MaxInt64}).Draw(t, "time"),
		}
		raw, _, ok := proto.NextIncrement(proto.AppendIncrement(nil, &in))
		if !ok || !proto.WellFormedIncrement(raw) {
			t.Fatalf("%+v is not well formed", in)
		}
		raw = slices.Clone(raw[:rapid.IntRange(0, len(raw)).Draw(t, "length")])
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			if len(raw) > 0 {
				raw[rapid.IntRange(0, len(raw)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		}
		var back proto.IncrementWire
		if got, want := proto.WellFormedIncrement(raw), back.Parse(raw); got != want {
			t.Fatalf("well formed: %t, parsed: %t: % x", got, want, raw)
		}
	})
}

func TestCheckCommand(t *testing.T) {
	inc := func(key, bin string, amount float64, timeUS int64) *ebbv1.Command {
		return &ebbv1.Command{Namespace: "default", Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
			Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}, {Key: []byte(key), Bin: []byte(bin), Amount: &amount, TimeUs: timeUS}},
		}}}
	}
	for _, c := range []struct {
		name    string
		command *ebbv1.Command
		want    error
		says    string
	}{
		{"fine", inc("k", "b", 1, 0), nil, ""},
		{"negative is the namespace's business", inc("k", "b", -1, 0), nil, ""},
		{"empty key", inc("", "b", 1, 0), proto.ErrBadKey, "increment 1: empty key"},
		{"long key", inc(strings.Repeat("k", 513), "b", 1, 0), proto.ErrBadKey, "key of 513 bytes: the limit is 512"},
		{"empty bin", inc("k", "", 1, 0), proto.ErrBadBin, "empty bin"},
		{"long bin", inc("k", strings.Repeat("b", 257), 1, 0), proto.ErrBadBin, "the limit is 256"},
		{"NaN", inc("k", "b", math.NaN(), 0), proto.ErrBadAmount, "NaN"},
		{"infinite", inc("k", "b", math.Inf(-1), 0), proto.ErrBadAmount, "infinite"},
		{"overflowing", inc("k", "b", 1e16, 0), proto.ErrBadAmount, "the limit is 1e+15"},
		{"before 1970", inc("k", "b", 1, -5), proto.ErrBadTime, "before 1970"},
		{"no body", &ebbv1.Command{Namespace: "x"}, proto.ErrBadRequest, "0 bodies"},
		{"leader only", &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{}}}, proto.ErrBadRequest, "not for clients"},
		{"leader only", &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}, proto.ErrBadRequest, "not for clients"},
		{"open session", &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := pb.Marshal(c.command)
			if err != nil {
				t.Fatal(err)
			}
			got := proto.CheckCommand(raw)
			if c.want == nil {
				if got != nil {
					t.Fatalf("refused: %v", got)
				}
				return
			}
			if got == nil || !errors.Is(got, c.want) || !strings.Contains(got.Message, c.says) {
				t.Fatalf("got %v, want %v saying %q", got, c.want, c.says)
			}
		})
	}
}

// No field of what clients send may have a number that the generated code does not read, at any level of it:
// FuzzCheckCommand found one.
func TestFieldNumbersBeyond(t *testing.T) {
	beyond := protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1)
	within := func(num protowire.Number, raw []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), raw)
	}
	valid := func(m pb.Message) []byte {
		raw, err := pb.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	edit := &ebbv1.BitEdit{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: 1, Last: 2}}
	for _, c := range []struct {
		name string
		num  protowire.Number
		body []byte
	}{
		{"session closed", proto.FieldCommandCloseSession, valid(&ebbv1.CloseSession{})},
		{"increment", proto.FieldCommandIncrements, within(proto.FieldIncrementsIncrements, valid(&ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")}))},
		{"edit", proto.FieldCommandBits, valid(&ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{edit}})},
		{"strings", proto.FieldCommandNames, valid(&ebbv1.Names{Names: [][]byte{[]byte("a")}, Shards: 1})},
	} {
		if err := proto.CheckCommand(within(c.num, c.body)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := proto.CheckCommand(within(c.num, append(slices.Clone(c.body), beyond...))); err == nil || !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	bits := func(raw []byte) []byte { return within(proto.FieldCommandBits, within(proto.FieldBitEditsEdits, raw)) }
	for name, raw := range map[string][]byte{
		"in an increment": within(proto.FieldCommandIncrements, within(proto.FieldIncrementsIncrements, append(valid(&ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")}), beyond...))),
		"in an edit":      bits(append(valid(edit), beyond...)),
		"in a range":      bits(append(valid(&ebbv1.BitEdit{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET}), within(proto.FieldBitEditRange, append(valid(edit.GetRange()), beyond...))...)),
	} {
		if err := proto.CheckCommand(raw); err == nil || !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A field that has another type than its own is passed over by the generated code, and read by who applies edits: an
// edit that is cleared for the one is set for the other. Text that is not UTF-8 is refused by the generated code, and
// was read by replicas.
func TestFieldTypes(t *testing.T) {
	body := func(num protowire.Number, raw []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), raw)
	}
	number := func(raw []byte, num protowire.Number, typ protowire.Type, v uint64) []byte {
		raw = protowire.AppendTag(slices.Clone(raw), num, typ)
		if typ == protowire.Fixed64Type {
			return protowire.AppendFixed64(raw, v)
		}
		return protowire.AppendVarint(raw, v)
	}
	command := func(c *ebbv1.Command) []byte {
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	const (
		varint, fixed = protowire.VarintType, protowire.Fixed64Type
		set, clear    = uint64(ebbv1.BitOp_BIT_OP_SET), uint64(ebbv1.BitOp_BIT_OP_CLEAR)
	)
	edit := func(raw []byte) []byte { return body(proto.FieldCommandBits, body(proto.FieldBitEditsEdits, raw)) }
	cleared := number(append(body(proto.FieldBitEditKey, []byte("k")), body(proto.FieldBitEditIDs, []byte{1})...), proto.FieldBitEditOp, varint, clear)
	ranged := number(body(proto.FieldBitEditKey, []byte("k")), proto.FieldBitEditOp, varint, set)
	closed := command(&ebbv1.Command{Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{}}})
	for name, c := range map[string]struct {
		raw []byte
		bad error
	}{
		"cleared":                         {edit(cleared), nil},
		"cleared, and set in another way": {edit(number(cleared, proto.FieldBitEditOp, fixed, set)), proto.ErrBadRequest},
		"a range":                         {edit(append(slices.Clone(ranged), body(proto.FieldBitEditRange, number(nil, proto.FieldBitRangeLast, varint, 9))...)), nil},
		"a range in another way":          {edit(append(slices.Clone(ranged), body(proto.FieldBitEditRange, number(nil, proto.FieldBitRangeLast, fixed, 9))...)), proto.ErrBadRequest},
		"until when, in another way":      {body(proto.FieldCommandBits, number(body(proto.FieldBitEditsEdits, cleared), proto.FieldBitEditsUntil, fixed, 1)), proto.ErrBadRequest},
		"a key that is a number":          {edit(number(cleared, proto.FieldBitEditKey, varint, 1)), proto.ErrBadRequest},
		"a field of the future":           {edit(number(cleared, 1000, fixed, 1)), nil},
		"a source":                        {append(body(proto.FieldCommandSource, body(1, []byte("\u00e9"))), closed...), nil},
		"a source that is not UTF-8":      {append(body(proto.FieldCommandSource, body(1, []byte{0xff})), closed...), proto.ErrBadRequest},
		"opened, not UTF-8":               {body(9, body(1, []byte{0xff})), proto.ErrBadRequest},
		"dropped, not UTF-8":              {body(proto.FieldCommandDropSource, body(1, []byte{0xff})), proto.ErrBadRequest},
		"a restore that is not UTF-8":     {body(proto.FieldCommandRestore, append(body(1, []byte{0xff}), body(4, nil)...)), proto.ErrBadRequest},
		"a namespace that is not UTF-8":   {append(body(proto.FieldCommandNamespace, []byte{0xff}), closed...), proto.ErrBadNamespace},
		"a namespace":                     {append(body(proto.FieldCommandNamespace, []byte("people")), closed...), nil},
		"the default namespace":           {append(body(proto.FieldCommandNamespace, nil), closed...), nil},
		"a session":                       {append(body(proto.FieldCommandSession, number(nil, 1, varint, 7)), closed...), nil},
		"a session in another way":        {append(body(proto.FieldCommandSession, number(nil, 1, fixed, 7)), closed...), proto.ErrBadRequest},
	} {
		if err := proto.CheckCommand(c.raw); (err == nil) != (c.bad == nil) || err != nil && !errors.Is(err, c.bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whether a command makes a shard larger is read as it is applied.
func TestGrowsAsApplied(t *testing.T) {
	e := protowire.AppendVarint(protowire.AppendTag(nil, proto.FieldBitEditOp, protowire.VarintType), uint64(ebbv1.BitOp_BIT_OP_CLEAR))
	e = protowire.AppendFixed64(protowire.AppendTag(e, proto.FieldBitEditOp, protowire.Fixed64Type), uint64(ebbv1.BitOp_BIT_OP_SET))
	raw := protowire.AppendBytes(protowire.AppendTag(nil, proto.FieldBitEditsEdits, protowire.BytesType), e)
	raw = protowire.AppendBytes(protowire.AppendTag(nil, proto.FieldCommandBits, protowire.BytesType), raw)
	if !proto.CommandGrows(raw) {
		t.Error("an edit that sets is taken for one that clears")
	}
}

func FuzzCheckCommand(f *testing.F) {
	raw, _ := pb.Marshal(&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}},
	}}})
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if proto.CheckCommand(raw) == nil {
			var c ebbv1.Command
			if err := pb.Unmarshal(raw, &c); err != nil {
				t.Fatalf("accepted what does not decode: %v", err)
			}
			for _, e := range c.GetBits().GetEdits() {
				if e.GetOp() != ebbv1.BitOp_BIT_OP_CLEAR && !proto.CommandGrows(raw) {
					t.Fatalf("%v grows", e)
				}
			}
		}
		name := proto.CommandNamespace(raw)
		if owner, _ := proto.CommandOwner(raw); proto.CheckCommand(raw) == nil && !bytes.Equal(owner, name) {
			t.Fatalf("a command of namespace %q is owned by %q", name, owner)
		}
	})
}

// A command has the owner that its identity names: of a session not the sequence number, of a source not the offset.
func TestCommandOwner(t *testing.T) {
	session := func(number, sequence uint64) *ebbv1.Command {
		return &ebbv1.Command{Namespace: "a", Identity: &ebbv1.Command_Session{
			Session: &ebbv1.SessionIdentity{Session: number, Sequence: sequence, Secret: 5},
		}}
	}
	source := &ebbv1.Command{Namespace: "a", Identity: &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "s", Epoch: 2}}}
	key := &ebbv1.Command{Namespace: "b", Identity: &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{Hi: 7}}}
	owner := func(c *ebbv1.Command) string {
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		namespace, caller := proto.CommandOwner(raw)
		return string(namespace) + " " + string(caller)
	}
	if owner(session(7, 1)) != owner(session(7, 900)) || owner(session(7, 1)) == owner(session(8, 1)) ||
		owner(session(7, 1)) == owner(source) || owner(source) == "a " || owner(key) != "b " {
		t.Errorf("%q, %q, %q, %q", owner(session(7, 1)), owner(session(7, 900)), owner(source), owner(key))
	}
}

func TestRoute(t *testing.T) {
	for _, c := range []struct{ key, route string }{
		{"clicks/country", "clicks/country"},
		{"play/2011", "play"},
		{"play/2011-11", "play"},
		{"play/2011-Q4", "play"},
		{"play/2011-q4", "play/2011-q4"},
		{"play/2011-W44", "play"},
		{"play/2011-11-01", "play"},
		{"play/2011-11-01T13", "play"},
		{"a/b/2011-11-01", "a/b"},
		{"2011-11-01", "2011-11-01"},
		{"play/2011-11-01/x", "play/2011-11-01/x"},
		{"play/20111", "play/20111"},
		{"play/2011-11-01T13:00", "play/2011-11-01T13:00"},
		{"", ""},
		{"/2011", ""},
	} {
		if got := string(proto.Route([]byte(c.key))); got != c.route {
			t.Errorf("Route(%q) = %q, want %q", c.key, got, c.route)
		}
	}
}

// The hash is part of the wire contract: these values may never change.
func TestShardOfGolden(t *testing.T) {
	for _, c := range []struct {
		namespace, key string
		shards, want   uint32
	}{
		{"default", "clicks/country", 64, 41},
		{"default", "play/2011-11-01", 64, 53},
		{"default", "play/2012", 64, 53},
		{"history", "A6qOVH", 1024, 433},
	} {
		if got := proto.ShardOf(c.namespace, []byte(c.key), c.shards); got != c.want {
			t.Errorf("ShardOf(%q, %q, %d) = %d, want %d", c.namespace, c.key, c.shards, got, c.want)
		}
	}
}

// errors.Is works over the wire, for every sentinel.
func TestStatusRoundTrip(t *testing.T) {
	for number, name := range ebbv1.Code_name {
		if number == 0 {
			continue
		}
		in := &proto.Error{Code: ebbv1.Code(number), Message: "m", Hint: "h", Shard: 3, Leader: "ebb-1", RetryAfterUS: 5}
		st := ebbv1grpc.Status(in)
		if _, ok := status.FromError(st); !ok {
			t.Fatalf("%s is not a status", name)
		}
		out := ebbv1grpc.FromStatus(st)
		if !errors.Is(out, in) {
			t.Errorf("%s came back as %v", name, out)
		}
		var e *proto.Error
		if !errors.As(out, &e) || *e != *in {
			t.Errorf("%s came back as %+v", name, e)
		}
	}
}

// A shard is asked for its part of a comparison with the keys that it has, which may be those of one side.
func TestCheckShardQuestion(t *testing.T) {
	ask := func(keys, against int, partial bool) *ebbv1.ShardQuestion {
		s := &ebbv1.SurpriseQuestion{}
		for range keys {
			s.Keys = append(s.Keys, []byte("k"))
		}
		for range against {
			s.Against = append(s.Against, []byte("b"))
		}
		return &ebbv1.ShardQuestion{Partial: partial, Question: &ebbv1.Question{Ask: &ebbv1.Question_Surprise{Surprise: s}}}
	}
	for _, c := range []struct {
		keys, against int
		partial, ok   bool
	}{
		{1, 1, false, true},
		{1, 0, false, false},
		{0, 1, false, false},
		{1, 1, true, true},
		{1, 0, true, true},
		{0, 1, true, true},
		{0, 0, true, false},
	} {
		if err := proto.CheckShardQuestion(ask(c.keys, c.against, c.partial)); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	everywhere := ask(0, 0, true)
	everywhere.Question.GetSurprise().Patterns, everywhere.Question.GetSurprise().AgainstPatterns = [][]byte{[]byte("k/*")}, [][]byte{[]byte("b/*")}
	if err := proto.CheckShardQuestion(everywhere); err != nil {
		t.Errorf("patterns alone: %v", err)
	}
	bad := ask(1, 0, true)
	bad.Question.GetSurprise().Bins = [][]byte{nil}
	if err := proto.CheckShardQuestion(bad); !errors.Is(err, proto.ErrBadBin) {
		t.Errorf("an empty bin: %v", err)
	}
}

// What clears an alert is weaker than what raises it, and is not there without it: what is raised at anything and
// cleared at something is raised again by the next answer.
func TestCheckAlert(t *testing.T) {
	for _, c := range []struct {
		alert *ebbv1.Alert
		says  string // "": it is good
	}{
		{&ebbv1.Alert{PValue: 0.01}, ""},
		{&ebbv1.Alert{JensenShannonBits: 0.2}, ""},
		{&ebbv1.Alert{PValue: 0.01, ClearPValue: new(0.05), JensenShannonBits: 0.2, ClearJensenShannonBits: new(0.1)}, ""},
		{&ebbv1.Alert{PValue: 0.01, ClearPValue: new(0.01)}, ""},
		{&ebbv1.Alert{}, "without threshold"},
		{&ebbv1.Alert{PValue: 0.01, ClearPValue: new(0.001)}, "from 0.01"},
		{&ebbv1.Alert{JensenShannonBits: 0.2, ClearJensenShannonBits: new(0.3)}, "at most 0.2"},
		{&ebbv1.Alert{PValue: 1}, "everything passes"},
		{&ebbv1.Alert{PValue: 0.01, ClearPValue: new(1.)}, "nothing ever clears it"},
		{&ebbv1.Alert{JensenShannonBits: 0.2, ClearJensenShannonBits: new(0.)}, "nothing ever clears it"},
		{&ebbv1.Alert{JensenShannonBits: 0.2, ClearPValue: new(0.05)}, "a p-value to be raised at"},
		{&ebbv1.Alert{PValue: 0.01, ClearJensenShannonBits: new(0.1)}, "a distance to be raised at"},
		{&ebbv1.Alert{PValue: 0.01, ClearJensenShannonBits: new(0.)}, "a distance to be raised at"},
	} {
		req := &ebbv1.WatchRequest{Alert: c.alert, Question: &ebbv1.Question{Ask: &ebbv1.Question_Surprise{Surprise: &ebbv1.SurpriseQuestion{
			Keys: [][]byte{[]byte("k")}, Against: [][]byte{[]byte("b")},
		}}}}
		err := proto.CheckWatch(req)
		if (err == nil) != (c.says == "") || err != nil && !(errors.Is(err, proto.ErrBadRequest) && strings.Contains(err.Message, c.says)) {
			t.Errorf("%v: %v", c.alert, err)
		}
	}
}

// What a kind has no use for is refused and not dropped: a value for what is not measured, a bin for a string.
func TestCheckEventOfKinds(t *testing.T) {
	for kind := ebbv1.Kind_KIND_DISTRIBUTION; kind <= proto.EventKindMax; kind++ {
		in := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("b"), Kind: kind, Value: new(1.5)}
		want := error(proto.ErrBadRequest)
		if kind == ebbv1.Kind_KIND_QUANTILE {
			want = nil
		}
		if kind == ebbv1.Kind_KIND_STRING {
			in.Bin, in.Text = nil, []byte("text")
		}
		if err := proto.CheckIncrement(in); !errors.Is(err, want) && !(err == nil && want == nil) {
			t.Errorf("a value for %v: %v", kind, err)
		}
	}
	for _, kind := range []ebbv1.Kind{ebbv1.Kind_KIND_UNSPECIFIED, ebbv1.Kind_KIND_STRING} {
		in := &ebbv1.Increment{Key: []byte("k"), Kind: kind, Text: []byte("text")}
		if err := proto.CheckIncrement(in); err != nil {
			t.Errorf("a text of %v: %v", kind, err)
		}
		in.Bin = []byte("b")
		if err := proto.CheckIncrement(in); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("a text of %v beside a bin: %v", kind, err)
		}
	}
	if err := proto.CheckIncrement(&ebbv1.Increment{Key: []byte("k"), Value: new(1.5)}); err != nil {
		t.Errorf("a value for whatever the key is: %v", err)
	}
}

// A command that is too large is refused with its limit, and one with a key with that key, too.
func TestCommandsAreBounded(t *testing.T) {
	command := func(key string, size int) []byte {
		c := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
			Key: []byte(key), What: &ebbv1.PutKey_Image{Image: make([]byte, size)},
		}}}
		if key == "" {
			c.Body = &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
				Increments: []*ebbv1.Increment{{Bin: make([]byte, size)}},
			}}
		}
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, tt := range []struct {
		key  string
		want *proto.Error
		says []string
	}{
		{"big", proto.ErrKeyTooLarge, []string{`"big"`, "245760", "pieces"}},
		{"", proto.ErrBatchTooLarge, []string{"245760"}},
	} {
		around := len(command(tt.key, proto.ImageBytesMax)) - proto.ImageBytesMax
		if err := proto.CheckCommandSize(command(tt.key, proto.CommandBytesMax-around)); err != nil {
			t.Errorf("%q: the largest: %v", tt.key, err)
		}
		err := proto.CheckCommand(command(tt.key, proto.CommandBytesMax-around+1))
		if !errors.Is(err, tt.want) {
			t.Fatalf("%q: one byte more: %v", tt.key, err)
		}
		for _, part := range tt.says {
			if !strings.Contains(err.Error()+err.Hint, part) {
				t.Errorf("%q: %v does not say %s", tt.key, err, part)
			}
		}
	}
}

// What goes from one shard to another fits its command, whatever the names and the identity are.
func TestImagesFitTheirCommands(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, proto.KeyLenMax)
	id := &ebbv1.IdempotencyKey{IssuedAtUs: math.MaxInt64, Hi: math.MaxUint64, Lo: math.MaxUint64}
	namespace := strings.Repeat("n", proto.NamespaceLenMax)
	stored := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{Containers: &ebbv1.BitmapContainers{
		From: math.MaxUint64, Containers: make([]byte, proto.ImageBytesMax),
	}}}
	for _, c := range []*ebbv1.Command{
		{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
			Key: long, What: &ebbv1.PutKey_Image{Image: make([]byte, proto.ImageBytesMax)}, Overwrite: true, Merge: true,
			Replace: new(uint64(math.MaxUint64)),
		}}},
		{Body: &ebbv1.Command_StoreBitmap{StoreBitmap: &ebbv1.StoreBitmap{Key: long, Expr: stored, UntilUs: math.MaxInt64}}},
	} {
		c.Namespace, c.Identity = namespace, &ebbv1.Command_IdempotencyKey{IdempotencyKey: id}
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.CheckCommandSize(raw); err != nil {
			t.Errorf("%v", err)
		}
	}
}
