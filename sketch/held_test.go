package sketch

import (
	"encoding/binary"
	"testing"
)

// holder is a kind that says what it holds.
type holder[T any] interface {
	coded[T]
	Held() int
	Size() int
}

// checkHeld: what a summary holds is that of any other in the same state, and about the memory it takes.
func checkHeld[T any, P holder[T]](t *testing.T, name string, samples []P) {
	t.Helper()
	for i, s := range samples {
		again := P(new(T))
		if _, err := again.Decode(s.AppendBinary(nil)); err != nil {
			t.Fatal(err)
		}
		if s.Held() != again.Held() {
			t.Errorf("%s, sample %d: holds %d bytes, and %d after a restart", name, i, s.Held(), again.Held())
		}
		if full := again.Size(); s.Held() > 2*full+400_000 || full > 2*s.Held()+256 {
			t.Errorf("%s, sample %d: holds %d bytes, and takes %d", name, i, s.Held(), full)
		}
	}
}

func TestHeld(t *testing.T) {
	checkHeld(t, "countmin", countMinSamples(t))
	checkHeld(t, "distinct that fades", decayedSamples(t))
	checkHeld(t, "linear", linearSamples(t))
	checkHeld(t, "bloom", bloomSamples(t))
	checkHeld(t, "bloom that grows", scalableSamples(t))
	checkHeld(t, "bloom that expires", expiringSamples(t))
	checkHeld(t, "morris", morrisSamples(t))
	checkHeld(t, "quantile", quantileSamples(t))
	checkHeld(t, "topk", topKSamples(t))
	checkHeld(t, "set", setSamples(t))
	checkHeld(t, "set that fades", setDecayedSamples(t))
	var distincts []*Distinct
	for _, raw := range distinctSamples(t) {
		d := new(Distinct)
		if _, err := d.Decode(raw); err != nil {
			t.Fatal(err)
		}
		distincts = append(distincts, d)
	}
	checkHeld(t, "distinct", distincts)
	window, err := NewDistinctWindow(DistinctWindowParams{Distinct: DistinctParams{Precision: 6}, Slice: 10, Slices: 5})
	if err != nil {
		t.Fatal(err)
	}
	windows := []*DistinctWindow{new(window.Clone())}
	for i := range 1000 {
		window.Add(Tick(i), Tick(i-i%30), remix(uint64(i), 0))
		if i%100 == 7 {
			windows = append(windows, new(window.Clone()))
		}
	}
	checkHeld(t, "distinct in a window", windows)
}

// What a summary holds does not depend on when it was last restored, whatever happens to it: here each event goes to
// one that never is, and to one that is restored before each.
func TestHeldAfterRestarts(t *testing.T) {
	hash := Hash{ID: HashXXH3, Seed: 7}
	decayed, err := NewDistinctDecayed(DistinctDecayedParams{Registers: 64, HalfLife: 1000, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	linear, err := NewLinearCounter(LinearParams{Capacity: 10_000, Members: true, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	top, err := NewTopK(TopKParams{K: 2, HalfLife: 1000, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	set := newSet(t, SetParams{K: 20, Signature: 64, Members: true})
	ebbing, err := NewSetDecayed(SetDecayedParams{K: 64, HalfLife: 1000, Members: true})
	if err != nil {
		t.Fatal(err)
	}
	now := Tick(1 << 40)
	for i := range 3000 {
		now += Tick(remix(uint64(i), 1) % 4000)
		h := remix(uint64(i), 2) % 500
		name := binary.AppendUvarint(nil, remix(h, 3)>>(h%64))
		restartedHeld(t, i, &decayed, func(d *DistinctDecayed) { d.Add(now, now-Tick(h), remix(h, 0)) })
		restartedHeld(t, i, &linear, func(l *LinearCounter) { _ = l.Add(remix(h, 0)%400, name) })
		restartedHeld(t, i, &set, func(s *Set) { s.Add(remix(h, 0)%400, name) })
		restartedHeld(t, i, &ebbing, func(s *SetDecayed) { s.Add(now, now-Tick(h)*200, remix(h, 0), name) })
		restartedHeld(t, i, &top, func(k *TopK) { _ = k.Add(now, now, name, 1) })
	}
}

func restartedHeld[T any, P holder[T]](t *testing.T, i int, s P, add func(P)) {
	t.Helper()
	again := P(new(T))
	if _, err := again.Decode(s.AppendBinary(nil)); err != nil {
		t.Fatal(err)
	}
	add(s)
	add(again)
	if s.Held() != again.Held() {
		t.Fatalf("event %d: %T holds %d bytes, and the restored one %d", i, s, s.Held(), again.Held())
	}
}
