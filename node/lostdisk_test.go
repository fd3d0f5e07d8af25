package node

import (
	"errors"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A node with an empty disk founds replicas among nodes of a living cluster only when
// they have said that they do not know it: one that does not answer that may be
// the one that does. One that they know has to join.
func TestLostDisk(t *testing.T) {
	n := &Node{cfg: Config{Name: "ebb-2", Shards: 4, Replication: 3}}
	removed := &ebbv1.Table{ClusterId: "c", Removed: []string{"ebb-2"}}
	table := func(enrolled bool) *ebbv1.Table {
		return &ebbv1.Table{ClusterId: "c", Shards: 4, Replication: 3, Nodes: []*ebbv1.NodeRecord{{Name: "ebb-2", Enrolled: enrolled}}}
	}
	late := proto.ErrDeadline.Errorf("too late")
	both := []report{{node: "ebb-0", clusterID: "c"}, {node: "ebb-1", clusterID: "c"}}
	for _, c := range []struct {
		what     string
		reports  []report
		tables   map[string]*ebbv1.Table
		answered int
		joins    bool
		want     error
	}{
		{"a cluster that is not born", []report{{node: "ebb-0"}, {node: "ebb-1"}}, nil, 2, false, nil},
		{"nobody says", both, nil, 0, false, nil},
		{"one says", both, map[string]*ebbv1.Table{"ebb-1": table(false)}, 1, false, nil},
		{"both say that it is new", both, map[string]*ebbv1.Table{"ebb-0": table(false), "ebb-1": table(false)}, 2, false, nil},
		{"the second knows better", both, map[string]*ebbv1.Table{"ebb-0": table(false), "ebb-1": table(true)}, 0, true, nil},
		{"one was in contact with it", []report{{node: "ebb-0"}, {node: "ebb-1", contacted: []string{"ebb-0", "ebb-2"}}}, nil, 0, true, nil},
		{"it was removed", both, map[string]*ebbv1.Table{"ebb-0": removed}, 0, true, nil},
		{"it is no member", both, map[string]*ebbv1.Table{"ebb-0": {ClusterId: "c"}}, 0, false, proto.ErrWrongCluster},
	} {
		answered, born, joins, err := n.lostDisk(c.reports, func(node string) (*ebbv1.Table, error) {
			if got := c.tables[node]; got != nil {
				return got, nil
			}
			return nil, late
		})
		if want := c.reports[0].clusterID != "" || c.joins; born != want {
			t.Errorf("%s: there is a cluster: %v, want %v", c.what, born, want)
		}
		if answered != c.answered || joins != c.joins || !errors.Is(err, c.want) {
			t.Errorf("%s: told by %d, joins %v, %v; want %d, %v, %v", c.what, answered, joins, err, c.answered, c.joins, c.want)
		}
	}
}

// A disk is lost when no node has heard of it for a while without a break.
func TestLostAfterSilence(t *testing.T) {
	start := time.Now()
	var l lostDisks
	old := &ebbv1.NodeRecord{Name: "ebb-2", Disk: "old"}
	for _, c := range []struct {
		at, want time.Duration
		heard    bool
		disk     string
	}{
		{at: 0, want: 0},
		{at: 2 * time.Second, want: 2 * time.Second},
		{at: 3 * time.Second, heard: true},
		{at: 4 * time.Second, want: 0},
		{at: 6 * time.Second, want: 2 * time.Second},
		{at: 20 * time.Second, want: 0}, // lasts was not called for too long
		{at: 24 * time.Second, want: 4 * time.Second},
		{at: 25 * time.Second, disk: "the one after", want: 0},
	} {
		if c.heard {
			l.forget("ebb-2")
			continue
		}
		if c.disk != "" {
			old.Disk = c.disk
		}
		if got := l.lasts(old, start.Add(c.at)); got != c.want {
			t.Errorf("at %v nobody has heard of it for %v, want %v", c.at, got, c.want)
		}
	}
}
