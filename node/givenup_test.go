package node

import (
	"testing"

	"github.com/ebbdb/ebb/cluster"
)

// A replica is not this node's any more when a newer table says so than the node has, and than made the replica.
func TestGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		group  uint32
		epoch  uint64
		have   replicaRecord
		wanted bool
	}{
		"held":              {3, 9, replicaRecord{ID: 7, Epoch: 5}, false},
		"not held":          {3, 9, replicaRecord{ID: 8, Epoch: 5}, true},
		"made later":        {3, 9, replicaRecord{ID: 8, Epoch: 10}, false},
		"without an answer": {3, 0, replicaRecord{ID: 8}, false},
		"control group":     {cluster.ControlShard, 9, replicaRecord{ID: 8}, false},
	} {
		r := &recollection{n: &Node{tables: newTables(nil)}, epoch: c.epoch, held: []uint64{7}}
		if got := r.givenUp(c.group, c.have); got != c.wanted {
			t.Errorf("%s: %v, want %v", name, got, c.wanted)
		}
	}
}
