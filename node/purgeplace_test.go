package node

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// slowShard is a purgeTarget whose log takes a few entries at a time.
type slowShard struct {
	*shard.State
	t     *testing.T
	left  int // entries until the time is over
	stamp int64
}

func (s *slowShard) deletion(namespace string) shard.Deletion { return s.Deletion(namespace) }
func (s *slowShard) holed() bool                              { return false }

func (s *slowShard) define(context.Context, string) error { return nil }

func (s *slowShard) proposeCommand(_ context.Context, c *ebbv1.Command) (*ebbv1.CommandResult, error) {
	if s.left--; s.left < 0 {
		return nil, context.DeadlineExceeded
	}
	return s.apply(c), nil
}

func (s *slowShard) apply(c *ebbv1.Command) *ebbv1.CommandResult {
	s.t.Helper()
	s.stamp++
	command, err := pb.Marshal(c)
	if err != nil {
		s.t.Fatal(err)
	}
	entry, err := pb.Marshal(&ebbv1.Entry{StampUs: s.stamp, Commands: [][]byte{command}})
	if err != nil {
		s.t.Fatal(err)
	}
	r := s.Apply(s.Applied()+1, entry, nil)[0]
	if r.GetError() != nil {
		s.t.Fatalf("%v: %v", c, r)
	}
	return r
}

// A purge that has no time to end is continued where it was. Begun again each time, it would never come to the keys of
// the namespace behind those of another.
func TestPurgesEndHoweverSlowly(t *testing.T) {
	s := &slowShard{State: shard.New(1, shard.Heap{}), t: t, stamp: 1_700_000_000_000_000}
	s.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourDeletion}}})
	gone := proto.FillNamespace(&ebbv1.Namespace{Name: "gone", Version: 1, HashSeed: 1}, proto.DefaultNamespaceSettings())
	kept := proto.FillNamespace(&ebbv1.Namespace{Name: "kept", Version: 1, HashSeed: 2}, proto.DefaultNamespaceSettings())
	for _, ns := range []*ebbv1.Namespace{kept, gone} {
		s.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
	}
	fill := func(namespace string, keys int) {
		for from := 0; from < keys; from += 1000 {
			list := new(ebbv1.Increments)
			for i := range 1000 {
				list.Increments = append(list.Increments, &ebbv1.Increment{Key: fmt.Appendf(nil, "k%d", from+i), Bin: []byte("b")})
			}
			s.apply(&ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Increments{Increments: list}})
		}
	}
	fill("kept", 100_000)
	fill("gone", 1000)
	gone.Version, gone.Deletion = 2, &ebbv1.NamespaceDeletion{DeletedUs: 1, PurgeUs: 1, Purging: true}
	s.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: gone}})

	p := &purger{logger: slog.New(slog.DiscardHandler)}
	looks := 0
	for done := false; !done; looks++ {
		if looks > 20 {
			t.Fatalf("after %d looks %d keys are left", looks, s.Deletion("gone").Keys)
		}
		s.left = 2
		done, _ = p.namespace(t.Context(), 1, s, gone) // its time may be over
	}
	if d := s.Deletion("gone"); !d.Emptied || d.Keys > 0 || looks < 3 {
		t.Errorf("after %d looks it is %+v", looks, d)
	}
	if keys := s.Keys(); keys != 100_000 {
		t.Errorf("%d keys of another namespace are left of 100,000", keys)
	}
}

// Memory is given back once, some time after the last purge of several.
func TestMemoryIsGivenBackAfterPurges(t *testing.T) {
	given := 0
	p := &purger{giveBack: func() { given++ }}
	purging := []*ebbv1.Namespace{{Name: "gone", Deletion: &ebbv1.NamespaceDeletion{Purging: true}}}
	inGrace := []*ebbv1.Namespace{{Name: "kept", Deletion: &ebbv1.NamespaceDeletion{}}}
	now := time.Unix(0, 0)
	for i, look := range []struct {
		after   time.Duration
		deleted []*ebbv1.Namespace
		given   int
	}{
		{time.Second, nil, 0},
		{giveBackAfter, inGrace, 0},
		{giveBackAfter, inGrace, 0},
		{time.Second, purging, 0},
		{giveBackAfter, purging, 0},
		{time.Second, inGrace, 0},
		{giveBackAfter - 1, inGrace, 0},
		{0, purging, 0},
		{time.Second, nil, 0},
		{giveBackAfter - 1, nil, 0},
		{1, nil, 1},
		{giveBackAfter, nil, 1},
	} {
		now = now.Add(look.after)
		if p.settle(now, look.deleted); given != look.given {
			t.Fatalf("look %d: memory is given back %d times, want %d", i, given, look.given)
		}
	}
}
