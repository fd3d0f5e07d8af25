package cluster

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// marks are how a replica may stand in a record.
var marks = map[string]*ebbv1.ReplicaRecord{
	"":       {},
	"stays":  {},
	"leaves": {Leaving: true},
	"joins":  {Joining: true},
	"lost":   {Leaving: true, Lost: true},
}

// ward is a cluster of one shard whose record is given: replica i+1 lies on node ebb-i, and the control group on
// others.
func ward(t *testing.T, version uint32, how ...string) testControl {
	t.Helper()
	wire := &ebbv1.Table{Shards: 1, Replication: 3, Version: version}
	control, shard := &ebbv1.ShardRecord{Preferred: "c-0"}, &ebbv1.ShardRecord{Shard: 1, Preferred: "ebb-0", Why: "a test"}
	for i := range 3 {
		name := fmt.Sprintf("c-%d", i)
		wire.Nodes = append(wire.Nodes, &ebbv1.NodeRecord{Name: name, Disk: name})
		control.Replicas = append(control.Replicas, &ebbv1.ReplicaRecord{Id: uint64(100 + i), Node: name})
	}
	for i, h := range how {
		name, mark := fmt.Sprintf("ebb-%d", i), marks[h]
		wire.Nodes = append(wire.Nodes, &ebbv1.NodeRecord{Name: name, Disk: name})
		shard.Replicas = append(shard.Replicas, &ebbv1.ReplicaRecord{Id: uint64(i + 1), Node: name, Joining: mark.GetJoining(), Leaving: mark.GetLeaving(), Lost: mark.GetLost()})
	}
	wire.Placement = []*ebbv1.ShardRecord{control, shard}
	table, err := NewTable(wire)
	if err != nil {
		t.Fatal(err)
	}
	s := testControl{t, NewControl()}
	if e := s.apply(initCommand("c", table)).GetError(); e != nil {
		t.Fatal(e)
	}
	return s
}

// wipe lets node ebb-0 come with another disk.
func (s testControl) wipe(led ...uint32) *ebbv1.Error {
	s.t.Helper()
	return s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{
		Record: &ebbv1.NodeRecord{Name: "ebb-0", Disk: "another"}, Replace: true, LedWithout: led,
	}}}).GetError()
}

// combinations calls f with all ways to mark so many replicas.
func combinations(n int, f func(how []string)) {
	if n == 0 {
		f(nil)
		return
	}
	combinations(n-1, func(how []string) {
		for _, h := range []string{"stays", "leaves", "joins", "lost"} {
			f(append(slices.Clone(how), h))
		}
	})
}

// possible returns all configurations that a group may have by its record: with all that stay, and with some of the
// others.
func possible(record *ebbv1.ShardRecord) (all [][]Server) {
	all = [][]Server{nil}
	for _, r := range record.GetReplicas() {
		with := make([][]Server, 0, len(all))
		for _, c := range all {
			with = append(with, append(slices.Clone(c), Server{r.GetId(), true}))
		}
		if r.GetLeaving() || r.GetJoining() {
			with = append(with, all...)
		}
		all = with
	}
	return slices.DeleteFunc(all, func(c []Server) bool { return len(c) == 0 })
}

// led reports whether most voters of a configuration have their data.
func led(configuration []Server, lost func(replica uint64) bool) bool {
	have := 0
	for _, s := range configuration {
		if !lost(s.Replica) {
			have++
		}
	}
	return 2*have > len(configuration)
}

// TestWhatOutlivesALostDisk marks up to four replicas in all ways, loses the disk of the first, and looks at every
// configuration that the group may have. What the count says is certain has a majority in all of them, and what it says
// is not has none in one of them. Where the group is led, the node is let in and the group comes to rest without the
// lost replica; where it is not, the node is refused.
func TestWhatOutlivesALostDisk(t *testing.T) {
	cases := 0
	for n := range 4 {
		combinations(n, func(others []string) {
			for _, first := range []string{"stays", "leaves", "joins"} {
				how := append([]string{first}, others...)
				if slices.Index(how, "stays") < 0 && slices.Index(how, "leaves") < 0 {
					continue // no replica had it
				}
				table := ward(t, proto.StorageVersion, how...).c.Table()
				lost := func(replica uint64) bool { return replica == 1 || marks[how[replica-1]].GetLost() }
				sure := true
				for _, conf := range possible(table.Shard(1)) {
					cases++
					sure = sure && led(conf, lost)
					outlive(t, how, conf, lost)
				}
				if err := table.Survives("ebb-0", nil); (err == nil) != sure {
					t.Errorf("%v: %v, though it is certain: %v", how, err, sure)
				}
			}
		})
	}
	if cases < 500 {
		t.Errorf("only %d cases", cases)
	}
}

