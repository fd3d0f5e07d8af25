package shard

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// largest is a namespace whose keys are as large as sizes allow.
func largest(decay ebbv1.Decay) *ebbv1.Namespace {
	def := proto.DefaultNamespaceSettings()
	def.Name, def.Version, def.Decay, def.HalfLifeUs = "n", 1, decay, 3600*second
	def.Sizes = &ebbv1.Sizes{
		CountminEpsilon: 3.2e-5, CountminDelta: 1e-5, // 12 rows of 84,947 cells
		TopkItems: 6553, DistinctPrecision: 16, SetMembers: 4096,
		LinearCapacity: 20_000_000, LinearError: 0.001,
		MorrisBits:    16,
		BloomCapacity: 4_000_000, BloomFalseRate: 1e-6,
		QuantileError: 1e-4, QuantileBuckets: 65536,
	}
	return def
}

// largeBody is an empty body of such a namespace.
type largeBody struct {
	name string
	kind ebbv1.Kind
	ns   *namespace
}

func largeBodies(t *testing.T) (all []largeBody) {
	add := func(def *ebbv1.Namespace, suffix string) {
		if err := proto.CheckNamespace(def); err != nil {
			t.Fatal(err)
		}
		ns := &namespace{definition: def, seed: 5, eras: []era{{params: (&frame{}).paramsOf(def)}}}
		for kind := ebbv1.Kind_KIND_DISTINCT; kind <= proto.EventKindMax; kind++ {
			all = append(all, largeBody{proto.KindName(kind) + suffix, kind, ns})
		}
	}
	add(largest(ebbv1.Decay_DECAY_NONE), "")
	add(largest(ebbv1.Decay_DECAY_HALF_LIFE), " of a half-life")
	window := largest(ebbv1.Decay_DECAY_HALF_LIFE)
	window.WindowUs = new(int64(3600 * second))
	add(window, " of a window")
	return all
}

// make makes one and adds this many events, each of another bin.
func (l *largeBody) make(t testing.TB, events int) body { return l.makeFrom(t, 0, events) }

// makeFrom is make with other bins and times.
func (l *largeBody) makeFrom(t testing.TB, from, events int) body {
	b := newBody(l.kind, l.ns, BehaviourNamespaces)
	for i := from; i < from+events; i++ {
		now := beginning + int64(i)*second
		in := &proto.IncrementWire{Bin: fmt.Appendf(nil, "bin number %d", i), Amount: 1}
		switch l.kind {
		case ebbv1.Kind_KIND_QUANTILE:
			in.Value, in.HasValue = float64(i+1), true
		case ebbv1.Kind_KIND_STRING:
			in.Text, in.HasText = bytes.Repeat([]byte("t"), i%1000), true
		}
		e := eventOf(l.ns, 0, 0, in)
		e.now, e.at, e.chance = sketch.Tick(now), sketch.Tick(now), uint64(i)*0x9e3779b97f4a7c15
		if err := b.add(&e); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// heapOf is how many bytes stay allocated by f, which returns what to keep. What other tests leave behind disturbs
// it: it measures again, a few times, what is not right.
func heapOf(f func() any, right func(took int) bool) (took int) {
	for range 5 {
		if took = heapOnce(f); right(took) {
			break
		}
	}
	return took
}

func heapOnce(f func() any) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// heldWell says whether what is held is what it takes, within half, or within 1 KiB.
func heldWell(took, held int) bool {
	return took <= max(held*3/2, held+1024) && held <= max(took*3/2, took+1024)
}

// Whatever its sizes, a body takes memory in proportion to its events, and Held says how much: also of a copy, and of
// one that was restored.
func TestBodiesGrow(t *testing.T) {
	for _, l := range largeBodies(t) {
		for _, events := range []int{0, 1, 10, 100, 1000} {
			copies := max(3, 200/max(events, 1))
			for _, way := range []struct {
				name string
				of   func(b body) body
			}{
				{"new", func(b body) body { return b }},
				{"cloned", func(b body) body { return b.clone() }},
				{"restored", func(b body) body {
					again, ok := decodeBody(b.form(), b.appendBinary(nil))
					if !ok {
						t.Fatalf("%s of %d events does not decode", l.name, events)
					}
					return again
				}},
			} {
				if events == 0 && way.name == "restored" {
					continue
				}
				held, reserved, most := 0, 0, 2048+1000*events
				took := heapOf(func() any {
					all := make([]body, copies)
					for i := range all {
						all[i] = way.of(l.make(t, events))
					}
					held, reserved = all[0].Held(), all[0].Reserved()
					return all
				}, func(took int) bool { return took/copies-16 <= most && heldWell(took/copies-16, held) })/copies - 16
				name := fmt.Sprintf("%s, %s, %d events", l.name, way.name, events)
				t.Logf("%s: %d bytes, holds %d, reserved %d", name, took, held, reserved)
				if took > most {
					t.Errorf("%s: %d bytes, more than %d", name, took, most)
				}
				if !heldWell(took, held) {
					t.Errorf("%s: takes %d bytes and holds %d", name, took, held)
				}
			}
		}
	}
}

// What has faded from a body is not held, nor does its memory stay.
func TestBodiesShrink(t *testing.T) {
	for _, l := range largeBodies(t) {
		if l.ns.definition.Decay != ebbv1.Decay_DECAY_HALF_LIFE || l.kind == ebbv1.Kind_KIND_PHRASES {
			continue // phrases stay
		}
		for _, after := range []int64{80, 130, 300} { // half-lives
			held := 0
			took := heapOf(func() any {
				all := make([]body, 5)
				for i := range all {
					b := l.make(t, 3000)
					for range 2 {
						now := b.last() + sketch.Tick(after*3600*second)
						in := &proto.IncrementWire{Bin: []byte("b"), Amount: 1, Value: 1, Text: []byte("t"), HasText: true}
						e := eventOf(l.ns, now, now, in)
						if err := b.add(&e); err != nil {
							t.Fatal(err)
						}
					}
					all[i], held = b, b.Held()
				}
				return all
			}, func(took int) bool { return heldWell(took/5-16, held) })/5 - 16
			if !heldWell(took, held) {
				t.Errorf("%s, %d half-lives later: takes %d bytes and holds %d", l.name, after, took, held)
			}
		}
	}
}

// largeKeys is an entry of increments to as many new keys.
func largeKeys(t testing.TB, from, n int, kind ebbv1.Kind) []byte {
	c := &ebbv1.Increments{}
	for i := range n {
		c.Increments = append(c.Increments, &ebbv1.Increment{
			Key: fmt.Appendf(nil, "k%d", from+i), Bin: []byte("x"), Kind: kind,
		})
	}
	return encode(t, beginning, &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: c}})
}

