package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

// newcomer adds a node that knows nothing but whom to join.
func (b *bubble) newcomer(name string) (i int) {
	i = len(b.nodes)
	b.nodes = append(b.nodes, nil)
	b.disks = append(b.disks, fs.NewMem())
	fatal := new(atomic.Pointer[error])
	b.config = append(b.config, node.Config{
		Name: name, DataDir: "/data", FS: b.disks[i], Network: b.net.Host(b.host(i)),
		GRPC: b.host(i) + ":7070", HTTP: node.Off, Admin: node.Off, Gossip: b.host(i) + ":7071",
		Join: []string{b.host(0) + ":7071"}, Logger: testLogger(b.T), Fail: new(fail.Points),
		Fatal: func(err error) { fatal.Store(&err) },
	})
	b.fatals = append(b.fatals, fatal)
	return i
}

// table is what a node knows of the cluster.
func (b *bubble) table(i int) *cluster.Table { return b.nodes[i].Table() }

// until waits for what must come.
func (b *bubble) until(what string, so func() bool) {
	b.Helper()
	for start := time.Now(); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > 5*time.Minute {
			for i, n := range b.nodes {
				if n != nil {
					b.Logf("node %d: %v, %d replicas", i, n.Status().GetPhase(), len(n.Status().GetReplicas()))
				}
			}
			b.Fatalf("%s does not come; moves: %v", what, cluster.Moves(b.table(0)))
		}
	}
}

// whole reports whether every shard has so many replicas on these nodes, by the table of the first of them and by what
// they run.
func (b *bubble) whole(replicas int, nodes ...int) bool {
	table := b.table(nodes[0])
	if len(table.Nodes()) != len(nodes) || len(cluster.Moves(table)) > 0 {
		return false
	}
	running := 0
	for _, i := range nodes {
		running += len(b.nodes[i].Status().GetReplicas()) - 1
	}
	return running == int(table.Shards())*replicas
}

// equal checks that the replicas of every shard hold the same.
func (b *bubble) equal(nodes ...int) {
	b.Helper()
	for shard := uint32(1); shard <= b.table(nodes[0]).Shards(); shard++ {
		b.until(fmt.Sprintf("equality of shard %d", shard), func() bool {
			sums, indexes := make(map[uint64]bool), make(map[uint64]bool)
			for _, i := range nodes {
				if index, sum, ok := b.nodes[i].Checksum(shard); ok {
					sums[sum], indexes[index] = true, true
				}
			}
			return len(sums) == 1 && len(indexes) == 1
		})
	}
}

// peer is node i as another node reaches it, until done.
func (b *bubble) peer(i int) (peer *rpc.Peer, done func()) {
	b.Helper()
	peers := rpc.NewPeers(rpc.PeersConfig{
		Address: func(string) (string, error) { return b.host(i) + ":7070", nil },
		Dial:    b.net.Host("10.0.9.9").Dial,
	})
	peer, err := peers.Peer(b.config[i].Name)
	if err != nil {
		b.Fatal(err)
	}
	return peer, func() { _ = peers.Close() }
}

// ask asks a node to change the cluster.
func (b *bubble) ask(i int, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	peer, done := b.peer(i)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return peer.ChangeCluster(ctx, req)
}

func (b *bubble) change(i int, req *ebbv1.ChangeClusterRequest) *ebbv1.ChangeClusterResponse {
	b.Helper()
	resp, err := b.ask(i, req)
	if err != nil {
		b.Fatalf("change the cluster: %v", err)
	}
	return resp
}

func remove(name string) *ebbv1.ChangeClusterRequest {
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Remove{Remove: name}}
}

// A new node that is given nothing, for a third of the others look dead, is ready when it has been there for a while,
// and not before.
func TestReadyWithoutAShare(t *testing.T) {
	inBubble(t, 5, 8, func(b *bubble) {
		b.openAll()
		b.crash(3)
		b.crash(4)
		b.until("silence of two, where the control group may be led", func() bool {
			for _, n := range b.nodes[:3] {
				if cluster.RebalanceHalted(n.Table(), n.Alive) == "" {
					return false
				}
			}
			return true
		})
		guest := b.newcomer("guest")
		b.open(guest)
		b.ready(guest)
		start := time.Now()
		b.until("readiness", func() bool { return b.nodes[guest].Readiness() == nil })
		if took := time.Since(start); took < 9*time.Second {
			t.Errorf("ready after %v", took)
		}
		if held, due := b.table(guest).Share("guest"); held+due > 0 {
			t.Errorf("%d shards, and %d more", held, due)
		}
	})
}

