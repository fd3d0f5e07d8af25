package proto

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
)

// InBatches splits a list, in its order, into parts that take at most limit bytes each as elements of a message. An
// element that is larger than limit is a part of its own.
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
