package node

import (
	"iter"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
)

// inBatches cuts a list, in its order, into parts that make an entry of the soft limit each, or of one element that is larger alone.
func inBatches[M protobuf.Message](all []M) iter.Seq[[]M] {
	return func(yield func([]M) bool) {
		from, size := 0, 0
		for i, m := range all {
			n := fieldBytes(protobuf.Size(m))
			if size += n; size > proto.EntryBytesSoft && i > from {
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
