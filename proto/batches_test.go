package proto

import (
	"slices"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Batches are all of a list, in its order, and within the soft limit.
func TestBatches(t *testing.T) {
	for _, sizes := range [][]int{nil, {1}, {70_000}, {70_000, 1, 70_000}, {40_000, 40_000, 20_000}, slices.Repeat([]int{500}, 1000)} {
		var all, got []*ebbv1.Namespace
		for _, n := range sizes {
			all = append(all, &ebbv1.Namespace{Universe: make([]byte, n)})
		}
		for some := range InBatches(all, EntryBytesSoft) {
			if size := pb.Size(&ebbv1.RestoreNamespacesRequest{Namespaces: some}); len(some) == 0 || len(some) > 1 && size > EntryBytesSoft {
				t.Errorf("%d of %d: a batch of %d in %d bytes", len(got), len(all), len(some), size)
			}
			got = append(got, some...)
		}
		if !slices.Equal(got, all) {
			t.Errorf("%d come of %d, or in another order", len(got), len(all))
		}
		for range InBatches(all, EntryBytesSoft) {
			break // and nothing is yielded after it
		}
	}
}
