package cluster

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// ReplicationDefault is how many replicas a shard has by default, if there are enough nodes.
	ReplicationDefault = 3
	// controlVotersMax bounds the voters of the control group; other nodes are nonvoters.
	controlVotersMax = 5

	ringLoad    = 1.05 // most shards that a node leads, relative to the mean
	replicaLoad = 1.10 // most replicas that a node holds, relative to the mean
	leastLoad   = 0.90 // least of both, relative to the mean
	ringPoints  = 160  // of each node on the ring
)

// InitialTable places shards 1 to shards, and the control group, on nodes. It depends only on the set of names: every
// node of a bootstrap computes the same table, whatever the order and however often a name is listed.
//
// The preferred leader of a shard comes from consistent hashing with bounded loads. Its other replicas are the nodes of
// highest hash(node, shard) that still have room: the ring's own successors would give every leader always the same
// two. replication 0 stands for ReplicationDefault, or the number of nodes if that is smaller. The table has no cluster
// id and no namespaces yet: Control adds both.
func InitialTable(nodes []string, shards, replication uint32) (*Table, error) {
	names := slices.Clone(nodes)
	slices.Sort(names)
	names = slices.Compact(names)
	if replication == 0 {
		replication = min(ReplicationDefault, uint32(len(names)))
	}
	if err := checkPlacement(names, shards, replication); err != nil {
		return nil, err
	}
	leaders, err := place(names, shards)
	if err != nil {
		return nil, err
	}
	balanceLeaders(names, leaders)
	wire := &ebbv1.Table{Epoch: 1, Shards: shards, Replication: replication}
	for _, name := range names {
		wire.Nodes = append(wire.Nodes, &ebbv1.NodeRecord{Name: name})
	}
	data := dataRecords(names, leaders, replication)
	balanceFollowers(names, data)
	wire.Placement = append(wire.Placement, controlRecord(names))
	wire.Placement = append(wire.Placement, data...)
	numberReplicas(wire.Placement)
	return NewTable(wire)
}

func checkPlacement(names []string, shards, replication uint32) error {
	switch {
	case len(names) == 0:
		return proto.ErrBadRequest.Errorf("no nodes: a cluster has at least one")
	case shards == 0 || shards > proto.ShardsMax:
		return proto.ErrBadRequest.Errorf("%d shards: a cluster has 1 to %d", shards, proto.ShardsMax)
	case int(shards) < len(names):
		return proto.ErrBadRequest.Errorf("%d shards for %d nodes: there must be at least one a node", shards, len(names))
	case int(replication) > len(names):
		return proto.ErrBadRequest.Errorf("replication %d on %d nodes: there must be a node for each replica", replication, len(names))
	}
	for _, name := range names {
		if err := CheckNodeName(name); err != nil {
			return err
		}
	}
	return nil
}

// controlRecord chooses an odd number of nodes, at most five, as voters of the control group (of two nodes both), by
// highest hash; the other nodes are nonvoters.
func controlRecord(names []string) *ebbv1.ShardRecord {
	ranked := rank(names, ControlShard)
	voters := controlVoters(len(names))
	record := &ebbv1.ShardRecord{Shard: ControlShard, Preferred: ranked[0]}
	for i, name := range ranked {
		record.Replicas = append(record.Replicas, &ebbv1.ReplicaRecord{Node: name, Nonvoter: i >= voters})
	}
	return record
}

// dataRecords adds the other replicas to each leader's shard.
func dataRecords(names, leaders []string, replication uint32) []*ebbv1.ShardRecord {
	held := make(map[string]int, len(names))
	for _, leader := range leaders {
		held[leader]++
	}
	room := int(math.Ceil(float64(len(leaders)) * float64(replication) / float64(len(names)) * replicaLoad))
	records := make([]*ebbv1.ShardRecord, len(leaders))
	for i, leader := range leaders {
		shard := uint32(i + 1)
		record := &ebbv1.ShardRecord{Shard: shard, Preferred: leader}
		for _, name := range append([]string{leader}, followers(names, leader, shard, int(replication)-1, held, room)...) {
			record.Replicas = append(record.Replicas, &ebbv1.ReplicaRecord{Node: name})
		}
		records[i] = record
	}
	return records
}

// followers picks count nodes other than the leader: those of highest hash that hold less than room, then those that
// hold least. It counts the picked nodes in held.
func followers(names []string, leader string, shard uint32, count int, held map[string]int, room int) []string {
	ranked := slices.DeleteFunc(rank(names, shard), func(name string) bool { return name == leader })
	slices.SortStableFunc(ranked, func(a, b string) int {
		return cmp.Compare(max(held[a], room-1), max(held[b], room-1))
	})
	picked := ranked[:count]
	for _, name := range picked {
		held[name]++
	}
	return picked
}

