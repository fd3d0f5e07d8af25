package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newWindow(t testing.TB, precision, n int) DistinctWindow {
	t.Helper()
	w, err := NewDistinctWindow(DistinctWindowParams{Distinct: DistinctParams{Precision: precision}, Slice: hour, Slices: n})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestDistinctWindow plays a day: which visitors came when, and how many were seen in the hours before.
func TestDistinctWindow(t *testing.T) {
	w := newWindow(t, 11, 24)
	day := epoch / hour * hour
	for _, visit := range []struct {
		at   Tick // hours
		who  []uint64
		kept bool
	}{
		{0, []uint64{1, 2, 3}, true},
		{1, []uint64{3, 4}, true},
		{10, []uint64{1, 5}, true},
		{2, []uint64{6}, true}, // late
		{24, []uint64{7}, true},
		{0, []uint64{8}, false}, // too late
	} {
		for _, who := range visit.who {
			if got := w.Add(day+max(visit.at, 2)*hour, day+visit.at*hour, remix(who, 0)); got != visit.kept {
				t.Errorf("visit at hour %d: %v", visit.at, got)
			}
		}
	}
	for _, c := range []struct {
		at, window Tick
		want       float64
	}{
		{24, 1, 1},
		{24, 14, 1},
		{24, 15, 3},  // hour 10: 1, 5
		{24, 23, 4},  // hour 2: 6
		{24, 24, 6},  // hour 1: 3, 4
		{24, 100, 6}, // all that the ring holds
		{20, 15, 3},  // not before the latest
		{25, 15, 1},
		{25, 16, 3},
		{47, 24, 1},
		{48, 24, 0},
	} {
		if got, _ := w.Estimate(day+c.at*hour, c.window*hour); got != c.want {
			t.Errorf("the %d hours to hour %d: %v, want %v", c.window, c.at, got, c.want)
		}
	}
	if got, _ := w.Estimate(day+24*hour, 14*hour+1); got != 3 {
		t.Errorf("part of a slice is a slice: %v", got)
	}
	if got := w.Death(); got != day+48*hour {
		t.Errorf("dies at hour %d", (got-day)/hour)
	}
}

// windowHistory is what happened, with whatever was refused left out.
type windowHistory struct {
	seen   map[int64][]uint64
	latest int64
}

func (h *windowHistory) union(precision int, from int64) string {
	d, _ := NewDistinct(DistinctParams{Precision: precision})
	for slice, hashes := range h.seen {
		if slice >= from {
			for _, hash := range hashes {
				d.Add(hash)
			}
		}
	}
	return string(d.AppendBinary(nil))
}

// TestDistinctWindowIsTheUnion: of several windows with clocks of their own, with late events and idle times, merged in
// any order, every window reads as a Distinct of what happened in it; and the bytes are those of one window that saw it
// all.
func TestDistinctWindowIsTheUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		n, precision := 1+r.below(40), 2+r.below(4)
		h := windowHistory{seen: map[int64][]uint64{}, latest: int64(epoch / hour)}
		make := func() DistinctWindow {
			w, _ := NewDistinctWindow(DistinctWindowParams{Distinct: DistinctParams{Precision: precision}, Slice: hour, Slices: n})
			return w
		}
		parts := []DistinctWindow{make(), make(), make()}
		type event struct {
			t    Tick
			hash uint64
		}
		var events []event
		now := epoch
		for range r.below(300) {
			if r.below(3) == 0 {
				now += Tick(r.below(int(hour) * (1 + r.below(2*n))))
			}
			e := event{t: now - Tick(r.below(int(hour)*(1+r.below(n)))), hash: remix(uint64(r.below(60)), 1)}
			if r.below(2) == 0 {
				e.t = now
			}
			if parts[r.below(len(parts))].Add(now, e.t, e.hash) {
				events = append(events, e)
				h.seen[int64(e.t/hour)] = append(h.seen[int64(e.t/hour)], e.hash)
			}
		}
		whole := make()
		for len(events) > 0 {
			i := r.below(len(events))
			whole.Add(now, events[i].t, events[i].hash)
			events[i] = events[len(events)-1]
			events = events[:len(events)-1]
		}
		for len(parts) > 1 {
			i := r.below(len(parts) - 1)
			last := parts[len(parts)-1]
			before := string(last.AppendBinary(nil))
			a, b := parts[i].Clone(), last.Clone()
			for _, err := range []error{parts[i].Merge(&last), b.Merge(&a), b.Merge(&a)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if string(parts[i].AppendBinary(nil)) != string(b.AppendBinary(nil)) {
				t.Fatal("does not commute, or not repeat without effect")
			}
			if before != string(last.AppendBinary(nil)) {
				t.Fatal("the other changed")
			}
			parts = parts[:len(parts)-1]
		}
		empty := make()
		empty.Add(now, now-Tick(n+1)*hour, 0) // tells the time and adds nothing
		if err := parts[0].Merge(&empty); err != nil {
			t.Fatal(err)
		}
		if err := whole.Merge(&empty); err != nil {
			t.Fatal(err)
		}
		if a, b := parts[0].AppendBinary(nil), whole.AppendBinary(nil); string(a) != string(b) {
			t.Fatalf("%x\nwant %x", a, b)
		}
		for length := 1; length <= n; length++ {
			got := whole.Union(now, Tick(length)*hour)
			if string(got.AppendBinary(nil)) != h.union(precision, int64(now/hour)-int64(length)+1) {
				t.Fatalf("%d slices of %d", length, n)
			}
		}
		var again DistinctWindow
		if _, err := again.Decode(whole.AppendBinary(nil)); err != nil || string(again.AppendBinary(nil)) != string(whole.AppendBinary(nil)) {
			t.Fatalf("decodes with %v", err)
		}
	})
}