// TestGrowAndShrink takes a cluster from three nodes to five and back to three, while writes continue. Only one of the
// last three is a founder. Each acknowledged increment counts, and once.
func TestGrowAndShrink(t *testing.T) {
	long(t)
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 8)
		for _, name := range []string{"ebb-3", "guest"} {
			b.open(b.newcomer(name))
		}
		b.until("five nodes", func() bool { return b.whole(3, 0, 1, 2, 3, 4) })
		for i := range 5 {
			b.ready(i)
		}
		b.equalUnlessWritten()
		for _, i := range []int{2, 1} {
			b.change(0, remove(b.config[i].Name))
		}
		b.until("three nodes", func() bool { return b.whole(3, 0, 3, 4) })
		for _, i := range []int{1, 2} {
			b.until("its end", func() bool { return errors.Is(b.said(i), proto.ErrWrongCluster) })
			b.nodes[i].Kill()
			b.nodes[i] = nil
		}
		n := stop()
		b.verify(c, 8, n)
		b.equal(0, 3, 4)
		if n == 0 {
			t.Error("nothing was written")
		}
	})
}

// equalUnlessWritten is for the middle of a test: writes go on, so that nothing but divergence can be seen.
func (b *bubble) equalUnlessWritten() {
	b.Helper()
	for shard := uint32(1); shard <= b.table(0).Shards(); shard++ {
		sums := make(map[uint64]uint64)
		for _, n := range b.nodes {
			if index, sum, ok := n.Checksum(shard); ok {
				if have, known := sums[index]; known && have != sum {
					b.Errorf("shard %d has diverged at entry %d", shard, index)
				}
				sums[index] = sum
			}
		}
	}
}

// TestLostDiskIsReplaced wipes the disk of a node, which comes back under its name, with other replicas, and serves.
func TestLostDiskIsReplaced(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 4)
		time.Sleep(5 * time.Second)
		before, _ := b.table(0).ReplicaOn("ebb-2", 1)
		b.crash(2)
		old := b.disks[2]
		b.disks[2] = fs.NewMem()
		b.config[2].FS = b.disks[2]
		b.open(2)
		b.until("a whole cluster", func() bool {
			after, ok := b.table(0).ReplicaOn("ebb-2", 1)
			return ok && after > before && b.whole(3, 0, 1, 2)
		})
		b.ready(2)
		b.crash(1) // the new replicas are needed now
		b.verify(c, 4, stop())
		b.open(1)
		b.ready(1)
		b.equal(0, 1, 2)

		b.crash(2) // the old disk turns up again
		b.config[2].FS = old
		b.open(2)
		b.until("its end", func() bool { return errors.Is(b.said(2), proto.ErrWrongCluster) })
	})
}

// TestDiskLostAtBirth: a founder loses its disk when its groups have voted and acknowledged, and before the cluster has
// written down that it lives. It is no newcomer: it gets new replicas.
func TestDiskLostAtBirth(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		for i := range 3 {
			b.open(i)
		}
		b.until("a group in which it takes part", func() bool {
			return b.nodes[0] != nil && slices.Contains(b.nodes[0].Status().GetHears(), "ebb-2")
		})
		if record := b.table(0).Node("ebb-2"); record.GetEnrolled() {
			t.Fatalf("the cluster knows its disk already: %v", record)
		}
		b.crash(2)
		b.disks[2] = fs.NewMem()
		b.config[2].FS = b.disks[2]
		b.open(2)
		birth, _ := b.table(0).ReplicaOn("ebb-2", 1)
		b.until("a whole cluster", func() bool {
			now, ok := b.table(0).ReplicaOn("ebb-2", 1)
			return ok && now > max(birth, 12) && b.whole(3, 0, 1, 2)
		})
		b.ready(2)
		c := b.client()
		b.plain(c)
		b.write(c, "link", "de", 1)
		b.equal(0, 1, 2)
	})
}

// TestDiskThatOneNodeCannotReach: a process with an empty disk and the name of a member asks to join. The control
// leader is cut off from that member, but the third node still hears it. So its disk is not lost, and it stays a member
// with what it has.
func TestDiskThatOneNodeCannotReach(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "link", "de", 1)
		leader := slices.IndexFunc(b.nodes, func(n *node.Node) bool { return leads(n, cluster.ControlShard) })
		elder := (leader + 1) % 3
		var disk string
		b.until("its record", func() bool { disk = b.table(leader).Node(b.config[elder].Name).GetDisk(); return disk != "" })
		b.net.Cut(b.host(leader), b.host(elder))
		twin := b.config[elder]
		twin.FS, twin.Network, twin.Registry = fs.NewMem(), b.net.Host("10.0.0.9"), nil
		twin.GRPC, twin.Gossip, twin.Join = "10.0.0.9:7070", "10.0.0.9:7071", []string{b.host(leader) + ":7071"}
		twin.Fatal = func(error) {} // it has to give way
		for i := range 3 {
			if i != leader {
				b.net.Cut("10.0.0.9", b.host(i))
			}
		}
		n := b.openConfig(twin)
		kept := func() bool { return b.table(leader).Node(twin.Name).GetDisk() == disk }
		for start := time.Now(); kept() && time.Since(start) < 30*time.Second; {
			time.Sleep(100 * time.Millisecond)
		}
		if !kept() {
			t.Errorf("the disk of %s, which lives, is given up", twin.Name)
		}
		n.Kill()
		b.net.Heal()
		b.until("its whole self", func() bool { return b.whole(3, 0, 1, 2) && b.said(elder) == nil })
		b.write(c, "link", "de", 1)
		b.equal(0, 1, 2)
	})
}

