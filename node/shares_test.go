package node

import (
	"fmt"
	"testing"
	"testing/synctest"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// commandFrom is a command of about 100 bytes of a session in a namespace; session 0 is none.
func commandFrom(namespace string, session uint64) []byte {
	c := &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: make([]byte, 80), Bin: []byte("b")}},
	}}}
	if session > 0 {
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: 7, Secret: 9}}
	}
	raw, _ := pb.Marshal(c)
	return raw
}

// burst is commands that one caller sends.
type burst struct {
	namespace string
	session   uint64 // 0: it has none, and is known by its connection
	sender    uint64
	commands  int
}

// send enqueues all commands of a burst, and returns their calls.
func (c burst) send(p *proposer) (calls []*call) {
	for range c.commands {
		one := newCall(1)
		one.sender = c.sender
		p.enqueue(one, 0, commandFrom(c.namespace, c.session))
		calls = append(calls, one)
	}
	return calls
}

// waits is how many of some calls are neither refused nor answered.
func waits(calls []*call) (n int) {
	for _, c := range calls {
		if c.left.Load() > 0 {
			n++
		}
	}
	return n
}

// A full queue is shared by namespaces, and in each of them by sessions and connections. A caller that comes late or
// sends little is not refused for what others send.
func TestFullQueueIsShared(t *testing.T) {
	for name, c := range map[string]struct {
		first, later burst
		least        int // of the later ones wait
	}{
		"another session":    {burst{"a", 1, 0, 2000}, burst{"a", 2, 0, 10}, 10},
		"another connection": {burst{"a", 0, 1, 2000}, burst{"a", 0, 2, 10}, 10},
		"another namespace":  {burst{"a", 0, 1, 2000}, burst{"b", 0, 1, 10}, 10},
		"as many":            {burst{"a", 1, 0, 2000}, burst{"b", 2, 0, 2000}, 45},
		"the same":           {burst{"a", 1, 0, 2000}, burst{"a", 1, 0, 10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			proposing(t, func(t *testing.T, p *proposer, l *fakeLog) {
				p.limits.QueueBytes = 10 << 10 // of about 100 commands
				add(p, 10)                     // is on its way
				first, later := c.first.send(p), c.later.send(p)
				synctest.Wait()
				if n := waits(later); n < c.least || c.least == 0 && n > 0 {
					t.Errorf("%d of the later commands wait: want %d", n, c.least)
				}
				if n := waits(first) + waits(later); n < 80 || p.bytes > p.limits.QueueBytes {
					t.Errorf("%d commands of %d bytes wait: the queue has room for more", n, p.bytes)
				}
				refused := append(first, later...)
				p.close()
				l.commit(0, nil)
				for _, one := range refused {
					if got := codes(one.wait(t.Context(), nil)); got[0] != proto.ErrOverloaded.Code && got[0] != proto.ErrShuttingDown.Code {
						t.Fatalf("%v", got)
					}
				}
				if len(p.shares.callers) > 0 || len(p.shares.namespaces) > 0 || p.count.waiting.Load() != 0 {
					t.Errorf("an empty queue has shares: %+v", p.shares)
				}
			})
		})
	}
}

// Whatever is sent and leaves in whatever order, shares are what waits, the limit holds, and a caller that stays within
// an even part of the queue is never refused.
func TestSharesAreWhatWaits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newProposer(1, newFakeLog(), new(proposeMetrics), Limits{}.filled())
		p.limits.QueueBytes = 12 << 10
		p.paused = true
		owners := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) burst {
			return burst{
				namespace: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"),
				session:   rapid.Uint64Range(0, 3).Draw(t, "session"), sender: rapid.Uint64Range(1, 2).Draw(t, "sender"),
			}
		}), 1, 500).Draw(rt, "sent")
		for i, c := range owners {
			c.commands = 1
			o := ownerOf(commandFrom(c.namespace, c.session), c.sender)
			size := len(commandFrom(c.namespace, c.session))
			few := p.shares.callers[o]+2*size <= p.limits.QueueBytes/(3*6) // of three namespaces with six callers at most
			if calls := c.send(p); few && waits(calls) == 0 {
				rt.Fatalf("%d: a command was refused whose caller has %d of %d bytes", i, p.shares.callers[o], p.limits.QueueBytes)
			}
			if rapid.IntRange(0, 20).Draw(rt, "leave") == 0 {
				p.paused = false
				p.take(nil)
				p.paused = true
			}
			if err := sharesAre(p); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// sharesAre compares the shares of a queue with what waits in it.
func sharesAre(p *proposer) error {
	bytes, callers, namespaces := 0, map[owner]int{}, map[uint64]namespaceShare{}
	for _, w := range p.queue[p.head:] {
		if w.call == nil {
			continue
		}
		bytes += len(w.command)
		n := namespaces[w.owner.namespace]
		if n.bytes += len(w.command); callers[w.owner] == 0 {
			n.callers++
		}
		callers[w.owner] += len(w.command)
		namespaces[w.owner.namespace] = n
	}
	switch {
	case bytes != p.bytes || bytes > p.limits.QueueBytes:
		return fmt.Errorf("%d bytes wait, %d are counted, %d may", bytes, p.bytes, p.limits.QueueBytes)
	case fmt.Sprint(callers) != fmt.Sprint(p.shares.callers):
		return fmt.Errorf("callers have %v, and %v are counted", callers, p.shares.callers)
	case fmt.Sprint(namespaces) != fmt.Sprint(p.shares.namespaces):
		return fmt.Errorf("namespaces have %v, and %v are counted", namespaces, p.shares.namespaces)
	}
	return nil
}
