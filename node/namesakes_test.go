package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

// TestTheOldDiskComesBack: a process is silent until its disk is given up and another one of its name has its place,
// and then comes back. It is the one that ends, and as who was removed does, whoever came first and whatever the clocks
// say of that.
func TestTheOldDiskComesBack(t *testing.T) {
	for _, c := range []struct {
		what    string
		behind  time.Duration // the new process's clock
		settled bool
	}{
		{what: "the new process has just come"},
		{what: "its clock says it came first, and it is settled", behind: time.Hour, settled: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			inBubble(t, 3, 4, func(b *bubble) {
				b.openAll()
				const old = 1
				b.until("a record of its disk", func() bool { return b.table(old).Node(b.config[old].Name).GetDisk() != "" })
				heir := b.newcomer(b.config[old].Name)
				b.config[heir].Clock = wrongClock{node.SystemClock{}, -c.behind}
				for _, i := range []int{0, 2, heir} {
					b.net.Cut(b.host(old), b.host(i))
				}
				time.Sleep(20 * time.Second)
				b.open(heir)
				b.ready(heir)
				if c.settled {
					time.Sleep(20 * time.Second)
				}
				b.net.Heal()
				b.until("the end of the old process", func() bool { return b.said(old) != nil })
				if err := b.said(old); !errors.As(err, new(node.Removed)) {
					t.Errorf("the old process says %v, want that its disk was given up", err)
				}
				time.Sleep(20 * time.Second) // it may take its time to end
				if err := b.said(heir); err != nil {
					t.Errorf("the one that has its place says %v", err)
				}
			})
		})
	}
}

// TestTwoProcessesOnCopiesOfADisk: both have the disk that the cluster knows, so one of them ends.
func TestTwoProcessesOnCopiesOfADisk(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		const first = 1
		b.until("a record of its disk", func() bool { return b.table(first).Node(b.config[first].Name).GetDisk() != "" })
		time.Sleep(time.Second) // it is written down
		dead := b.disks[first]
		b.crash(first)
		second := b.newcomer(b.config[first].Name)
		b.disks[second] = dead.Crash(first + 1) // as crash did
		b.config[second].FS = b.disks[second]
		b.open(first)
		b.ready(first)
		time.Sleep(20 * time.Second)
		b.open(second)
		b.until("the end of the second", func() bool { return b.said(second) != nil })
		if err := b.said(second); !errors.Is(err, proto.ErrDuplicateNode) {
			t.Errorf("the second says %v, want DUPLICATE_NODE", err)
		}
		b.nodes[second].Kill()
		if err := b.said(first); err != nil {
			t.Errorf("the first says %v", err)
		}
	})
}
