package node

import (
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A node with an empty disk starts among nodes of a living cluster only when
// they have said that they do not know it: one that does not answer that may be
// the one that does.
func TestLostDisk(t *testing.T) {
	n := &Node{cfg: Config{Name: "ebb-2", Shards: 4, Replication: 3}}
	table := func(enrolled bool) *ebbv1.Table {
		return &ebbv1.Table{ClusterId: "c", Shards: 4, Replication: 3, Nodes: []*ebbv1.NodeRecord{{Name: "ebb-2", Enrolled: enrolled}}}
	}
	late := proto.ErrDeadline.Errorf("too late")
	both := []report{{node: "ebb-0", clusterID: "c"}, {node: "ebb-1", clusterID: "c"}}
	for _, c := range []struct {
		what    string
		reports []report
		tables  map[string]*ebbv1.Table
		told    int
		want    error
	}{
		{"a cluster that is not born", []report{{node: "ebb-0"}, {node: "ebb-1"}}, nil, 2, nil},
		{"nobody says", both, nil, 0, nil},
		{"one says", both, map[string]*ebbv1.Table{"ebb-1": table(false)}, 1, nil},
		{"both say that it is new", both, map[string]*ebbv1.Table{"ebb-0": table(false), "ebb-1": table(false)}, 2, nil},
		{"the second knows better", both, map[string]*ebbv1.Table{"ebb-0": table(false), "ebb-1": table(true)}, 0, proto.ErrWrongCluster},
		{"it is no member", both, map[string]*ebbv1.Table{"ebb-0": {ClusterId: "c"}}, 0, proto.ErrWrongCluster},
	} {
		told, err := n.lostDisk(c.reports, func(node string) (*ebbv1.Table, error) {
			if got := c.tables[node]; got != nil {
				return got, nil
			}
			return nil, late
		})
		if told != c.told || !errors.Is(err, c.want) {
			t.Errorf("%s: told by %d, %v; want %d, %v", c.what, told, err, c.told, c.want)
		}
	}
}
