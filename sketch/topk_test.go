package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func newTopK(t testing.TB, k int, h Tick) *TopK {
	t.Helper()
	s, err := NewTopK(TopKParams{K: k, HalfLife: h, Hash: Hash{Seed: 3}})
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

func itemName(item int) []byte { return fmt.Appendf(nil, "item %d", item) }

func topKSamples(t testing.TB) (all []*TopK) {
	for _, h := range []Tick{0, hour} {
		for _, events := range []int{0, 1, 8, 200} {
			s := newTopK(t, 1, h)
			for i := range events {
				at := epoch + Tick(i)*hour/10
				if err := s.Add(at, at, itemName(i%17), float64(1+i%3)); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, s)
		}
	}
	return all
}

func TestTopKParams(t *testing.T) {
	for _, c := range []struct {
		p     TopKParams
		names string
	}{
		{TopKParams{K: 10}, ""},
		{TopKParams{K: 10, Entries: 1000, HalfLife: hour}, ""},
		{TopKParams{K: 6553, Entries: 65534}, ""},
		{TopKParams{}, "k of 0"},
		{TopKParams{K: -1}, "k of -1"},
		{TopKParams{K: 6554}, "k of 6554 is not in 1..6553"},
		{TopKParams{K: 1 << 62, Entries: 1 << 62}, "k of"},
		{TopKParams{K: 10, Entries: 99}, "99 entries"},
		{TopKParams{K: 10, Entries: 65535}, "65535 entries are not in 10*k..65534"},
		{TopKParams{K: 10, HalfLife: -1}, "half-life"},
		{TopKParams{K: 10, Hash: Hash{ID: 7}}, "hash id 7"},
	} {
		_, err := NewTopK(c.p)
		wantParams(t, err, c.names)
	}
}

// truths are the exact counts of items and of all.
type truths struct {
	h     Tick
	items map[int]*decayed
	z     decayed
}

func newTruths(h Tick) *truths { return &truths{h: h, items: map[int]*decayed{}, z: decayed{h: h}} }

func (o *truths) add(t Tick, item int, n float64) {
	if o.items[item] == nil {
		o.items[item] = &decayed{h: o.h}
	}
	o.items[item].add(t, n)
	o.z.add(t, n)
}

// check: every item is within its bracket, no bracket is wider than Z/m, and who is not listed has no more than that.
// slack is the relative rounding that sums are allowed.
func (o *truths) check(t *testing.T, s *TopK, now Tick, slack float64) {
	t.Helper()
	z := o.z.read(now)
	tiny := 0x1p-90
	if slack == 0 {
		tiny = 0
	}
	if got := s.Z(now); got > z*(1+slack)+tiny || got < z*(1-slack)-tiny {
		t.Fatalf("at %d: Z %v, truth %v", now, got, z)
	}
	bound := z/float64(s.Params().Entries)*(1+slack) + tiny
	if s.ErrMax(now) > bound {
		t.Fatalf("at %d: errors up to %v, promised %v", now, s.ErrMax(now), bound)
	}
	for item, exact := range o.items {
		truth, got := exact.read(now), s.Item(now, itemName(item))
		if got.Count < truth*(1-slack)-tiny || got.Count-got.Err > truth*(1+slack)+slack*got.Count+tiny {
			t.Fatalf("at %d: item %d is in [%v, %v], truth %v", now, item, got.Count-got.Err, got.Count, truth)
		}
		if got.Err > bound {
			t.Fatalf("at %d: item %d has an error of %v, promised %v", now, item, got.Err, bound)
		}
	}
	last := TopKItem{Count: -1}
	for i, x := range s.Top(now, s.Len(), nil) {
		if i > 0 && (x.Count > last.Count || x.Count == last.Count && bytes.Compare(x.Name, last.Name) <= 0) {
			t.Fatalf("%v follows %v", x, last)
		}
		last = x
	}
}

// TestTopKBracket holds every bracket against exact counts: bursts, late events and silence, over a thousand
// half-lives.
func TestTopKBracket(t *testing.T) {
	t.Parallel()
	for seed := range 4 {
		for _, h := range []Tick{0, hour, hour / 20, 100 * hour} {
			s, exact := newTopK(t, 5, h), newTruths(h)
			bursts(seed, func(now, at Tick, item int, n float64) {
				if err := s.Add(now, at, itemName(item), n); err != nil {
					t.Fatal(err)
				}
				exact.add(at, item, n)
			}, func(now Tick) { exact.check(t, s, now, 1e-9) })
		}
	}
}

// TestTopKIsExact without a half-life and with whole amounts: not even rounding widens the bracket.
func TestTopKIsExact(t *testing.T) {
	s, exact := newTopK(t, 3, 0), newTruths(0)
	r := rng(1)
	for i := range 20_000 {
		item, n := r.below(1+r.below(500)), float64(1+r.below(3))
		if err := s.Add(epoch, epoch, itemName(item), n); err != nil {
			t.Fatal(err)
		}
		exact.add(epoch, item, n)
		if i%500 == 0 {
			exact.check(t, s, epoch, 0)
		}
	}
}

// TestTopKFinds: on a Zipf stream the first 10 of 100 entries are the 10 most frequent items.
func TestTopKFinds(t *testing.T) {
	s := newTopK(t, 10, 0)
	r := rng(2)
	for range 200_000 {
		item := int(1 / (r.float() + 1e-5)) // P(item >= x) = 1/x
		if err := s.Add(epoch, epoch, itemName(item), 1); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range s.Top(epoch, 10, nil) {
		if want := itemName(i + 1); !bytes.Equal(x.Name, want) {
			t.Errorf("number %d is %q with %v, want %q", i+1, x.Name, x.Count, want)
		}
	}
	if n := len(s.Top(epoch, 1000, nil)); n != 100 {
		t.Errorf("%d entries, want 100", n)
	}
	if n := len(s.Top(epoch, 0, nil)) + len(s.Top(epoch, -1, nil)); n != 0 {
		t.Errorf("%d items when none was asked for", n)
	}
}

// TestTopKMerge: the brackets hold for what several summaries saw together, folded one after the other, and go on
// holding for what comes then; and a merge commutes, to the bit.
func TestTopKMerge(t *testing.T) {
	for seed := range 6 {
		for _, h := range []Tick{0, hour} {
			exact := newTruths(h)
			var parts [4]*TopK
			for i := range parts {
				parts[i] = newTopK(t, 3, h)
			}
			r, end := rng(seed), epoch
			bursts(seed, func(now, at Tick, item int, n float64) {
				part := parts[r.below(4)]
				if now > epoch+50*hour && part == parts[3] {
					part = parts[0] // one falls silent
				}
				if err := part.Add(now, at, itemName(item), n); err != nil {
					t.Fatal(err)
				}
				exact.add(at, item, n)
				end = now
			}, func(Tick) {})
			all := parts[0].Clone()
			for _, p := range parts[1:] {
				ab, ba := all.Clone(), p.Clone()
				if err := errors.Join(ab.Merge(p), ba.Merge(&all)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(ab.AppendBinary(nil), ba.AppendBinary(nil)) {
					t.Fatal("a merge does not commute")
				}
				all = ab
			}
			exact.check(t, &all, end, 1e-9)
			for i := range 3000 {
				item := i * i % 1009
				if err := all.Add(end, end, itemName(item), 1); err != nil {
					t.Fatal(err)
				}
				exact.add(end, item, 1)
			}
			exact.check(t, &all, end, 1e-9)
			exact.check(t, &all, end+500*hour, 1e-9)
		}
	}
}

// TestTopKPermutes: while there is room, whole counts give the same bytes in any order.
func TestTopKPermutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(t, "items")
		order := rapid.Permutation(items).Draw(t, "order")
		a, _ := NewTopK(TopKParams{K: 1})
		b := a.Clone()
		for i, item := range items {
			if err := errors.Join(a.Add(epoch, epoch, itemName(item), float64(1+item)), b.Add(epoch, epoch, itemName(order[i]), float64(1+order[i]))); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(a.AppendBinary(nil), b.AppendBinary(nil)) {
			t.Fatalf("%v and %v", a.Top(epoch, 10, nil), b.Top(epoch, 10, nil))
		}
	})
}

// TestTopKLayout: rebases at any time and passages through bytes make no difference to the answers to come.
func TestTopKLayout(t *testing.T) {
	calm, moved := newTopK(t, 2, hour), newTopK(t, 2, hour)
	r := rng(5)
	bursts(9, func(now, at Tick, item int, n float64) {
		for _, s := range []*TopK{calm, moved} {
			if err := s.Add(now, at, itemName(item), n); err != nil {
				t.Fatal(err)
			}
		}
		switch mark := moved.landmark(now); {
		case mark > moved.mark && r.below(10) == 0:
			moved.rebase(mark)
		case r.below(100) == 0:
			b := moved.AppendBinary(nil)
			*moved = TopK{}
			if _, err := moved.Decode(b); err != nil {
				t.Fatal(err)
			}
		}
	}, func(now Tick) {
		if a, b := fmt.Sprintf("%x", calm.Top(now, 20, nil)), fmt.Sprintf("%x", moved.Top(now, 20, nil)); a != b {
			t.Fatalf("at %d:\n%s\n%s", now, a, b)
		}
		if a, b := calm.ErrMax(now), moved.ErrMax(now); a != b {
			t.Fatalf("at %d: errors up to %v and %v", now, a, b)
		}
	})
	if err := checkTopK(moved); err != nil {
		t.Error(err)
	}
}

// checkTopK checks the invariants that no encoding shows.
func checkTopK(s *TopK) error {
	for i := range s.values {
		if s.find(s.name(i), s.hashes[i]) != i {
			return errors.New("an entry is not found where it is")
		}
		if at := int(s.places[i]); int(s.heap[at]) != i || at > 0 && !s.less(s.heap[(at-1)/2], uint16(i)) {
			return errors.New("the heap is out of order")
		}
	}
	return nil
}

func TestTopKRefuses(t *testing.T) {
	s := newTopK(t, 1, hour)
	if err := s.Add(epoch, epoch, []byte("a"), 0x1p199); err != nil {
		t.Fatal(err)
	}
	before := s.AppendBinary(nil)
	for _, x := range []struct {
		name string
		n    float64
		want error
	}{{"a", 0x1p200, ErrOverflow}, {"b", -1, ErrNegative}, {strings.Repeat("x", 1025), 1, ErrName}, {"c", 0, nil}} {
		if err := s.Add(epoch, epoch, []byte(x.name), x.n); !errors.Is(err, x.want) {
			t.Errorf("adding %v: %v, want %v", x.n, err, x.want)
		}
	}
	for _, p := range []TopKParams{
		{K: 2, HalfLife: hour, Hash: Hash{Seed: 3}},
		{K: 1, Entries: 11, HalfLife: hour, Hash: Hash{Seed: 3}},
		{K: 1, HalfLife: 2 * hour, Hash: Hash{Seed: 3}},
		{K: 1, HalfLife: hour},
	} {
		o, err := NewTopK(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
	}
	if !bytes.Equal(before, s.AppendBinary(nil)) {
		t.Error("something changed")
	}
}

func TestTopKCodec(t *testing.T) {
	checkCodec(t, topKSamples(t), useTopK)
}

func FuzzTopK(f *testing.F) { fuzzCodec(f, topKSamples(f), useTopK) }

func useTopK(s *TopK) {
	for i := range 20 {
		_ = s.Add(s.Last(), s.Last(), itemName(i), 1)
	}
	d := s.Clone()
	_ = s.Merge(&d)
	s.Top(MaxTick, 10, nil)
	s.Item(-1<<63, itemName(1))
	if err := checkTopK(s); err != nil {
		panic(err)
	}
}

// TestTopKSize: about 25 bytes an entry besides its name, and names of what is gone do not pile up.
func TestTopKSize(t *testing.T) {
	s := newTopK(t, 100, hour)
	if unsafe.Sizeof(*s) != 288 || s.Size() != 288 {
		t.Errorf("empty: %d bytes, says %d", unsafe.Sizeof(*s), s.Size())
	}
	for i := range 100_000 {
		if err := s.Add(epoch+Tick(i), epoch+Tick(i), itemName(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	arrays := s.Size() - cap(s.arena)
	t.Logf("%d entries: %.1f bytes each, and %.1f of arena", s.Len(), float64(arrays)/1000, float64(cap(s.arena))/1000)
	if arrays > 25*1000 || cap(s.arena) > 60*1000 {
		t.Errorf("%d bytes of arrays, %d of names", arrays, cap(s.arena))
	}
}

func TestGoldenTopK(t *testing.T) {
	var b bytes.Buffer
	for _, s := range topKSamples(t) {
		bytes := s.AppendBinary(nil)
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 200 {
			fmt.Fprintf(&b, "bytes %x\n", bytes)
		}
		fmt.Fprintf(&b, "hash %016x top %x\n", h.Sum64(), s.Top(epoch+70*hour, 3, nil))
	}
	golden(t, "golden-topk.txt", b.Bytes())
}

func BenchmarkTopK(b *testing.B) {
	for _, h := range []Tick{0, hour} {
		s := newTopK(b, 100, h)
		names := make([][]byte, 1<<16)
		for i := range names {
			r := rng(i)
			names[i] = itemName(int(1 / (r.float() + 1e-6)))
		}
		i := 0
		b.Run(fmt.Sprintf("add/h=%d", h), func(b *testing.B) {
			for b.Loop() {
				i++
				if err := s.Add(epoch+Tick(i), epoch+Tick(i), names[i&(1<<16-1)], 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("top/h=%d", h), func(b *testing.B) {
			var dst []TopKItem
			for b.Loop() {
				dst = s.Top(epoch+Tick(i), 10, dst[:0])
			}
		})
	}
}

// It dies when Z fades below the threshold, and not before; without a half-life never.
func TestTopKDies(t *testing.T) {
	const hour = Tick(3600e6)
	s, err := NewTopK(TopKParams{K: 1, HalfLife: hour})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Death(0.5); d != 0 {
		t.Errorf("an empty one dies at %d", d)
	}
	for i := range 32 { // more than there are entries: the sum counts, not what is kept
		if err := s.Add(epoch, epoch, []byte{byte(i)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	death := s.Death(0.5)
	if late := death - epoch - 6*hour; late < 0 || late > 4 {
		t.Errorf("32 counts are below 1/2 %d ticks after 6 half-lives", late)
	}
	if before, after := s.Z(death-10), s.Z(death); before < 0.5 || after >= 0.5 {
		t.Errorf("%v before its death, %v after", before, after)
	}
	plain, _ := NewTopK(TopKParams{K: 1})
	if err := plain.Add(epoch, epoch, []byte("x"), 1); err != nil || plain.Death(0.5) != MaxTick {
		t.Errorf("without a half-life it dies at %d (%v)", plain.Death(0.5), err)
	}
}
