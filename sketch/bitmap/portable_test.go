package bitmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/RoaringBitmap/roaring/v2/roaring64"
)

// collect reads a bitmap into a directory.
func collect(read func(io.Reader, func(uint64, Container) error) error, r io.Reader) (shelf, error) {
	var out shelf
	err := read(r, func(slice uint64, c Container) error {
		if err := Validate(c); err != nil {
			return fmt.Errorf("slice %d: %w", slice, err)
		}
		out = append(out, entry{slice, own(c, 0)})
		return nil
	})
	return out, err
}

// shapely is a bitmap with a container of each shape, except the empty one, from a slice on.
func shapely(from uint64) shelf {
	var out shelf
	containers, _ := stock()
	for i, c := range containers {
		if c.Count > 0 {
			out = append(out, entry{from + uint64(i*i), c})
		}
	}
	return out
}

func (s shelf) equal(t *testing.T, want shelf) {
	t.Helper()
	if len(s) != len(want) {
		t.Fatalf("%d containers, want %d", len(s), len(want))
	}
	for i, e := range s {
		if w := want[i]; e.slice != w.slice || e.c.Form != w.c.Form || !slices.Equal(e.c.Words, w.c.Words) {
			t.Fatalf("slice %d is %s of %d, want slice %d %s of %d", e.slice, e.c.Form, e.c.Count, w.slice, w.c.Form, w.c.Count)
		}
	}
}

// TestPortable32: roaring reads what we write, we read what roaring writes, with runs and without, and both have the
// same ids.
func TestPortable32(t *testing.T) {
	all := shapely(3)
	for _, d := range []shelf{nil, all, all[:1], all[:3], all[8:10], all[8:13], {{65535, all[0].c}}} {
		var b bytes.Buffer
		if err := WritePortable32(&b, d); err != nil {
			t.Fatal(err)
		}
		theirs := roaring.New()
		if n, err := theirs.ReadFrom(bytes.NewReader(b.Bytes())); err != nil || n != int64(b.Len()) {
			t.Fatalf("%d of %d bytes, %v", n, b.Len(), err)
		}
		if err := theirs.Validate(); err != nil && len(d) > 0 {
			t.Errorf("roaring says %v", err)
		}
		want := idsOf(d)
		if got := theirs.ToArray(); !slices.EqualFunc(got, want, func(a uint32, b uint64) bool { return uint64(a) == b }) {
			t.Fatalf("roaring reads %d ids, want %d", len(got), len(want))
		}
		for _, optimize := range []func(){func() {}, func() { theirs.RunOptimize() }} {
			optimize()
			bytesOf, err := theirs.ToBytes()
			if err != nil {
				t.Fatal(err)
			}
			got, err := collect(ReadPortable32, iotest.OneByteReader(bytes.NewReader(bytesOf)))
			if err != nil {
				t.Fatal(err)
			}
			got.equal(t, d)
		}
		got, err := collect(ReadPortable32, &b)
		if err != nil || b.Len() > 0 {
			t.Fatalf("%d bytes left, %v", b.Len(), err)
		}
		got.equal(t, d)
	}
	if err := WritePortable32(io.Discard, shelf{{65536, all[0].c}}); !errors.Is(err, ErrWide) {
		t.Error(err)
	}
}

