package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// newMurmur is a shard with namespace n, whose sets are hashed by murmur3.
func newMurmur(t testing.TB, behaviour uint32, def *ebbv1.Namespace) (*State, *ebbv1.CommandResult) {
	t.Helper()
	s := New(1, Heap{})
	def.Name, def.Version, def.SetHash = "n", 1, ebbv1.SetHash_SET_HASH_MURMUR3.Enum()
	r := applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: behaviour}}})
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	return s, applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
}

func applied(t testing.TB, s *State, c *ebbv1.Command) *ebbv1.CommandResult {
	t.Helper()
	c.Namespace = "n"
	return s.Apply(s.Applied()+1, encode(t, beginning, c), nil)[0]
}

func murmurShard(t testing.TB, def *ebbv1.Namespace) *State {
	t.Helper()
	s, r := newMurmur(t, BehaviourMax, def)
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	return s
}

func plainSets(members uint32) *ebbv1.Namespace {
	return &ebbv1.Namespace{Decay: ebbv1.Decay_DECAY_NONE, Sizes: &ebbv1.Sizes{SetMembers: members}}
}

func putKMV(t testing.TB, s *State, key string, value []byte) error {
	t.Helper()
	put := &ebbv1.PutKey{Key: []byte(key), Merge: true, What: &ebbv1.PutKey_Kmv{Kmv: value}}
	r := applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}})
	if err := proto.FromWire(r.Error); err != nil {
		return err
	}
	return nil
}

// bringKMV puts a value as a client does: in pieces if it does not fit into a command.
func bringKMV(t testing.TB, s *State, key string, value []byte) error {
	t.Helper()
	if len(value) <= proto.ImageBytesMax {
		return putKMV(t, s, key, value)
	}
	return bringImage(t, s, key, value)
}

// bringImage merges what comes in pieces into a key.
func bringImage(t testing.TB, s *State, key string, image []byte) error {
	t.Helper()
	const most = proto.ImageBytesMax
	for at := 0; at < len(image); at += most {
		r := applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: &ebbv1.PutPiece{
			Upload: 7, Offset: uint64(at), Data: image[at:min(at+most, len(image))], Bytes: uint64(len(image)),
		}}})
		if r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	put := &ebbv1.PutKey{Key: []byte(key), Merge: true, What: &ebbv1.PutKey_Upload{Upload: 7}}
	if err := proto.FromWire(applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}}).Error); err != nil {
		return err
	}
	return nil
}

func addMembers(t testing.TB, s *State, key string, members ...string) {
	t.Helper()
	c := &ebbv1.Increments{}
	for _, m := range members {
		in := &ebbv1.Increment{Key: []byte(key), Bin: []byte(m), Kind: ebbv1.Kind_KIND_SET}
		c.Increments = append(c.Increments, in)
	}
	r := applied(t, s, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: c}})
	if r.Error != nil || len(r.Refused) > 0 {
		t.Fatal(r)
	}
}

func exportedKMV(t testing.TB, s *State, key string) ([]byte, error) {
	t.Helper()
	a := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Export{
		Export: &ebbv1.ExportQuestion{Key: []byte(key), Kmv: true},
	}}}, beginning)
	if err := proto.FromWire(a.GetError()); err != nil {
		return nil, err
	}
	if e := a.GetAnswer().GetExport(); e.GetFound() {
		return e.GetImage(), nil
	}
	return nil, nil
}

func sizeOfSet(t testing.TB, s *State, key string) float64 {
	t.Helper()
	a := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Summary{
		Summary: &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}},
	}}}, beginning)
	if a.GetError() != nil {
		t.Fatal(a.GetError())
	}
	return a.GetAnswer().GetSummary().GetTotal().GetValue()
}

// valueOf is what gocountme stores of a set of these hashes.
func valueOf(k int, hashes []uint64) []byte {
	hashes = slices.Compact(slices.Sorted(slices.Values(hashes)))
	hashes = hashes[:min(k, len(hashes))]
	slices.Reverse(hashes)
	return proto.AppendKMV(nil, uint64(k), hashes...)
}

func randomHashes(r *rand.Rand, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}

