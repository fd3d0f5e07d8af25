package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fewer asks for two replicas of each shard, and returns when all moves have stopped because of an error at a point of
// moves. It returns the node that stays in most of the shards whose members are being changed.
func (b *bubble) fewer(point string) (stays int) {
	b.Helper()
	for i := range b.config {
		b.config[i].Fail.Arm(point, 0, fail.Error(errors.New("not yet")))
	}
	b.until("the newest version", func() bool { return b.table(0).Version() == proto.StorageVersion })
	b.change(0, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 2}})
	time.Sleep(10 * time.Second)
	in := make([]int, len(b.config))
	for shard := uint32(1); shard <= b.table(0).Shards(); shard++ {
		for _, r := range b.table(0).Replicas(shard) {
			if i := slices.Index([]string{"ebb-0", "ebb-1", "ebb-2"}, r.GetNode()); b.table(0).UnderWay(shard) && !r.GetLeaving() {
				in[i]++
			}
		}
	}
	if slices.Max(in) == 0 {
		b.Fatal("no move is under way")
	}
	return slices.Index(in, slices.Max(in))
}

// goOn takes back what keeps moves from going on.
func (b *bubble) goOn(point string) {
	for i := range b.config {
		b.config[i].Fail.Disarm(point)
	}
}

// writeAll writes once to every shard, and returns the keys.
func (b *bubble) writeAll() (keys []string) {
	b.Helper()
	c, table := b.client(), b.table(slices.IndexFunc(b.nodes, func(n *node.Node) bool { return n != nil }))
	done := make(map[uint32]bool)
	for k := 0; len(done) < int(table.Shards()); k++ {
		key := fmt.Sprintf("k%d", k)
		if shard := table.ShardOf("plain", []byte(key)); !done[shard] {
			b.write(c, key, "x", 1)
			done[shard] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// wipe gives a node that is down an empty disk, starts it, and returns the disk that it had.
func (b *bubble) wipe(i int) (old *fs.Mem) {
	old = b.disks[i]
	b.disks[i] = fs.NewMem()
	b.config[i].FS = b.disks[i]
	b.open(i)
	return old
}

func others(i int) []int { return []int{(i + 1) % 3, (i + 2) % 3} }

// TestKilledWhileReplicasLeave: one of three nodes dies while its shards go down to two replicas. Those that would be
// left with it and one other keep the third, and take writes; what waits says for whom; and when the node is removed,
// all shards come to lie on the other two.
func TestKilledWhileReplicasLeave(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		var said auditLog
		for i := range b.config {
			b.config[i].Logger = slog.New(slog.NewJSONHandler(&said, nil))
		}
		b.openAll()
		b.plain(b.client())
		victim := b.fewer("move.before.remove")
		name, rest := b.config[victim].Name, others(victim)
		b.crash(victim)
		b.goOn("move.before.remove")
		time.Sleep(20 * time.Second)
		b.writeAll()
		b.until("a word of it", func() bool {
			resp, _ := b.ask(rest[0], &ebbv1.ChangeClusterRequest{DryRun: true})
			return slices.ContainsFunc(resp.GetMoves(), func(m *ebbv1.Move) bool {
				return m.GetWaits() == name+" does not answer, and is needed for a majority"
			})
		})
		b.change(rest[0], remove(name))
		b.until("two nodes", func() bool { return b.whole(2, rest...) })
		b.writeAll()
		b.equal(rest...)
		taken := 0
		for line := range strings.Lines(said.String()) {
			var l struct {
				Msg, Stays string
				Replica    uint64
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil || l.Msg != "a move is taken back" {
				continue
			}
			if taken++; l.Replica == 0 || l.Stays == "" || l.Stays == name {
				t.Errorf("it does not say who stays: %s", line)
			}
		}
		if taken == 0 {
			t.Error("no move was taken back")
		}
	})
}

// TestWipedWhileReplicasLeave: likewise, and the node comes back with an empty disk. The others do without it, so it is
// let in, and gets its share.
func TestWipedWhileReplicasLeave(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		b.plain(b.client())
		victim := b.fewer("move.before.remove")
		b.crash(victim)
		b.goOn("move.before.remove")
		b.wipe(victim)
		b.until("two replicas of each", func() bool {
			for _, m := range cluster.Moves(b.table(others(victim)[0])) {
				if m.GetFrom() == m.GetTo() {
					t.Fatalf("a move is %v", m)
				}
			}
			return b.whole(2, 0, 1, 2)
		})
		b.ready(victim)
		b.writeAll()
		if err := b.said(victim); err != nil {
			t.Error(err)
		}
	})
}

