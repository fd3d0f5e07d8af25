package cluster

import (
	"slices"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestTableLooksUp(t *testing.T) {
	table := mustTable(t, nodeNames(3), 16, 2)
	if table.Has(17) || !table.Has(16) || !table.Has(ControlShard) {
		t.Error("shards are 0 to 16")
	}
	if table.Shard(17) != nil || table.Replicas(17) != nil || table.Preferred(17) != "" {
		t.Error("there is no shard 17")
	}
	for shard := uint32(1); shard <= 16; shard++ {
		for _, replica := range table.Replicas(shard) {
			if id, ok := table.ReplicaOn(replica.GetNode(), shard); !ok || id != replica.GetId() {
				t.Errorf("shard %d on %s: replica %d, %v", shard, replica.GetNode(), id, ok)
			}
		}
		first, second := table.Replicas(shard)[0].GetNode(), table.Replicas(shard)[1].GetNode()
		if table.after(shard, first) != second || table.after(shard, second) != first || table.after(shard, "stranger") != first {
			t.Errorf("shard %d: the order of asking is broken", shard)
		}
	}
	if table.Node("ebb-1").GetName() != "ebb-1" || table.Node("ebb-9") != nil {
		t.Error("node lookup is broken")
	}
	key := []byte("some/key")
	if table.ShardOf("", key) != table.ShardOf("default", key) || table.ShardOf("default", key) != proto.ShardOf("default", key, 16) {
		t.Error("the empty namespace is not the default one")
	}
}

func TestTableKeepsNothingOfWhatItWasMadeOf(t *testing.T) {
	wire := pb.Clone(mustTable(t, nodeNames(3), 16, 0).Wire()).(*ebbv1.Table)
	table, err := NewTable(wire)
	if err != nil {
		t.Fatal(err)
	}
	before := table.Preferred(1)
	wire.Placement[1].Preferred = "elsewhere"
	wire.Nodes[0].Name = "nobody"
	if table.Preferred(1) != before || table.Node("nobody") != nil {
		t.Error("writing to the wire form changed the table")
	}
}

func TestTableRefusesWhatIsNotComplete(t *testing.T) {
	good := mustTable(t, nodeNames(3), 8, 0).Wire()
	for what, spoil := range map[string]func(*ebbv1.Table){
		"a shard missing":              func(w *ebbv1.Table) { w.Placement = w.Placement[:8] },
		"a shard twice":                func(w *ebbv1.Table) { w.Placement[3].Shard = 4 },
		"more shards than placed":      func(w *ebbv1.Table) { w.Shards = 9 },
		"too many shards":              func(w *ebbv1.Table) { w.Shards = proto.ShardsMax + 1 },
		"a replica on an unknown node": func(w *ebbv1.Table) { w.Placement[2].Replicas[1].Node = "ebb-7" },
		"two replicas on one node": func(w *ebbv1.Table) {
			w.Placement[2].Replicas[1].Node = w.Placement[2].Replicas[0].Node
		},
		"a preferred leader elsewhere": func(w *ebbv1.Table) { w.Placement[2].Preferred = "ebb-7" },
		"no preferred leader":          func(w *ebbv1.Table) { w.Placement[2].Preferred = "" },
		"a node twice":                 func(w *ebbv1.Table) { w.Nodes[1].Name = w.Nodes[0].Name },
		"a node without a name":        func(w *ebbv1.Table) { w.Nodes[1].Name = "" },
		"a namespace twice": func(w *ebbv1.Table) {
			w.Namespaces = []*ebbv1.Namespace{{Name: "a"}, {Name: "a"}}
		},
	} {
		wire := pb.Clone(good).(*ebbv1.Table)
		spoil(wire)
		if table, err := NewTable(wire); err == nil {
			t.Errorf("%s: accepted as %v", what, table.Wire())
		}
	}
	if _, err := NewTable(nil); err != nil {
		t.Errorf("the empty table: %v", err)
	}
}

func TestLeadersKeepTheNewest(t *testing.T) {
	l := NewLeaders(4)
	expect := func(what, node string, term uint64) {
		t.Helper()
		if n, got := l.Leader(2); n != node || got != term {
			t.Errorf("%s: %q in term %d, want %q in %d", what, n, got, node, term)
		}
	}
	expect("nothing known", "", 0)
	l.Observe(2, "a", 5)
	expect("observed", "a", 5)
	l.Observe(2, "b", 4)
	expect("an older term", "a", 5)
	l.Correct(2, "b", "c")
	expect("correcting somebody else's hint", "a", 5)
	l.Correct(2, "a", "c")
	expect("correcting this one", "c", 5)
	l.Observe(2, "a", 5)
	expect("the term's leader, seen again", "a", 5)
	l.Observe(2, "", 6)
	expect("a new term without a leader", "", 6)
	l.Correct(2, "a", "b")
	expect("a guess when nobody is known", "b", 6)
	l.Observe(2, "", 6)
	expect("that nobody leads, said again", "b", 6)
	l.Observe(2, "", 7)
	expect("and again in another term", "b", 7)
	l.Observe(2, "c", 6)
	expect("the leader of the term before", "b", 7)
	l.Observe(2, "c", 7)
	expect("the leader of the term", "c", 7)

	only := slices.Values([]uint32{2, 99})
	ended := l.leadershipEnd("c", only)
	l.Observe(2, "c", 5)
	select {
	case <-ended:
		t.Error("who watches hears of something that has not changed")
	default:
	}
	l.Observe(2, "d", 8)
	<-ended
	if l.leadershipEnd("c", only) != nil || l.leadershipEnd("d", only) == nil {
		t.Error("a node that does not lead has a leadership that ends")
	}

	l.Observe(99, "a", 1)
	l.Correct(99, "a", "b")
	if n, _ := l.Leader(99); n != "" {
		t.Error("there is no shard 99")
	}
}
