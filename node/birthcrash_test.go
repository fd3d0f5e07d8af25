package node_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// TestDiskLostAtBirthOfAll: all nodes lose their power when their groups have voted and acknowledged, before the
// cluster has written down which of them live, and one loses its disk as well. It is no newcomer, though no process is
// left that has met it: nothing is forgotten, and no replica differs.
func TestDiskLostAtBirthOfAll(t *testing.T) {
	for _, victim := range []int{0, 1, 2} {
		inBubble(t, 3, 4, func(b *bubble) {
			for i := range 3 {
				b.open(i)
			}
			c := b.client()
			b.plain(c)
			keys := b.writeAll()
			name := b.config[victim].Name
			if record := b.table((victim + 1) % 3).Node(name); record.GetEnrolled() {
				t.Fatalf("the cluster knows its disk already: %v", record)
			}
			birth, _ := b.table((victim+1)%3).ReplicaOn(name, 1)
			for i := range 3 {
				b.crash(i)
			}
			b.disks[victim] = fs.NewMem()
			b.config[victim].FS = b.disks[victim]
			for i := range 3 {
				b.open(i)
			}
			rest := others(victim)
			b.until("a whole cluster", func() bool {
				now, ok := b.table(rest[0]).ReplicaOn(name, 1)
				return ok && now > birth && b.whole(3, 0, 1, 2)
			})
			for i := range 3 {
				b.ready(i)
			}
			if met := b.nodes[rest[0]].Status().GetMet(); !slices.Contains(met, name) {
				t.Errorf("node %s has met %v, and not %s", b.config[rest[0]].Name, met, name)
			}
			for _, key := range keys {
				if got := b.count(c, key, "x"); got != 1 {
					t.Errorf("%v counted of %s, want 1", got, key)
				}
			}
			b.equal(0, 1, 2)
		})
	}
}

// TestDiskLostWhileItIsRemoved: a node that comes back with an empty disk is removed before it has taken its own place.
// It is removed with the disk that was lost, and does not join again as if it were another, however often it is
// started; with an empty directory it does.
//
// Until all nodes know how (in a cluster's first seconds), the control leader refuses it, and from then on the control
// group.
func TestDiskLostWhileItIsRemoved(t *testing.T) {
	for name, version := range map[string]uint32{"by the leader": 1, "by the group": proto.VersionTakesPlace} {
		t.Run(name, func(t *testing.T) { testDiskLostWhileItIsRemoved(t, version) })
	}
}

func testDiskLostWhileItIsRemoved(t *testing.T, since uint32) {
	inBubble(t, 4, 4, func(b *bubble) {
		b.openAll()
		b.until("a version", func() bool { return b.table(0).Version() >= since })
		b.plain(b.client())
		b.writeAll()
		b.until("its record", func() bool { return b.table(0).Node("ebb-3").GetEnrolled() })
		b.crash(3)
		b.wipe(3)
		b.until("a word of its lost disk", func() bool { return strings.Contains(b.nodes[3].Status().GetDetail(), "another disk") })
		for i := range 3 {
			b.net.Cut(b.host(3), b.host(i))
		}
		b.change(0, remove("ebb-3"))
		b.until("its removal", func() bool { return b.table(0).WasRemoved("ebb-3") })
		b.net.Heal()
		b.until("its end", func() bool { return errors.As(b.said(3), new(node.Removed)) })
		b.crash(3)
		b.open(3)
		b.until("its end again", func() bool { return errors.As(b.said(3), new(node.Removed)) })
		if !b.table(0).WasRemoved("ebb-3") {
			t.Errorf("it is a member again")
		}
		b.crash(3)
		b.wipe(3)
		b.ready(3)
		b.until("four nodes", func() bool { return b.whole(3, 0, 1, 2, 3) })
		b.equal(0, 1, 2, 3)
	})
}
