package proto

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
)

// InBatches cuts a list, in its order, into parts that take so many bytes each at most as elements of a message, or of
// one element that is larger alone.
func InBatches[M pb.Message](all []M, limit int) iter.Seq[[]M] {
	return func(yield func([]M) bool) {
		from, size := 0, 0
		for i, m := range all {
			n := 1 + protowire.SizeBytes(pb.Size(m))
			if size += n; size > limit && i > from {
				if !yield(all[from:i]) {
					return
				}
				from, size = i, n
			}
		}
		if from < len(all) {
			yield(all[from:])
		}
	}
}
