package shard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// auditUsage counts again, from nothing, what namespaces hold.
func auditUsage(t fataler, s *State) {
	t.Helper()
	want, alone := make([]holding, len(s.namespaces)), make([]uint32, len(s.namespaces))
	for space, ns := range s.namespaces {
		want[space].name, want[space].owner = ns.definition.GetName(), uint16(space)
	}
	for space, ns := range s.namespaces {
		if ns.slow != 0 {
			want[ns.slow].owner = uint16(space)
		}
	}
	b := &s.summaries.bins
	for key := range s.summaries.keys.all {
		sum, r := s.stored(key), s.summaries.record(key)
		h := &want[want[sum.space].owner]
		h.records++
		if want[sum.space].owner == sum.space {
			h.keys++
		} else if _, own := s.findKey(s.namespaces[want[sum.space].owner], s.keys.bytesOf(key)); !own {
			alone[sum.space]++
		}
		h.words += len(r)
		h.bins += sum.dist.Len()
		switch r.form() {
		case recordBody:
			h.bodies += s.held(sum.body)
		case recordBitmap:
			b.eachBlock(r.bitmap(), func(ref blockRef) bool {
				h.words += int(b.runs[ref>>8].size)
				return true
			})
		}
	}
	for i := range s.dictPartitions {
		want[s.dictPartitions[i].space].dictPages += s.dictPartitions[i].pages()
	}
	words := 0
	for space := range want {
		if got := s.namespaces[space].alone; got != alone[space] {
			t.Fatalf("%d keys of slow namespace %d have no key of their namespace, and it says %d", alone[space], space, got)
		}
		if got := s.summaries.held[space]; got != want[space] {
			t.Fatalf("namespace %d holds %+v, and is said to hold %+v", space, want[space], got)
		}
		words += want[space].words
	}
	if words != b.used || len(s.summaries.held) != len(want) {
		t.Fatalf("namespaces hold %d words of %d, in %d spaces of %d", words, b.used, len(s.summaries.held), len(want))
	}
}

// usageOf is what namespaces are said to take.
func usageOf(s *State) (by map[string]Usage, sum Usage) {
	by = map[string]Usage{}
	s.Usage(func(_ int, name string, u Usage) {
		by[name] = u
		sum.Keys, sum.Bytes = sum.Keys+u.Keys, sum.Bytes+u.Bytes
	})
	return by, sum
}

// definition defines a namespace.
func definition(name string, version uint64) *ebbv1.Command {
	ns := &ebbv1.Namespace{Name: name, Version: version}
	return &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}}
}

// counting counts one event of a namespace.
func counting(name string) *ebbv1.Command {
	batch := &ebbv1.Increments{Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("b")}}}
	return &ebbv1.Command{Namespace: name, Body: &ebbv1.Command_Increments{Increments: batch}}
}

