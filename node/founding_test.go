package node_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// A founder that starts long after the cluster was born is as welcome as the first.
func TestLateFounder(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.open(0)
		time.Sleep(5 * time.Second)
		b.open(1)
		b.ready(0)
		b.ready(1)
		time.Sleep(20 * time.Second)
		b.open(2)
		b.ready(2)
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.write(c, "link", "de", 3)
		if got := b.count(c, "link", "de"); got != 3 {
			t.Errorf("%v counted, want 3", got)
		}
	})
}

// Nodes that were started with other settings than the cluster was born with say so.
func TestOtherSettings(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.open(0)
		b.open(1)
		b.ready(0)
		b.ready(1)
		b.config[2].Shards = 8
		b.open(2)
		time.Sleep(5 * time.Second)
		if !errors.Is(b.said(2), proto.ErrWrongCluster) {
			t.Errorf("the node with other settings says %v, want WRONG_CLUSTER", b.said(2))
		}
	})
}

// A data directory of one cluster is refused among the nodes of another.
func TestStrangers(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		time.Sleep(3 * time.Second)
		for i := range 3 {
			b.crash(i)
		}
		for i := range 2 { // another cluster begins
			b.disks[i] = fs.NewMem()
			b.config[i].FS = b.disks[i]
			b.open(i)
		}
		b.ready(0)
		b.ready(1)
		time.Sleep(3 * time.Second)
		b.open(2)
		time.Sleep(12 * time.Second)
		if !errors.Is(b.said(2), proto.ErrWrongCluster) {
			t.Errorf("the node of another cluster says %v, want WRONG_CLUSTER", b.said(2))
		}
	})
}

// Two processes with one name: the one without data gives way, whatever its
// clock says of when it started.
func TestTwoNodesWithOneName(t *testing.T) {
	for _, wrong := range []time.Duration{0, -time.Hour, time.Hour} {
		t.Run(wrong.String(), func(t *testing.T) {
			inBubble(t, 3, 4, func(b *bubble) {
				b.openAll()
				twin := b.config[1]
				twin.FS, twin.Network = fs.NewMem(), b.net.Host("10.0.0.9")
				twin.GRPC, twin.Gossip = "10.0.0.9:7070", "10.0.0.9:7071"
				twin.Clock = wrongClock{twin.Clock, wrong}
				var fatal atomic.Pointer[error]
				twin.Fatal = func(err error) { fatal.Store(&err) }
				n := b.openConfig(twin)
				time.Sleep(20 * time.Second)
				if said := loadError(&fatal); !errors.Is(said, proto.ErrDuplicateNode) && !errors.Is(said, proto.ErrWrongCluster) {
					t.Errorf("the twin says %v, want DUPLICATE_NODE or WRONG_CLUSTER", said)
				}
				n.Kill()
				if b.said(1) != nil {
					t.Errorf("the elder says %v", b.said(1))
				}
			})
		})
	}
}

// wrongClock is a clock and so much more.
type wrongClock struct {
	node.Clock
	ahead time.Duration
}

func (c wrongClock) Now() time.Time { return c.Clock.Now().Add(c.ahead) }

// All nodes come back at other addresses, and find each other through Join.
func TestAddressesChange(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "link", "de", 3)
		c.Close()
		time.Sleep(3 * time.Second)
		for i := range 3 {
			b.crash(i)
		}
		b.moved = 10
		for i := range 3 {
			b.config[i].Network = b.net.Host(b.host(i))
			b.config[i].GRPC, b.config[i].Gossip = b.host(i)+":7070", b.host(i)+":7071"
			b.config[i].Join = []string{b.host(0) + ":7071"}
		}
		b.openAll()
		c = b.client()
		defer c.Close()
		if got := b.count(c, "link", "de"); got != 3 {
			t.Errorf("%v counted, want 3", got)
		}
	})
}

// One node comes back at another address, and knows the others from its disk alone.
func TestOneAddressChanges(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		time.Sleep(5 * time.Second)
		b.crash(1)
		b.config[1].Network = b.net.Host("10.0.0.99")
		b.config[1].GRPC, b.config[1].Gossip = "10.0.0.99:7070", "10.0.0.99:7071"
		b.config[1].Join = nil
		b.open(1)
		b.ready(1)
		b.crash(0) // so that nothing works without the one that moved
		time.Sleep(5 * time.Second)
		c := b.client()
		defer c.Close()
		b.plain(c)
		b.write(c, "link", "de", 3)
		if got := b.count(c, "link", "de"); got != 3 {
			t.Errorf("%v counted, want 3", got)
		}
		b.open(0)
		b.ready(0)
	})
}
