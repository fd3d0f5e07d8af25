package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// furnished is a small state with something of everything in it.
func furnished(t testing.TB) *State {
	t.Helper()
	now := int64(1_700_000_000 * second)
	s := New(1, Heap{})
	index := uint64(0)
	apply := func(c *ebbv1.Command) *ebbv1.CommandResult {
		index++
		now += second
		return s.Apply(index, encode(t, now, c), nil)[0]
	}
	define := func(ns *ebbv1.Namespace) {
		apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
	}
	define(&ebbv1.Namespace{Name: "default", Version: 1})
	define(&ebbv1.Namespace{Name: "history", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT, Precision: ebbv1.Precision_PRECISION_COMPACT})
	define(&ebbv1.Namespace{Name: "leak", Version: 1, Decay: ebbv1.Decay_DECAY_LINEAR})
	session := apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}).Session
	apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}})
	apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "file/0", Token: 5}}})
	for i, namespace := range []string{"default", "history", "leak", "absent"} {
		c := increments("clicks/link", "us", "de", strings.Repeat("x", 300), "jp")
		c.Namespace = namespace
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: uint64(i) + 2}}
		apply(c)
		c = increments("other"+namespace, "us", "fr")
		c.Namespace = namespace
		c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: now, Hi: 1, Lo: uint64(i)}}
		apply(c)
	}
	c := increments("rows", "a", strings.Repeat("x", 300), "c")
	for i, in := range c.GetIncrements().Increments {
		in.Offset = uint64(10 * (i + 1))
	}
	c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "file/0", Epoch: 1}}
	apply(c)
	define(&ebbv1.Namespace{Name: "default", Version: 2, HalfLifeUs: 60 * second})
	apply(&ebbv1.Command{Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{Session: session + 1}}})
	apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: 1}}})
	audit(t, s)
	return s
}

func TestSnapshotOfEverything(t *testing.T) {
	s := furnished(t)
	first := snapshot(t, s)
	back := reopen(t, s)
	audit(t, back)
	if !bytes.Equal(first, snapshot(t, back)) {
		t.Fatal("a restored state has another snapshot")
	}
	if described(s) != described(back) {
		t.Fatalf("before:\n%s\nafter:\n%s", described(s), described(back))
	}
	if s.Checksum() != back.Checksum() {
		t.Fatal("checksums differ")
	}
}

// No byte of a snapshot may be wrong, missing or added.
func TestRestoreRejectsDamage(t *testing.T) {
	good := snapshot(t, furnished(t))
	for i := range good {
		bad := bytes.Clone(good)
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad[i] = good[i] ^ flip
			if _, err := Restore(1, Heap{}, bytes.NewReader(bad)); !errors.Is(err, proto.ErrCorrupt) {
				t.Fatalf("byte %d of %d flipped by %#x: %v", i, len(good), flip, err)
			}
		}
		if _, err := Restore(1, Heap{}, bytes.NewReader(good[:i])); !errors.Is(err, proto.ErrCorrupt) {
			t.Fatalf("cut at %d of %d: %v", i, len(good), err)
		}
	}
	if _, err := Restore(1, Heap{}, bytes.NewReader(append(good, 0))); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatalf("a byte too many: %v", err)
	}
	if _, err := Restore(2, Heap{}, bytes.NewReader(good)); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatalf("another shard's: %v", err)
	}
}

// A block that claims to be larger than what follows costs no memory.
func TestRestoreBelievesNoLength(t *testing.T) {
	header := snapshot(t, New(1, Heap{}))[:0]
	b := &blockWriter{w: (*appender)(&header)}
	New(1, Heap{}).writeHeader(b)
	b.section(sectionNamespaces)
	b.uvarint(1 << 60)
	b.section(sectionBins)
	b.uvarint(1 << 31)
	b.uvarint(0)
	b.flush()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Restore(1, Heap{}, bytes.NewReader(header)); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Fatalf("%d bytes were allocated", grown)
	}
}

type appender []byte

func (a *appender) Write(p []byte) (int, error) { *a = append(*a, p...); return len(p), nil }

