package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// extremes are definitions with one size at an end of its range, found by trying.
func extremes(t *testing.T) []*ebbv1.Namespace {
	var all []*ebbv1.Namespace
	for _, name := range proto.SizeNames() {
		for _, v := range []float64{1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.5, 1, 6, 8, 16, 64, 4096, 6553, 65536, 4e6, 20e6} {
			def := proto.DefaultNamespaceSettings()
			def.Name, def.Version = "n", 1
			if proto.SetSize(def.Sizes, name, v) == nil && proto.CheckNamespace(def) == nil {
				all = append(all, def)
			}
		}
	}
	if len(all) < 3*len(proto.SizeNames()) {
		t.Fatalf("only %d extremes", len(all))
	}
	return all
}

// Whatever a namespace may say, keys of all kinds can be made of it, written, and read back from a snapshot.
func TestTemplatesCanBeMade(t *testing.T) {
	for _, def := range extremes(t) {
		for i, decay := range []ebbv1.Decay{
			ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_NONE, ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Decay_DECAY_NONE,
		} {
			behaviour := []uint32{BehaviourDeletion, BehaviourMax}[i/2]
			def.Decay = decay
			ns := &namespace{definition: def, seed: 5, eras: []era{{params: (&frame{}).paramsOf(def)}}}
			for kind := ebbv1.Kind_KIND_DISTINCT; kind <= proto.EventKindMax; kind++ {
				b := newBody(kind, ns, behaviour)
				if b == nil || b.form().kind() != kind {
					t.Fatalf("%v of %v: %T", kind, def.Sizes, b)
				}
				e := eventOf(ns, 1e15, 1e15, &proto.IncrementWire{Bin: []byte("bin"), Amount: 1, Value: 2, Text: []byte("text"), HasText: true})
				if err := b.add(&e); err != nil {
					t.Fatalf("%v of %v: %v", kind, def.Sizes, err)
				}
				again, ok := decodeBody(b.form(), b.appendBinary(nil))
				if !ok || again.Held() != b.Held() || again.Reserved() != b.Reserved() || again.Reserved() > proto.BodyBytesMax/16 {
					t.Fatalf("%v of %v: decoded %t, holds %d", kind, def.Sizes, ok, b.Reserved())
				}
			}
		}
	}
}

// The sizes of a snapshot are those of the message, each of them.
func TestSizesInSnapshots(t *testing.T) {
	want := proto.DefaultSizes()
	m := want.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		switch fd.Kind() {
		case protoreflect.DoubleKind:
			m.Set(fd, protoreflect.ValueOfFloat64(0.25/float64(i+1)))
		case protoreflect.Uint32Kind:
			m.Set(fd, protoreflect.ValueOfUint32(uint32(1000+i)))
		default:
			m.Set(fd, protoreflect.ValueOfUint64(uint64(1000+i)))
		}
	}
	w := &blockWriter{}
	writeSizes(w, want)
	if got := readSizes(&blockReader{kind: w.kind, rest: w.buf}); got.String() != want.String() {
		t.Fatalf("%v became %v", want, got)
	}
}

// A sum that is too large is an overflow, whether it is merged over shards or within one: here of counters as large as
// no events make them.
func TestOverflowIsNamed(t *testing.T) {
	c, err := sketch.NewCountMin(sketch.CountMinParams{Epsilon: 0.5, Delta: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Add(1, 1, 1, 3); err != nil {
		t.Fatal(err)
	}
	bits := func(v float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
	u := summaryMerger{at: 1, body: &countMin{c}}
	part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: bytes.ReplaceAll(u.appendPart(nil), bits(3), bits(0x1p450))}}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte("k")}}}}
	if _, err := Merge(q, []*ebbv1.ShardAnswer{part}); err != nil {
		t.Fatal(err)
	}
	if _, err := Merge(q, []*ebbv1.ShardAnswer{part, part}); proto.AsError(err).Code != ebbv1.Code_CODE_OVERFLOW {
		t.Fatalf("got %v", err)
	}
}

// A shard does not believe a snapshot whose summaries take more memory than it would have let them, however few bytes
// they come in.
func TestRestoreHasABudget(t *testing.T) {
	def := &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, Sizes: &ebbv1.Sizes{BloomCapacity: 4_000_000}}
	s := definedAt(t, def, 1_700_000_000_000_000) // before BehaviourDeletion: what they take when full
	for i := range 40 {
		in := increments(fmt.Sprint("k", i), "x")
		in.Namespace = "n"
		in.GetIncrements().Increments[0].Kind = ebbv1.Kind_KIND_BLOOM
		if r := s.Apply(uint64(i)+2, encode(t, 0, in), nil); r[0].Applied != 1 {
			t.Fatal(r[0])
		}
	}
	raw := snapshot(t, s)
	limits := DefaultLimits()
	limits.BodyBytes = s.bodyBytes
	if _, err := RestoreUnder(limits, 1, Heap{}, bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	limits.BodyBytes = 1 << 20
	if _, err := RestoreUnder(limits, 1, Heap{}, bytes.NewReader(raw)); !errors.Is(err, proto.ErrCorrupt) {
		t.Fatalf("%d bytes hold %d: %v", len(raw), s.bodyBytes, err)
	}
}

// asking counts how often a body is asked when it dies.
type asking struct {
	body
	deaths *int
}

func (a asking) death(threshold float64) sketch.Tick {
	*a.deaths++
	return a.body.death(threshold)
}

// Keys are counted without an estimate of when each dies, which takes microseconds: what is not due is there.
func TestCountingDoesNotEstimate(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second, Threshold: 0.5}, beginning)
	deaths := 0
	for i, kind := range []ebbv1.Kind{ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_TOPK} {
		c := increments(proto.KindName(kind), "a", "b", "c")
		for _, in := range c.GetIncrements().Increments {
			in.Kind = kind
		}
		s.Apply(uint64(i)+2, encodeEntry(t, beginning, []*ebbv1.Command{c}), nil)
		key, _ := s.findKey(s.lookup(nil), []byte(proto.KindName(kind)))
		sum := s.loadForWrite(key)
		sum.body = asking{sum.body, &deaths}
		s.put(key, &sum)
	}
	count := func(at sketch.Tick) uint64 {
		q := &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
		return s.Ask(&ebbv1.ShardQuestion{Question: q}, at).GetAnswer().GetCountKeys().GetKeys()
	}
	if n := count(beginning); n != 3 || deaths != 0 {
		t.Errorf("%d keys of 3, and %d estimates", n, deaths)
	}
	if n := count(beginning + 100*second); n != 0 || deaths != 3 {
		t.Errorf("%d keys when all have faded, and %d estimates", n, deaths)
	}
}