func defines(t testing.TB, decay ebbv1.Decay) []byte {
	body := &ebbv1.Command_DefineNamespace{DefineNamespace: largest(decay)}
	return encode(t, beginning, &ebbv1.Command{Body: body})
}

func behaves(t testing.TB, version uint32) []byte {
	body := &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}
	return encode(t, beginning, &ebbv1.Command{Body: body})
}

// A batch of 10,000 increments to new keys of the largest sizes takes a few megabytes, not a few gigabytes.
func TestLargeKeysOfOneBatch(t *testing.T) {
	const keys = 10_000
	for _, c := range []struct {
		decay ebbv1.Decay
		kind  ebbv1.Kind
		most  int
	}{
		{ebbv1.Decay_DECAY_NONE, ebbv1.Kind_KIND_COUNTMIN, 8 << 20},
		{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Kind_KIND_COUNTMIN, 8 << 20},
		{ebbv1.Decay_DECAY_NONE, ebbv1.Kind_KIND_BLOOM, 8 << 20},
		{ebbv1.Decay_DECAY_HALF_LIFE, ebbv1.Kind_KIND_BLOOM, 18 << 20},
		{ebbv1.Decay_DECAY_NONE, ebbv1.Kind_KIND_LINEAR, 8 << 20},
		{ebbv1.Decay_DECAY_NONE, ebbv1.Kind_KIND_DISTINCT, 8 << 20},
	} {
		s := New(1, Heap{})
		s.Apply(1, defines(t, c.decay), nil)
		s.Apply(2, behaves(t, BehaviourDeletion), nil)
		entry := largeKeys(t, 0, keys, c.kind)
		var r *ebbv1.CommandResult
		took := heapOnce(func() any {
			r = s.Apply(3, entry, nil)[0]
			return s
		})
		name := proto.KindName(c.kind) + " under " + c.decay.String()
		if r.GetApplied() != keys || s.Keys() != keys {
			t.Fatalf("%s: %.200v", name, r)
		}
		reserved := 0
		for key := range s.summaries.keys.all {
			reserved += s.summary(key).body.Reserved()
		}
		t.Logf("%s: %d bytes for %d of entry, bodies hold %d, full ones would take %d",
			name, took, len(entry), s.bodyBytes, reserved)
		if took > c.most || s.bodyBytes > c.most {
			t.Errorf("%s: %d bytes, bodies hold %d, more than %d", name, took, s.bodyBytes, c.most)
		}
	}
}

