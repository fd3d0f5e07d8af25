package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// estate is a cluster on paper: the control group's state, each group's Raft configuration, and which nodes are dead.
// What a control leader, the leaders of groups and nodes would do, its methods do at once.
type estate struct {
	t reporter
	testControl
	conf  map[uint32][]Server // of each group
	dead  map[string]bool
	moved int // replicas that got data
	named int
}

func newEstate(t *rapid.T, nodes, shards, replication int, zones []string) *estate {
	return newEstateOf(t, nodes, shards, replication, zones)
}

// reporter is a test of either sort.
type reporter interface {
	Fatal(...any)
	Fatalf(string, ...any)
	Helper()
}

func newEstateOf(t reporter, nodes, shards, replication int, zones []string) *estate {
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("ebb-%d", i))
	}
	table, err := InitialTable(names, uint32(shards), uint32(replication))
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range table.wire.Nodes {
		n.Disk = "disk of " + n.Name
		if zones != nil {
			n.Zone = zones[i%len(zones)]
		}
	}
	e := &estate{t: t, testControl: testControl{t, NewControl()}, conf: make(map[uint32][]Server), dead: make(map[string]bool), named: nodes}
	e.must(initCommand("c", table.WithVersion(proto.StorageVersion)))
	for _, record := range e.table().placement {
		for _, r := range record.Replicas {
			e.conf[record.Shard] = append(e.conf[record.Shard], Server{r.Id, !r.Nonvoter})
		}
	}
	return e
}

func (e *estate) table() *Table { return e.c.Table() }

func (e *estate) alive(node string) bool { return !e.dead[node] }

func (e *estate) must(cmd *ebbv1.ControlCommand) *ebbv1.ControlResult {
	e.t.Helper()
	result := e.apply(cmd)
	if result.Error != nil {
		e.t.Fatal(result.Error.Message)
	}
	return result
}

func (e *estate) join(zone string) string {
	name := fmt.Sprintf("ebb-%d", e.named)
	e.named++
	e.must(joinCommand(&ebbv1.NodeRecord{Name: name, Disk: "disk of " + name, Zone: zone}, false))
	return name
}

func joinCommand(record *ebbv1.NodeRecord, replace bool) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{Record: record, Replace: replace}}}
}

// A node that waits to take the place of a lost disk does not join as a new node when that member is gone. Without that
// wait, it does.
func TestWhoWaitsForAPlaceIsRemovedWithIt(t *testing.T) {
	for waits, welcome := range map[bool]bool{true: false, false: true} {
		s := bornCluster(t)
		join := joinCommand(&ebbv1.NodeRecord{Name: "ebb-9", Disk: "another"}, false)
		join.GetJoinNode().TakesPlace = waits
		before := s.c.Table()
		result := s.apply(join)
		if (result.GetError() == nil) != welcome || (s.c.Table() == before) == welcome {
			t.Errorf("it waits: %v; it got %v, want a welcome: %v", waits, result, welcome)
		}
		if e := proto.FromWire(result.GetError()); !welcome && (!errors.Is(e, proto.ErrWrongCluster) || !strings.Contains(e.Error(), "ebb-9 was removed")) {
			t.Errorf("it is refused with %v", e)
		}
	}
}

func stateCommand(node string, state ebbv1.NodeState) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetNodeState{SetNodeState: &ebbv1.SetNodeState{Node: node, State: state}}}
}

// plan does what the control leader does when it looks.
func (e *estate) plan(level bool) []*ebbv1.SetTargets_Target {
	targets := ComputePlacement(e.table(), Dispositions(e.table(), e.alive, func(node string) bool { return e.dead[node] }), level)
	if len(targets) > 0 {
		e.must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetTargets{SetTargets: &ebbv1.SetTargets{Targets: targets}}})
	}
	return targets
}

