package cluster

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
)

func nodeNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("ebb-%d", i)
	}
	return names
}

func mustTable(t interface{ Fatal(...any) }, nodes []string, shards, replication uint32) *Table {
	table, err := InitialTable(nodes, shards, replication)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// drawPlacement draws a cluster of a sensible shape: at least 8 shards a node.
func drawPlacement(t *rapid.T, nodesMax int) (names []string, shards, replication uint32) {
	names = rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}-[0-9]{1,3}`), 1, nodesMax, rapid.ID[string]).Draw(t, "nodes")
	shards = rapid.Uint32Range(8*uint32(len(names)), 512).Draw(t, "shards")
	replication = rapid.Uint32Range(0, min(5, uint32(len(names)))).Draw(t, "replication")
	return names, shards, replication
}

func TestInitialTableIsCompleteBalancedAndTheSameForEverybody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names, shards, replication := drawPlacement(t, 24)
		table := mustTable(t, names, shards, replication)
		if replication == 0 {
			replication = min(3, uint32(len(names)))
		}
		if table.Replication() != replication || table.Shards() != shards {
			t.Fatalf("table of %d shards, replication %d", table.Shards(), table.Replication())
		}
		leads, holds := checkReplicas(t, table)
		checkBalance(t, "leads", names, leads, float64(shards))
		checkBalance(t, "holds", names, holds, float64(shards*replication))

		again := rapid.Permutation(append(names, names...)).Draw(t, "order")
		if other := mustTable(t, again, shards, replication); other.Wire().String() != table.Wire().String() {
			t.Fatal("another order of names made another table")
		}
	})
}

// checkReplicas checks each shard's list and counts what each node leads and holds.
func checkReplicas(t *rapid.T, table *Table) (leads, holds map[string]int) {
	leads, holds = make(map[string]int), make(map[string]int)
	ids := make(map[uint64]bool)
	for shard := uint32(0); shard <= table.Shards(); shard++ {
		replicas := table.Replicas(shard)
		if shard != ControlShard && len(replicas) != int(table.Replication()) {
			t.Fatalf("shard %d has %d replicas", shard, len(replicas))
		}
		if replicas[0].GetNode() != table.Preferred(shard) {
			t.Fatalf("shard %d prefers %s, which is not first", shard, table.Preferred(shard))
		}
		for _, replica := range replicas {
			if replica.GetId() == 0 || ids[replica.GetId()] {
				t.Fatalf("replica id %d is used twice or zero", replica.GetId())
			}
			ids[replica.GetId()] = true
			if shard != ControlShard {
				holds[replica.GetNode()]++
			}
		}
		if shard != ControlShard {
			leads[table.Preferred(shard)]++
		}
	}
	return leads, holds
}

// checkBalance holds every node to the mean, within 10% and one. 145 shards with 2 replicas on 11 nodes are held to
// 30 at the most; rounding of floating-point numbers would forbid that.
func checkBalance(t *rapid.T, what string, names []string, count map[string]int, total float64) {
	mean := total / float64(len(names))
	for _, name := range names {
		if off := math.Abs(float64(count[name]) - mean); off > mean/10+1+1e-9 {
			t.Fatalf("%s %s %d shards: the mean is %.1f", name, what, count[name], mean)
		}
	}
}

// With as many shards as DESIGN asks for, a node that joins takes its share and
// moves little else: the ideal is one part in n+1.
func TestInitialTableMovesLittleWhenANodeIsAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names, shards, _ := drawPlacement(t, 12)
		replication := min(3, uint32(len(names)))
		if uint32(len(names)+1)*8 > shards {
			t.Skip("too few shards for one node more")
		}
		before := mustTable(t, names, shards, replication)
		after := mustTable(t, append(names, "newcomer-0"), shards, replication)
		led, held := 0, 0
		for shard := uint32(1); shard <= shards; shard++ {
			if before.Preferred(shard) != after.Preferred(shard) {
				led++
			}
			for _, replica := range after.Replicas(shard) {
				if _, ok := before.ReplicaOn(replica.GetNode(), shard); !ok {
					held++
				}
			}
		}
		ideal := float64(shards) / float64(len(names)+1)
		if float64(led) > 3*ideal+3 {
			t.Fatalf("%d of %d leaders moved: %.1f would do", led, shards, ideal)
		}
		if ideal *= float64(replication); float64(held) > 2.5*ideal+3 {
			t.Fatalf("%d of %d replicas moved: %.1f would do", held, shards*replication, ideal)
		}
	})
}

func TestControlGroupHasAnOddNumberOfVoters(t *testing.T) {
	want := map[int]int{1: 1, 2: 2, 3: 3, 4: 3, 5: 5, 6: 5, 7: 5, 12: 5}
	for nodes, voters := range want {
		table := mustTable(t, nodeNames(nodes), 64, 0)
		replicas := table.Replicas(ControlShard)
		got := 0
		for _, replica := range replicas {
			if !replica.GetNonvoter() {
				got++
			}
		}
		if len(replicas) != nodes || got != voters {
			t.Errorf("%d nodes: control group of %d with %d voters, want all with %d", nodes, len(replicas), got, voters)
		}
	}
}

// The table of a bootstrap is computed by every node for itself, perhaps by
// different builds: it must not change.
func TestInitialTableOfThreeNodesIsPinned(t *testing.T) {
	table := mustTable(t, nodeNames(3), 8, 0)
	var got []string
	for shard := uint32(0); shard <= 8; shard++ {
		line := fmt.Sprint(shard, ":")
		for _, replica := range table.Replicas(shard) {
			line += fmt.Sprintf(" %s/%d", replica.GetNode(), replica.GetId())
		}
		got = append(got, line)
	}
	want := []string{
		"0: ebb-1/1 ebb-0/2 ebb-2/3",
		"1: ebb-1/4 ebb-0/5 ebb-2/6",
		"2: ebb-1/7 ebb-2/8 ebb-0/9",
		"3: ebb-1/10 ebb-0/11 ebb-2/12",
		"4: ebb-2/13 ebb-0/14 ebb-1/15",
		"5: ebb-0/16 ebb-1/17 ebb-2/18",
		"6: ebb-0/19 ebb-1/20 ebb-2/21",
		"7: ebb-2/22 ebb-1/23 ebb-0/24",
		"8: ebb-0/25 ebb-1/26 ebb-2/27",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestInitialTableRefuses(t *testing.T) {
	for what, in := range map[string]struct {
		nodes               []string
		shards, replication uint32
	}{
		"no nodes":                  {nil, 64, 3},
		"no shards":                 {nodeNames(3), 0, 3},
		"more shards than allowed":  {nodeNames(3), proto.ShardsMax + 1, 3},
		"fewer shards than nodes":   {nodeNames(9), 8, 3},
		"more replicas than nodes":  {nodeNames(2), 64, 3},
		"more replicas, duplicates": {[]string{"a-0", "a-0", "b-0"}, 64, 3},
		"an empty name":             {[]string{""}, 64, 1},
		"a slash in a name":         {[]string{"ebb/0"}, 64, 1},
	} {
		if table, err := InitialTable(in.nodes, in.shards, in.replication); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%s: %v, %v", what, table, err)
		}
	}
}

func BenchmarkInitialTable(b *testing.B) {
	for b.Loop() {
		if _, err := InitialTable(nodeNames(16), 256, 3); err != nil {
			b.Fatal(err)
		}
	}
}
