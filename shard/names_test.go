package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A dictionary gives strings ids, which stay; what it should hold is a Go map.

// naming is a command that names strings, for one of so many shards.
func naming(namespace string, shards uint32, names ...string) *ebbv1.Command {
	n := &ebbv1.Names{Shards: shards}
	for _, name := range names {
		n.Names = append(n.Names, []byte(name))
	}
	return &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Names{Names: n}}
}

func withDictionary(t testing.TB, parts uint32) *State {
	t.Helper()
	return definedAt(t, &ebbv1.Namespace{Name: "people", Version: 1, Dictionary: &ebbv1.Dictionary{Parts: parts}}, beginning)
}

// lookUp asks a state for the ids of strings, and for the strings of ids.
func lookUp(t testing.TB, f *frame, names []string, ids []uint64) *ebbv1.NamesAnswer {
	t.Helper()
	q := &ebbv1.NamesQuestion{Ids: ids}
	for _, name := range names {
		q.Names = append(q.Names, []byte(name))
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Names{Names: q}}}, 0)
	if a.Error != nil {
		t.Fatal(a.Error)
	}
	return a.GetAnswer().GetNames()
}

// knows compares a dictionary with a map, both ways.
func knows(t testing.TB, f *frame, want map[string]uint64) {
	t.Helper()
	names, ids := []string{}, []uint64{}
	for name, id := range want {
		names, ids = append(names, name), append(ids, id)
	}
	a := lookUp(t, f, append(names, "nobody, ever"), append(ids, 1<<40))
	for i, name := range names {
		if !a.Found[i] || a.Ids[i] != ids[i] || string(a.Names[i]) != name {
			t.Fatalf("%q is %d, %v, and %d is %q", name, a.Ids[i], a.Found[i], ids[i], a.Names[i])
		}
	}
	if n := len(names); a.Found[n] || a.Ids[n] != 0 || len(a.Names[n]) > 0 {
		t.Fatalf("what is not there: %v", a)
	}
}

// Whatever is named in whatever order, each string has one id for ever, with the remainder of its part, and no two have
// the same; ids are handed out without gaps. A view keeps what it saw, and a snapshot brings everything back.
func TestDictionaryIsAMap(t *testing.T) {
	for _, parts := range []uint32{1, 4} {
		t.Run(fmt.Sprint(parts, " parts"), func(t *testing.T) {
			r := rand.New(rand.NewPCG(2, uint64(parts)))
			s := withDictionary(t, parts)
			want, next := map[string]uint64{}, make([]uint64, parts)
			for round := range 40 {
				var batch []string
				for range 1 + r.IntN(300) {
					batch = append(batch, strings.Repeat(fmt.Sprint(r.IntN(3000)), 1+r.IntN(3)*r.IntN(30)))
				}
				fresh, before := uint64(0), len(want)
				for _, name := range batch {
					if _, known := want[name]; !known {
						part := proto.NamePart("people", []byte(name), parts)
						want[name] = uint64(part) + uint64(parts)*next[part]
						next[part]++
						fresh++
					}
				}
				if round%5 == 0 {
					view := s.Freeze()
					defer view.Release()
					defer func() {
						count := uint32(0)
						for i := range view.dictPartitions {
							count += view.dictPartitions[i].count
						}
						if int(count) != before {
							t.Errorf("a view of %d strings has %d", before, count)
						}
						a := lookUp(t, &view.frame, batch, nil)
						for i, name := range batch {
							if known := a.Found[i]; known && a.Ids[i] != want[name] {
								t.Errorf("%q in a view: %d", name, a.Ids[i])
							}
						}
					}()
				}
				res := applyOne(t, s, naming("people", 1, batch...))
				if res.Error != nil || res.Applied != fresh || res.Duplicates != uint64(len(batch))-fresh {
					t.Fatalf("round %d: %v; %d are new", round, res, fresh)
				}
				for i, name := range batch {
					if res.Ids[i] != want[name] {
						t.Fatalf("round %d: %q got %d: want %d", round, name, res.Ids[i], want[name])
					}
				}
				if round%10 == 0 {
					again := reopen(t, s)
					if again.Checksum() != s.Checksum() {
						t.Fatalf("round %d: another checksum after a restart", round)
					}
					audit(t, again)
					s = again
				}
			}
			audit(t, s)
			knows(t, &s.frame, want)
		})
	}
}