// begin begins moves, and checks that they are few.
func (e *estate) begin() int {
	moves := NextMoves(e.table(), e.alive, 4)
	for _, m := range moves {
		e.must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginMove{BeginMove: m}})
	}
	return len(moves)
}

// step lets the leader of a group do its next step, and reports whether there was one.
func (e *estate) step(shard uint32) bool {
	record := e.table().Shard(shard)
	leader := e.leader(shard)
	step := NextStep(record, e.conf[shard], leader, func(node string, _ uint64) bool { return e.alive(node) }, func(id uint64) bool { return !e.dead[nodeOf(record, id)] })
	at := slices.IndexFunc(e.conf[shard], func(s Server) bool { return s.Replica == step.Replica })
	switch step.Action {
	case StepNone, StepWait:
		return false
	case StepAdd:
		e.conf[shard] = append(e.conf[shard], Server{step.Replica, false})
		e.moved++
	case StepPromote:
		e.conf[shard][at].Voter = true
	case StepDemote:
		e.conf[shard][at].Voter = false
	case StepRemove:
		e.conf[shard] = slices.Delete(slices.Clone(e.conf[shard]), at, at+1)
	case StepTransferLeadership:
		// leader chooses another at once
	case StepSettle:
		var ids []uint64
		for _, s := range e.conf[shard] {
			ids = append(ids, s.Replica)
		}
		e.must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SettleShard{SettleShard: &ebbv1.SettleShard{Shard: shard, Replicas: ids, Epoch: record.GetEpoch()}}})
	}
	e.check(shard)
	return true
}

func nodeOf(record *ebbv1.ShardRecord, id uint64) string {
	for _, r := range record.GetReplicas() {
		if r.GetId() == id {
			return r.GetNode()
		}
	}
	return ""
}

// leader is a living voter that stays, if there is one.
func (e *estate) leader(shard uint32) (leader uint64) {
	for _, r := range e.table().Replicas(shard) {
		votes := slices.Contains(e.conf[shard], Server{r.GetId(), true})
		if votes && e.alive(r.GetNode()) && !r.GetLost() && (leader == 0 || !r.GetLeaving() && !r.GetNonvoter()) {
			leader = r.GetId()
		}
	}
	return leader
}

// check looks at a group after each step: a majority of its voters lives, and no more than one replica is on its way.
func (e *estate) check(shard uint32) {
	e.t.Helper()
	voters, alive := 0, 0
	for _, s := range e.conf[shard] {
		if s.Voter {
			voters++
			if node := nodeOf(e.table().Shard(shard), s.Replica); node == "" || e.alive(node) {
				alive++
			}
		}
	}
	if 2*alive <= voters {
		e.t.Fatalf("shard %d: %d of %d voters live", shard, alive, voters)
	}
	flags := 0
	for _, r := range e.table().Replicas(shard) {
		if r.GetJoining() && shard != ControlShard {
			flags++
		}
	}
	if flags > 1 {
		e.t.Fatalf("shard %d gets %d replicas at once", shard, flags)
	}
}

// run continues until there is nothing left to do.
func (e *estate) run(level bool) {
	e.t.Helper()
	for round := 0; ; round++ {
		busy := len(e.plan(level && round == 0)) > 0
		busy = e.begin() > 0 || busy
		for id := range e.table().placement {
			busy = e.step(uint32(id)) || busy
		}
		if !busy {
			return
		}
		if round > 20000 {
			e.t.Fatal("it does not come to rest")
		}
	}
}

func (e *estate) held() map[string]int {
	held := make(map[string]int)
	for _, record := range e.table().placement[1:] {
		for _, r := range record.Replicas {
			held[r.Node]++
		}
	}
	return held
}

