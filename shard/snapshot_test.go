package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// furnished is a small state with something of everything in it.
func furnished(t testing.TB) *State {
	t.Helper()
	now := int64(1_700_000_000 * second)
	s := New(1, &wiping{})
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
	define(&ebbv1.Namespace{
		Name: "history", Version: 1, Clock: ebbv1.Clock_CLOCK_EVENT, Precision: ebbv1.Precision_PRECISION_COMPACT, Dictionary: &ebbv1.Dictionary{Parts: 2},
	})
	define(&ebbv1.Namespace{Name: "leak", Version: 1, Decay: ebbv1.Decay_DECAY_LINEAR})
	session := apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}).Session
	apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}})
	apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "file/0", Token: 5}}})
	dated := func(c *ebbv1.Command) *ebbv1.Command {
		for _, in := range c.GetIncrements().Increments {
			in.TimeUs = now
		}
		return c
	}
	for i, namespace := range []string{"default", "history", "leak", "absent"} {
		c := dated(increments("clicks/link", "us", "de", strings.Repeat("x", 300), "jp"))
		c.Namespace = namespace
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: uint64(i) + 2}}
		apply(c)
		c = dated(increments("other"+namespace, "us", "fr"))
		c.Namespace = namespace
		c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: now, Hi: 1, Lo: uint64(i)}}
		apply(c)
	}
	apply(edits(bitsOf("bits/small", setOp, 3, 5, 1<<40), rangeOf("bits/runs", setOp, 100, 1<<18)))
	ids := []uint64{1<<16 + 1, 1<<16 + 5, 1<<16 + 6, 1<<16 + 9, 1 << 30}
	for id := range uint64(100) {
		ids = append(ids, 2*id) // too many of one slice for a bitmap that is small
	}
	apply(edits(bitsOf("bits/large", setOp, ids...)))
	define(&ebbv1.Namespace{Name: "people", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE})
	home := bitsOf("all", setOp, 77)
	home.Fresh = true
	for _, c := range []*ebbv1.Command{
		edits(home), {Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("all")}}}}, reserved("next", 78),
	} {
		c.Namespace = "people"
		apply(c)
	}
	for kind := ebbv1.Kind_KIND_DISTINCT; kind <= proto.EventKindMax; kind++ {
		c := dated(increments("of/"+proto.KindName(kind), "us", "fr"))
		for _, in := range c.GetIncrements().Increments {
			in.Kind, in.Value, in.Text = kind, new(2.5), []byte("text")
		}
		apply(c)
	}
	c := increments("rows", "a", strings.Repeat("x", 300), "c")
	for i, in := range c.GetIncrements().Increments {
		in.Offset = uint64(10 * (i + 1))
	}
	c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: "file/0", Epoch: 1}}
	apply(c)
	define(&ebbv1.Namespace{Name: "default", Version: 2, HalfLifeUs: 60 * second})
	define(&ebbv1.Namespace{
		Name: "history", Version: 2, Clock: ebbv1.Clock_CLOCK_EVENT, Precision: ebbv1.Precision_PRECISION_COMPACT, SlowHalfLifeUs: new(int64(86_400 * second)),
	})
	c = dated(increments("clicks/link", "us", "de"))
	c.Namespace = "history"
	apply(c)
	define(&ebbv1.Namespace{Name: "default", Version: 3, HalfLifeUs: 60 * second, SlowHalfLifeUs: new(int64(7200 * second))})
	apply(dated(increments("clicks/link", "us", "de")))
	define(&ebbv1.Namespace{Name: "default", Version: 4, HalfLifeUs: 60 * second})
	apply(&ebbv1.Command{Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{Session: session + 1}}})
	apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: 1}}})
	apply(naming("history", 1, "a", "b", "eve"))
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
			if _, err := Restore(1, &wiping{}, bytes.NewReader(bad)); !errors.Is(err, proto.ErrCorrupt) {
				t.Fatalf("byte %d of %d flipped by %#x: %v", i, len(good), flip, err)
			}
		}
		if _, err := Restore(1, &wiping{}, bytes.NewReader(good[:i])); !errors.Is(err, proto.ErrCorrupt) {
			t.Fatalf("cut at %d of %d: %v", i, len(good), err)
		}
	}
	t.Logf("%d flips and %d cuts of a shard's snapshot, all found", 3*len(good), len(good))
	if _, err := Restore(1, &wiping{}, bytes.NewReader(append(good, 0))); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatalf("a byte too many: %v", err)
	}
	if _, err := Restore(2, Heap{}, bytes.NewReader(good)); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatalf("another shard's: %v", err)
	}
}

