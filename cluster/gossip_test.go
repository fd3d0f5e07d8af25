package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/chaos/sim"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
)

// village is a few nodes that gossip over a simulated network.
type village struct {
	t     *testing.T
	net   *sim.Net
	nodes map[string]*cluster.Gossip

	mu   sync.Mutex // guards dups
	dups []cluster.Duplicate
}

func (v *village) duplicates() []cluster.Duplicate {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.dups)
}

func (v *village) report(d cluster.Duplicate) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dups = append(v.dups, d)
}

// reportOnce returns what notes the first duplicate that one node reports: it reports them again with each look.
func (v *village) reportOnce() func(cluster.Duplicate) {
	var once sync.Once
	return func(d cluster.Duplicate) { once.Do(func() { v.report(d) }) }
}

const gossipPort = ":7071"

func newVillage(t *testing.T) *village {
	v := &village{t: t, net: sim.NewNet(1), nodes: map[string]*cluster.Gossip{}}
	t.Cleanup(func() {
		for _, g := range v.nodes {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(10 * time.Second) // memberlist's last probes outlive Close; the bubble waits for them
	})
	return v
}

// open starts a node at an address; key is what the test calls this start of it.
func (v *village) open(key, node string, boot uint64, ip string, join ...string) *cluster.Gossip {
	v.t.Helper()
	return v.openSealed(nil, key, node, boot, ip, join...)
}

// openSealed starts a node that has keys.
func (v *village) openSealed(keys [][]byte, key, node string, boot uint64, ip string, join ...string) *cluster.Gossip {
	v.t.Helper()
	g, err := cluster.OpenGossip(context.Background(), cluster.GossipConfig{
		Keys: keys,
		Node: node, Boot: boot, GRPC: "0.0.0.0:7070", HTTP: ip + ":7080", Version: "v1",
		Network: v.net.Host(ip), Listen: ip + gossipPort, Join: join,
		OnDuplicate: v.reportOnce(),
		Logger:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		v.t.Fatal(err)
	}
	v.nodes[key] = g
	return g
}

// kill takes a start of a node off the network as a crash would.
func (v *village) kill(key, ip string) {
	v.net.Crash(ip)
	if err := v.nodes[key].Kill(); err != nil {
		v.t.Log(err)
	}
	delete(v.nodes, key)
}

// alive returns the names of the members that one node believes alive.
func alive(g *cluster.Gossip) []string {
	var names []string
	for _, m := range g.Members() {
		if m.Alive {
			names = append(names, m.Node)
		}
	}
	return names
}

// within waits until the condition holds, looking every 100 ms of virtual time.
func (v *village) within(limit time.Duration, what string, holds func() bool) time.Duration {
	v.t.Helper()
	start := time.Now()
	for !holds() {
		if time.Since(start) > limit {
			for key, g := range v.nodes {
				v.t.Logf("%s sees %+v", key, g.Members())
			}
			v.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(start)
}

func (v *village) allSee(names ...string) func() bool {
	return func() bool {
		for _, g := range v.nodes {
			if !slices.Equal(alive(g), names) {
				return false
			}
		}
		return true
	}
}

func ip(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

func five(v *village) (names []string) {
	for i := range 5 {
		name := fmt.Sprintf("ebb-%d", i)
		names = append(names, name)
		v.open(name, name, 1, ip(i), ip(0)+gossipPort)
	}
	return names
}

func TestGossipConvergesAndSaysWhereEverybodyIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		took := v.within(30*time.Second, "converge", v.allSee(names...))
		t.Logf("five nodes met in %v", took)
		got, ok := v.nodes["ebb-3"].Member("ebb-2")
		want := cluster.Member{
			Node: "ebb-2", Boot: 1, GRPC: "10.0.0.3:7070", HTTP: "10.0.0.3:7080",
			Gossip: "10.0.0.3:7071", Version: "v1", Alive: true,
		}
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("ebb-2 as ebb-3 sees it (-want +got):\n%s", diff)
		}
	})
}

func TestGossipNoticesDeathAndGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))

		v.kill("ebb-4", ip(4))
		took := v.within(30*time.Second, "notice a death", v.allSee(names[:4]...))
		t.Logf("a death was noticed after %v", took)

		if err := v.nodes["ebb-3"].Close(); err != nil {
			t.Error(err)
		}
		delete(v.nodes, "ebb-3")
		took = v.within(30*time.Second, "notice a goodbye", v.allSee(names[:3]...))
		t.Logf("a goodbye was noticed after %v", took)
		if m, ok := v.nodes["ebb-0"].Member("ebb-4"); !ok || m.Alive {
			t.Errorf("the dead node is %+v, %v: it should be known, and dead", m, ok)
		}
	})
}