// balanceLeaders gives every node its least share, since bounded loads have only an upper bound. A node below it takes
// the shard for which it has the highest hash from a node above the average.
func balanceLeaders(names, leaders []string) {
	led := make(map[string]int, len(names))
	for _, leader := range leaders {
		led[leader]++
	}
	mean := float64(len(leaders)) / float64(len(names))
	for {
		to := leastLoaded(names, led)
		if float64(led[to]) >= math.Floor(mean*leastLoad) {
			return
		}
		best := -1
		for i, leader := range leaders {
			if float64(led[leader]) > mean && (best < 0 || weight(to, uint32(i+1)) > weight(to, uint32(best+1))) {
				best = i
			}
		}
		led[leaders[best]]--
		led[to]++
		leaders[best] = to
	}
}

// balanceFollowers does the same for all replicas, without moving leaders. It also takes replicas from nodes above the
// upper bound, to which followers had to give too many.
func balanceFollowers(names []string, records []*ebbv1.ShardRecord) {
	held := make(map[string]int, len(names))
	total := 0
	for _, record := range records {
		for _, replica := range record.Replicas {
			held[replica.Node]++
			total++
		}
	}
	mean := float64(total) / float64(len(names))
	for {
		to, from := leastLoaded(names, held), mostLoaded(names, held)
		over := mean // nodes that hold more may lose one
		if float64(held[to]) >= math.Floor(mean*leastLoad) {
			if float64(held[from]) <= math.Ceil(mean*replicaLoad) {
				return
			}
			over = float64(held[from] - 1)
		}
		moved := bestTransfer(to, records, held, over)
		if moved == nil {
			return
		}
		held[moved.Node]--
		held[to]++
		moved.Node = to
	}
}

// bestTransfer returns the follower that node to should replace. It is on a node that holds more than over replicas, in
// a shard without a replica on to. Of these shards the one of highest hash is chosen.
func bestTransfer(to string, records []*ebbv1.ShardRecord, held map[string]int, over float64) *ebbv1.ReplicaRecord {
	var best *ebbv1.ReplicaRecord
	var bestWeight uint64
	for _, record := range records {
		w := weight(to, record.Shard)
		if best != nil && w <= bestWeight || holds(record, to) {
			continue
		}
		for _, replica := range record.Replicas[1:] {
			if float64(held[replica.Node]) > over {
				best, bestWeight = replica, w
			}
		}
	}
	return best
}

func holds(record *ebbv1.ShardRecord, node string) bool {
	return slices.ContainsFunc(record.Replicas, func(r *ebbv1.ReplicaRecord) bool { return r.Node == node })
}

// leastLoaded returns the name with the smallest count, the first of several.
func leastLoaded(names []string, count map[string]int) string {
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
}

// mostLoaded returns the name with the largest count, the first of several.
func mostLoaded(names []string, count map[string]int) string {
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
}

// rank orders nodes by decreasing hash(node, shard), then by name.
func rank(names []string, shard uint32) []string {
	ranked := slices.Clone(names)
	slices.SortFunc(ranked, func(a, b string) int {
		return cmp.Or(cmp.Compare(weight(b, shard), weight(a, shard)), cmp.Compare(a, b))
	})
	return ranked
}

func weight(node string, shard uint32) uint64 {
	return xxhash.Sum64String(fmt.Sprintf("%d:%s", shard, node))
}

func numberReplicas(placement []*ebbv1.ShardRecord) {
	id := uint64(0)
	for _, record := range placement {
		for _, replica := range record.Replicas {
			id++
			replica.Id = id
		}
	}
}

type member string

func (m member) String() string { return string(m) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

// place returns the preferred leaders of shards 1 to shards. The library panics if it finds no room; place returns that
// as an error.
func place(names []string, shards uint32) (leaders []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("place %d shards on %d nodes: %v", shards, len(names), r)
		}
	}()
	members := make([]consistent.Member, len(names))
	for i, name := range names {
		members[i] = member(name)
	}
	ring := consistent.New(members, consistent.Config{
		Hasher: hasher{}, PartitionCount: int(shards), ReplicationFactor: ringPoints, Load: ringLoad,
	})
	leaders = make([]string, shards)
	for i := range leaders {
		leaders[i] = ring.GetPartitionOwner(i).String()
	}
	return leaders, nil
}