// A block that claims to be larger than what follows costs no memory.
func TestRestoreBelievesNoLength(t *testing.T) {
	header := snapshot(t, New(1, &wiping{}))[:0]
	b := &blockWriter{w: (*appender)(&header)}
	New(1, &wiping{}).writeHeader(b)
	b.section(sectionNamespaces)
	b.uvarint(1 << 60)
	b.section(sectionBins)
	b.uvarint(1 << 31)
	b.uvarint(0)
	b.flush()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Restore(1, &wiping{}, bytes.NewReader(header)); !errors.Is(err, proto.ErrCorrupt) {
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
	s := New(1, &wiping{})
	s.behaviour = BehaviourMax + 1
	_, err := Restore(1, &wiping{}, bytes.NewReader(snapshot(t, s)))
	if !errors.Is(err, proto.ErrNewerVersion) {
		t.Fatal(err)
	}
	raw := resealed(snapshot(t, New(1, &wiping{})), func(section byte, payload []byte) []byte {
		if section == sectionHeader {
			payload[len(snapshotMagic)] = snapshotFormat + 1
		}
		return payload
	})
	if _, err := Restore(1, &wiping{}, bytes.NewReader(raw)); !errors.Is(err, proto.ErrNewerVersion) {
		t.Fatal(err)
	}
}

// resealed is a snapshot with changed payloads and right checksums.
func resealed(raw []byte, change func(section byte, payload []byte) []byte) []byte {
	var out []byte
	crcs := uint32(0)
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint32(raw[1:])
		payload := bytes.Clone(raw[blockOverhead : blockOverhead+n])
		if raw[0] == sectionEnd {
			binary.LittleEndian.PutUint32(payload, crcs)
		}
		payload = change(raw[0], payload)
		begin := len(out)
		out = append(out, raw[0])
		out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
		out = append(out, payload...)
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out[begin:], castagnoli))
		if raw[0] != sectionHeader {
			crcs = crc32.Update(crcs, castagnoli, out[len(out)-4:])
		}
		raw = raw[blockOverhead+n+4:]
	}
	return out
}

// Damage that comes with right checksums is refused, or does no harm: it never
// panics, and what it restores is a state that can be written.
func FuzzRestore(f *testing.F) {
	good := snapshot(f, furnished(f))
	f.Add(byte(sectionKeys), uint16(3), byte(1), uint16(0))
	f.Add(byte(sectionBins), uint16(1), byte(7), uint16(2))
	f.Add(byte(sectionSessions), uint16(9), byte(255), uint16(1))
	f.Add(byte(sectionDictPartitions), uint16(3), byte(1), uint16(0))
	f.Add(byte(sectionDictPartitions), uint16(5), byte(3), uint16(2))
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

// Arbitrary bytes with checksums that fit, so that it is what is in the blocks
// that is refused.
func FuzzRestoreBytes(f *testing.F) {
	f.Add(snapshot(f, furnished(f)))
	f.Add(snapshot(f, New(1, &wiping{})))
	for _, c := range misfits {
		s := furnished(f)
		c.change(s)
		f.Add(snapshot(f, s))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		restoreAny(t, raw)
		restoreAny(t, resummed(raw))
	})
}

// resummed corrects the checksums of all blocks that are there.
func resummed(raw []byte) []byte {
	out := bytes.Clone(raw)
	crcs := uint32(0)
	for at := 0; len(out)-at >= blockOverhead+4; {
		n := int(binary.LittleEndian.Uint32(out[at+1:]))
		if n > len(out)-at-blockOverhead-4 {
			break
		}
		if out[at] == sectionEnd && n >= 4 {
			binary.LittleEndian.PutUint32(out[at+blockOverhead:], crcs)
		}
		end := at + blockOverhead + n
		binary.LittleEndian.PutUint32(out[end:], crc32.Checksum(out[at:end], castagnoli))
		if out[at] != sectionHeader {
			crcs = crc32.Update(crcs, castagnoli, out[end:end+4])
		}
		at = end + 4
	}
	return out
}

