package shard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The hand-read field numbers are those of the descriptors.
func TestFieldNumbers(t *testing.T) {
	for _, c := range []struct {
		message pb.Message
		name    protoreflect.Name
		want    protoreflect.FieldNumber
	}{
		{&ebbv1.Entry{}, "stamp_us", fieldEntryStamp},
		{&ebbv1.Entry{}, "commands", fieldEntryCommands},
		{&ebbv1.Command{}, "open_session", fieldCommandOpenSession},
		{&ebbv1.Command{}, "close_session", fieldCommandCloseSession},
		{&ebbv1.Command{}, "open_source", fieldCommandOpenSource},
		{&ebbv1.Command{}, "drop_source", fieldCommandDropSource},
		{&ebbv1.Command{}, "behaviour", fieldCommandBehaviour},
		{&ebbv1.Command{}, "tick", fieldCommandTick},
		{&ebbv1.Command{}, "audit", fieldCommandAudit},
		{&ebbv1.Command{}, "purge_namespace", fieldCommandPurge},
		{&ebbv1.Audit{}, "part", fieldAuditPart},
		{&ebbv1.Audit{}, "of", fieldAuditOf},
		{&ebbv1.SessionIdentity{}, "session", fieldSessionSession},
		{&ebbv1.SessionIdentity{}, "sequence", fieldSessionSequence},
		{&ebbv1.SessionIdentity{}, "secret", fieldSessionSecret},
		{&ebbv1.OpenSession{}, "secret", fieldOpenSessionSecret},
		{&ebbv1.SourceIdentity{}, "name", fieldSourceName},
		{&ebbv1.SourceIdentity{}, "epoch", fieldSourceEpoch},
		{&ebbv1.IdempotencyKey{}, "issued_at_us", fieldKeyIssuedAt},
		{&ebbv1.IdempotencyKey{}, "hi", fieldKeyHi},
		{&ebbv1.IdempotencyKey{}, "lo", fieldKeyLo},
		{&ebbv1.CloseSession{}, "session", fieldCloseSessionSession},
		{&ebbv1.CloseSession{}, "secret", fieldCloseSessionSecret},
		{&ebbv1.OpenSource{}, "name", fieldOpenSourceName},
		{&ebbv1.OpenSource{}, "token", fieldOpenSourceToken},
		{&ebbv1.DropSource{}, "name", fieldDropSourceName},
		{&ebbv1.Behaviour{}, "version", fieldBehaviourVersion},
	} {
		if got := c.message.ProtoReflect().Descriptor().Fields().ByName(c.name).Number(); got != c.want {
			t.Errorf("%s is field %d, the reader takes %d", c.name, got, c.want)
		}
	}
	known := []protoreflect.FieldNumber{ // and all below the first
		proto.FieldCommandNames, proto.FieldCommandHome, proto.FieldCommandRestore, fieldCommandAudit, fieldCommandPurge,
		proto.FieldCommandPutPiece, proto.FieldCommandEventClock,
	}
	fields := (&ebbv1.Command{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if n := fields.Get(i).Number(); n > known[0] && !slices.Contains(known, n) {
			t.Errorf("the switch does not know field %d of Command", n)
		}
	}
}

// A command that is not one is answered, and changes nothing but the index.
func TestMalformedCommands(t *testing.T) {
	good, err := pb.Marshal(increments("k", "a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"empty":               {},
		"no body":             {0x0a, 1, 'n'},
		"cut":                 good[:len(good)-1],
		"cut increment":       {0x2a, 4, 0x0a, 2, 0x0a, 9},
		"unknown body":        {0xf2, 1, 0},
		"cut edit":            {0x82, 1, 4, 0x0a, 2, 0x0a, 9},
		"unknown field":       {0xfa, 0x01, 0},
		"two bodies":          append([]byte{0x62, 0}, good...),
		"two identities":      append([]byte{0x12, 0, 0x22, 0}, good...),
		"not bytes":           append([]byte{0x08, 1}, good...),
		"group":               {0x2b, 0x2c},
		"odd increments":      {0x2a, 2, 0x10, 1},
		"broken session":      append([]byte{0x12, 1, 0xff}, good...),
		"broken namespace":    {0x32, 1, 0xff},
		"namespace not utf-8": {0x32, 3, 0x0a, 1, 0xff},
		"source and no rows":  {0x1a, 3, 0x0a, 1, 's', 0x62, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1})
			s.openSource(&command{body: []byte{0x0a, 1, 's'}})
			before := s.Checksum()
			applied := s.applied
			r := s.Apply(2, entryOf(0, raw), nil)
			if len(r) != 1 || !proto.FromWire(r[0].Error).Is(proto.ErrBadRequest) && name != "source and no rows" {
				t.Fatalf("got %v", r)
			}
			s.applied = applied
			if s.Checksum() != before {
				t.Fatal("it changed something")
			}
		})
	}
}