// TestClusterChanges lets nodes join, drain, leave, die and come back in any order. When it has come to rest, every
// shard has all its replicas, on nodes that are wanted, one each, in as many zones as there are; what nodes hold is
// level; and the groups are as the table says.
func TestClusterChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SampledFrom([][]string{nil, {"a", "b", "c"}}).Draw(t, "zones")
		nodes := rapid.IntRange(3, 6).Draw(t, "nodes")
		e := newEstate(t, nodes, rapid.SampledFrom([]int{32, 64}).Draw(t, "shards"), 3, zones)
		e.run(false)
		for range rapid.IntRange(1, 5).Draw(t, "changes") {
			name := rapid.SampledFrom(slices.Sorted(maps.Keys(e.table().nodes))).Draw(t, "node")
			switch rapid.SampledFrom([]string{"join", "drain", "activate", "remove", "wipe", "kill", "revive"}).Draw(t, "change") {
			case "join":
				zone := ""
				if zones != nil {
					zone = rapid.SampledFrom(zones).Draw(t, "zone")
				}
				e.join(zone)
			case "drain":
				e.apply(stateCommand(name, ebbv1.NodeState_NODE_STATE_DRAINING))
			case "activate":
				e.apply(stateCommand(name, ebbv1.NodeState_NODE_STATE_UNSPECIFIED))
			case "remove":
				e.apply(stateCommand(name, ebbv1.NodeState_NODE_STATE_LEAVING))
			case "wipe":
				if len(e.dead) > 0 || len(Moves(e.table())) > 0 {
					continue // two failures at once are more than three replicas bear
				}
				record := newNodeRecord(e.table().Node(name))
				record.Disk += "'"
				e.apply(joinCommand(record, true))
			case "kill":
				if len(e.dead) == 0 && len(e.table().Nodes()) > 3 && len(Moves(e.table())) == 0 && e.bears(name) {
					e.dead[name] = true
				}
			case "revive":
				clear(e.dead)
			}
			if rapid.Bool().Draw(t, "rest") {
				e.run(false)
			}
		}
		e.run(false)
		e.atRest(t, zones != nil)
	})
}

// bears reports whether each group has a majority without a node: of two replicas, after a drain while another node was
// dead, it has not, and nothing can be changed until the node is back.
func (e *estate) bears(name string) bool {
	for id := range e.table().placement {
		voters, left := 0, 0
		for _, s := range e.conf[uint32(id)] {
			if !s.Voter {
				continue
			}
			voters++
			for _, r := range e.table().Replicas(uint32(id)) {
				if r.GetId() == s.Replica && r.GetNode() != name {
					left++
				}
			}
		}
		if left <= voters/2 {
			return false
		}
	}
	return true
}

func (e *estate) atRest(t *rapid.T, zoned bool) {
	table := e.table()
	var wanted []string
	zones := make(map[string]bool)
	for _, n := range table.Nodes() {
		if n.State == ebbv1.NodeState_NODE_STATE_LEAVING && e.alive(n.Name) {
			t.Fatalf("%s is still a member", n.Name)
		}
		if n.State == ebbv1.NodeState_NODE_STATE_UNSPECIFIED && e.alive(n.Name) {
			wanted = append(wanted, n.Name)
			zones[n.Zone] = true
		}
	}
	want := min(3, len(wanted))
	led := make(map[string]int)
	for id, record := range table.placement {
		var conf []Server
		seen, spread := make(map[string]bool), make(map[string]bool)
		for _, r := range record.Replicas {
			conf = append(conf, Server{r.Id, !r.Nonvoter})
			seen[r.Node], spread[table.Node(r.Node).Zone] = true, true
		}
		byID := func(a, b Server) int { return int(a.Replica) - int(b.Replica) }
		slices.SortFunc(conf, byID)
		slices.SortFunc(e.conf[uint32(id)], byID)
		if !slices.Equal(conf, e.conf[uint32(id)]) {
			t.Fatalf("group %d is %v and should be %v", id, e.conf[uint32(id)], conf)
		}
		if id == ControlShard {
			continue
		}
		led[record.Preferred]++
		if len(record.Replicas) != want || len(seen) != want {
			t.Fatalf("shard %d lies on %v: %d replicas are wanted", id, record.Replicas, want)
		}
		for node := range seen {
			if !slices.Contains(wanted, node) {
				t.Fatalf("shard %d has a replica on %s", id, node)
			}
		}
		if zoned && len(spread) < min(want, len(zones)) {
			t.Fatalf("shard %d lies in %d zones of %d", id, len(spread), len(zones))
		}
	}
	if zoned {
		return // uneven zones cannot be level
	}
	held, mean := e.held(), float64(int(table.Shards())*want)/float64(len(wanted))
	leads := float64(table.Shards()) / float64(len(wanted))
	for _, n := range wanted {
		if h := float64(held[n]); h < mean*leastLoad-1 || h > mean*replicaLoad+1 {
			t.Fatalf("%s holds %v, the mean is %v", n, h, mean)
		}
		if l := float64(led[n]); l < leads*leastLoad-2 || l > leads*replicaLoad+2 {
			t.Fatalf("%s leads %v, the mean is %v", n, l, leads)
		}
	}
}