// memberlist alone never heals a split this long.
func TestGossipHealsATenMinuteSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))
		for a := range 2 {
			for b := 2; b < 5; b++ {
				v.net.Cut(ip(a), ip(b))
			}
		}
		v.within(time.Minute, "split", func() bool {
			return slices.Equal(alive(v.nodes["ebb-0"]), names[:2]) && slices.Equal(alive(v.nodes["ebb-4"]), names[2:])
		})
		time.Sleep(10 * time.Minute)
		v.net.Heal()
		took := v.within(30*time.Second, "heal", v.allSee(names...))
		t.Logf("healed %v after the network did", took)
		if dups := v.duplicates(); len(dups) > 0 {
			t.Errorf("reported duplicates: %v", dups)
		}
	})
}

func TestGossipFollowsARestartedNodeToItsNewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))

		v.kill("ebb-2", ip(2))
		v.open("ebb-2 again", "ebb-2", 7, "10.0.0.77", ip(1)+gossipPort)
		at := func(addr string) func() bool {
			return func() bool {
				for _, g := range v.nodes {
					if m, ok := g.Member("ebb-2"); !ok || m.Gossip != addr || !m.Alive {
						return false
					}
				}
				return true
			}
		}
		took := v.within(30*time.Second, "follow", at("10.0.0.77:7071"))
		t.Logf("followed after %v", took)

		// The clock of the next start is behind: until the last one is known not to answer, that one counts.
		v.kill("ebb-2 again", "10.0.0.77")
		v.open("ebb-2 thrice", "ebb-2", 6, "10.0.0.78", ip(1)+gossipPort)
		v.within(30*time.Second, "follow an older boot", at("10.0.0.78:7071"))
		time.Sleep(time.Minute)
		if dups := v.duplicates(); len(dups) > 0 {
			t.Errorf("reported duplicates: %v", dups)
		}
	})
}

func TestGossipTellsTwoNodesWithOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))
		v.open("impostor", "ebb-1", 9, "10.0.0.99", ip(0)+gossipPort)
		v.within(30*time.Second, "everybody notices", func() bool { return len(v.duplicates()) == 6 })
		d := v.duplicates()[0]
		if d.Stays.Gossip != "10.0.0.2:7071" || d.Goes.Gossip != "10.0.0.99:7071" {
			t.Errorf("%s stays and %s goes", d.Stays.Gossip, d.Goes.Gossip)
		}
		if !errors.Is(d.Err(), proto.ErrDuplicateNode) {
			t.Errorf("error %v", d.Err())
		}
		t.Log(d.Err())
	})
}

// A node comes back at once, while others take its last start for alive, and a bit of every second packet is inverted.
// It is not reported as running twice: damage to the name in a ping does not make a node answer for another start.
func TestDamagedPacketsMakeNoDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))
		damaged := sim.UsualLink
		damaged.Flip = 0.5
		key := "ebb-1"
		for boot := uint64(2); boot < 30; boot++ {
			v.net.SetUsual(damaged)
			v.kill(key, ip(1))
			key = fmt.Sprint("ebb-1 for the ", boot, "th time")
			v.open(key, "ebb-1", boot, ip(1), ip(0)+gossipPort)
			time.Sleep(10 * time.Second)
			v.net.SetUsual(sim.UsualLink)
			v.within(time.Minute, "converge again", v.allSee(names...))
		}
		if dups := v.duplicates(); len(dups) > 0 {
			t.Errorf("%d times: %v", len(dups), dups[0].Err())
		}
	})
}

// A node that comes to a name that is taken goes, though its clock says that it was first. Every node says so.
func TestGossipKeepsTheOneThatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := five(v)
		v.within(30*time.Second, "converge", v.allSee(names...))
		time.Sleep(30 * time.Second)
		v.open("impostor", "ebb-1", 0, "10.0.0.99", ip(0)+gossipPort)
		v.within(30*time.Second, "everybody notices", func() bool { return len(v.duplicates()) == 6 })
		for _, d := range v.duplicates() {
			if d.Stays.Gossip != "10.0.0.2:7071" || d.Goes.Gossip != "10.0.0.99:7071" {
				t.Errorf("%s stays and %s goes", d.Stays.Gossip, d.Goes.Gossip)
			}
		}
	})
}

func TestGossipTellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		var told [][]cluster.Member
		g, err := cluster.OpenGossip(t.Context(), cluster.GossipConfig{
			Node: "ebb-0", Boot: 1, Network: v.net.Host(ip(0)), Listen: ip(0) + gossipPort,
			OnChange: func(m []cluster.Member) { told = append(told, m) },
		})
		if err != nil {
			t.Fatal(err)
		}
		v.nodes["ebb-0"] = g
		v.open("ebb-1", "ebb-1", 1, ip(1), ip(0)+gossipPort)
		v.within(15*time.Second, "meet", v.allSee("ebb-0", "ebb-1"))
		synctest.Wait()
		if last := told[len(told)-1]; len(told) != 2 || len(last) != 2 {
			t.Errorf("told %d times, the last time of %d members", len(told), len(last))
		}
	})
}

func TestGossipRefusesWhatItCannotTell(t *testing.T) {
	network := sim.NewNet(1)
	for what, cfg := range map[string]cluster.GossipConfig{
		"a name with a plus":      {Node: "ebb+0", Listen: "10.0.0.1:7071"},
		"no name":                 {Listen: "10.0.0.1:7071"},
		"a host name to announce": {Node: "ebb-0", Listen: "10.0.0.1:7071", Addr: "example:7071"},
		"any address to announce": {Node: "ebb-0", Listen: "10.0.0.1:7071", Addr: "0.0.0.0:7071"},
		"metadata over the limit": {Node: "ebb-0", Listen: "10.0.0.1:7071", Version: string(make([]byte, 200))},
	} {
		cfg.Network = network.Host(ip(0))
		g, err := cluster.OpenGossip(t.Context(), cfg)
		if !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("%s: %v, %v", what, g, err)
		}
	}
}

// Two clusters have the same names of nodes, and one node of the first is sent to join the second. Neither hears of the
// other's members, no name counts as used twice, and the node that was sent astray reports a foreign cluster.
func TestAnotherClusterIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		var mu sync.Mutex
		var told []cluster.ForeignCluster
		open := func(key, node, id string, boot uint64, ip string, join ...string) {
			g, err := cluster.OpenGossip(t.Context(), cluster.GossipConfig{
				Node: node, Boot: boot, GRPC: ip + ":7070", HTTP: ip + ":7080", Version: "v1",
				Network: v.net.Host(ip), Listen: ip + gossipPort, Join: join,
				Cluster: func() string { return id },
				OnForeignCluster: func(s cluster.ForeignCluster) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, s)
				},
				OnDuplicate: v.report,
				Logger:      slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			v.nodes[key] = g
		}
		first, second := strings.Repeat("a", 32), strings.Repeat("b", 32)
		open("a0", "ebb-0", first, 1, "10.0.0.1")
		open("a1", "ebb-1", first, 2, "10.0.0.2", "10.0.0.1"+gossipPort)
		open("b0", "ebb-0", second, 3, "10.0.1.1")
		open("b1", "ebb-1", second, 4, "10.0.1.2", "10.0.1.1"+gossipPort)
		v.within(10*time.Second, "both clusters are whole", func() bool {
			return len(alive(v.nodes["a0"])) == 2 && len(alive(v.nodes["b0"])) == 2
		})
		open("a2", "ebb-2", first, 5, "10.0.0.3", "10.0.1.1"+gossipPort, "10.0.1.2"+gossipPort)
		time.Sleep(time.Minute)
		if a, b := alive(v.nodes["a0"]), alive(v.nodes["b0"]); len(a) != 2 || len(b) != 2 {
			t.Errorf("the clusters have mixed: %v and %v", a, b)
		}
		if len(v.dups) > 0 {
			t.Errorf("names count as used twice: %v", v.dups)
		}
		if len(told) == 0 || told[0].Theirs != second[:16] || told[0].Ours != first[:16] {
			t.Errorf("told: %+v", told)
		}
	})
}

// A gossip that was killed can be closed.
func TestKilledGossipIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		v.open("ebb-0", "ebb-0", 1, ip(0))
		if err := v.nodes["ebb-0"].Kill(); err != nil {
			t.Fatal(err)
		}
		if err := v.nodes["ebb-0"].Close(); err != nil {
			t.Error(err)
		}
	})
}