// The hash of gocountme is the first 8 bytes, in little endian, of murmur3 x64 128 with seed 0.
func TestMurmur3OfGocountme(t *testing.T) {
	for member, want := range map[string]uint64{
		"hello": 0xcbd8a7b341bd9b02, "hello, world": 0x342fac623a5ebc8e,
		"19 Jan 2038 at 3:14:07 AM":                    0xb89e5988b737affc,
		"The quick brown fox jumps over the lazy dog.": 0xcd99481f9ee902c9,
	} {
		if got := (&event{bin: []byte(member), murmur: true}).memberHash(); got != want {
			t.Errorf("%q: %#x, not %#x", member, got, want)
		}
	}
	s := murmurShard(t, plainSets(16))
	addMembers(t, s, "k", "hello", "hello, world", "hello")
	got, err := exportedKMV(t, s, "k")
	if want := proto.AppendKMV(nil, 17, 0xcbd8a7b341bd9b02, 0x342fac623a5ebc8e); err != nil || !bytes.Equal(got, want) {
		t.Errorf("% x, %v\nnot % x", got, err, want)
	}
}

// Stored values of gocountme come in and go out unchanged, and their estimate is that of gocountme.
func TestKMVGoesInAndOutUnchanged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, k := range []int{17, 64, 1024, 1025, 4097, 8192, 32769, 65537} {
		for _, n := range []int{1, k / 2, k - 1, k, 5 * k} {
			s := murmurShard(t, plainSets(uint32(max(k-1, 1024))))
			value := valueOf(k, randomHashes(r, n))
			if err := bringKMV(t, s, "k", value); err != nil {
				t.Fatalf("k %d, %d members: %v", k, n, err)
			}
			s = reopen(t, s)
			got, err := exportedKMV(t, s, "k")
			if err != nil || !bytes.Equal(got, value) {
				t.Fatalf("k %d, %d members: %v, %d bytes, not the %d that came", k, n, err, len(got), len(value))
			}
			want := float64(n)
			if n >= k {
				want = float64(k-1) * 0x1p64 / float64(binary.BigEndian.Uint64(value[8:]))
			}
			if size := sizeOfSet(t, s, "k"); math.Abs(size-want) > 1e-9*want {
				t.Errorf("k %d, %d members: %v, not %v", k, n, size, want)
			}
		}
	}
}