// TestMovementIsNearIdeal grows and shrinks a cluster, and compares how many replicas moved with the least that could.
func TestMovementIsNearIdeal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(3, 5).Draw(t, "nodes"), 64, 3, nil)
		e.run(false)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			before := e.held()
			e.moved = 0
			ideal := 0.0
			if grow := len(before) <= 3 || rapid.Bool().Draw(t, "grow"); grow {
				more := rapid.IntRange(1, 2).Draw(t, "by")
				for range more {
					e.join("")
				}
				ideal = float64(192*more)/float64(len(before)+more) + float64(more) // every node follows the control group
			} else {
				name := rapid.SampledFrom(slices.Sorted(maps.Keys(before))).Draw(t, "gone")
				ideal = float64(before[name]) + 1 // another may vote
				e.must(stateCommand(name, ebbv1.NodeState_NODE_STATE_LEAVING))
			}
			e.run(false)
			if float64(e.moved) > 1.3*ideal {
				t.Fatalf("%d replicas moved, %v would have done", e.moved, ideal)
			}
		}
	})
}

// TestNothingMovesAtRest: a cluster at rest has no other targets, whether it was born so or came to it.
func TestNothingMovesAtRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(1, 7).Draw(t, "nodes"), rapid.IntRange(8, 100).Draw(t, "shards"), 0, nil)
		if targets := e.plan(false); len(targets) > 0 {
			t.Fatalf("a newborn cluster is to be changed: %v", targets)
		}
		e.join("")
		e.run(false)
		e.run(true)
		if targets := ComputePlacement(e.table(), Dispositions(e.table(), e.alive, func(string) bool { return false }), true); len(targets) > 0 {
			t.Fatalf("a level cluster is to be changed: %v", targets)
		}
		if moves := Moves(e.table()); len(moves) > 0 {
			t.Fatalf("moves are left: %v", moves)
		}
	})
}

// TestShortOutageMovesNothing: a node that has not been dead for long keeps its shards, and gets none.
func TestShortOutageMovesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, 5, 64, 3, nil)
		e.run(false)
		e.dead["ebb-2"] = true
		never := func(string) bool { return false }
		if targets := ComputePlacement(e.table(), Dispositions(e.table(), e.alive, never), false); len(targets) > 0 {
			t.Fatalf("moves away from a node that has just died: %v", targets)
		}
		e.must(stateCommand("ebb-1", ebbv1.NodeState_NODE_STATE_DRAINING))
		for _, target := range ComputePlacement(e.table(), Dispositions(e.table(), e.alive, never), false) {
			had := targetOf(e.table().Shard(target.Shard))
			if slices.Contains(target.Nodes, "ebb-2") && !slices.Contains(had, "ebb-2") {
				t.Fatalf("shard %d is given to a node that does not answer", target.Shard)
			}
		}
	})
}

