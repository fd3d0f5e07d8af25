package cluster

import (
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// TestMovesThatCannotGoOn: what becomes of a shard's move when nodes do not answer, and what is said of it.
func TestMovesThatCannotGoOn(t *testing.T) {
	for _, c := range []struct {
		what   string
		record []string // replica i+1 on node ebb-i
		target []string
		dead   []string
		begins *ebbv1.BeginMove // nil: none
		counts bool             // it holds up others
		waits  string
	}{
		{"all answer", []string{"stays", "stays", "leaves"}, []string{"ebb-0", "ebb-1"}, nil, nil, true, ""},
		{"one that leaves is dead", []string{"leaves", "stays", "stays", "joins"}, []string{"ebb-1", "ebb-2", "ebb-3"}, []string{"ebb-0"}, nil, true, ""},
		{"one that stays is dead", []string{"stays", "stays", "leaves", "joins"}, []string{"ebb-0", "ebb-1", "ebb-3"}, []string{"ebb-0"}, nil, true, ""},
		{"one of two that stay is dead", []string{"stays", "stays", "leaves"}, []string{"ebb-0", "ebb-1"}, []string{"ebb-0"}, &ebbv1.BeginMove{Shard: 1, Keep: 3}, false, "ebb-0 does not answer, and is needed for a majority"},
		{"it is removed", []string{"stays", "stays", "leaves"}, []string{"ebb-1", "ebb-2"}, []string{"ebb-0"}, &ebbv1.BeginMove{Shard: 1, Keep: 3}, false, "ebb-0 does not answer, and is needed for a majority"},
		{"who leaves is dead as well", []string{"stays", "stays", "leaves"}, []string{"ebb-0", "ebb-1"}, []string{"ebb-0", "ebb-2"}, nil, false, "ebb-0, ebb-2 do not answer, and are needed for a majority"},
		{"who leaves is lost", []string{"stays", "stays", "lost"}, []string{"ebb-0", "ebb-1"}, []string{"ebb-0"}, nil, false, "ebb-0 does not answer, and is needed for a majority"},
		{"one of two is dead while a third joins", []string{"stays", "stays", "joins"}, []string{"ebb-0", "ebb-1", "ebb-2"}, []string{"ebb-0"}, nil, false, "ebb-0 does not answer, and is needed for a majority"},
		{"one of two is dead at rest", []string{"stays", "stays"}, []string{"ebb-1", "ebb-2"}, []string{"ebb-0"}, nil, false, "ebb-0 does not answer, and is needed for a majority"},
		{"one of three is dead, and another is to go", []string{"stays", "stays", "stays"}, []string{"ebb-0", "ebb-1"}, []string{"ebb-0"}, nil, false, "ebb-0 does not answer, and is needed for a majority"},
		{"one of three is dead, and is to go", []string{"stays", "stays", "stays"}, []string{"ebb-1", "ebb-2"}, []string{"ebb-0"}, &ebbv1.BeginMove{Shard: 1, From: 1}, false, ""},
		{"one of three is dead, and another moves", []string{"stays", "stays", "stays"}, []string{"ebb-0", "ebb-1", "ebb-3"}, []string{"ebb-0"}, &ebbv1.BeginMove{Shard: 1, From: 3, To: "ebb-3"}, false, ""},
	} {
		how := slices.Clone(c.record)
		for len(how) < 4 {
			how = append(how, "") // a node that has none
		}
		s := ward(t, proto.StorageVersion, how...)
		wire := edit(s.c.Table())
		record := editShard(wire, 1)
		record.Replicas, record.Target = record.Replicas[:len(c.record)], c.target
		s.c.swap(wire)
		alive := func(node string) bool { return !slices.Contains(c.dead, node) }
		table := s.c.Table()
		moves := NextMoves(table, alive, 1)
		if got := len(moves); got > 1 || got == 1 && (c.begins == nil || moves[0].String() != c.begins.String()) || got == 0 && c.begins != nil {
			t.Errorf("%s: %v begins, want %v", c.what, moves, c.begins)
		}
		if underWay(record) && holdsUp(table, alive) != c.counts {
			t.Errorf("%s: it holds up others: %v, want %v", c.what, !c.counts, c.counts)
		}
		for _, m := range moves {
			if err := s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: m}}).GetError(); err != nil {
				t.Errorf("%s: %v is refused: %s", c.what, m, err.GetMessage())
			}
		}
		said := Moves(table)
		ExplainWaits(table, said, alive)
		if !slices.ContainsFunc(said, func(m *ebbv1.Move) bool { return m.GetShard() == 1 && m.GetWaits() == c.waits }) {
			t.Errorf("%s: %v, want one that waits for %q", c.what, said, c.waits)
		}
	}
}

// holdsUp reports whether a second shard, which has a move to make, must wait for the first.
func holdsUp(t *Table, alive func(string) bool) bool {
	wire := edit(t)
	wire.Shards++
	wire.Placement = append(wire.Placement, &ebbv1.ShardRecord{
		Shard: 2, Preferred: "c-0", Replicas: []*ebbv1.ReplicaRecord{{Id: 201, Node: "c-0"}}, Target: []string{"c-1"},
	})
	two, err := NewTable(wire)
	if err != nil {
		panic(err) // invariant: it was a table before
	}
	return !slices.ContainsFunc(NextMoves(two, alive, 1), func(m *ebbv1.BeginMove) bool { return m.GetShard() == 2 })
}

// TestTakenBack: what can be taken back is one that leaves and is not lost.
func TestTakenBack(t *testing.T) {
	for _, c := range []struct {
		keep uint64
		ok   bool
	}{{1, false}, {2, true}, {3, false}, {4, false}, {9, false}} {
		s := ward(t, proto.StorageVersion, "stays", "leaves", "lost", "joins")
		err := s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: &ebbv1.BeginMove{Shard: 1, Keep: c.keep}}}).GetError()
		if (err == nil) != c.ok {
			t.Errorf("replica %d: %v", c.keep, err)
		}
		if r := s.c.Table().Replicas(1)[1]; c.ok && (r.GetLeaving() || !r.GetJoining()) {
			t.Errorf("replica 2 is %v", r)
		}
	}
}
