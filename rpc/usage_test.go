package rpc

import (
	"context"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// boxWith has these tokens.
func boxWith(records ...*ebbv1.TokenRecord) *tokenBox { return &tokenBox{records} }

// A budget keeps a namespace from the memory of others: its admins do not set it, not even to nothing.
func TestBudgetsAreForOperators(t *testing.T) {
	box := boxWith(tokenRecord("admin", grant(admin, "*")), tokenRecord("operator", grant(operator, "")))
	s, access := guardedServices(box)
	ebb := ebbv1grpc.NewEbbClient(serve(t, s))
	for _, c := range []struct {
		who    string
		budget *ebbv1.NamespaceBudget
		want   string
	}{
		{"admin", nil, "yes"},
		{"admin", &ebbv1.NamespaceBudget{}, "no"},
		{"admin", &ebbv1.NamespaceBudget{Bytes: new(uint64(0))}, "no"},
		{"admin", &ebbv1.NamespaceBudget{Keys: new(uint64(7))}, "no"},
		{"operator", &ebbv1.NamespaceBudget{Keys: new(uint64(7))}, "yes"},
		{"root", &ebbv1.NamespaceBudget{Bytes: new(uint64(7))}, "yes"},
	} {
		for _, create := range []bool{false, true} {
			ns := &ebbv1.Namespace{Name: "clicks", Budget: c.budget}
			_, err := ebb.SetNamespace(as(t, access, c.who), &ebbv1.SetNamespaceRequest{Create: create, Namespace: ns})
			if got := verdict(ebbv1grpc.FromStatus(err)); got != c.want {
				t.Errorf("budget %v by %s (create %v): %s, want %s", c.budget, c.who, create, got, c.want)
			}
		}
	}
}

// takingBackups keeps what it was asked to restore.
type takingBackups struct {
	Backups
	took *ebbv1.RestoreNamespacesRequest
}

func (b *takingBackups) RestoreNamespaces(
	_ context.Context, req *ebbv1.RestoreNamespacesRequest,
) (*ebbv1.RestoreNamespacesResponse, error) {
	b.took = req
	return &ebbv1.RestoreNamespacesResponse{}, nil
}

// Budgets of a backup come back when an operator restores it; where an admin does, those stay that there are.
func TestRestoredBudgets(t *testing.T) {
	box := boxWith(tokenRecord("admin", grant(admin, "*")), tokenRecord("operator", grant(operator, "")))
	s, access := guardedServices(box)
	backups := &takingBackups{Backups: s.Backups}
	s.Backups = backups
	shards := ebbv1grpc.NewShardsClient(serve(t, s))
	for who, want := range map[string]bool{"admin": false, "operator": true, "node": true} {
		ns := &ebbv1.Namespace{Name: "new", HashSeed: 3, Budget: &ebbv1.NamespaceBudget{Keys: new(uint64(5))}}
		req := &ebbv1.RestoreNamespacesRequest{Namespaces: []*ebbv1.Namespace{ns}}
		_, err := shards.RestoreNamespaces(as(t, access, who), req)
		if err != nil {
			t.Fatal(err)
		}
		if got := backups.took.GetNamespaces()[0]; got.GetBudget() != nil != want || got.GetHashSeed() != 3 {
			t.Errorf("%s restores %v", who, got)
		}
	}
}

// Callers hear of the namespaces that they may read.
func TestUsageShowsWhatIsReadable(t *testing.T) {
	box := boxWith(tokenRecord("reader", grant(reader, "oth*")), tokenRecord("operator", grant(operator, "")))
	s, access := guardedServices(box)
	ebb := ebbv1grpc.NewEbbClient(serve(t, s))
	for who, want := range map[string]int{"reader": 1, "operator": 2, "node": 2} {
		resp, err := ebb.NamespaceUsage(as(t, access, who), &ebbv1.NamespaceUsageRequest{})
		if err != nil || len(resp.GetNamespaces()) != want {
			t.Errorf("%s hears of %v (%v)", who, resp.GetNamespaces(), err)
		}
	}
	_, err := ebb.NamespaceUsage(as(t, access, "reader"), &ebbv1.NamespaceUsageRequest{Name: "default"})
	if got := verdict(ebbv1grpc.FromStatus(err)); got != "no" {
		t.Errorf("a namespace that the caller may not read: %s, %v", got, err)
	}
}