// TestRemovalFromControlIsAMove: as long as a node that is to be removed is a member, something is left to do, also
// when it holds no shard.
func TestRemovalFromControlIsAMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(4, 7).Draw(t, "nodes"), 32, 3, nil)
		e.run(false)
		e.must(stateCommand("ebb-2", ebbv1.NodeState_NODE_STATE_DRAINING))
		e.run(false)
		if moves := Moves(e.table()); len(moves) > 0 {
			t.Fatalf("drained, %v is left", moves)
		}
		e.must(stateCommand("ebb-2", ebbv1.NodeState_NODE_STATE_LEAVING))
		for e.table().Node("ebb-2") != nil {
			if len(Moves(e.table())) == 0 {
				t.Fatal("nothing is left to do, and it is a member")
			}
			e.plan(false)
			e.begin()
			e.step(ControlShard)
		}
		if moves := Moves(e.table()); len(moves) > 0 {
			t.Fatalf("removed, %v is left", moves)
		}
	})
}

// TestFewerReplicas: when shards are to have fewer, those go that are on a node that does not answer.
func TestFewerReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(4, 6).Draw(t, "nodes"), 32, 2, nil)
		e.run(false)
		e.dead["ebb-1"] = true
		e.must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetReplication{SetReplication: &ebbv1.SetReplication{Replication: 1}}})
		for _, target := range ComputePlacement(e.table(), Dispositions(e.table(), e.alive, func(string) bool { return false }), false) {
			if slices.Contains(target.Nodes, "ebb-1") {
				t.Fatalf("shard %d of %v is to lie on %v", target.Shard, targetOf(e.table().Shard(target.Shard)), target.Nodes)
			}
		}
	})
}

func TestRebalanceHalted(t *testing.T) {
	for _, c := range []struct {
		nodes, dead int
		calm        bool
	}{{1, 0, true}, {3, 0, true}, {3, 1, false}, {4, 1, true}, {5, 1, true}, {5, 2, false}, {7, 2, true}, {7, 3, false}} {
		wire := &ebbv1.Table{}
		for i := range c.nodes {
			wire.Nodes = append(wire.Nodes, &ebbv1.NodeRecord{Name: fmt.Sprintf("ebb-%d", i)})
		}
		table, err := NewTable(wire)
		if err != nil {
			t.Fatal(err)
		}
		alive := func(node string) bool { return !(node < fmt.Sprintf("ebb-%d", c.dead)) }
		if why := RebalanceHalted(table, alive); (why == "") != c.calm {
			t.Errorf("%d of %d nodes dead: %q", c.dead, c.nodes, why)
		}
	}
}

// TestNewcomersThatDie: nodes join, are given shards, and die for good before they have anything, one of them before it
// follows the control group. Others join and leave as if they had not been there, what was to move goes elsewhere, and
// the dead can be removed.
func TestNewcomersThatDie(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(3, 5).Draw(t, "nodes"), 32, 3, nil)
		e.run(false)
		first, second := e.join(""), e.join("")
		e.dead[first] = true
		for range rapid.IntRange(0, 40).Draw(t, "rounds") {
			e.plan(false)
			e.begin()
			for id := range e.table().placement {
				if rapid.Bool().Draw(t, "step") {
					e.step(uint32(id))
				}
			}
		}
		e.dead[second] = true
		if rapid.Bool().Draw(t, "others") {
			e.join("")
		}
		e.run(false)
		for _, name := range []string{first, second} {
			e.must(stateCommand(name, ebbv1.NodeState_NODE_STATE_LEAVING))
		}
		e.run(false)
		for _, name := range []string{first, second} {
			if e.table().Node(name) != nil {
				t.Fatalf("%s, which is dead, is still a member", name)
			}
		}
		clear(e.dead)
		e.atRest(t, false)
	})
}