// Corruption of the entry itself stops the replica with a clear text.
func TestCorruptEntryPanics(t *testing.T) {
	entry := entryOf(1, []byte{0x62, 0})
	for name, raw := range map[string][]byte{
		"cut":       entry[:len(entry)-1],
		"cut stamp": entry[:5],
		"bad tag":   {0x00},
	} {
		t.Run(name, func(t *testing.T) {
			said := panicOf(func() { New(1, Heap{}).Apply(9, raw, nil) })
			if !strings.Contains(said, "committed entry 9 is corrupt") {
				t.Fatalf("it said %q", said)
			}
		})
	}
}

func TestUnknownBehaviourPanics(t *testing.T) {
	s := New(3, Heap{})
	entry := encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: 99}}})
	want := fmt.Sprintf("shard 3: this binary knows behaviour up to %d; the log asks for 99; upgrade", BehaviourMax)
	if said := panicOf(func() { s.Apply(1, entry, nil) }); said != want {
		t.Fatalf("it said %q", said)
	}
}

func panicOf(f func()) (said string) {
	defer func() {
		if x := recover(); x != nil {
			said = fmt.Sprint(x)
		}
	}()
	f()
	return ""
}

// FuzzApplyCommand: whatever a command says, in a valid entry, is answered
// once and leaves a valid state.
func FuzzApplyCommand(f *testing.F) {
	for _, c := range seedCommands() {
		raw, err := pb.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int64(1_700_000_050*second), raw, raw)
	}
	base := snapshot(f, furnished(f))
	f.Fuzz(func(t *testing.T, stamp int64, one, two []byte) {
		s, err := Restore(1, Heap{}, strings.NewReader(string(base)))
		if err != nil {
			t.Fatal(err)
		}
		var n int
		said := panicOf(func() { n = len(s.Apply(s.applied+1, entryOf(stamp, one, two, one), nil)) })
		if said == "" && n == 3 {
			audit(t, s)
			reopen(t, s)
			return
		}
		if !strings.HasSuffix(said, "upgrade") {
			t.Fatalf("%d results, panic %q", n, said)
		}
	})
}

// FuzzApplyEntry: bytes that are no entry are called corrupt.
func FuzzApplyEntry(f *testing.F) {
	for _, c := range seedCommands() {
		f.Add(encode(f, 5, c, c))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := New(1, Heap{})
		said := panicOf(func() { s.Apply(1, raw, nil) })
		if said != "" && !strings.Contains(said, "is corrupt") && !strings.HasSuffix(said, "upgrade") {
			t.Fatalf("panic %q", said)
		}
		if said == "" {
			audit(t, s)
		}
	})
}

func seedCommands() []*ebbv1.Command {
	inc := increments("clicks/link", "us", "de")
	inc.GetIncrements().Increments[0].Amount = new(-2.5)
	inc.GetIncrements().Increments[1].TimeUs = 1_700_000_000 * second
	session := increments("clicks/link", "us")
	session.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: 1_700_000_004 * second, Sequence: 1 << 40}}
	source := increments("rows", "us")
	source.GetIncrements().Increments[0].Offset = 40
	source.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "file/0", Epoch: 1}}
	key := increments("rows", "us")
	key.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: 1_700_000_010 * second, Hi: 1}}
	return []*ebbv1.Command{
		inc, session, source, key,
		{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 3, HalfLifeUs: second, Clock: ebbv1.Clock_CLOCK_EVENT}}},
		{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "history", Version: 3, Decay: ebbv1.Decay_DECAY_NONE}}},
		{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "leak", Version: 3, Decay: ebbv1.Decay_DECAY_HALF_LIFE, Floor: ebbv1.Floor_FLOOR_CLAMP}}},
		{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}},
		{Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{Session: 5}}},
		{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "file/0", Token: 6}}},
		{Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: "file/0"}}},
		{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: 7}}},
		{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}},
	}
}