// TestNewcomersThatDie: one node dies as soon as the cluster has heard of it, and another when it has been given
// shards. A third grows into the cluster all the same, and the dead are removed.
func TestNewcomersThatDie(t *testing.T) {
	long(t)
	inBubble(t, 3, 8, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 8)
		given := func(name string) (shards int) {
			for shard := uint32(1); shard <= b.table(0).Shards(); shard++ {
				if _, ok := b.table(0).ReplicaOn(name, shard); ok {
					shards++
				}
			}
			return shards
		}
		first := b.newcomer("early")
		b.open(first)
		for b.table(0).Node("early") == nil {
			time.Sleep(time.Millisecond)
		}
		b.crash(first)
		second := b.newcomer("late")
		b.open(second)
		for given("late") == 0 {
			time.Sleep(time.Millisecond)
		}
		b.crash(second)
		third := b.newcomer("fit")
		b.open(third)
		b.ready(third)
		for _, i := range []int{first, second} {
			b.change(0, remove(b.config[i].Name))
		}
		b.until("four nodes", func() bool { return b.whole(3, 0, 1, 2, third) })
		b.verify(c, 8, stop())
		b.equal(0, 1, 2, third)
	})
}

// TestClusterOfOneGrows: the first replica of each shard hands over what it has, and two that join make three.
func TestClusterOfOneGrows(t *testing.T) {
	inBubble(t, 1, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "link", "de", 3)
		b.open(b.newcomer("ebb-1"))
		b.open(b.newcomer("ebb-2"))
		b.until("three nodes with one replica of each", func() bool { return b.whole(1, 0, 1, 2) })
		b.change(1, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 3}})
		b.until("three replicas of each", func() bool { return b.whole(3, 0, 1, 2) })
		b.crash(0)
		if got := b.count(b.client(), "link", "de"); got != 3 {
			t.Errorf("%v counted, want 3", got)
		}
	})
}

// TestSecondReplicaThatDies: shards of one replica are to have two, and a node dies before it votes in any. The shards
// go on with the one that they have, it is said what is waited for, and with a lower number again it is given up.
func TestSecondReplicaThatDies(t *testing.T) {
	inBubble(t, 4, 8, func(b *bubble) {
		for i := range b.config {
			b.config[i].Replication = 1
			b.config[i].Fail.Arm("move.before.promote", 0, fail.Error(errors.New("not yet")))
		}
		b.openAll()
		c := b.client()
		b.plain(c)
		resp := b.change(0, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 2}})
		if len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "both are needed") {
			t.Errorf("two replicas are warned of with %q", resp.Warnings)
		}
		given := func() (shards []uint32) {
			for shard := uint32(1); shard <= 8; shard++ {
				for _, r := range b.table(0).Replicas(shard) {
					if r.Node == "ebb-3" && r.Joining {
						shards = append(shards, shard)
					}
				}
			}
			return shards
		}
		b.until("replicas for ebb-3", func() bool { return len(given()) > 0 })
		time.Sleep(5 * time.Second) // they are members, without a vote
		b.crash(3)
		shards := given()
		b.until("a word of it", func() bool {
			resp, _ := b.ask(0, &ebbv1.ChangeClusterRequest{DryRun: true}) // not while the control group has no leader
			waits := slices.ContainsFunc(resp.GetMoves(), func(m *ebbv1.Move) bool { return m.Waits == "ebb-3 does not answer" })
			return waits && strings.Contains(strings.Join(resp.GetWarnings(), ""), "node ebb-3 is being given")
		})
		b.change(0, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 1}})
		b.until("an end of that", func() bool {
			return len(given()) == 0 && !slices.ContainsFunc(shards, func(s uint32) bool { return b.table(0).UnderWay(s) || len(b.table(0).Replicas(s)) != 1 })
		})
		for k := range 40 {
			if key := fmt.Sprintf("k%d", k); slices.Contains(shards, b.table(0).ShardOf("plain", []byte(key))) {
				b.write(c, key, "x", 1)
			}
		}
	})
}

// TestRefusals: what a cluster cannot do without harm it does not do, and says why.
func TestRefusals(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		for _, c := range []struct {
			what string
			req  *ebbv1.ChangeClusterRequest
			says string
		}{
			{"fewer nodes than replicas", remove("ebb-1"), "each shard has 3 replicas"},
			{"a node that is none", remove("ebb-9"), "no node"},
			{"more replicas than nodes", &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: 4}}, "4 on 3 nodes"},
		} {
			if _, err := b.ask(0, c.req); !errors.Is(err, proto.ErrBadRequest) || !contains(err, c.says) {
				t.Errorf("%s: %v, want BAD_REQUEST that says %q", c.what, err, c.says)
			}
		}
		i := b.newcomer("ebb-1") // its namesake lives
		b.open(i)
		b.until("its end", func() bool { return b.said(i) != nil })
		if !errors.Is(b.said(i), proto.ErrDuplicateNode) {
			t.Errorf("a second ebb-1 says %v, want DUPLICATE_NODE", b.said(i))
		}
	})
}

func contains(err error, words string) bool {
	return err != nil && strings.Contains(err.Error(), words)
}