// TestNeededDiskIsNotGivenUp: likewise, when the third replicas are no members any more and the table does not know
// that yet. By the table a majority would be left, but these shards have no leader without the node. So it is refused
// with an empty disk. With its own disk, everything continues.
func TestNeededDiskIsNotGivenUp(t *testing.T) {
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		b.plain(b.client())
		victim := b.fewer("move.before.settle")
		other := others(victim)[0]
		disk := b.table(other).Node(b.config[victim].Name).GetDisk()
		b.crash(victim)
		b.goOn("move.before.settle")
		old := b.wipe(victim)
		b.until("its end", func() bool { return b.said(victim) != nil })
		if err := b.said(victim); !errors.Is(err, proto.ErrWrongCluster) || !strings.Contains(err.Error(), "nobody leads that without it") {
			t.Errorf("it says %v", err)
		}
		if got := b.table(other).Node(b.config[victim].Name).GetDisk(); got != disk {
			t.Errorf("it has disk %s now, and had %s", got, disk)
		}
		b.nodes[victim].Kill()
		b.disks[victim], b.config[victim].FS = old, old
		b.fatals[victim].Store(nil)
		b.open(victim)
		b.until("two replicas of each", func() bool { return b.whole(2, 0, 1, 2) })
		b.writeAll()
	})
}

// TestANewDiskMakesNoReplicaOfTheOldOne: a table may give a node whose disk is new a replica that the disk before it
// had, if that was to leave, was not marked as lost and was taken back. It has voted and acknowledged what the new disk
// knows nothing of, so it is not made; one that is newer than the disk is.
func TestANewDiskMakesNoReplicaOfTheOldOne(t *testing.T) {
	inBubble(t, 4, 6, func(b *bubble) {
		for i := range b.config {
			b.config[i].Replication = 3
		}
		b.openAll()
		const victim = 3
		name := b.config[victim].Name
		held, shard := uint64(0), uint32(0)
		for s := uint32(1); s <= b.table(0).Shards(); s++ {
			if r, here := b.table(0).ReplicaOn(name, s); here {
				held = max(held, r)
			}
		}
		b.until("the newest version", func() bool { return b.table(0).Version() == proto.StorageVersion })
		b.crash(victim)
		b.wipe(victim)
		b.until("replicas on the new disk", func() bool { return b.whole(3, 0, 1, 2, 3) })
		table := b.table(victim)
		for s := uint32(1); s <= table.Shards(); s++ {
			if _, here := table.ReplicaOn(name, s); !here {
				shard = s
			}
		}
		own, _ := table.ReplicaOn(name, cluster.ControlShard)
		if held == 0 || held >= own || shard == 0 {
			t.Fatalf("the old disk had replica %d, the new one has %d of the control group, and shard %d is elsewhere", held, own, shard)
		}
		has := func(id uint64) bool {
			wire := pb.CloneOf(table.Wire())
			wire.Epoch++
			wire.Placement[shard].Replicas = append(wire.Placement[shard].Replicas, &ebbv1.ReplicaRecord{Id: id, Node: name, Joining: true})
			paper, err := cluster.NewTable(wire)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.nodes[victim].Keep(paper, shard); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(b.nodes[victim].Status().Replicas, func(r *ebbv1.ReplicaStatus) bool { return r.GetShard() == shard })
		}
		if has(held) {
			t.Fatalf("replica %d of the old disk is made anew on the new one, whose oldest is %d", held, own)
		}
		if id := table.Wire().GetReplicasGiven() + 1; !has(id) {
			t.Errorf("replica %d, which is new, is not made", id)
		}
	})
}

// TestAnOlderTableTakesNoReplicaAway: a node that restarts may see tables of before it was given a replica, which do
// not list it. Only one that is as new as that which gave it may take it away.
func TestAnOlderTableTakesNoReplicaAway(t *testing.T) {
	inBubble(t, 4, 6, func(b *bubble) {
		for i := range b.config {
			b.config[i].Replication = 3
		}
		b.openAll()
		b.until("the newest version", func() bool { return b.table(0).Version() == proto.StorageVersion })
		const guest = 3
		older, shard := b.table(guest), uint32(0)
		for s := uint32(1); s <= older.Shards(); s++ {
			if _, here := older.ReplicaOn(b.config[guest].Name, s); !here {
				shard = s
			}
		}
		if shard == 0 {
			t.Fatal("every shard has a replica on every node")
		}
		later := func(epochs uint64, replicas ...*ebbv1.ReplicaRecord) *cluster.Table {
			wire := pb.CloneOf(older.Wire())
			wire.Epoch += epochs
			wire.Placement[shard].Replicas = append(wire.Placement[shard].Replicas, replicas...)
			table, err := cluster.NewTable(wire)
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
		has := func(table *cluster.Table) bool {
			if err := b.nodes[guest].Keep(table, shard); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(b.nodes[guest].Status().Replicas, func(r *ebbv1.ReplicaStatus) bool { return r.GetShard() == shard })
		}
		if !has(later(2, &ebbv1.ReplicaRecord{Id: older.Wire().GetReplicasGiven() + 1, Node: b.config[guest].Name, Joining: true})) {
			t.Fatal("a table gives the node a replica, and it is not made")
		}
		for epochs, want := range []bool{true, true, false} {
			if got := has(later(uint64(epochs))); got != want {
				t.Errorf("after a table of %d epochs later, where the replica came with the second: there is one %v, want %v", epochs, got, want)
			}
		}
	})
}