// Every single damage of every payload, with right checksums.
func TestRestoreOfResealedDamage(t *testing.T) {
	good := snapshot(t, furnished(t))
	step := 1
	if testing.Short() {
		step = 7 // which visits the flips in turn, too
	}
	tried, refused := 0, 0
	for i := blockOverhead; i < len(good); i += step {
		at := 0
		raw := resealed(good, func(_ byte, payload []byte) []byte {
			if j := i - at - blockOverhead; j >= 0 && j < len(payload) {
				payload[j] ^= []byte{1, 2, 0x80}[i%3]
			}
			at += blockOverhead + len(payload) + 4
			return payload
		})
		if tried++; !restoreAny(t, raw) {
			refused++
		}
	}
	if refused < tried/3 {
		t.Fatalf("only %d of %d were refused", refused, tried)
	}
}

// restoreAny restores a snapshot of unknown origin and, if it is accepted, uses
// the state for a while: nothing panics, and it stays a valid state.
func restoreAny(t *testing.T, raw []byte) (accepted bool) {
	t.Helper()
	s, err := Restore(1, &wiping{}, bytes.NewReader(raw))
	if err != nil {
		if !errors.Is(err, proto.ErrCorrupt) && !errors.Is(err, proto.ErrNewerVersion) {
			t.Fatal(err)
		}
		return false
	}
	audit(t, s)
	if again := snapshot(t, s); !bytes.Equal(again, snapshot(t, reopen(t, s))) {
		t.Fatalf("an accepted snapshot does not survive a round trip:\n%s", described(s))
	}
	use(t, s)
	audit(t, s)
	reopen(t, s)
	return true
}

// use applies commands of every kind and asks about every key.
func use(t *testing.T, s *State) {
	t.Helper()
	if s.applied > 1<<62 {
		return // a log that is at its end
	}
	for _, after := range []int64{0, second, 120 * second, 7200 * second} {
		var commands []*ebbv1.Command
		for _, c := range seedCommands() {
			if c.GetBehaviour() == nil && c.GetDropSource() == nil {
				commands = append(commands, c)
			}
		}
		for _, w := range s.sessions.all {
			for _, sequence := range []uint64{w.top, w.top + 1, w.top - 1, w.top - 5, w.low, w.low + 1, w.top + 9} {
				c := increments("clicks/link", "us", "new")
				c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: w.id, Sequence: sequence}}
				commands = append(commands, c)
			}
		}
		for _, a := range s.answered.all {
			c := increments("rows", "us")
			c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: a.key.issuedAt, Hi: a.key.hi, Lo: a.key.lo}}
			commands = append(commands, c)
		}
		for _, ns := range s.namespaces {
			for key := range s.summaries.keys.all {
				c := increments(string(s.keys.bytesOf(key)), "us", "other")
				c.Namespace = ns.definition.Name
				commands = append(commands, c)
			}
		}
		stamp := min(int64(s.now)+after, int64(clockMax))
		if n := len(s.Apply(s.applied+1, encode(t, stamp, commands...), nil)); n != len(commands) {
			t.Fatalf("%d results of %d commands", n, len(commands))
		}
		askAll(s)
	}
}

func askAll(s *State) {
	for _, ns := range s.namespaces {
		for key := range s.summaries.keys.all {
			for _, partial := range []bool{false, true} {
				q := question(ns.definition.Name, &ebbv1.DistributionQuestion{Keys: [][]byte{s.keys.bytesOf(key)}})
				q.Partial = partial
				s.Ask(q, s.now+second)
			}
		}
		s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{
			Namespace: ns.definition.Name, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}},
		}}, s.now)
	}
}