// What comes in twice, in parts, or to a set that has members, is a union.
func TestKMVMerges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	a, b := randomHashes(r, 300), randomHashes(r, 20)
	s := murmurShard(t, plainSets(100))
	for _, part := range [][]uint64{a, b, a, a[:10]} {
		if err := putKMV(t, s, "k", valueOf(64, part)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := exportedKMV(t, s, "k")
	if want := valueOf(64, append(a, b...)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v: the union of two values is another one", err)
	}
	addMembers(t, s, "m", "hello")
	if err := putKMV(t, s, "m", valueOf(101, []uint64{0xcbd8a7b341bd9b02, 7})); err != nil {
		t.Fatal(err)
	}
	if got := sizeOfSet(t, s, "m"); got != 2 {
		t.Errorf("%v members, not 2", got)
	}
	if err := putKMV(t, s, "small", valueOf(101, randomHashes(r, 80))); err != nil {
		t.Fatal(err)
	}
	if err := putKMV(t, s, "small", valueOf(17, []uint64{7})); err != nil { // all of its members, though its k is small
		t.Fatal(err)
	}
	if got := sizeOfSet(t, s, "small"); got != 81 {
		t.Errorf("%v members, not 81", got)
	}
	large := valueOf(4000, randomHashes(r, 4000)) // larger than the namespace makes its sets
	if err := putKMV(t, s, "large", large); err != nil {
		t.Fatal(err)
	}
	if got, err := exportedKMV(t, s, "large"); err != nil || len(got) != 8+8*101 || !bytes.HasSuffix(large, got[8:]) {
		t.Errorf("%v: %d bytes of a value that is larger than a set", err, len(got))
	}
}

// A set that forgets takes hashes as seen now, and gives them as long as it has all of them.
func TestKMVOfSetsThatForget(t *testing.T) {
	s := murmurShard(t, &ebbv1.Namespace{HalfLifeUs: hourLong, Sizes: &ebbv1.Sizes{SetMembers: 16}})
	value := valueOf(17, []uint64{1, 2, 3})
	if err := putKMV(t, s, "k", value); err != nil {
		t.Fatal(err)
	}
	if got, err := exportedKMV(t, s, "k"); err != nil || !bytes.Equal(got, value) {
		t.Errorf("% x, %v", got, err)
	}
	full := valueOf(17, randomHashes(rand.New(rand.NewPCG(5, 6)), 40))
	if err := putKMV(t, s, "full", full); !errors.Is(err, proto.ErrBadNamespace) {
		t.Errorf("a sample: %v", err)
	}
	for i := range 40 {
		addMembers(t, s, "k", string(rune('a'+i)))
	}
	if _, err := exportedKMV(t, s, "k"); !errors.Is(err, proto.ErrBadRequest) {
		t.Errorf("more than are kept: %v", err)
	}
}

// Hashes do not go where members are hashed in another way, and no shard takes them before all know them.
func TestKMVRefusals(t *testing.T) {
	good := valueOf(17, []uint64{1, 2, 3})
	s := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
	if err := putKMV(t, s.State, "k", good); !errors.Is(err, proto.ErrBadNamespace) {
		t.Errorf("xxh3: %v", err)
	}
	addMembers(t, s.State, "k", "a")
	if _, err := exportedKMV(t, s.State, "k"); !errors.Is(err, proto.ErrBadNamespace) {
		t.Errorf("xxh3, out: %v", err)
	}
	old := definedAt(t, &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	if err := putKMV(t, old, "k", good); err == nil || err.Error() != proto.AsError(errMalformedCommand()).Error() {
		t.Errorf("before it is known: %v", err)
	}
	_, r := newMurmur(t, BehaviourSetHash-1, plainSets(16))
	if e := proto.FromWire(r.Error); e == nil || !e.Is(proto.ErrBadNamespace) {
		t.Errorf("a definition before it is known: %v", r)
	}
	murmur := murmurShard(t, plainSets(16))
	for name, value := range map[string][]byte{
		"nothing": nil, "half a number": good[:12], "k of 16": valueOf(16, []uint64{1}),
		"k of 65538": valueOf(65538, nil),
		"too many":   append(valueOf(17, randomHashes(rand.New(rand.NewPCG(7, 8)), 17)), make([]byte, 8)...),
		"rising":     proto.AppendKMV(nil, 17, 1, 2), "twice": proto.AppendKMV(nil, 17, 2, 2),
	} {
		if err := putKMV(t, murmur, "k", value); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	addMembers(t, murmur, "k", "a")
	image := exportOf(t, murmur, "k")
	merge := &ebbv1.PutKey{Key: []byte("k"), Merge: true, What: &ebbv1.PutKey_Image{Image: image}}
	if r := s.put(merge); r.Error == nil {
		t.Error("an image by murmur3 merged where members are hashed by xxh3")
	}
	if r := applied(t, murmur, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
		Key: []byte("k"), Merge: true, What: &ebbv1.PutKey_Image{Image: exportOf(t, s.State, "k")},
	}}}); r.Error == nil {
		t.Error("an image by xxh3 merged where members are hashed by murmur3")
	}
}

func exportOf(t testing.TB, s *State, key string) []byte {
	t.Helper()
	a := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Export{
		Export: &ebbv1.ExportQuestion{Key: []byte(key)},
	}}}, beginning)
	if !a.GetAnswer().GetExport().GetFound() {
		t.Fatalf("no key %s: %v", key, a.GetError())
	}
	return a.GetAnswer().GetExport().GetImage()
}

// FuzzKMV: whatever bytes come as hashes, they are refused, or go out as they came, or as a part of that.
func FuzzKMV(f *testing.F) {
	f.Add(valueOf(17, []uint64{1, 2, 3}))
	f.Add(valueOf(17, randomHashes(rand.New(rand.NewPCG(9, 10)), 17)))
	f.Add(valueOf(65537, nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, value []byte) {
		s := murmurShard(t, plainSets(16))
		bring := putKMV
		if len(value) > 0 && value[0] == 0 {
			bring = bringImage // as large ones come
		}
		if err := bring(t, s, "k", value); err != nil {
			return
		}
		got, err := exportedKMV(t, s, "k")
		if err != nil {
			t.Fatal(err)
		}
		if got != nil && (proto.CheckKMV(got) != nil || !bytes.HasSuffix(value, got[8:])) {
			t.Fatalf("% x came as % x", got, value)
		}
		addMembers(t, s, "k", "a")
		audit(t, reopen(t, s))
	})
}