// A log that switches to BehaviourDeletion refuses the same at every entry, whether a replica was there from the
// beginning or comes with a snapshot from before the switch or after it.
func TestBodiesAreCountedByTheBehaviour(t *testing.T) {
	limits := DefaultLimits()
	limits.BodyBytes = 20 << 20
	base := New(1, Heap{})
	base.limits = limits
	replicas := map[string]*State{"all along": base}
	index, next := uint64(0), 0
	var refused []int
	apply := func(entry []byte) {
		t.Helper()
		index++
		var first []byte
		for name, s := range replicas {
			r := s.Apply(index, entry, nil)
			raw := snapshot(t, s)
			if first == nil {
				first = raw
				refused = append(refused, len(r[0].GetRefused()))
			}
			if !bytes.Equal(raw, first) {
				t.Fatalf("entry %d: the replica %q differs", index, name)
			}
			audit(t, s)
		}
		for name, s := range replicas {
			if s.bodyBytes != base.bodyBytes {
				t.Fatalf("entry %d: %q counts %d bytes, and another %d", index, name, s.bodyBytes, base.bodyBytes)
			}
		}
	}
	reopened := func(name string) { replicas[name] = reopen(t, base) }
	write := func(n int, kind ebbv1.Kind) {
		apply(largeKeys(t, next, n, kind))
		next += n
	}
	again := func(kind ebbv1.Kind) { apply(largeKeys(t, 0, next, kind)) }
	apply(defines(t, ebbv1.Decay_DECAY_HALF_LIFE))
	apply(behaves(t, BehaviourNamespaces))
	write(5, ebbv1.Kind_KIND_COUNTMIN) // two of 8 MiB fit
	reopened("from before")
	write(3, ebbv1.Kind_KIND_LINEAR) // small ones as well
	write(2, ebbv1.Kind_KIND_BLOOM)
	if base.bodyBytes < 16e6 || base.Keys() != 5 {
		t.Errorf("before: %d keys, %d bytes", base.Keys(), base.bodyBytes)
	}
	apply(behaves(t, BehaviourDeletion))
	if base.bodyBytes > 2000 {
		t.Errorf("at the switch: %d bytes", base.bodyBytes)
	}
	reopened("from after")
	write(5, ebbv1.Kind_KIND_COUNTMIN)
	write(3, ebbv1.Kind_KIND_BLOOM)
	reopened("from later")
	again(0)
	apply(behaves(t, BehaviourDeletion)) // again: nothing changes
	write(15_000, ebbv1.Kind_KIND_BLOOM) // until they hold as much as the limit says
	write(10, ebbv1.Kind_KIND_COUNTMIN)
	reopened("at the limit")
	again(0)
	want := []int{0, 0, 3, 0, 2, 0, 0, 0, 0}
	for i, n := range want {
		if refused[i] != n {
			t.Errorf("entry %d refuses %d, want %d: all %v", i+1, refused[i], n, refused)
		}
	}
	// a countmin is smaller than a Bloom filter: some fit
	if n := refused[len(refused)-2]; n < 6 || refused[len(refused)-3] == 0 {
		t.Errorf("beyond the limit %d of 10 are refused: all %v", n, refused)
	}
	if base.bodyBytes < limits.BodyBytes || base.bodyBytes > limits.BodyBytes+2000 {
		t.Errorf("bodies hold %d bytes of %d", base.bodyBytes, limits.BodyBytes)
	}
}

// A backup from before the switch is counted by the behaviour of the shard that it is restored into.
func TestRestoredBodiesAreCountedByTheBehaviour(t *testing.T) {
	older := New(1, &wiping{})
	older.Apply(1, defines(t, ebbv1.Decay_DECAY_NONE), nil)
	older.Apply(2, largeKeys(t, 0, 3, ebbv1.Kind_KIND_COUNTMIN), nil)
	raw := snapshot(t, older)
	for version, most := range map[uint32]int{BehaviourNamespaces: 30 << 20, BehaviourDeletion: 2000} {
		r := &restorer{t: t, s: New(1, &wiping{}), now: beginning}
		r.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}})
		r.step(begins(raw))
		r.step(pieceOf(raw, 0, len(raw)))
		if err := r.step(commits()).GetError(); err != nil {
			t.Fatal(err)
		}
		if r.s.Keys() != 3 || r.s.bodyBytes > most || r.s.bodyBytes < most/5 {
			t.Errorf("behaviour version %d: %d keys hold %d bytes", version, r.s.Keys(), r.s.bodyBytes)
		}
		audit(t, r.s)
	}
}

// Reserved is what Held was before BehaviourDeletion. The file is what an older build says of the same bodies.
func TestReservedIsWhatItWas(t *testing.T) {
	want, err := os.ReadFile("testdata/reserved.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, l := range largeBodies(t) {
		for _, events := range []int{0, 1, 10, 100, 1000, 5000} {
			fmt.Fprintf(&got, "%s, %d events: %d\n", l.name, events, l.make(t, events).Reserved())
		}
	}
	if got.String() != string(want) {
		t.Errorf("got\n%s", got.String())
	}
}

// A question bounds what a merge takes by what it merges: also where the sum of sparse bodies is dense.
func TestMergedBytesBoundMerges(t *testing.T) {
	for _, l := range largeBodies(t) {
		if l.kind != ebbv1.Kind_KIND_COUNTMIN && l.kind != ebbv1.Kind_KIND_BLOOM && l.kind != ebbv1.Kind_KIND_LINEAR {
			continue // always as large as what they hold
		}
		for _, keys := range []int{1, 3, 25} {
			for _, events := range []int{1, 40, 900} {
				u, most := summaryMerger{at: beginning}, 0
				for i := range keys {
					b := l.makeFrom(t, i*events, events)
					most += mergedBytes(b)
					if err := u.add(b); err != nil {
						t.Fatal(err)
					}
				}
				if held := u.body.Held(); held > most {
					t.Errorf("%s, %d keys of %d events: the merge holds %d bytes, more than %d", l.name, keys, events, held, most)
				}
			}
		}
	}
}
