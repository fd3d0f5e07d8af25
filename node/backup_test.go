package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A namespace of a backup replaces the present one if that has no keys. One that has keys keeps what they were hashed
// and laid out by.
func TestRestoredNamespacesFitTheirKeys(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "k", "x", 1)
		of := func(name string, change func(*ebbv1.Namespace)) *ebbv1.Namespace {
			ns := pb.CloneOf(b.table(0).Namespace(name))
			change(ns)
			return ns
		}
		seed := func(ns *ebbv1.Namespace) { ns.HashSeed++ }
		for _, x := range []struct {
			name string
			ns   *ebbv1.Namespace
			want string // of the error; "" for none
		}{
			{"another seed", of("plain", seed), "namespace plain has keys in shard"},
			{"another place for bitmaps", of("plain", func(ns *ebbv1.Namespace) { ns.BitmapPlacement = ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE }), "namespace plain has keys in shard"},
			{"strings for ids", of("plain", func(ns *ebbv1.Namespace) { ns.Dictionary = &ebbv1.Dictionary{Parts: 4} }), "namespace plain has keys in shard"},
			{"other settings", of("plain", func(ns *ebbv1.Namespace) { ns.BinsMax = 100 }), ""},
			{"another seed where there are no keys", of("default", seed), ""},
		} {
			epoch := b.table(0).Epoch()
			err := c.RestoreNamespaces(context.Background(), []*ebbv1.Namespace{x.ns}, 0)
			if (err == nil) != (x.want == "") || err != nil && (!errors.Is(err, proto.ErrBadNamespace) || !strings.Contains(err.Error(), x.want)) {
				t.Errorf("%s: %v, want %q", x.name, err, x.want)
			}
			if err != nil && b.table(0).Epoch() != epoch {
				t.Errorf("%s: it is refused, and changes the table", x.name)
			}
		}
	})
}
