package node_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// Before their storage version a cluster makes no sets of more than 4,096 members, says what it waits for, and takes no
// hashes that do not fit into a command.
func TestLargeSetsNeedTheirVersion(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		for i := range b.config {
			b.config[i].Storage = proto.Versions{Oldest: proto.StorageOldest, Newest: proto.VersionAdds - 1}
		}
		b.openAll()
		c, murmur3 := b.client(), ebb.SetHashMurmur3
		soon, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		large := ebb.Namespace{Name: "large", Decay: ebb.DecayNone, Sizes: &ebb.Sizes{SetMembers: 4097}}
		if _, err := c.CreateNamespace(soon, large); !errors.Is(err, proto.ErrStarting) {
			t.Errorf("a namespace: %v", err)
		}
		small := ebb.Namespace{
			Name: "small", Decay: ebb.DecayNone, SetHash: murmur3,
			Sizes: &ebb.Sizes{SetMembers: 4096},
		}
		if _, err := c.CreateNamespace(context.Background(), small); err != nil {
			t.Fatal(err)
		}
		r, hashes := rand.New(rand.NewPCG(1, 2)), make([]uint64, 65537)
		for i := range hashes {
			hashes[i] = r.Uint64()
		}
		slices.Sort(hashes)
		slices.Reverse(hashes)
		value := proto.AppendKMV(nil, 65537, hashes...)
		if err := c.ImportKMV(context.Background(), "small", "k", value); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("hashes: %v", err)
		}
	})
}
