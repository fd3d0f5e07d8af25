package cluster

import (
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func budgetOf(bytes, keys uint64) *ebbv1.NamespaceBudget {
	b := &ebbv1.NamespaceBudget{}
	if bytes > 0 {
		b.Bytes = &bytes
	}
	if keys > 0 {
		b.Keys = &keys
	}
	return b
}

// What a request says of a budget changes, the rest stays, and 0 lifts it.
func TestControlMergesBudgets(t *testing.T) {
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionDeletion, s.c.Table().Epoch()))
	has := func(want *ebbv1.NamespaceBudget) {
		t.Helper()
		if got := s.c.Table().Namespace("a").GetBudget(); !pb.Equal(got, want) {
			t.Errorf("budget %v, want %v", got, want)
		}
	}
	set := func(b *ebbv1.NamespaceBudget) *ebbv1.ControlResult {
		return s.apply(setCommand(false, &ebbv1.Namespace{Name: "a", Budget: b}))
	}
	set(nil)
	has(nil)
	set(budgetOf(1000, 0))
	has(budgetOf(1000, 0))
	set(budgetOf(0, 7))
	has(budgetOf(1000, 7))
	set(nil)
	has(budgetOf(1000, 7))
	set(&ebbv1.NamespaceBudget{Keys: new(uint64(0))})
	has(budgetOf(1000, 0))
	tooLarge := []*ebbv1.NamespaceBudget{budgetOf(proto.BudgetBytesMax+1, 0), budgetOf(0, proto.BudgetKeysMax+1)}
	for _, b := range tooLarge {
		if r := set(b); r.GetError().GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE {
			t.Errorf("budget %v: %v", b, r.GetError())
		}
	}
	has(budgetOf(1000, 0))
	// A restore without a budget keeps the one that is there; one with a budget sets it.
	back := ofBackup("a", 9, 5)
	s.apply(restoreCommand(back))
	has(budgetOf(1000, 0))
	back.Budget = budgetOf(0, 3)
	s.apply(restoreCommand(back))
	has(budgetOf(0, 3))
	set(&ebbv1.NamespaceBudget{Bytes: new(uint64(0)), Keys: new(uint64(0))})
	has(nil)
}

// Before all nodes know budgets none is kept: those of older builds would not have it.
func TestControlKeepsNoBudgetTooEarly(t *testing.T) {
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionDeletion-1, s.c.Table().Epoch()))
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "a", Budget: budgetOf(1000, 0)}))
	back := ofBackup("b", 9, 5)
	back.Budget = budgetOf(1000, 0)
	s.apply(restoreCommand(back))
	for _, name := range []string{"a", "b"} {
		if ns := s.c.Table().Namespace(name); ns == nil || ns.GetBudget() != nil {
			t.Errorf("namespace %s: %v", name, ns)
		}
	}
}
