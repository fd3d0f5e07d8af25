package cluster

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// Sets of more than 4,096 members are for namespaces that do not forget, from the version on that knows them.
func TestControlKnowsLargeSets(t *testing.T) {
	s := bornCluster(t)
	large := func(name string, decay ebbv1.Decay, members uint32) *ebbv1.Namespace {
		return &ebbv1.Namespace{Name: name, Decay: decay, Sizes: &ebbv1.Sizes{SetMembers: members}}
	}
	refused := func(when, says string, r *ebbv1.ControlResult) {
		t.Helper()
		if e := r.GetError(); e.GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE || e.GetMessage() != says {
			t.Errorf("%s: %v, not %s", when, e, says)
		}
	}
	const none, halfLife = ebbv1.Decay_DECAY_NONE, ebbv1.Decay_DECAY_HALF_LIFE
	if e := s.apply(raiseCommand(proto.VersionAdds-1, s.c.Table().Epoch())).GetError(); e != nil {
		t.Fatal(e)
	}
	before := "size set.members of 4097: it must be from 16 to 4096"
	refused("before it is known", before, s.apply(setCommand(true, large("a", none, 4097))))
	restored := proto.FillNamespace(large("b", none, 4097), proto.DefaultNamespaceSettings())
	restored.Version, restored.HashSeed = 1, 7
	if err := s.c.Table().CheckRestore([]*ebbv1.Namespace{restored}); err == nil || err.Message != before {
		t.Errorf("a backup before it is known: %v", err)
	}
	if e := s.apply(raiseCommand(proto.VersionAdds, s.c.Table().Epoch())).GetError(); e != nil {
		t.Fatal(e)
	}
	if err := s.c.Table().CheckRestore([]*ebbv1.Namespace{restored}); err != nil {
		t.Errorf("a backup: %v", err)
	}
	ns := s.apply(setCommand(true, large("a", none, 65536))).GetNamespace()
	if ns.GetSizes().GetSetMembers() != 65536 {
		t.Fatalf("created as %v", ns)
	}
	refused("too many", "size set.members of 65537: it must be from 16 to 65536",
		s.apply(setCommand(true, large("c", none, 65537))))
	fades := "size set.members of %d: sets that fade keep 4096 members at most"
	refused("with a half-life", fmt.Sprintf(fades, 4097), s.apply(setCommand(true, large("c", halfLife, 4097))))
	refused("a half-life that comes later", fmt.Sprintf(fades, 65536),
		s.apply(setCommand(false, large("a", halfLife, 0))))
	if e := s.apply(setCommand(false, large("a", halfLife, 4096))).GetError(); e != nil {
		t.Errorf("a half-life with a smaller size: %v", e)
	}
	reborn(t, s.c)
}

// manyMembers writes members to a set. The name of each has so many bytes.
func (e *fakeCluster) manyMembers(namespace, key string, from, to, length int) {
	e.t.Helper()
	c := &ebbv1.Increments{}
	for i := from; i < to; i++ {
		c.Increments = append(c.Increments, &ebbv1.Increment{
			Key: []byte(key), Bin: fmt.Appendf(nil, "%0*d", length, i), Kind: ebbv1.Kind_KIND_SET,
		})
		if len(c.Increments) == 1000 || i == to-1 {
			cmd := &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Increments{Increments: c}}
			e.mustEnter(e.table.ShardOf(namespace, []byte(key)), cmd)
			c = &ebbv1.Increments{}
		}
	}
}

// raiseTo puts a storage version in force, in all shards too.
func (e *fakeCluster) raiseTo(version uint32) {
	e.t.Helper()
	e.index++
	e.control.Apply(e.index+1, encode(e.t, raiseCommand(version, e.table.Epoch())))
	if e.table = e.control.Table(); e.table.Version() != version {
		e.t.Fatalf("version %d is in force", e.table.Version())
	}
	for number := range e.states {
		e.mustEnter(number, &ebbv1.Command{Body: &ebbv1.Command_Behaviour{
			Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourOf(version)},
		}})
	}
}

// answerTo is the answer to one question.
func (e *fakeCluster) answerTo(q *ebbv1.Question) *ebbv1.Answer {
	e.t.Helper()
	answers := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if answers[0].GetError() != nil {
		e.t.Fatal(answers[0].GetError())
	}
	return answers[0]
}