// misfits are changes to a furnished state that make it one that no log leads
// to, and that later code would trip over.
var misfits = []struct {
	name   string
	change func(s *State)
}{
	{"a summary of another kind that is visited long after its death", func(s *State) { changeBody(s, func(sum *summary) { sum.due = sketch.MaxTick }) }},
	{"a summary of another kind that is visited a while after its death", func(s *State) {
		changeBody(s, func(sum *summary) { sum.due = sum.body.death(proto.DefaultThreshold) + 20*proto.DefaultHalfLifeUS })
	}},
	{"a set without a phrase", func(s *State) {
		for key := range s.summaries.keys.all {
			if set, ok := s.summary(key).body.(*phrases); ok {
				for set.Len() > 0 {
					set.Remove(set.Sorted()[0])
				}
			}
		}
	}},
	{"an orphan without a generation", func(s *State) { s.orphans.edit(0, s.epoch).generation = 0 }},
	{"two orphans of one generation", func(s *State) {
		s.orphans.edit(0, s.epoch).generation = s.orphans.at(1).generation
	}},
	{"an orphan of tomorrow", func(s *State) { s.orphans.edit(0, s.epoch).since = s.now + 1 }},
	{"an orphan of no namespace", func(s *State) { s.orphans.edit(0, s.epoch).space = 1000 }},
	{"an orphan of a part", func(s *State) { s.orphans.edit(0, s.epoch).key = "\x00" }},
	{"a namespace whose kind is unknown", func(s *State) { s.namespaces[0].definition.Kind = proto.KindMax + 1 }},
	{"a namespace with a size out of range", func(s *State) { s.namespaces[0].definition.Sizes.DistinctPrecision = 40 }},
	{"more to say of a sequence, and nothing there", func(s *State) { w := someSession(s); w.extras = w.extras[1:] }},
	{"more to say, and the ring does not know", func(s *State) { w := someSession(s); w.ring[w.extras[0].sequence&uint64(len(w.ring)-1)] &^= extraBit }},
	{"more to say twice", func(s *State) { w := someSession(s); w.extras = append(w.extras, w.extras[0]) }},
	{"more to say that is empty", func(s *State) { someSession(s).extras[0].more = "" }},
	{"an extra result below the window", func(s *State) { w := someSession(s); w.low = w.extras[0].sequence }},
	{"a count of minus one", func(s *State) { w := someSession(s); w.ring[w.top&uint64(len(w.ring)-1)] = extraBit }},
	{"a ring shorter than the window", func(s *State) { someSession(s).top = 1000 }},
	{"no ring", func(s *State) { w := someSession(s); w.ring, w.extras = nil, nil }},
	{"a floor above the top", func(s *State) { w := someSession(s); w.low, w.extras = w.top+1, nil }},
	{"a session used tomorrow", func(s *State) { someSession(s).used = s.now + 1 }},
	{"a session that is looked at too late", func(s *State) { someSession(s).due = sketch.MaxTick }},
	{"no session number left", func(s *State) { s.lastSession = math.MaxUint64 }},
	{"no epoch left", func(s *State) { s.lastEpoch = math.MaxUint64 }},
	{"a source of an epoch that was never given", func(s *State) { s.lastEpoch = 0 }},
	{"a source of no epoch", func(s *State) { s.sources.at(0).epoch = 0 }},
	{"a clock past its end", func(s *State) { s.now = clockMax + 1 }},
	{"an event time ahead of the clock", func(s *State) { s.namespaces[1].eventTime = s.now + 1 }},
	{"an era that has not begun", func(s *State) { s.namespaces[0].eras[0].from = s.now + 1 }},
	{"eras out of order", func(s *State) {
		ns := s.namespaces[0]
		ns.eras = append(ns.eras, ns.eras[1])
		ns.eras[2].from--
	}},
	{"the last era but a few", func(s *State) {
		s.namespaces[0].eraBase += noEra - 3
		for key := range s.summaries.keys.all {
			if sum := s.loadForWrite(key); sum.space == 0 {
				sum.era += noEra - 3
				s.put(key, &sum)
			}
		}
	}},
	{"an era without keys", func(s *State) {
		ns := s.namespaces[1]
		ns.eras = append(ns.eras[:1:1], ns.eras...)
		for key := range s.summaries.keys.all {
			if sum := s.loadForWrite(key); sum.space == 1 {
				sum.era++
				s.put(key, &sum)
			}
		}
	}},
	{"signs that nobody knows of", func(s *State) { s.namespaces[0].eras[0].params.AllowNegative = true }},
	{"a key that dies before its visit", func(s *State) { change(s, 0, func(sum *summary) { sum.due = sketch.MaxTick }) }},
	{"counts under a linear namespace", func(s *State) { change(s, 2, func(sum *summary) { sum.dist = distributionOf(s, 0) }) }},
	{"levels under plain counts", func(s *State) { change(s, 0, func(sum *summary) { sum.dist, sum.due = distributionOf(s, 2), s.now }) }},
	{"compact values in a namespace of doubles", func(s *State) { change(s, 0, func(sum *summary) { sum.dist = distributionOf(s, 1) }) }},
	{"a landmark ahead of the clock", func(s *State) { addAt(s, s.now+3*3600*second, 1) }},
	{"an event ahead of the clock", func(s *State) { addAt(s, s.now+1, 1) }},
	{"no slow namespace for a second half-life", func(s *State) { s.namespaces[2].definition.SlowHalfLifeUs = new(int64(7200 * second)) }},
	{"a slow namespace that nobody wants", func(s *State) { s.namespaces[1].definition.SlowHalfLifeUs = nil }},
	{"a slow namespace of another half-life", func(s *State) { s.namespaces[1].definition.SlowHalfLifeUs = new(int64(80_000 * second)) }},
	{"a slow namespace of another seed", func(s *State) { s.namespaces[1].definition.HashSeed++ }},
	{"a namespace that is closed", func(s *State) { s.namespaces[2].closed = true }},
	{"an open slow namespace of a namespace with one half-life", func(s *State) { s.namespaces[s.namespaces[0].slow].closed = false }},
	{"a namespace whose keys are forgotten", func(s *State) { s.namespaces[0].eras[0].fresh = true }},
	{"a namespace that begins tomorrow", func(s *State) { s.namespaces[0].began = s.now + 1 }},
	{"an exposure that begins tomorrow", func(s *State) { s.namespaces[0].exposure.From = s.now + 1 }},
	{"an exposure that is no number", func(s *State) { s.namespaces[0].exposure.Had = math.NaN() }},
	{"an exposure that is negative", func(s *State) { s.namespaces[0].exposure.Had = -1 }},
	{"an exposure without end", func(s *State) { s.namespaces[0].exposure.Had = math.Inf(1) }},
	{"a free slot that nothing leads to", func(s *State) {
		s.sources.drop(s.sources.add(s.epoch), s.epoch)
		s.sources.free = 0
	}},
	{"a string in another part than its own", func(s *State) {
		s.dictPartitions[0].part, s.dictPartitions[1].part = s.dictPartitions[1].part, s.dictPartitions[0].part
	}},
	{"a part that no dictionary has", func(s *State) { s.dictPartitions[0].part = 2 }},
	{"strings of a namespace without a dictionary", func(s *State) { s.dictPartitions[0].space = 0 }},
	{"a part that is there twice", func(s *State) { s.dictPartitions = append(s.dictPartitions, s.dictPartitions[0]) }},
	{"a part without strings", func(s *State) { s.dictPartitions[0].count = 0 }},
	{"a string that is there twice", func(s *State) {
		s.dictPartitions[0].add(1, encodeName(new(nameBuffer), s.dictPartitions[0].append(nil, 0)), s.epoch)
	}},
	{"a string of two lines", func(s *State) { s.dictPartitions[0].add(1, encodeName(new(nameBuffer), []byte("x\n")), s.epoch) }},
	{"a dictionary of too many parts", func(s *State) { s.namespaces[1].definition.Dictionary.Parts = proto.ShardsMax + 1 }},
	{"negative counts where there are none", func(s *State) { addAt(s, s.now, -100) }},
}

