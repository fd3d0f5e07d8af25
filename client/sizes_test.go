package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// sizes are around the limit of what goes in one command: below it, above it, around what a command is, and above what
// the limit was said to be.
var sizes = []int{
	proto.ImageBytesMax, proto.ImageBytesMax + 1, proto.CommandBytesMax, 252 << 10, 252<<10 + 1, 300 << 10,
}

// widen makes a key of namespace n whose image has so many bytes.
func widen(t *testing.T, c *ebb.Client, key string, size int) {
	t.Helper()
	const name, bin = 200, 1 + 8 + 2 + 200 // of a bin: id, count, length and name
	n := 0
	add := func(length int) {
		in := ebb.One(key, fmt.Sprintf("%0*d", length, n))
		in.Kind = ebb.KindDistribution
		if err := c.Increment(t.Context(), "n", in); err != nil {
			t.Fatal(err)
		}
		n++
	}
	var list []ebb.Increment
	for ; n < size/bin-2; n++ {
		in := ebb.One(key, fmt.Sprintf("%0*d", name, n))
		in.Kind = ebb.KindDistribution
		list = append(list, in)
	}
	if err := c.Increment(t.Context(), "n", list...); err != nil {
		t.Fatal(err)
	}
	for left := size - imageOf(t, c, "n", key).Bytes(); left > 0; left = size - imageOf(t, c, "n", key).Bytes() {
		takes := left
		if left > 256+bin-name { // the last one needs a name that is long enough
			takes = min(bin, left-141)
		}
		if takes < 128+bin-name {
			takes = min(takes, 127+bin-name-1) + 1 // the length of its name takes a byte less
		}
		add(takes - bin + name)
	}
	if got := imageOf(t, c, "n", key).Bytes(); got != size {
		t.Fatalf("key %s has an image of %d bytes, not of %d", key, got, size)
	}
}

func imageOf(t *testing.T, c *ebb.Client, ns, key string) *ebb.Sketch {
	t.Helper()
	s, err := c.ExportSketch(t.Context(), ns, key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// setVersion makes a storage version that of the cluster.
func (w *world) setVersion(version uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wire := protobuf.CloneOf(w.table.Load().Wire())
	wire.Version, wire.Epoch = version, wire.Epoch+1
	w.adopt(wire)
}

// One limit says what goes from shard to shard in one command, at all doors: what is larger goes in pieces where there
// are some, or the error names the key and the limit.
func TestOneLimitOfWhatTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ctx := t.Context()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "n", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		pieces, sent := 0, 0
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			sent = max(sent, len(cmd.GetCommand()))
			if _, field, _ := proto.CommandBody(cmd.GetCommand()); field == proto.FieldCommandPutPiece {
				pieces++
			}
			return nil, false
		})
		for _, size := range sizes {
			key := fmt.Sprintf("wide/%d", size)
			widen(t, c, key, size)
			was := imageOf(t, c, "n", key)
			pieces = 0
			if err := c.ImportSketch(ctx, was, ebb.ImportOptions{Namespace: "imported", Create: true}); err != nil {
				t.Errorf("import of %d bytes: %v", size, err)
			} else if got := imageOf(t, c, "imported", key); got.Bytes() != size ||
				pieces > 0 != (size > proto.ImageBytesMax) {
				t.Errorf("import of %d bytes has %d, in %d pieces", size, got.Bytes(), pieces)
			}
			pieces = 0
			if err := c.Rename(ctx, "n", key, elsewhere(key), false); err != nil ||
				pieces > 0 != (size > proto.ImageBytesMax) {
				t.Errorf("rename of %d bytes in %d pieces: %v", size, pieces, err)
			}
			if err := c.Rename(ctx, "n", elsewhere(key), key, false); err != nil {
				t.Errorf("rename of %d bytes back: %v", size, err)
			}
		}
		if sent <= proto.ImageBytesMax || sent > proto.CommandBytesMax {
			t.Errorf("the largest command has %d bytes", sent)
		}
		w.setVersion(proto.VersionGoneBack)
		for _, size := range sizes[1:] {
			key, limit := fmt.Sprintf("wide/%d", size), fmt.Sprint(proto.ImageBytesMax)
			err := w.connect().Rename(ctx, "n", key, elsewhere(key), false)
			named := err != nil && strings.Contains(err.Error(), key) && strings.Contains(err.Error(), limit)
			if !errors.Is(err, ebb.ErrKeyTooLarge) || !named {
				t.Errorf("rename of %d bytes without pieces: %v", size, err)
			}
		}
		result, err := w.connect().CopyNamespace(ctx, "n", "before", ebb.CopyOptions{SkipTooLarge: true})
		if err != nil || result.Keys != 1 || result.LeftOut != len(sizes)-1 {
			t.Errorf("copy without pieces: %+v, %v", result, err)
		}
		w.setVersion(proto.VersionAdds)
		result, err = w.connect().CopyNamespace(ctx, "n", "copied", ebb.CopyOptions{})
		if err != nil || result.Keys != len(sizes) || result.LeftOut > 0 {
			t.Errorf("copy: %+v, %v", result, err)
		}
		for _, size := range sizes[1:] {
			key := fmt.Sprintf("wide/%d", size)
			if was, is := imageOf(t, c, "n", key), imageOf(t, c, "copied", key); was.Bytes() != is.Bytes() {
				t.Errorf("the copy of %d bytes has %d", was.Bytes(), is.Bytes())
			}
		}
	})
}