// Strings of any length up to the limit fill pages to the last byte, and come back.
func TestStringsOfAllLengths(t *testing.T) {
	s := withDictionary(t, 1)
	want := map[string]uint64{}
	for n := 1; n <= proto.NameLenMax; n++ {
		name := strings.Repeat("x", n)
		want[name] = uint64(n - 1)
		if res := applyOne(t, s, naming("people", 1, name)); !slices.Equal(res.Ids, []uint64{uint64(n - 1)}) {
			t.Fatalf("%d bytes: %v", n, res)
		}
	}
	knows(t, &reopen(t, s).frame, want)
}

// A command that names what it must not names nothing, and says why. One without room refuses what is new, and only
// that.
func TestNamesThatAreRefused(t *testing.T) {
	s := withDictionary(t, 2)
	s.limits.PartNames = 2
	other := "x"
	for proto.NamePart("people", []byte(other), 2) == 0 {
		other += "x"
	}
	for what, c := range map[string]struct {
		command *ebbv1.Command
		code    ebbv1.Code
	}{
		"an empty string":           {naming("people", 1, "a", ""), ebbv1.Code_CODE_BAD_REQUEST},
		"a long string":             {naming("people", 1, "a", strings.Repeat("x", proto.NameLenMax+1)), ebbv1.Code_CODE_BAD_REQUEST},
		"what is not UTF-8":         {naming("people", 1, "a", "\xff"), ebbv1.Code_CODE_NOT_UTF8},
		"a string of two lines":     {naming("people", 1, "a", "b\nc"), ebbv1.Code_CODE_BAD_REQUEST},
		"no number of shards":       {naming("people", 0, "a"), ebbv1.Code_CODE_BAD_REQUEST},
		"a string of another shard": {naming("people", 2, other), ebbv1.Code_CODE_WRONG_SHARD},
		"an unknown namespace":      {naming("nobody", 1, "a"), ebbv1.Code_CODE_NAMESPACE_NOT_FOUND},
	} {
		if r := applyOne(t, s, c.command); r.GetError().GetCode() != c.code || len(s.dictPartitions) != 0 {
			t.Errorf("%s: %v, %d parts", what, r, len(s.dictPartitions))
		}
	}
	var names []string
	for i := 0; len(names) < 4; i++ {
		if name := fmt.Sprint(i); proto.NamePart("people", []byte(name), 2) == 0 {
			names = append(names, name)
		}
	}
	r := applyOne(t, s, naming("people", 2, names[0], names[1], names[2], names[0]))
	if !slices.Equal(r.Ids, []uint64{0, 2, 0, 0}) || len(r.Refused) != 1 || r.Refused[0].Index != 2 || r.Refused[0].Error.Code != ebbv1.Code_CODE_RESOURCE_EXHAUSTED {
		t.Errorf("a part that is full: %v", r)
	}
	plain := defined(t, &ebbv1.Namespace{Name: "people", Version: 1})
	if r := applyOne(t, plain, naming("people", 1, "a")); r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST || !strings.Contains(r.GetError().GetMessage(), "no dictionary") {
		t.Errorf("without a dictionary: %v", r)
	}
	if a := lookUp(t, &plain.frame, []string{"a"}, []uint64{0}); a.Found[0] || len(a.Names[0]) > 0 {
		t.Errorf("without a dictionary: %v", a)
	}
}

// In a namespace with a dictionary an edit says that its ids are of it. What does not is refused, by itself, and a
// repetition hears the same.
func TestNumbersAreRefusedWhereStringsAre(t *testing.T) {
	s := withDictionary(t, 1)
	good := bitsOf("a", setOp, 0)
	good.Named = true
	fresh := bitsOf("b", setOp, 7)
	fresh.Fresh = true
	c := edits(good, bitsOf("a", setOp, 1), fresh)
	c.Namespace = "people"
	c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: beginning, Hi: 1, Lo: 2}}
	for _, what := range []string{"at first", "repeated"} {
		r := applyOne(t, s, c)
		if r.GetChanged() != 1 || len(r.GetRefused()) != 2 || !strings.Contains(r.GetRefused()[0].GetError().GetMessage(), "ids are strings there") {
			t.Errorf("%s: %v", what, r)
		}
	}
}

// A repetition under its identity hears the ids again, also those that came later.
func TestNamesRepeated(t *testing.T) {
	s := withDictionary(t, 1)
	c := naming("people", 1, "a", "b")
	c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: beginning, Hi: 1, Lo: 2}}
	first := applyOne(t, s, c)
	for _, s := range []*State{s, reopen(t, s)} {
		again := applyOne(t, s, c)
		if !slices.Equal(first.Ids, []uint64{0, 1}) || !slices.Equal(again.Ids, first.Ids) || again.Applied != 0 || again.Duplicates != 2 {
			t.Errorf("first %v, then %v", first, again)
		}
	}
}