// A snapshot by a newer version says so.
func TestRestoreNewerVersion(t *testing.T) {
	s := New(1, Heap{})
	s.behaviour = BehaviourMax + 1
	_, err := Restore(1, Heap{}, bytes.NewReader(snapshot(t, s)))
	if !errors.Is(err, proto.ErrNewerVersion) {
		t.Fatal(err)
	}
	raw := resealed(snapshot(t, New(1, Heap{})), func(section byte, payload []byte) []byte {
		if section == sectionHeader {
			payload[len(snapshotMagic)] = snapshotFormat + 1
		}
		return payload
	})
	if _, err := Restore(1, Heap{}, bytes.NewReader(raw)); !errors.Is(err, proto.ErrNewerVersion) {
		t.Fatal(err)
	}
}

// resealed is a snapshot with changed payloads and right checksums.
func resealed(raw []byte, change func(section byte, payload []byte) []byte) []byte {
	var out []byte
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint32(raw[1:])
		payload := change(raw[0], bytes.Clone(raw[blockOverhead:blockOverhead+n]))
		out = append(out, raw[0])
		out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
		out = append(out, payload...)
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
		raw = raw[blockOverhead+n+4:]
	}
	return out
}

// Damage that comes with right checksums is refused, or harmless: it never
// panics, and what it restores is a state that can be written.
func FuzzRestore(f *testing.F) {
	good := snapshot(f, furnished(f))
	f.Add(byte(sectionKeys), uint16(3), byte(1), uint16(0))
	f.Add(byte(sectionBins), uint16(1), byte(7), uint16(2))
	f.Add(byte(sectionSessions), uint16(9), byte(255), uint16(1))
	f.Fuzz(func(t *testing.T, section byte, at uint16, flip byte, cut uint16) {
		raw := resealed(good, func(s byte, payload []byte) []byte {
			if s != section || len(payload) == 0 {
				return payload
			}
			payload[int(at)%len(payload)] ^= flip
			return payload[:len(payload)-int(cut)%len(payload)]
		})
		restoreAny(t, raw)
	})
}

func FuzzRestoreBytes(f *testing.F) {
	f.Add(snapshot(f, furnished(f)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) { restoreAny(t, raw) })
}

// Every single damage of every payload, with right checksums.
func TestRestoreOfResealedDamage(t *testing.T) {
	good := snapshot(t, furnished(t))
	refused := 0
	for i := blockOverhead; i < len(good); i++ {
		for _, flip := range []byte{1, 2, 0x80} {
			at := 0
			raw := resealed(good, func(_ byte, payload []byte) []byte {
				if j := i - at - blockOverhead; j >= 0 && j < len(payload) {
					payload[j] ^= flip
				}
				at += blockOverhead + len(payload) + 4
				return payload
			})
			if !restoreAny(t, raw) {
				refused++
			}
		}
	}
	if refused < len(good) {
		t.Fatalf("only %d of %d were refused", refused, 3*len(good))
	}
}

func restoreAny(t *testing.T, raw []byte) (accepted bool) {
	s, err := Restore(1, Heap{}, bytes.NewReader(raw))
	if err != nil {
		return false
	}
	if again := snapshot(t, s); !bytes.Equal(again, snapshot(t, reopen(t, s))) {
		t.Fatalf("an accepted snapshot does not survive a round trip:\n%s", described(s))
	}
	return true
}

// Errors of the writer and the reader are reported, not swallowed.
func TestSnapshotInputOutputErrors(t *testing.T) {
	s := furnished(t)
	if _, err := s.WriteTo(broken{}); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if _, err := Restore(1, Heap{}, broken{}); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }
func (broken) Read([]byte) (int, error)  { return 0, errBroken }

// A state that fills many blocks, and a distribution that is larger than one.
func TestSnapshotOfManyBlocks(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
	index := uint64(1)
	for i := range 40 {
		c := &ebbv1.Increments{}
		for j := range 1000 {
			c.Increments = append(c.Increments,
				&ebbv1.Increment{Key: []byte("wide"), Bin: fmt.Appendf(nil, "bin-%d", i*1000+j)},
				&ebbv1.Increment{Key: fmt.Appendf(nil, "key-%d", j), Bin: []byte("x")})
		}
		index++
		s.Apply(index, encode(t, 0, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}}), nil)
	}
	audit(t, s)
	back := reopen(t, s)
	audit(t, back)
	if s.Checksum() != back.Checksum() {
		t.Fatal("checksums differ")
	}
}
