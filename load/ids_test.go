package load

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

func readIDs(text, format, column string) (ids []uint64, err error) {
	err = ReadIDs(bufio.NewReader(strings.NewReader(text)), format, column, Options{}, func(id uint64) error {
		ids = append(ids, id)
		return nil
	})
	return ids, err
}

// Files of ids: a line each, or a column; what is no id is refused with its line.
func TestReadIDs(t *testing.T) {
	for _, c := range []struct {
		name, text, format, column string
		want                       []uint64
		err                        string
	}{
		{"lines", "3\n 1 \n\n18446744073709551615", "auto", "", []uint64{3, 1, math.MaxUint64}, ""},
		{"nothing", "", "auto", "", nil, ""},
		{"too large", "1\n18446744073709551616\n", "ids", "", []uint64{1}, "line 2"},
		{"negative", "-1\n", "ids", "", nil, `line 1: "-1" is no id`},
		{"a named column", "a,id\nx,7\ny,\"8\"\n", "csv", "id", []uint64{7, 8}, ""},
		{"a numbered column with a header", "a,id\nx,7\n", "csv", "2", []uint64{7}, ""},
		{"a numbered column without one", "9,x\n8,y\n", "csv", "1", []uint64{9, 8}, ""},
		{"the only column", "id\n5\n", "csv", "", []uint64{5}, ""},
		{"no such column", "a,b\n1,2\n", "csv", "c", nil, `no column "c"`},
		{"a short row", "1,2\n3\n", "csv", "2", []uint64{2}, "row 2 has 1 columns"},
		{"a bad cell", "id\n5\nx\n", "csv", "id", []uint64{5}, `row 3: "x" is no id`},
		{"column 0", "1\n", "csv", "0", nil, "numbered from 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids, err := readIDs(c.text, c.format, c.column)
			if !slices.Equal(ids, c.want) || (err == nil) != (c.err == "") || err != nil && (!errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v and %v", ids, err)
			}
		})
	}
}

// What is written as a roaring bitmap is read again, whether its ids go into 32 bits or not; one that is cut is
// refused.
func TestRoaringFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, width := range []int{20, 32, 64} {
		var ids []uint64
		for range 20_000 {
			ids = append(ids, r.Uint64()>>(64-width))
		}
		for i := range uint64(3000) {
			ids = append(ids, 5000+i)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		var set IDs
		for _, id := range ids {
			set.Add(id)
		}
		var b bytes.Buffer
		if err := set.WriteRoaring(&b); err != nil {
			t.Fatal(err)
		}
		if got, err := readIDs(b.String(), "auto", ""); err != nil || !slices.Equal(got, ids) {
			t.Fatalf("%d bits: %d ids of %d: %v", width, len(got), len(ids), err)
		}
		if _, err := readIDs(b.String()[:b.Len()/2], "roaring", ""); !errors.Is(err, bitmap.ErrCorrupt) {
			t.Errorf("%d bits, cut: %v", width, err)
		}
	}
}

// No file makes a reader panic, or yield more ids than it can hold.
func FuzzReadIDs(f *testing.F) {
	f.Add("1\n2\n", "ids")
	f.Add("id,x\n1,2\n", "csv")
	f.Add("\x3b\x30\x00\x00\x01\x00\x00\x01\x00\x01\x00\x05\x00\x09\x00", "roaring")
	f.Add("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x3a\x30\x00\x00\x00\x00\x00\x00", "auto")
	stop := errors.New("enough")
	f.Fuzz(func(t *testing.T, text, format string) {
		n := 0
		err := ReadIDs(bufio.NewReader(strings.NewReader(text)), format, "1", Options{}, func(uint64) error {
			if n++; n > 1<<17 {
				return stop
			}
			return nil
		})
		if n > 0 && err == nil && len(text) == 0 {
			t.Fatalf("%d ids of nothing", n)
		}
	})
}