// The dictionary of a namespace stays as it was when the namespace is defined anew.
func TestDictionaryStays(t *testing.T) {
	s := withDictionary(t, 3)
	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "people", Version: 2, HalfLifeUs: 60 * second}}})
	if n := s.lookup([]byte("people")).definition.GetDictionary().GetParts(); n != 3 {
		t.Errorf("%d parts", n)
	}
}

// Whatever a command of strings is made of, it is applied or refused, and the state stays valid.
func FuzzNames(f *testing.F) {
	f.Add([]byte("\x0a\x01a\x10\x01"))
	f.Add([]byte("\x0a\x00\x10\x01"))
	f.Add([]byte("\x0a\x01a\x0a\x01b\x10\x02"))
	f.Add([]byte("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x0a\x01a"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := withDictionary(t, 2)
		raw := append([]byte("\x0a\x06people"), 0x92, 0x01)
		raw = append(appendLength(raw, len(body)), body...)
		r := s.Apply(s.Applied()+1, encodeRaw(raw), nil)[0]
		if refused := proto.CheckCommand(raw); refused == nil && r.GetError() != nil && r.GetError().GetCode() != ebbv1.Code_CODE_WRONG_SHARD {
			t.Errorf("the door takes what the shard refuses: %v", r)
		}
		audit(t, s)
		reopen(t, s)
	})
}

func appendLength(b []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// encodeRaw is an entry of one serialised command.
func encodeRaw(command []byte) []byte {
	return append(appendLength([]byte{fieldEntryCommands<<3 | 2}, len(command)), command...)
}

// uuids lie as 16 bytes, and come back as what they were: also what only looks like one.
func TestUUIDsTakeLittle(t *testing.T) {
	s := withDictionary(t, 1)
	r := rand.New(rand.NewPCG(4, 4))
	want := map[string]uint64{}
	var names []string
	for len(want) < 1000 {
		name := uuidFrom(r)
		names, want[name] = append(names, name), uint64(len(want))
	}
	used := func() uint32 { return (s.dictPartitions[0].text.len()-1)*PageBytes + s.dictPartitions[0].used }
	applyOne(t, s, naming("people", 1, names...))
	if n := used(); n > 1000*17+1000*17/240*16 {
		t.Errorf("1,000 uuids take %d bytes", n)
	}
	for i, name := range []string{strings.ToUpper(names[0]), strings.Replace(names[1], "-", "_", 1), names[2][1:], names[3] + "0", strings.Replace(names[4], "-", "0", 1), "-" + names[5][1:]} {
		if _, ok := parseUUID([]byte(name)); ok {
			t.Errorf("%s is no uuid", name)
		}
		want[name] = uint64(1000 + i)
		applyOne(t, s, naming("people", 1, name))
	}
	knows(t, &s.frame, want)
	knows(t, &reopen(t, s).frame, want)
}

func uuidFrom(r *rand.Rand) string {
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1))
}

// What it takes to name a million uuids off the log, in time and memory, to name them again, and to look them up both
// ways.
func BenchmarkNames(b *testing.B) {
	const n, batch = 1_000_000, 1500 // an entry of 64 KiB
	r := rand.New(rand.NewPCG(5, 5))
	names := make([]string, n)
	for i := range names {
		names[i] = uuidFrom(r)
	}
	var entries [][]byte
	for chunk := range slices.Chunk(names, batch) {
		entries = append(entries, encodeEntry(b, beginning, []*ebbv1.Command{naming("people", 1, chunk...)}))
	}
	apply := func(s *State) {
		for _, e := range entries {
			s.Apply(s.Applied()+1, e, nil)
		}
	}
	per := func(b *testing.B) { b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/string") }
	s := withDictionary(b, 1)
	apply(s)
	b.Run("new", func(b *testing.B) {
		for range b.N {
			s = withDictionary(b, 1)
			apply(s)
		}
		l := &s.dictPartitions[0]
		b.ReportMetric(float64(l.text.len()+l.places.len()+l.index.slots.len())*PageBytes/n, "B/string")
		per(b)
	})
	b.Run("known", func(b *testing.B) {
		for range b.N {
			apply(s)
		}
		per(b)
	})
	b.Run("string to id", func(b *testing.B) {
		ns := s.lookup([]byte("people"))
		for range b.N {
			for _, name := range names {
				if _, ok := s.idOf(ns, []byte(name)); !ok {
					b.Fatal(name)
				}
			}
		}
		per(b)
	})
	b.Run("id to string", func(b *testing.B) {
		ns := s.lookup([]byte("people"))
		for range b.N {
			for range names {
				if s.nameOf(ns, r.Uint64N(n)) == nil {
					b.Fatal("an id without a string")
				}
			}
		}
		per(b)
	})
}
