package cluster

import (
	"bytes"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
)

// A reader of the keys sees each at its place while some are taken out: memberlist hands out the slice that it changes.
func TestReadersKeepTheirKeys(t *testing.T) {
	keys := [][]byte{
		bytes.Repeat([]byte{'a'}, 32), bytes.Repeat([]byte{'b'}, 32),
		bytes.Repeat([]byte{'c'}, 32), bytes.Repeat([]byte{'d'}, 32),
	}
	for _, wanted := range [][][]byte{{keys[0], keys[2], keys[3]}, {keys[0], keys[3]}, {keys[0]}, keys} {
		ring, err := memberlist.NewKeyring(keys, keys[0])
		if err != nil {
			t.Fatal(err)
		}
		held := ring.GetKeys()
		if err := trim(ring, wanted); err != nil {
			t.Fatal(err)
		}
		if got := ring.GetKeys(); !slices.EqualFunc(got, wanted, bytes.Equal) {
			t.Errorf("keys %q, want %q", got, wanted)
		}
		for i, k := range wanted {
			at := slices.IndexFunc(held, func(h []byte) bool { return bytes.Equal(h, k) })
			if at < 0 || !bytes.Equal(keys[at], k) {
				t.Errorf("key %d of %d has moved to %d for a reader", i, len(wanted), at)
			}
		}
	}
}
