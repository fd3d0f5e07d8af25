package node_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// Whichever call that writes node.json or table.pb fails first, with all that come after it, the node does not open or
// ends, and says why: it does not go on with what is not on disk. A node keeps running if it cannot write its known
// peers to node.json: it refuses the peer that asks (TestKnownPeers). With a good disk it comes back, and has all that
// was acknowledged.
func TestFilesThatCannotBeWritten(t *testing.T) {
	long(t)
	for _, file := range []string{"/data/node.json", "/data/table.pb"} {
		t.Run(file, func(t *testing.T) {
			ended, wentOn := 0, 0
			for call := 1; ; call++ {
				failed, stopped := false, false
				inBubble(t, 3, 3, func(b *bubble) { failed, stopped = b.failsAt(file, call) })
				if !failed || t.Failed() {
					break
				}
				if stopped {
					ended++
				} else {
					wentOn++
				}
				if !stopped && file != "/data/node.json" {
					t.Errorf("call %d has failed, and the node goes on", call)
				}
			}
			t.Logf("it has ended %d times, and gone on %d times", ended, wentOn)
			if ended < 8 { // several calls each time that it is written: at the node's birth, and when the cluster is born or has changed
				t.Errorf("it has ended %d times, want 8 at least", ended)
			}
		})
	}
}

// failsAt lets the calls that write a file of the last node fail from one of them on, and reports whether there were so
// many, and whether that has ended the node.
func (b *bubble) failsAt(file string, first int) (failed, ended bool) {
	b.Helper()
	const last = 2
	calls := make(chan int, 1)
	calls <- 0
	b.disks[last].Inject(func(op fs.Op, name string) error {
		if op == fs.OpRead || op == fs.OpList || !strings.HasPrefix(name, file) {
			return nil
		}
		n := <-calls + 1
		calls <- n
		if n < first {
			return nil
		}
		return syscall.EIO
	})
	b.open(0)
	b.open(1)
	n, err := node.Open(context.Background(), b.config[last])
	if err == nil {
		b.nodes[last] = n
		for range 600 {
			if err = b.said(last); err != nil || ready(n) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	c, made := b.client(), err == nil
	if made {
		b.plain(c) // the table changes
		b.write(c, "a", "x", 1)
		time.Sleep(5 * time.Second)
		err = b.said(last)
	}
	reached := <-calls >= first
	switch {
	case !reached && err != nil:
		b.Errorf("nothing has failed, and the node says %v", err)
	case !reached:
		return false, false
	case err != nil && !errors.Is(err, proto.ErrDisk):
		b.Errorf("call %d of %s has failed, and the node says %v, want DISK", first, file, err)
	}
	if b.nodes[last] != nil {
		b.nodes[last].Kill()
		time.Sleep(time.Minute)
	}
	b.disks[last].Inject(nil)
	b.fatals[last].Store(nil)
	b.open(last)
	for i := range b.nodes {
		b.ready(i)
	}
	if !made {
		b.plain(c)
	}
	b.write(c, "b", "x", 1)
	if got := b.count(c, "b", "x"); got != 1 {
		b.Errorf("after call %d had failed and the node was back: %v is counted, want 1", first, got)
	}
	return true, err != nil
}

// ready reports whether a node serves.
func ready(n *node.Node) bool {
	select {
	case <-n.Ready():
		return true
	default:
		return false
	}
}

// TestDiskFailsWhileItJoins: the log of a node fails before the node has any replica. The node says so and ends, though
// it has no groups to stop and what makes it a member waits for the log.
func TestDiskFailsWhileItJoins(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		i := b.newcomer("guest")
		b.open(i)
		b.disks[i].Inject(func(op fs.Op, name string) error {
			if op == fs.OpSync && strings.Contains(name, "/wal/") {
				return syscall.EIO
			}
			return nil
		})
		b.until("a word of its disk", func() bool { return errors.Is(b.said(i), proto.ErrDisk) })
		closed, n := make(chan struct{}), b.nodes[i]
		b.nodes[i] = nil
		go func() { _ = n.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			b.Errorf("it does not end")
		}
	})
}
