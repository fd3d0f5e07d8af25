package shard

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// describedKey is what describe says of the memory of a key.
func describedKey(t testing.TB, s *State, key string, at int64) *ebbv1.KeyDescription {
	t.Helper()
	q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Describe{
		Describe: &ebbv1.DescribeQuestion{Key: []byte(key), AsOfUs: at},
	}}}
	d := s.Ask(q, 0).GetAnswer().GetDescribe()
	if !d.GetFound() {
		t.Fatalf("key %s is not there", key)
	}
	return d
}

// heapBytes is what lives on the heap.
func heapBytes() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// filling is how a key of a kind is filled for TestDescribeMeasuresMemory.
type filling struct {
	name   string
	kind   ebbv1.Kind
	def    *ebbv1.Namespace
	keys   int
	events int
}

func fillings() (all []filling) {
	fades := func() *ebbv1.Namespace {
		return &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 3600 * second}
	}
	stays := func() *ebbv1.Namespace {
		return &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	}
	window := fades()
	window.WindowUs = new(int64(3600 * second))
	for kind := ebbv1.Kind_KIND_DISTRIBUTION; kind <= proto.EventKindMax; kind++ {
		keys := 200
		if kind == ebbv1.Kind_KIND_DISTRIBUTION {
			keys = 5_000 // a page is little then
		}
		for _, events := range []int{40, 3_000} {
			name := fmt.Sprintf("%s of %d", proto.KindName(kind), events)
			n := max(20, keys*40/events)
			all = append(all, filling{name + " that fades", kind, fades(), n, events})
			all = append(all, filling{name + " that stays", kind, stays(), n, events})
		}
	}
	for _, events := range []int{40, 20_000} {
		name := fmt.Sprintf("distinct of %d in a window", events)
		all = append(all, filling{name, ebbv1.Kind_KIND_DISTINCT, window, 20, events})
	}
	return all
}

// Whatever a key holds, describe says how much memory it takes: over many keys of a kind it is within an eighth of what
// pages and heap have grown by. Before, it said how long the key is when it is written down: 197 KB of 10,000 phrases
// that take 664.
func TestDescribeMeasuresMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("fills many keys")
	}
	for _, fill := range fillings() {
		t.Run(fill.name, func(t *testing.T) {
			mem := new(wiping)
			s := New(1, mem)
			now := int64(1_700_000_000 * second)
			apply := func(index uint64, c *ebbv1.Command) {
				r := s.Apply(index, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]
				if r.GetError() != nil || len(r.GetRefused()) > 0 {
					t.Fatal(r)
				}
			}
			apply(1, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourMax}}})
			apply(2, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: fill.def}})
			before, pages := heapBytes(), mem.out
			for key := range fill.keys {
				batch := &ebbv1.Increments{}
				for i := range fill.events {
					in := &ebbv1.Increment{
						Key: fmt.Appendf(nil, "key number %d", key), Bin: fmt.Appendf(nil, "bin %d", i),
						Amount: new(1.0), Kind: fill.kind,
					}
					switch fill.kind {
					case ebbv1.Kind_KIND_QUANTILE:
						in.Bin, in.Value = nil, new(float64(i+1))
					case ebbv1.Kind_KIND_STRING:
						in.Bin, in.Text = nil, bytes.Repeat([]byte("t"), fill.events)
					}
					batch.Increments = append(batch.Increments, in)
				}
				apply(uint64(3+key), &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}})
				now += 60 * second / int64(fill.keys)
			}
			s.prefetch = prefetcher{}     // it refers to the latest entry, which is no key's
			grown := heapBytes() - before // pages are a part of that
			total := 0
			for key := range fill.keys {
				total += int(describedKey(t, s, fmt.Sprintf("key number %d", key), 0).GetMemoryBytes())
			}
			runtime.KeepAlive(s)
			t.Logf("described %d bytes a key, grown by %d, %d of that in pages", total/fill.keys, grown/fill.keys,
				PageBytes*(mem.out-pages)/fill.keys)
			// indexes, cleanup queues and slot tables begin with a few pages
			if off := total - grown; off > grown/8 || -off > grown/8+64<<10 {
				t.Errorf("%d bytes are described, and memory has grown by %d", total, grown)
			}
		})
	}
}