// outlive loses the disk of the first replica of a group that has a configuration.
func outlive(t *testing.T, how []string, conf []Server, lost func(uint64) bool) {
	t.Helper()
	s := ward(t, proto.StorageVersion, how...)
	var evidence []uint32
	if led(conf, lost) {
		evidence = []uint32{1}
	}
	before := s.c.Table()
	switch err := s.wipe(evidence...); {
	case err != nil && s.c.Table() != before:
		t.Errorf("%v: refused, and the table has changed", how)
	case err != nil && evidence != nil && len(conf) > 0 && underWay(before.Shard(1)):
		t.Errorf("%v, of which %v is led without: %v", how, conf, err.GetMessage())
	case err != nil:
	case evidence == nil:
		if before.Survives("ebb-0", nil) != nil {
			t.Errorf("%v: let in, though %v is led by nobody", how, conf)
		}
	default:
		s.rest(t, how, conf)
	}
}

// rest continues with a group until nothing is left to do.
func (s testControl) rest(t *testing.T, how []string, conf []Server) {
	t.Helper()
	for range 50 {
		record := s.c.Table().Shard(1)
		gone := func(id uint64) bool {
			return !slices.ContainsFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetId() == id && !r.GetLost() })
		}
		if !led(conf, gone) {
			t.Fatalf("%v has come to %v of %v, which has no majority", how, conf, record.GetReplicas())
		}
		self := conf[slices.IndexFunc(conf, func(c Server) bool { return c.Voter && !gone(c.Replica) })].Replica
		for _, r := range record.GetReplicas() { // one that stays leads
			if !r.GetLeaving() && slices.Contains(conf, Server{r.GetId(), true}) {
				self = r.GetId()
			}
		}
		step := NextStep(record, conf, self, func(_ string, id uint64) bool { return !gone(id) }, func(uint64) bool { return true })
		at := slices.IndexFunc(conf, func(c Server) bool { return c.Replica == step.Replica })
		conf = slices.Clone(conf)
		switch step.Action {
		case StepNone:
			if underWay(record) {
				t.Errorf("%v: nothing is done with %v", how, record.GetReplicas())
			}
			return
		case StepAdd:
			conf = append(conf, Server{step.Replica, false})
		case StepPromote:
			conf[at].Voter = true
		case StepRemove:
			conf = slices.Delete(conf, at, at+1)
		case StepSettle:
			settle := &ebbv1.SettleShard{Shard: 1, Epoch: record.GetEpoch()}
			for _, c := range conf {
				settle.Replicas = append(settle.Replicas, c.Replica)
			}
			if err := s.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SettleShard{SettleShard: settle}}).GetError(); err != nil {
				t.Fatalf("%v: %v", how, err)
			}
		default:
			t.Fatalf("%v: %v has come to %v, and then to %v", how, record.GetReplicas(), conf, step)
		}
	}
	t.Fatalf("%v does not come to rest", how)
}

// TestLostReplicaIsNobody: a replica whose disk is lost neither leads nor counts as a copy, and no move goes from it.
func TestLostReplicaIsNobody(t *testing.T) {
	s := ward(t, proto.StorageVersion, "stays", "stays", "leaves")
	if err := s.wipe(1); err != nil {
		t.Fatal(err.GetMessage())
	}
	table := s.c.Table()
	record := table.Shard(1)
	if got := record.GetPreferred(); got != "ebb-1" {
		t.Errorf("%s is to lead, of %v", got, record.GetReplicas())
	}
	if got := record.GetReplicas()[2]; got.GetLeaving() || !got.GetJoining() {
		t.Errorf("who was to leave is needed, and %v", got)
	}
	moves := slices.DeleteFunc(Moves(table), func(m *ebbv1.Move) bool { return m.GetShard() != 1 })
	if len(moves) != 2 || moves[0].GetFrom() != "" || moves[0].GetTo() != "ebb-0" || moves[0].GetPhase() != "planned" || moves[0].GetWhy() != "ebb-0 lost its disk" {
		t.Errorf("it moves like this: %v", moves)
	}
	if only := ward(t, proto.StorageVersion, "stays", "lost").c.Table().OnlyCopies("ebb-0"); !slices.Equal(only, []uint32{1}) {
		t.Errorf("the only copies of the first are of %v", only)
	}
}

// TestLostReplicasOfOlderBuilds: until every node knows the mark, none is made, and what a group outlives is counted as
// they do.
func TestLostReplicasOfOlderBuilds(t *testing.T) {
	s := ward(t, proto.VersionLostReplicas-1, "stays", "stays", "leaves")
	if err := s.wipe(); err != nil {
		t.Fatal(err.GetMessage())
	}
	for _, r := range s.c.Table().Replicas(1) {
		if r.GetLost() || r.GetJoining() {
			t.Errorf("%v", r)
		}
	}
	if moves := NextMoves(s.c.Table(), func(string) bool { return true }, 4); len(moves) > 0 {
		t.Errorf("%v", moves)
	}
}