// someSession is one with counts, and with results that say more.
func someSession(s *State) *session {
	for _, w := range s.sessions.all {
		if len(w.extras) > 0 {
			return w
		}
	}
	panic("no session has more to say")
}

// someKey is the first key of a namespace.
func someKey(s *State, space uint16) uint32 {
	for key := range s.summaries.keys.all {
		if s.summary(key).space == space {
			return key
		}
	}
	panic("no key")
}

// change changes what the first key of a namespace holds, behind the state's back.
func change(s *State, space uint16, f func(sum *summary)) {
	key := someKey(s, space)
	sum := s.loadForWrite(key)
	f(&sum)
	s.put(key, &sum)
}

// distributionOf is a copy of what the first key of a namespace holds.
func distributionOf(s *State, space uint16) sketch.Distribution {
	sum := s.summary(someKey(s, space))
	return sum.dist.Clone()
}

// changeBody changes a summary that fades and is no distribution.
func changeBody(s *State, f func(sum *summary)) {
	for key := range s.summaries.keys.all {
		if sum := s.loadForWrite(key); sum.body != nil && sum.due != sketch.MaxTick {
			f(&sum)
			s.put(key, &sum)
			return
		}
	}
	panic("no key of another kind")
}

// addAt adds to a key of plain namespace 0 behind the state's back.
func addAt(s *State, t sketch.Tick, n float64) {
	change(s, 0, func(sum *summary) {
		p := s.namespaces[0].eras[sum.era-s.namespaces[0].eraBase].params
		p.AllowNegative = true
		bin := uint32(0)
		sum.dist.Each(func(b uint32) { bin = b })
		if err := sum.dist.Add(&p, t, t, bin, n); err != nil {
			panic(err)
		}
		sum.due = s.now
	})
}