// Sets of 65,536 members are estimated to 1/256, in unions and overlaps over shards too, however long their names are.
// They go to another shard under another name.
func TestLargeSets(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.raiseTo(proto.VersionAdds)
	e.create(&ebbv1.Namespace{
		Name: "n", Kind: ebbv1.Kind_KIND_SET, Decay: ebbv1.Decay_DECAY_NONE, Sizes: &ebbv1.Sizes{SetMembers: 65536},
	})
	a, b, c := "", "", "" // on three shards
	for i := 0; a == "" || b == "" || c == ""; i++ {
		key := fmt.Sprint("key", i)
		switch e.table.ShardOf("n", []byte(key)) {
		case 1:
			a = key
		case 2:
			b = key
		case 3:
			c = key
		}
	}
	e.manyMembers("n", a, 0, 200_000, 120)       // 8.4 MB of names in its sample
	e.manyMembers("n", b, 100_000, 300_000, 120) // half of them
	near := func(what string, got *ebbv1.Estimate, want, share float64) {
		t.Helper()
		deviation := math.Sqrt(want) * math.Sqrt((1-share)/share)
		if d := math.Abs(got.GetValue() - want); d > 4*deviation || d == 0 || got.GetStdError() > 2*deviation {
			t.Errorf("%s: %v, not %v +- %v", what, got, want, deviation)
		}
	}
	share := 65536.0 / 200_000
	total := func(keys ...string) *ebbv1.Summary {
		q := &ebbv1.SummaryQuestion{Members: true, Limit: 10}
		for _, key := range keys {
			q.Keys = append(q.Keys, []byte(key))
		}
		s := e.answerTo(&ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Summary{Summary: q}}).GetSummary()
		if len(s.GetMembers()) != 10 || len(s.GetMembers()[0]) != 120 {
			t.Errorf("members of %v: %q", keys, s.GetMembers())
		}
		return s
	}
	near("a set", total(a).GetTotal(), 200_000, share)
	near("a union", total(a, b).GetTotal(), 300_000, share)
	overlap := &ebbv1.OverlapQuestion{Keys: [][]byte{[]byte(a), []byte(b)}}
	o := e.answerTo(&ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Overlap{Overlap: overlap}}).GetOverlap()
	near("an intersection", o.GetIntersection(), 100_000, share)
	if j := o.GetJaccard(); math.Abs(j.GetValue()-1.0/3) > 0.01 || j.GetStdError() > 0.003 || j.GetStdError() == 0 {
		t.Errorf("similar by %v", j)
	}
	graph := &ebbv1.GraphQuestion{Keys: [][]byte{[]byte(a), []byte(b)}}
	g := e.answerTo(&ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Graph{Graph: graph}}).GetGraph()
	if links := g.GetNodes()[0].GetLinks(); len(links) != 1 ||
		math.Abs(links[0].GetJaccard().GetValue()-1.0/3) > 0.06 ||
		links[0].GetJaccard().GetStdError() < 0.01 { // a graph compares signatures of 1,024 registers
		t.Errorf("a graph %v", g)
	}

	rename := func(from, to string) (uint64, error) {
		r, err := e.keys("ebb-1").Rename(t.Context(),
			&ebbv1.RenameRequest{Namespace: "n", Key: []byte(from), To: []byte(to)})
		return r.GetBytesMoved(), err
	}
	if _, err := rename(a, c); err == nil ||
		!strings.Contains(err.Error(), "the limit of what goes from one shard to another is 4128768") {
		t.Errorf("8.4 MB of names: %v", err)
	}
	e.manyMembers("n", c, 0, 80_000, 20)
	before := sizeOfKey(e, c)
	other := c + "x"
	for e.table.ShardOf("n", []byte(other)) != 2 {
		other += "x"
	}
	moved, err := rename(c, other)
	if err != nil || moved < 65536*(8+20) {
		t.Fatalf("moved %d bytes: %v", moved, err)
	}
	if after := sizeOfKey(e, other); after != before {
		t.Errorf("after it was moved it has %v, not %v", after, before)
	}
	if n := sizeOfKey(e, c); n != 0 {
		t.Errorf("under the old name there are %v", n)
	}
}

func sizeOfKey(e *fakeCluster, key string) float64 {
	q := &ebbv1.SummaryQuestion{Keys: [][]byte{[]byte(key)}}
	return e.answerTo(&ebbv1.Question{
		Namespace: "n",
		Ask:       &ebbv1.Question_Summary{Summary: q},
	}).GetSummary().GetTotal().GetValue()
}