// TestPortable64 is TestPortable32 for ids above 2^32.
func TestPortable64(t *testing.T) {
	for _, d := range []shelf{nil, shapely(5), append(append(shapely(0), shapely(1<<16)...), append(shapely(7<<16), shapely(SliceMax-500)...)...)} {
		var b bytes.Buffer
		if err := WritePortable64(&b, d); err != nil {
			t.Fatal(err)
		}
		theirs := roaring64.New()
		if _, err := theirs.ReadPortableFrom(bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		if got, want := theirs.ToArray(), idsOf(d); !slices.Equal(got, want) {
			t.Fatalf("roaring reads %d ids, want %d", len(got), len(want))
		}
		theirs.RunOptimize()
		bytesOf, err := theirs.ToPortableBytes()
		if err != nil {
			t.Fatal(err)
		}
		got, err := collect(ReadPortable64, bytes.NewReader(bytesOf))
		if err != nil {
			t.Fatal(err)
		}
		got.equal(t, d)
	}
}

// TestPortableStops: every bitmap that is cut short is refused, with the offset at which it ends. So is what the reader
// or the receiver of containers refuses.
func TestPortableStops(t *testing.T) {
	var b bytes.Buffer
	if err := WritePortable64(&b, shapely(2)); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < b.Len(); n += 1 + n/50 {
		_, err := collect(ReadPortable64, bytes.NewReader(b.Bytes()[:n]))
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), fmt.Sprintf("ends at offset %d,", n)) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	broken := errors.New("broken")
	if _, err := collect(ReadPortable64, io.MultiReader(bytes.NewReader(b.Bytes()[:99]), iotest.ErrReader(broken))); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := ReadPortable64(&b, func(uint64, Container) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	for n := range 40 {
		if err := WritePortable64(&brokenAfter{n: n, err: broken}, shapely(2)); (n < 19) != errors.Is(err, broken) {
			t.Errorf("after %d writes: %v", n, err)
		}
	}
}

type brokenAfter struct {
	n   int
	err error
}

func (w *brokenAfter) Write(b []byte) (int, error) {
	if w.n--; w.n < 0 {
		return 0, w.err
	}
	return len(b), nil
}

func TestPortableRefuses(t *testing.T) {
	u16 := func(list ...uint16) (b []byte) {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
		return b
	}
	for _, c := range []struct {
		b    []byte
		says string
	}{
		{u16(12345, 0), "cookie 12345 at offset 0"},
		{u16(12346, 1), "cookie 77882 at offset 0"},
		{u16(12346, 0, 1, 1), "65537 containers at offset 4"},
		{u16(12346, 0, 2, 0, 7, 0, 7, 0), "slice 7 behind 7 in the keys at offset 8"},
		{u16(12346, 0, 1, 0, 7, 1, 17, 0), "container 0 is at offset 16 and said to be at 17"},
		{u16(12346, 0, 1, 0, 7, 1, 16, 0, 9, 9), "9 behind 9 in the container at offset 16"},
		{append(u16(12346, 0, 1, 0, 7, 5000, 16, 0), make([]byte, 8192)...), "0 lows in place of 5001 at offset 16"},
		{append(append(u16(12347, 0), 1), u16(7, 9, 1, 5, 8)...), "9 lows in place of 10 at offset 11"},
		{append(append(u16(12347, 0), 1), u16(7, 9, 2, 5, 8, 13, 1)...), "run from 13 to 14 behind 13 in the container at offset 11"},
		{append(append(u16(12347, 0), 1), u16(7, 9, 1, 65535, 1)...), "run from 65535 to 65536"},
		{append(append(u16(12347, 0), 1), u16(7, 9, 0)...), "0 lows in place of 10"},
	} {
		if _, err := collect(ReadPortable32, bytes.NewReader(c.b)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	for _, c := range []struct {
		b    []byte
		says string
	}{
		{u16(0, 0, 1, 1), "281479271677952 buckets"},
		{u16(2, 0, 0, 0, 5, 0, 12346, 0, 0, 0, 5, 0), "bucket 5 behind 5 at offset 20"},
	} {
		if _, err := collect(ReadPortable64, bytes.NewReader(c.b)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

// FuzzPortable: whatever is read is a bitmap that roaring reads as well, and that comes back the same when it is
// written.
func FuzzPortable(f *testing.F) {
	for _, d := range []shelf{nil, shapely(0)[:2], shapely(0)[9:10], {{3, shapely(0)[0].c}, {1 << 20, Full()}}} {
		var b bytes.Buffer
		if err := WritePortable64(&b, d); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		d, err := collect(ReadPortable64, bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		if err := WritePortable64(&out, d); err != nil {
			t.Fatal(err)
		}
		again, err := collect(ReadPortable64, bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		again.equal(t, d)
		theirs := roaring64.New()
		if _, err := theirs.ReadPortableFrom(&out); err != nil || theirs.GetCardinality() != uint64(len(idsOf(d))) {
			t.Fatalf("roaring reads %d ids of %d, %v", theirs.GetCardinality(), len(idsOf(d)), err)
		}
	})
}

// TestEditsAgreeWithRoaring: the same random edits make the same bitmap there and here.
func TestEditsAgreeWithRoaring(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 0))
	theirs, ours := roaring.New(), Container{}
	dst := make([]uint64, ScratchWords)
	for range 500 {
		lo := r.Uint32N(SliceLen)
		hi := min(lo+r.Uint32N(3000), SliceLen-1)
		op := Set + Op(r.IntN(3))
		switch op {
		case Set:
			theirs.AddRange(uint64(lo), uint64(hi)+1)
		case Clear:
			theirs.RemoveRange(uint64(lo), uint64(hi)+1)
		case Flip:
			theirs.Flip(uint64(lo), uint64(hi)+1)
		}
		out, _ := EditRange(dst, ours, op, uint16(lo), uint16(hi))
		if ours = own(out, 0); uint64(ours.Count) != theirs.GetCardinality() || ours.Rank(uint16(hi)) != int(theirs.Rank(hi))-map[bool]int{true: 1}[theirs.Contains(hi)] {
			t.Fatalf("%d lows, there %d", ours.Count, theirs.GetCardinality())
		}
	}
}