// What namespaces are said to take together is about what the pages and the bodies take, also of a state that was read.
func TestUsageIsAboutMemory(t *testing.T) {
	increments := func(n int, make func(i int) *ebbv1.Increment) *ebbv1.Command_Increments {
		batch := &ebbv1.Increments{}
		for i := range n {
			batch.Increments = append(batch.Increments, make(i))
		}
		return &ebbv1.Command_Increments{Increments: batch}
	}
	for name, fill := range map[string]func(round int) *ebbv1.Command_Increments{
		"counters": func(round int) *ebbv1.Command_Increments {
			return increments(1000, func(i int) *ebbv1.Increment {
				return &ebbv1.Increment{Key: fmt.Appendf(nil, "page/%d", round*1000+i), Bin: []byte("views")}
			})
		},
		"names of bins": func(round int) *ebbv1.Command_Increments {
			return increments(1000, func(i int) *ebbv1.Increment {
				bin := fmt.Appendf(nil, "https://example.org/%d/%d", round, i)
				return &ebbv1.Increment{Key: fmt.Appendf(nil, "site/%d", i%50), Bin: bin}
			})
		},
		"many bins": func(round int) *ebbv1.Command_Increments {
			return increments(1000, func(i int) *ebbv1.Increment {
				bin := fmt.Appendf(nil, "country-%d", round*7%260)
				return &ebbv1.Increment{Key: fmt.Appendf(nil, "link/%d", i), Bin: bin}
			})
		},
		"sketches": func(round int) *ebbv1.Command_Increments {
			return increments(50, func(i int) *ebbv1.Increment {
				key := fmt.Appendf(nil, "users/%d", round*50+i)
				return &ebbv1.Increment{Key: key, Bin: []byte("u"), Kind: ebbv1.Kind_KIND_DISTINCT}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			pages := &wiping{}
			s := New(1, pages)
			apply := func(c *ebbv1.Command) {
				for _, r := range s.Apply(s.Applied()+1, encode(t, int64(s.Applied()+1)*1000, c), nil) {
					if r.Error != nil || len(r.Refused) > 0 {
						t.Fatal(r)
					}
				}
			}
			for version, name := range []string{"small", "large"} {
				apply(definition(name, uint64(version+1)))
			}
			for round := range 60 {
				to := "large"
				if round%6 == 0 {
					to = "small"
				}
				apply(&ebbv1.Command{Namespace: to, Body: fill(round)})
			}
			near := func(what string, s *State, pages *wiping) {
				by, sum := usageOf(s)
				really := uint64(pages.out*PageBytes + s.bodyBytes)
				if sum.Bytes*3 < really*2 || sum.Bytes*2 > really*3 {
					t.Errorf("%s: %d bytes are said to be taken, of %d", what, sum.Bytes, really)
				}
				if by["large"].Bytes < by["small"].Bytes || sum.Keys != s.Keys() || by["small"].Bytes == 0 {
					t.Errorf("%s: %v of %d keys", what, by, s.Keys())
				}
			}
			near("applied", s, pages)
			again := &wiping{}
			restored, err := Restore(1, again, strings.NewReader(string(snapshot(t, s))))
			if err != nil {
				t.Fatal(err)
			}
			near("restored", restored, again)
			_, was := usageOf(s)
			if _, is := usageOf(restored); is.Keys != was.Keys {
				t.Errorf("restored %d keys of %d", is.Keys, was.Keys)
			}
		})
	}
}

// Bitmaps, strings of dictionaries and what second half-lives hold are counted to their namespaces.
func TestUsageOfAllKinds(t *testing.T) {
	s := New(1, &wiping{})
	apply := func(c *ebbv1.Command) *ebbv1.CommandResult {
		r := s.Apply(s.Applied()+1, encode(t, int64(s.Applied()+1)*1000, c), nil)[0]
		if r.Error != nil || len(r.Refused) > 0 {
			t.Fatal(r)
		}
		audit(t, s)
		return r
	}
	hour := int64(3600e6)
	for i, ns := range []*ebbv1.Namespace{
		{Name: "bits"},
		{Name: "two", HalfLifeUs: hour, SlowHalfLifeUs: new(24 * hour)},
		{Name: "names", Dictionary: &ebbv1.Dictionary{Parts: 1}},
	} {
		ns.Version = uint64(i + 1)
		apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
	}
	edit := &ebbv1.BitEdit{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET}
	var ids []uint64
	for i := range uint64(60_000) {
		ids = append(ids, i*97)
	}
	edit.Ids = proto.AppendBitIDs(nil, ids)
	edits := &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{edit}}
	apply(&ebbv1.Command{Namespace: "bits", Body: &ebbv1.Command_Bits{Bits: edits}})
	apply(counting("two"))
	apply(naming("names", 1, "a string"))
	by, _ := usageOf(s)
	if by["bits"].Keys != 1 || by["bits"].Bytes < 100_000 || by["bits"].Bytes > 300_000 {
		t.Errorf("a bitmap of 60,000 ids: %+v", by["bits"])
	}
	if by["two"].Keys != 1 || by["two"].Bytes < 2*keyBytes {
		t.Errorf("a key with a second half-life: %+v", by["two"])
	}
	if by["names"].Keys != 0 || by["names"].Bytes != 3*PageBytes {
		t.Errorf("a string of a dictionary: %+v", by["names"])
	}
	audit(t, reopen(t, s))
	gone := &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}
	apply(&ebbv1.Command{Namespace: "bits", Body: &ebbv1.Command_Delete{Delete: gone}})
	apply(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if by, _ := usageOf(s); by["bits"] != (Usage{}) {
		t.Errorf("without its key: %+v", by["bits"])
	}
}

func BenchmarkUsage(b *testing.B) {
	for _, namespaces := range []int{100, 10_000} {
		b.Run(fmt.Sprint(namespaces), func(b *testing.B) {
			var states []*State
			for range 64 {
				s := New(1, Heap{})
				s.limits.Namespaces = namespaces
				for i := range namespaces {
					name := fmt.Sprintf("namespace-%d", i)
					for _, c := range []*ebbv1.Command{
						definition(name, 1), counting(name),
					} {
						s.Apply(s.Applied()+1, encode(b, int64(s.Applied()+1)*1000, c), nil)
					}
				}
				states = append(states, s)
			}
			sum := uint64(0)
			for b.Loop() {
				for _, s := range states {
					s.Usage(func(_ int, _ string, u Usage) { sum += u.Bytes })
				}
			}
		})
	}
}