// What Apply and Ask take for granted, Restore has checked.
func TestRestoreRefusesMisfits(t *testing.T) {
	for _, c := range misfits {
		t.Run(c.name, func(t *testing.T) {
			s := furnished(t)
			c.change(s)
			if _, err := Restore(1, &wiping{}, bytes.NewReader(snapshot(t, s))); !errors.Is(err, proto.ErrCorrupt) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// The furnished state itself stands all that restoreAny does.
func TestUseOfRestored(t *testing.T) {
	if !restoreAny(t, snapshot(t, furnished(t))) {
		t.Fatal("refused")
	}
}

// The largest sequence there is ends a session's numbers, not the replica.
func TestLastSequence(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{Name: "default", Version: 1})
	id := s.openSession(&command{}).Session
	last := increments("k", "a")
	last.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: id, Sequence: math.MaxUint64}}
	r := s.Apply(2, encode(t, 0, last, last), nil)
	if r[0].Applied != 1 || r[1].Applied != 1 {
		t.Fatalf("got %v", r)
	}
	if back := reopen(t, s); s.Checksum() != back.Checksum() {
		t.Fatal("checksums differ")
	}
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

// A bitmap of few ids stands next to its key, and one of more behind all keys. It does not matter whether it lies in
// containers: that depends on what it was before.
func TestSnapshotOfBitmapsDependsOnTheirIDs(t *testing.T) {
	for _, n := range []int{1, 2, 40, idsWithKey - 1, idsWithKey, idsWithKey + 1, 1000} {
		for _, step := range []uint64{1, 1 << 14, 1 << 50} {
			ids, more := make([]uint64, n), make([]uint64, 3000)
			for i := range more {
				more[i] = uint64(i) * step
			}
			copy(ids, more)
			direct, shrunk := New(1, &wiping{}), New(1, &wiping{})
			for _, s := range []*State{direct, shrunk} {
				applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}})
			}
			applyOne(t, direct, edits(bitsOf("k", setOp, ids...)))
			applyOne(t, direct, edits(bitsOf("k", setOp, ids...)))
			applyOne(t, shrunk, edits(bitsOf("k", setOp, more...)))
			applyOne(t, shrunk, edits(bitsOf("k", ebbv1.BitOp_BIT_OP_CLEAR, more[n:]...)))
			if !bytes.Equal(snapshot(t, direct), snapshot(t, shrunk)) {
				t.Fatalf("%d ids, %d apart: snapshots differ", n, step)
			}
			back := reopen(t, shrunk)
			audit(t, back)
			if !bytes.Equal(snapshot(t, direct), snapshot(t, back)) || described(direct) != described(back) {
				t.Fatalf("%d ids, %d apart: a restored state has another snapshot", n, step)
			}
		}
	}
}

// Ids next to a key that appendIDs cannot have written.
func TestDecodeIDsRefuses(t *testing.T) {
	last := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}
	for name, raw := range map[string][]byte{
		"cut off":           {0x80},
		"longer than it is": {0x81, 0},
		"more than 64 bits": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2},
		"beyond the last":   append(bytes.Clone(last), 0),
		"out of range":      append([]byte{0}, last...),
		"too many":          make([]byte, idsWithKey+1),
	} {
		var room [idsWithKey]uint64
		if head, ok := decodeIDs(&room, raw); ok {
			t.Errorf("%s: %d ids", name, head.ids)
		}
	}
	var room [idsWithKey]uint64
	if head, ok := decodeIDs(&room, last); !ok || head.ids != 1 || !head.wide || head.words[0] != math.MaxUint64 {
		t.Errorf("the last id: %+v, %v", head, ok)
	}
}