// TestKilledWhileReplicasLeave: shards are to have fewer replicas, and a node dies on the way. No group that has a
// majority gives it up; those that have none hold up no others, and say whom they wait for. When the node is back, or
// is removed, or its disk is lost, what can go on does.
func TestKilledWhileReplicasLeave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := newEstate(t, rapid.IntRange(3, 5).Draw(t, "nodes"), 32, 3, nil)
		e.run(false)
		e.must(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_SetReplication{SetReplication: &ebbv1.SetReplication{Replication: 2}}})
		e.plan(false)
		some := func() bool { return rapid.Bool().Draw(t, "step") }
		for range rapid.IntRange(0, 12).Draw(t, "rounds") {
			e.begin()
			e.stepIf(some)
		}
		victim := rapid.SampledFrom([]string{"ebb-0", "ebb-1", "ebb-2"}).Draw(t, "victim")
		e.dead[victim] = true
		if rapid.Bool().Draw(t, "later") {
			e.still(t)
		}
		switch rapid.SampledFrom([]string{"back", "removed", "wiped"}).Draw(t, "fate") {
		case "back":
			clear(e.dead)
		case "removed":
			e.apply(stateCommand(victim, ebbv1.NodeState_NODE_STATE_LEAVING)) // of three at two replicas; else others are enough anyway
			e.plan(false)
		case "wiped":
			record := newNodeRecord(e.table().Node(victim))
			record.Disk += "'"
			var evidence []uint32
			needed := false
			for id := range e.table().placement {
				if e.answers(uint32(id)) {
					evidence = append(evidence, uint32(id))
				} else {
					needed = true
				}
			}
			err := e.apply(&ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_JoinNode{JoinNode: &ebbv1.JoinNode{Record: record, Replace: true, LedWithout: evidence}}}).GetError()
			if (err != nil) != needed {
				t.Fatalf("%s is needed: %v, and: %v", victim, needed, err.GetMessage())
			}
			if err == nil {
				clear(e.dead)
			}
		}
		e.still(t)
		if len(e.dead) == 0 {
			e.stillPlans(t)
		}
	})
}

// answers reports whether most voters of a group answer and have their data.
func (e *estate) answers(shard uint32) bool {
	record := e.table().Shard(shard)
	voters := slices.DeleteFunc(slices.Clone(e.conf[shard]), func(s Server) bool { return !s.Voter })
	return led(voters, func(id uint64) bool {
		at := slices.IndexFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetId() == id })
		return at < 0 || record.Replicas[at].GetLost() || !e.alive(record.Replicas[at].GetNode())
	})
}

// stepIf lets some of the groups that have a leader do a step.
func (e *estate) stepIf(some func() bool) (busy bool) {
	e.t.Helper()
	for id := range e.table().placement {
		if e.answers(uint32(id)) && some() {
			busy = e.step(uint32(id)) || busy
			if !e.answers(uint32(id)) {
				e.t.Fatalf("group %d has given up its majority: %v of %v", id, e.conf[uint32(id)], e.table().Replicas(uint32(id)))
			}
		}
	}
	return busy
}

// still continues without new targets until nothing can change. Whatever is left says what it waits for.
func (e *estate) still(t *rapid.T) {
	t.Helper()
	for round := 0; ; round++ {
		busy := e.stepIf(func() bool { return true }) // before anything is taken back
		if busy = e.begin() > 0 || busy; !busy {
			break
		}
		if round > 5000 {
			t.Fatal("it does not come to rest")
		}
	}
	moves := Moves(e.table())
	ExplainWaits(e.table(), moves, e.alive)
	for _, m := range moves {
		if m.GetWaits() == "" && m.GetShard() != ControlShard && m.GetPhase() != "leading" {
			t.Fatalf("%v waits for nothing: %v of %v", m, e.conf[m.GetShard()], e.table().Replicas(m.GetShard()))
		}
	}
}

// stillPlans is run for a cluster without dead nodes: all shards come to have what they should.
func (e *estate) stillPlans(t *rapid.T) {
	t.Helper()
	e.run(false)
	if moves := Moves(e.table()); len(moves) > 0 {
		t.Fatalf("%v is left", moves)
	}
	for shard := uint32(1); shard <= e.table().Shards(); shard++ {
		if n := len(e.table().Replicas(shard)); n != 2 {
			t.Fatalf("shard %d has %d replicas", shard, n)
		}
	}
}