// elsewhere is a name for a key of namespace n that lies in another shard.
func elsewhere(key string) string {
	home := proto.ShardOf("n", []byte(key), testShards)
	for i := 0; ; i++ {
		if to := fmt.Sprintf("renamed/%s/%d", key, i); proto.ShardOf("n", []byte(to), testShards) != home {
			return to
		}
	}
}

// A sketch of several pieces is of one moment, and a key that is written all the time is refused as busy.
func TestSketchesInPiecesAreOfOneMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		w := newWorld(t, 1)
		c := w.connect()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "n", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		var list []ebb.Increment
		for i := range 20_000 {
			in := ebb.One("wide", fmt.Sprintf("%0240d", i))
			in.Kind = ebb.KindDistribution
			list = append(list, in)
		}
		if err := c.Increment(ctx, "n", list...); err != nil {
			t.Fatal(err)
		}
		writer, writes := w.connect(), 1
		w.mu.Lock()
		w.heard = func(req any) {
			ask, _ := req.(*ebbv1.AskRequest)
			if len(ask.GetQuestions()) == 0 || ask.GetQuestions()[0].GetExport().GetFrom() == 0 || writes == 0 {
				return
			}
			writes--
			if err := writer.Increment(ctx, "n", ebb.One("wide", "between two pieces")); err != nil {
				t.Error(err)
			}
		}
		w.mu.Unlock()
		s := throughFile(t, imageOf(t, c, "n", "wide"))
		if s.Bytes() <= proto.LargeImageBytesMax || writes > 0 {
			t.Fatalf("%d bytes, %d writes to come", s.Bytes(), writes)
		}
		writes = 1_000
		if _, err := c.ExportSketch(ctx, "n", "wide"); !errors.Is(err, ebb.ErrKeyBusy) {
			t.Errorf("a key that is written all the time: %v", err)
		}
		writes = 0
		w.setVersion(proto.VersionGoneBack)
		err := w.connect().ImportSketch(ctx, s, ebb.ImportOptions{Key: "new"})
		if !errors.Is(err, ebb.ErrKeyTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(proto.LargeImageBytesMax)) {
			t.Errorf("before version %d: %v", proto.VersionAdds, err)
		}
		w.setVersion(proto.VersionAdds)
		for range 2 {
			if err := w.connect().ImportSketch(ctx, s, ebb.ImportOptions{Key: "new"}); err != nil {
				t.Fatal(err)
			}
		}
		if d, err := c.Top(ctx, "n", "new", 1); err != nil || d.Z != 2*20_001 {
			t.Errorf("%v, %v", d.Z, err)
		}
	})
}

// A value of gocountme that is larger than a command goes in pieces, and is cut to what a set of its namespace keeps.
func TestLargeValuesOfGocountme(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := newWorld(t, 1).connect()
		for _, ns := range []ebb.Namespace{
			{Name: "n", Decay: ebb.DecayNone, SetHash: ebb.SetHashMurmur3}, {Name: "hour", SetHash: ebb.SetHashMurmur3},
		} {
			if _, err := c.CreateNamespace(ctx, ns); err != nil {
				t.Fatal(err)
			}
		}
		value := func(k, hashes int) []byte {
			out := proto.AppendKMV(nil, uint64(k))
			for i := hashes; i > 0; i-- {
				out = proto.AppendKMV(out, uint64(i)<<40)
			}
			return out
		}
		for key, value := range map[string][]byte{
			"full": value(proto.KMVSizeMax, proto.KMVSizeMax), "less": value(proto.KMVSizeMax, proto.KMVSizeMax-1),
			"few": value(2_000, 2_000),
		} {
			if err := c.ImportKMV(ctx, "n", key, value); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		want, err := c.ExportKMV(ctx, "n", "few")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"full", "less"} {
			if got, err := c.ExportKMV(ctx, "n", key); err != nil || string(got) != string(want) {
				t.Errorf("%s: %d bytes, not %d, %v", key, len(got), len(want), err)
			}
		}
		if err = c.ImportKMV(ctx, "hour", "all", value(proto.KMVSizeMax, proto.KMVSizeMax-1)); err != nil {
			t.Errorf("where sets forget: %v", err)
		}
	})
}
