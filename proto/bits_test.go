package proto_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The numbers that the reader of edits takes are those of the messages.
func TestBitFieldNumbers(t *testing.T) {
	for _, c := range []struct {
		message pb.Message
		name    protoreflect.Name
		want    protoreflect.FieldNumber
	}{
		{&ebbv1.Command{}, "bits", proto.FieldCommandBits},
		{&ebbv1.BitEdits{}, "edits", proto.FieldBitEditsEdits},
		{&ebbv1.Command{}, "home", proto.FieldCommandHome},
		{&ebbv1.BitEdits{}, "until_us", proto.FieldBitEditsUntil},
		{&ebbv1.BitEdit{}, "key", proto.FieldBitEditKey},
		{&ebbv1.BitEdit{}, "op", proto.FieldBitEditOp},
		{&ebbv1.BitEdit{}, "ids", proto.FieldBitEditIDs},
		{&ebbv1.BitEdit{}, "range", proto.FieldBitEditRange},
		{&ebbv1.BitEdit{}, "offset", proto.FieldBitEditOffset},
		{&ebbv1.BitEdit{}, "fresh", proto.FieldBitEditFresh},
		{&ebbv1.BitEdit{}, "named", proto.FieldBitEditNamed},
		{&ebbv1.Command{}, "names", proto.FieldCommandNames},
		{&ebbv1.Names{}, "names", proto.FieldNamesNames},
		{&ebbv1.Names{}, "shards", proto.FieldNamesShards},
		{&ebbv1.BitRange{}, "first", proto.FieldBitRangeFirst},
		{&ebbv1.BitRange{}, "last", proto.FieldBitRangeLast},
	} {
		if got := c.message.ProtoReflect().Descriptor().Fields().ByName(c.name).Number(); got != c.want {
			t.Errorf("%s is field %d, the reader takes %d", c.name, got, c.want)
		}
	}
}

// Ids travel as they are, from 0 to the largest, and what was parsed of an edit is what was written.
func TestBitIDsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		ids := []uint64{}
		for range r.IntN(300) {
			ids = append(ids, r.Uint64()>>r.IntN(64))
		}
		if r.IntN(3) == 0 {
			ids = append(ids, 0, 1, math.MaxUint64-1, math.MaxUint64)
		}
		change := &ebbv1.BitChange{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET, Ids: slices.Clone(ids)}
		raw, err := pb.Marshal(&ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(change), {Key: []byte("r"), Op: ebbv1.BitOp_BIT_OP_FLIP, Range: &ebbv1.BitRange{First: 3, Last: 9}, Offset: 7}}})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		var seen []proto.BitEditWire
		if !proto.BitEdits(raw, func(e *proto.BitEditWire) bool {
			seen = append(seen, *e)
			return true
		}) || len(seen) != 2 {
			t.Fatalf("%d edits were read", len(seen))
		}
		got, ok := proto.DecodeBitIDs(nil, seen[0].IDs, len(ids))
		if !ok || !slices.Equal(got, ids) && len(ids) > 0 {
			t.Fatalf("%d ids of %d: %t", len(got), len(ids), ok)
		}
		if _, ok := proto.DecodeBitIDs(nil, seen[0].IDs, len(ids)-1); ok && len(ids) > 0 {
			t.Fatal("more ids than the limit are taken")
		}
		if e := seen[1]; string(e.Key) != "r" || e.Op != ebbv1.BitOp_BIT_OP_FLIP || !e.Ranged || e.First != 3 || e.Last != 9 || e.Offset != 7 || e.Span() != 7 {
			t.Fatalf("got %+v", e)
		}
	}
}

// Commands and requests that edit bitmaps are refused by their limits, and say which it was.
func TestBitsAreChecked(t *testing.T) {
	change := func(key string, op ebbv1.BitOp, ids ...uint64) *ebbv1.BitChange {
		return &ebbv1.BitChange{Key: []byte(key), Op: op, Ids: ids}
	}
	ranged := func(first, last uint64) *ebbv1.BitChange {
		return &ebbv1.BitChange{Key: []byte("k"), Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: first, Last: last}}
	}
	const set = ebbv1.BitOp_BIT_OP_SET
	for _, c := range []struct {
		name    string
		changes []*ebbv1.BitChange
		want    error
		says    string
	}{
		{"one id", []*ebbv1.BitChange{change("k", set, 1)}, nil, ""},
		{"the largest", []*ebbv1.BitChange{change("k", set, math.MaxUint64)}, nil, ""},
		{"all of a range", []*ebbv1.BitChange{ranged(0, proto.BitRangeMax-1)}, nil, ""},
		{"none", nil, proto.ErrBadRequest, "no changes"},
		{"no key", []*ebbv1.BitChange{change("", set, 1)}, proto.ErrBadKey, "empty key"},
		{"no ids", []*ebbv1.BitChange{change("k", set)}, proto.ErrBadRequest, "no ids"},
		{"no operation", []*ebbv1.BitChange{change("k", 0, 1)}, proto.ErrBadRequest, "set, clear or flip"},
		{"too long a range", []*ebbv1.BitChange{ranged(0, proto.BitRangeMax)}, proto.ErrBatchTooLarge, "the limit is 134217728"},
		{"ranges that are too long together", []*ebbv1.BitChange{ranged(0, proto.BitRangeMax-1), ranged(5, 5)}, proto.ErrBatchTooLarge, "together"},
		{"upside down", []*ebbv1.BitChange{ranged(6, 5)}, proto.ErrBadRequest, "upside down"},
		{"too many ids", []*ebbv1.BitChange{change("k", set, make([]uint64, proto.BitIDsMax+1)...)}, proto.ErrBatchTooLarge, "the limit is 65536"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := proto.CheckBits(&ebbv1.BitsRequest{Changes: c.changes})
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// Whatever bytes are edits: what a check lets through ascends and is within the limits.
func FuzzBitEdits(f *testing.F) {
	for _, change := range []*ebbv1.BitChange{
		{Key: []byte("k"), Op: 1, Ids: []uint64{1, 2, 1 << 40, math.MaxUint64}},
		{Key: []byte("k"), Op: 3, Range: &ebbv1.BitRange{First: 1, Last: 1 << 20}},
	} {
		raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{proto.EditOf(change)}}}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{0x82, 1, 14, 0x0a, 12, 0x0a, 1, 'k', 0x10, 1, 0x1a, 5, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if proto.CheckCommand(raw) != nil {
			return
		}
		var c ebbv1.Command
		if pb.Unmarshal(raw, &c) != nil {
			return
		}
		for _, e := range c.GetBits().GetEdits() {
			ids, ok := proto.DecodeBitIDs(nil, e.GetIds(), proto.BitIDsMax)
			if !ok || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) || e.GetRange().GetFirst() > e.GetRange().GetLast() {
				t.Fatalf("%v was let through", e)
			}
		}
	})
}
