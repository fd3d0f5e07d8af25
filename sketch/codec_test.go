package sketch

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// samples are encodings of all forms and sizes.
func samples(t testing.TB) (all [][]byte) {
	var empty Distribution
	all = append(all, empty.AppendBinary(nil))
	for _, p := range everyParams() {
		for _, events := range []int{1, 30, 1000} {
			h := history{r: rng(events), now: epoch, bins: events, span: 10 * hour, negative: p.AllowNegative}
			var d Distribution
			for range events {
				e := h.next()
				if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, d.AppendBinary(nil))
		}
	}
	return all
}

func TestDecodeIsTheInverse(t *testing.T) {
	for _, b := range samples(t) {
		var d Distribution
		rest, err := d.Decode(append(b, "tail"...))
		if err != nil || string(rest) != "tail" {
			t.Fatalf("decode %x: %v, rest %q", b, err, rest)
		}
		if again := d.AppendBinary(nil); string(again) != string(b) {
			t.Fatalf("%x\nbecame\n%x", b, again)
		}
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDecodeRefuses: each prefix of good bytes, and each way to lie.
func TestDecodeRefuses(t *testing.T) {
	p := wideParams()
	var d Distribution
	for bin := range uint32(3) {
		if err := d.Add(p, epoch, epoch, 10+bin, 1); err != nil {
			t.Fatal(err)
		}
	}
	good := d.AppendBinary(nil)
	before := d.AppendBinary(nil)
	refuse := func(name string, b []byte) {
		t.Helper()
		rest, err := d.Decode(b)
		if !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("%s: %x gives %v", name, b, err)
		}
		if string(d.AppendBinary(nil)) != string(before) {
			t.Fatalf("%s: the receiver changed", name)
		}
		if err := d.Clone().check(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range good {
		refuse("a prefix", good[:i])
	}
	put := func(at int, with ...byte) []byte {
		b := append([]byte(nil), good...)
		copy(b[at:], with)
		return b
	}
	float := func(v float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
	values := len(good) - 3*8
	refuse("another version", put(0, 2))
	refuse("another form", put(1, 3))
	refuse("a length that lies", put(2, 200))
	long := append([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, good[3:]...)
	refuse("a length beyond everything", long)
	padded := append([]byte{1, 0, 0x83, 0}, good[3:]...)
	refuse("a varint that is not minimal", padded)
	refuse("z is not a number", put(values-3-16, float(math.NaN())...))
	refuse("z2 is negative", put(values-3-8, float(-1)...))
	refuse("an id past 32 bits", append(append(good[:values-1:values-1], 0xff, 0xff, 0xff, 0xff, 0x0f), good[values:]...))
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 5e-324, 0x1p-101, 0x1p600} {
		refuse("a value out of range", put(values+8, float(v)...))
	}
	refuse("a form without bins", []byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	refuse("a landmark of nothing", []byte{1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	refuse("a level above the highest", []byte{1, 2, 1, 2, 0, 7, 2, 0, 0, 0, 0, 0, 0, 0})
	refuse("a level below zero", []byte{1, 2, 1, 2, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0x80})
}

// check holds the invariants that no encoding shows.
func (d Distribution) check() error {
	if d.Len() > int(d.room) || wordsFor(d.form(), int(d.room)) > len(d.words) {
		return errors.New("bins do not fit")
	}
	for i := range d.Len() {
		if d.find(d.id(i)) != i {
			return errors.New("a bin is not found where it is")
		}
	}
	return nil
}

// FuzzDecode: whatever is accepted encodes to the same bytes and can be used; whatever is not leaves the receiver
// alone.
func FuzzDecode(f *testing.F) {
	for i, b := range samples(f) {
		seedCorpus(f, i, b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := wideParams()
		p.AllowNegative = true
		var d Distribution
		if err := d.Add(p, epoch, epoch, 1, 1); err != nil {
			t.Fatal(err)
		}
		before := d.AppendBinary(nil)
		rest, err := d.Decode(b)
		if err != nil {
			if string(d.AppendBinary(nil)) != string(before) {
				t.Fatal("refused, and changed the receiver")
			}
			return
		}
		if again := d.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x encodes to %x", b[:len(b)-len(rest)], again)
		}
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
		use(t, &d)
	})
}

// use does everything once, with the Params that fit the form.
func use(t *testing.T, d *Distribution) {
	p := wideParams()
	p.AllowNegative = true
	if d.form() == micro {
		p.Decay = Linear
	}
	r := d.At(p, epoch)
	r.Top(3, nil)
	r.WithRate(1).All(nil)
	r.P(1, 0.9)
	other := *p
	other.HalfLife = 2 * hour
	c := d.Clone()
	c.Convert(p, &other, epoch)
	c.Merge(&other, &c, nil)
	if err := d.Add(p, epoch, epoch, 1, 1); err != nil && !errors.Is(err, ErrOverflow) {
		t.Fatal(err)
	}
	d.Prune(p, d.Death(p), nil)
	for _, d := range []*Distribution{d, &c} {
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
	}
}