// TestDistinctWindowReduces: merged with a lower precision it is as if it had been of that from the start.
func TestDistinctWindowReduces(t *testing.T) {
	var w [3]DistinctWindow
	for i, p := range []int{7, 4, 4} {
		w[i] = newWindow(t, p, 12)
	}
	r := rng(1)
	for i := range 3000 {
		now, h := epoch+Tick(i)*hour/100, r.next()
		w[r.below(2)].Add(now, now, h)
		w[2].Add(now, now, h)
	}
	a, b := w[0].Clone(), w[1].Clone()
	for _, err := range []error{a.Merge(&w[1]), b.Merge(&w[0])} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, got := range []DistinctWindow{a, b} {
		if string(got.AppendBinary(nil)) != string(w[2].AppendBinary(nil)) {
			t.Error("differs")
		}
	}
}

func TestDistinctWindowRefuses(t *testing.T) {
	for _, p := range []DistinctWindowParams{
		{Slice: 0, Slices: 1},
		{Slice: hour, Slices: 0},
		{Slice: hour, Slices: 1025},
		{Slice: hour, Slices: 1, Distinct: DistinctParams{Precision: 1}},
	} {
		if _, err := NewDistinctWindow(p); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	w := newWindow(t, 4, 10)
	w.Add(epoch, epoch, 1)
	before := string(w.AppendBinary(nil))
	for _, p := range []DistinctWindowParams{
		{Slice: hour, Slices: 11, Distinct: DistinctParams{Precision: 3}},
		{Slice: hour + 1, Slices: 10, Distinct: DistinctParams{Precision: 3}},
		{Slice: hour, Slices: 10, Distinct: DistinctParams{Precision: 3, Hash: Hash{Seed: 1}}},
	} {
		o, err := NewDistinctWindow(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Merge(&o); !errors.Is(err, ErrIncompatible) || string(w.AppendBinary(nil)) != before {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// windowSamples are encodings of windows in all states.
func windowSamples(t testing.TB) (all [][]byte) {
	for _, n := range []int{1, 5, 30} {
		w := newWindow(t, 2, n)
		all = append(all, w.AppendBinary(nil))
		r := rng(n)
		for i := range 100 {
			now := epoch + Tick(i)*hour/3
			w.Add(now, now-Tick(r.below(int(2*hour))), r.next())
			if i%33 == 0 {
				all = append(all, w.AppendBinary(nil))
			}
		}
	}
	return all
}

func TestDistinctWindowDecodeRefuses(t *testing.T) {
	w := newWindow(t, 4, 30)
	for i := range Tick(3) {
		w.Add(epoch+i*hour, epoch+i*hour, remix(uint64(i), 0))
	}
	good := w.AppendBinary(nil)
	const header = 1 + 1 + 9 + 5 + 1 // up to used
	unions := header + 1 + 3 + 1     // latest takes 3
	put := func(at int, with ...byte) []byte {
		b := append([]byte(nil), good...)
		copy(b[at:], with)
		return b
	}
	head := good[:11:11]
	bad := map[string][]byte{
		"another version":              put(0, 2),
		"no precision":                 put(1, 0),
		"precision too high":           put(1, 19),
		"an unknown hash":              put(2, 0),
		"no slices":                    put(16, 0),
		"used is neither":              put(header, 2),
		"more unions than slices":      put(unions-1, 31),
		"a union beyond the latest":    put(unions, 30),
		"a union of other precision":   put(unions+1+2, 5),
		"a union of another seed":      put(unions+1+4, 5),
		"a slice of nothing":           append(binary.AppendUvarint(head, 0), 1, 0),
		"a slice longer than time":     append(binary.AppendUvarint(head, 1<<63), 1, 0),
		"a latest beyond time":         append(binary.AppendVarint(append(binary.AppendUvarint(head, 1<<40), 1, 1), 1<<40), 0),
		"a union without what follows": put(unions+1+13, good[unions+1+13]+64),
	}
	for i := range good {
		bad[fmt.Sprintf("%d bytes", i)] = good[:i]
	}
	before := string(good)
	for name, b := range bad {
		if rest, err := w.Decode(b); !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("%s: %x gives %v", name, b, err)
		}
		if string(w.AppendBinary(nil)) != before {
			t.Fatalf("%s: the receiver changed", name)
		}
	}
}

// FuzzDistinctWindowDecode: what is accepted encodes to the same bytes and can be used; what is not leaves the receiver
// alone.
func FuzzDistinctWindowDecode(f *testing.F) {
	for _, b := range windowSamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newWindow(t, 4, 10)
		w.Add(epoch, epoch, 5)
		before := string(w.AppendBinary(nil))
		rest, err := w.Decode(b)
		if err != nil {
			if string(w.AppendBinary(nil)) != before {
				t.Fatal("refused, and changed the receiver")
			}
			return
		}
		if again := w.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x encodes to %x", b[:len(b)-len(rest)], again)
		}
		now := Tick(w.latest) * w.p.Slice
		w.Estimate(now, 3*w.p.Slice)
		c := w.Clone()
		w.Add(now, now, 7)
		if err := c.Merge(&w); err != nil {
			t.Fatal(err)
		}
		if string(c.AppendBinary(nil)) != string(w.AppendBinary(nil)) {
			t.Fatal("merging what is part of it is not without effect")
		}
	})
}

// TestGoldenDistinctWindow: every machine computes the same bits.
func TestGoldenDistinctWindow(t *testing.T) {
	var b strings.Builder
	hash := fnv.New64a()
	w := newWindow(t, 5, 20)
	r := rng(1)
	now := epoch
	for i := range 3000 {
		now += Tick(r.below(int(hour) / 10))
		w.Add(now, now-Tick(r.below(int(hour)*3)), remix(uint64(r.below(1000)), 0))
		if i%100 == 0 {
			n, stdErr := w.Estimate(now, Tick(r.below(20))*hour)
			fmt.Fprintf(&b, "after %d: %x +- %x\n", i+1, n, stdErr)
			fmt.Fprintf(hash, "%x", w.AppendBinary(nil))
		}
	}
	fmt.Fprintf(&b, "hash %016x\n", hash.Sum64())
	golden(t, "golden_distinctwindow.txt", []byte(b.String()))
}

func BenchmarkDistinctWindow(b *testing.B) {
	for _, visitors := range []int{10_000, 10_000_000} {
		w := newWindow(b, 0, 60)
		r, now := rng(1), epoch
		add := func() {
			now += hour / 5000
			w.Add(now, now, remix(uint64(r.below(visitors)), 0))
		}
		for range 400_000 {
			add()
		}
		b.Run(fmt.Sprintf("add/visitors=%d", visitors), func(b *testing.B) {
			for b.Loop() {
				add()
			}
			b.ReportMetric(float64(w.Size()), "B")
		})
		b.Run(fmt.Sprintf("estimate/visitors=%d", visitors), func(b *testing.B) {
			for b.Loop() {
				w.Estimate(now, 40*hour)
			}
		})
	}
}
