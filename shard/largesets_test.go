package shard

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Before BehaviourAdds a shard knows no sets of more than 4,096 members, and no hashes that come in pieces.
func TestLargeSetsBeforeTheyAreKnown(t *testing.T) {
	_, r := newMurmur(t, BehaviourAdds-1, plainSets(4097))
	if e := r.GetError(); e.GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE ||
		e.GetMessage() != "size set.members of 4097: it must be from 16 to 4096" {
		t.Errorf("a namespace: %v", r)
	}
	s, r := newMurmur(t, BehaviourAdds-1, plainSets(4096))
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	err := bringKMV(t, s, "k", valueOf(65537, randomHashes(rand.New(rand.NewPCG(1, 2)), 65537)))
	if e := proto.AsError(err); err == nil || e.Code != ebbv1.Code_CODE_BAD_REQUEST ||
		e.Message != `the image for key "k" does not decode, or takes more memory than a key of namespace "n" may` {
		t.Errorf("hashes in pieces: %v", err)
	}
	_, r = newMurmur(t, BehaviourMax, &ebbv1.Namespace{HalfLifeUs: hourLong, Sizes: &ebbv1.Sizes{SetMembers: 4097}})
	if r.GetError().GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE {
		t.Errorf("with a half-life: %v", r)
	}
}

// A set of 65,536 members outlives snapshots and goes out as an image in one piece; in another shard it merges with
// what is there, and that is one set.
func TestLargeSetsTravel(t *testing.T) {
	s, other := murmurShard(t, plainSets(65536)), murmurShard(t, plainSets(65536))
	for i := range 70 {
		members := make([]string, 1000)
		for j := range members {
			members[j] = fmt.Sprint("member/", 1000*i+j)
		}
		addMembers(t, s, "k", members...)
		if i < 40 {
			addMembers(t, other, "k", members[:500]...)
		}
	}
	size := sizeOfSet(t, s, "k")
	s = reopen(t, s)
	if got := sizeOfSet(t, s, "k"); got != size || got < 69_000 || got > 71_000 {
		t.Errorf("%v members, and %v after a snapshot", size, got)
	}
	a := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Export{
		Export: &ebbv1.ExportQuestion{Key: []byte("k"), Large: true},
	}}}, beginning)
	image := a.GetAnswer().GetExport().GetImage()
	if len(image) < 65536*20 {
		t.Fatalf("an image of %d bytes: %v", len(image), a.GetError())
	}
	if err := bringImage(t, other, "k", image); err != nil {
		t.Fatal(err)
	}
	if got := sizeOfSet(t, other, "k"); got != size {
		t.Errorf("%v members where they merged, not %v", got, size)
	}
	one, err := exportedKMV(t, s, "k")
	two, failed := exportedKMV(t, other, "k")
	if err != nil || failed != nil || string(one) != string(two) || len(one) != 8+8*65537 {
		t.Errorf("%v, %v: hashes of %d and %d bytes", err, failed, len(one), len(two))
	}
	audit(t, reopen(t, other))
}

// BenchmarkLargeSetApplied applies entries of 1,000 members to a set that fills, which is read after each.
func BenchmarkLargeSetApplied(b *testing.B) {
	for _, k := range []uint32{4096, 65536} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			s := murmurShard(b, plainSets(k))
			for i := 0; b.Loop(); i++ {
				if i == 200 {
					s, i = murmurShard(b, plainSets(k)), 0
				}
				c := &ebbv1.Increments{}
				for range 1000 {
					in := &ebbv1.Increment{
						Key: []byte("k"), Bin: fmt.Append(nil, r.Uint64()),
						Kind: ebbv1.Kind_KIND_SET,
					}
					c.Increments = append(c.Increments, in)
				}
				entry := encode(b, beginning,
					&ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_Increments{Increments: c}})
				s.Apply(s.Applied()+1, entry, nil)
				s.Freeze().Release()
			}
		})
	}
}
