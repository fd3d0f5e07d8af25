package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// standstill is what peers look like to a node that stands still while a question is under way. All peers have been
// asked, the home has answered, and one has to be asked again when the node continues.
type standstill struct {
	*fakeCluster
	home, again string // nodes
	meanwhile   func()
	answered    chan struct{}
	once        *sync.Once
}

func (s standstill) Backend(node string) (Backend, error) {
	return stoodBackend{replica{s.fakeCluster, node}, s}, nil
}

type stoodBackend struct {
	replica
	s standstill
}

func (b stoodBackend) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (resp *ebbv1.ShardAskResponse, err error) {
	if b.node == b.s.again {
		b.s.once.Do(func() {
			<-b.s.answered
			b.s.meanwhile()
			err = proto.ErrOverloaded.Errorf("too much at once")
		})
	}
	if err == nil {
		resp, err = b.replica.Ask(ctx, req)
	}
	if b.node == b.s.home {
		select {
		case <-b.s.answered:
		default:
			close(b.s.answered)
		}
	}
	return resp, err
}

// A node that stands still while it asks may ask for parts that were swept since. What was there under the number that
// the home had said is not there any more. The contexts of its questions end by the monotonic clock, which stands still
// with the machine.
func TestSlicedAskAfterAStandstill(t *testing.T) {
	replaced := append(slices.Clone(wide), 3)
	slices.Sort(replaced)
	for name, c := range map[string]struct {
		ns       *ebbv1.Namespace
		stopped  bool // the wall clock of the node, too
		replaced bool
		want     []uint64
	}{
		"replaced": {&ebbv1.Namespace{}, false, true, replaced},
		"replaced, and the wall clock has stopped as well": {&ebbv1.Namespace{}, true, true, replaced},
		"replaced, where time is that of events":           {&ebbv1.Namespace{Clock: ebbv1.Clock_CLOCK_EVENT}, false, true, replaced},
		"nothing has happened":                             {&ebbv1.Namespace{}, false, false, wide},
		"nothing has happened, by a wall clock that stops": {&ebbv1.Namespace{}, true, false, wide},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeCluster(t, 8)
			c.ns.Name, c.ns.BitmapPlacement = "people", ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE
			e.create(c.ns)
			e.bits("people", setIDs("a", wide...), setIDs("b", 3))
			home := e.leads[e.table.ShardOf("people", []byte("a"))]
			others := slices.DeleteFunc(nodeNames(3), func(node string) bool { return node == home })
			s := standstill{fakeCluster: e, home: home, again: others[1], answered: make(chan struct{}), once: new(sync.Once), meanwhile: func() {
				if c.replaced {
					if err := e.storeBoth(t.Context(), "a"); err != nil {
						t.Error(err)
					}
				}
				e.pass(2 * sweepTime)
				if !e.sweep(t.Context()) {
					t.Error("it does not sweep")
				}
			}}
			by := e.coordinator(others[0])
			if c.stopped {
				now := e.now()
				by.cfg.Now = func() time.Time { return now }
			}
			if got := e.about(by, listIDs("people", keyTerm("a"))).GetBitmap().GetIds(); !slices.Equal(got, wide) {
				t.Fatalf("before: %v", got)
			}
			by.cfg.Peers = s
			if got := e.about(by, listIDs("people", keyTerm("a"))).GetBitmap().GetIds(); !slices.Equal(got, c.want) {
				t.Errorf("it answers %v, of all shards; want %v", got, c.want)
			}
		})
	}
}
